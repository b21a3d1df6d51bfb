"""A failed job in a line: the worker's own words."""

from __future__ import annotations

import functools
import linecache
import operator
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import py4j.java_gateway
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

from checkpoint import CorruptCheckpointError, NotDurableError, StorageRefusedError
from checkpoint.errors import Damage
from dstreams import BatchFailedError, SourceError, StreamingContext
from dstreams.spark.failures import (
    UserFunctionError,
    calling,
    class_of,
    code_of,
    located,
    make_brief,
    stops_stream,
    summarize,
    with_code,
)


def failure_of(sc: SparkContext, fail: Any) -> Py4JJavaError:
    with pytest.raises(Py4JJavaError) as caught:
        sc.parallelize([0], 1).foreach(fail)
    return caught.value


def test_failed_job_says_what_the_worker_raised(sc: SparkContext) -> None:
    """The last exception of a chain counts, with all lines of its message, and no frames."""

    def fail(_: Any) -> None:
        try:
            raise ValueError("the first of two")
        except ValueError as error:
            raise LookupError(
                "no such row\nkey: 7\n  Hint: look again\n\nTraceback: none"
            ) from error

    error = failure_of(sc, fail)
    assert summarize(error) == "LookupError: no such row key: 7 Hint: look again Traceback: none"
    assert not stops_stream(error)


def test_failed_job_of_a_storage(sc: SparkContext) -> None:
    """An error of the checkpoint inside of a task is known as one."""

    def fail(_: Any) -> None:
        raise CorruptCheckpointError(
            "dir/a.state", "is missing", "a file", "restore it", Damage.MISSING
        )

    error = failure_of(sc, fail)
    assert summarize(error) == (
        "checkpoint.errors.CorruptCheckpointError: dir/a.state is missing; expected a file; "
        "restore it"
    )
    assert stops_stream(error)


def test_failure_without_a_message(sc: SparkContext) -> None:
    """An exception without a message is named by its type."""

    def fail(_: Any) -> None:
        raise KeyError

    assert summarize(failure_of(sc, fail)) == "KeyError"


def test_failure_of_the_jvm(sc: SparkContext, tmp_path: Path) -> None:
    """Without an error in Python, the summary is the JVM's exception without its frames."""
    with pytest.raises(Py4JJavaError) as caught:
        sc.textFile(str(tmp_path / "missing")).count()
    summary = summarize(caught.value)
    assert "InvalidInputException: Input path does not exist" in summary
    assert "\n" not in summary
    assert "\tat " not in summary
    assert not stops_stream(caught.value)


class Told(Exception):  # noqa: N818 - not an error of ours
    """An exception of the JVM, as far as its text goes."""

    java_exception = object()


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (
            "An error\nTraceback (most recent call last):\n  File 'a', line 1\n    f()\n"
            "ValueError: bad\n\n\tat org.apache.spark\n\tat java.base",
            "ValueError: bad",
        ),
        (
            "Traceback (most recent call last):\n  File 'a', line 1\n    f()\n    ^^^\n"
            "a.b.OwnError: line one\nline: two\n\tat org.apache.spark",
            "a.b.OwnError: line one line: two",
        ),
        (
            "x: Traceback (most recent call last):\n  File 'a', line 1\nKeyError: 1\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n  File 'b', line 2\nTypeError: two\n"
            " SQLSTATE: 38000\n\tat org.apache.spark\nCaused by: java.lang.Exception: no",
            "TypeError: two",
        ),
        (
            "Traceback (most recent call last):\n  File 'a', line 1\n"
            "KeyboardInterrupt\n\n\tat org.apache.spark",
            "KeyboardInterrupt",
        ),
        ("An error occurred\n: org.apache.spark.X: gone\n\tat y", "org.apache.spark.X: gone"),
        (
            "An error\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 "
            "in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage 3.0 (TID 6) "
            "(192.0.2.2 executor driver): java.io.IOException: no space\n\tat y",
            "java.io.IOException: no space",
        ),
        (
            "An error\n: x.Exception: Lost task: Python worker exited unexpectedly (crashed).\n"
            "\tat x\nCaused by: java.io.FileNotFoundException: File a is gone\n\tat y",
            "java.io.FileNotFoundException: File a is gone",
        ),
        (
            "An error\n: org.apache.spark.SparkException: \nError from python worker:\n"
            "  Traceback (most recent call last):\n    File 'a', line 1, in <module>\n"
            "      import b\n  ImportError: cannot import name 'c' from 'b'\nPYTHONPATH was:\n"
            "  /lib/pyspark.zip\norg.apache.spark.SparkException: EOFException\n\tat x",
            "a Python worker could not be started: ImportError: cannot import name 'c' from 'b'",
        ),
        (
            "x\nError from python worker:\n  python3: not found\nPYTHONPATH was:\n  /a\n\tat x",
            "a Python worker could not be started: python3: not found",
        ),
        ("only this", "only this"),
        ("", "unknown failure"),
        ("Traceback (most recent call last):\n  cut off", "  cut off"),
    ],
    ids=[
        "plain",
        "more lines",
        "chain",
        "no words",
        "jvm",
        "aborted",
        "no file",
        "no start",
        "no interpreter",
        "one line",
        "nothing",
        "cut off",
    ],
)
def test_texts(text: str, summary: str) -> None:
    """Every text of a failure has a summary that is not empty."""
    assert summarize(Told(text)) == summary.strip()


def test_an_exception_that_cannot_say_what_it_is() -> None:
    """An error in a user's own class does not replace the failure."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert summarize(BrokenError()) == "BrokenError"


def test_exceptions_of_the_driver() -> None:
    """An ordinary exception is its type and its words."""
    assert summarize(ValueError("bad\nreally")) == "ValueError: bad\nreally"
    assert summarize(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    ("error", "of_storage"),
    [
        (StorageRefusedError("full"), True),
        (NotDurableError("not synced"), True),
        (OSError("no space left"), False),
        (ConnectionRefusedError("by a service"), False),
        (ValueError("checkpoint.errors.NotDurableError: only quoted"), False),
        (Told("Traceback (most recent call last):\n  f\ncheckpoint.errors.X: full\n\tat y"), True),
        (Told("Traceback (most recent call last):\n  f\ncheckpoints.X: other\n\tat y"), False),
        (Told("Traceback (most recent call last):\n  f\nValueError: checkpoint.\n\tat y"), False),
    ],
    ids=repr,
)
def test_failures_of_storage(error: BaseException, of_storage: bool) -> None:
    """Errors of the checkpoint's storage are distinguished from those of users' functions."""
    assert stops_stream(error) is of_storage


def test_errors_that_a_spark_session_gives(sc: SparkContext, monkeypatch: Any) -> None:
    """With a SparkSession errors of jobs have another class, and say the same."""
    known = py4j.java_gateway.get_return_value
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", known)
    SparkSession(sc)

    def fail(_: Any) -> None:
        raise LookupError("no such row")

    with pytest.raises(Exception, match="no such row") as caught:
        sc.parallelize([0], 1).foreach(fail)
    assert summarize(caught.value) == "LookupError: no such row"
    assert not stops_stream(caught.value)


HERE = Path(__file__).name


def halve(number: int) -> float:
    return 1 / number


def line(text: str) -> int:
    """The line of this file that has a text."""
    return Path(__file__).read_text().partition(text)[0].count("\n") + 1


def failing(ssc: StreamingContext) -> BatchFailedError:
    with pytest.raises(BatchFailedError) as raised:
        ssc.step()
    return raised.value


def halves(numbers: Iterable[int]) -> Iterator[float]:
    for number in numbers:
        yield halve(number)


def add(one: Any, two: Any) -> Any:
    return one + two


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "map": lambda s: s.map(halve),
    "filter": lambda s: s.filter(halve),
    "flatMap": lambda s: s.flatMap(lambda n: [halve(n)]),
    "flatMap late": lambda s: s.flatMap(lambda n: halves([n])),
    "mapPartitions": lambda s: s.mapPartitions(halves),
    "mapPartitionsWithIndex": lambda s: s.mapPartitionsWithIndex(lambda _, part: halves(part)),
    "mapValues": lambda s: s.map(lambda n: ("k", n)).mapValues(halve),
    "flatMapValues": lambda s: s.map(lambda n: ("k", n)).flatMapValues(lambda n: [halve(n)]),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", OPERATIONS)
def test_functions_of_records_are_named(name: str, ssc: StreamingContext) -> None:
    """Operation, function and line, and the record or key that it was called with."""
    OPERATIONS[name](ssc.queueStream([[0]])).foreachRDD(lambda rdd: rdd.collect())
    error = failing(ssc)
    at = rf"{HERE}:{line('return 1 ' + '/ number')} in halve"
    operation = name.split(maxsplit=1)[0]
    subject = {"k": "for key 'k'", "r": "for record 0", "": ""}[
        "k" if "Values" in name else "" if "Partitions" in name else "r"
    ]
    assert re.fullmatch(
        rf"batch \d+ at 1000 ms \(.*?\) failed in foreachRDD at {HERE}:\d+: "
        rf"function \S+:\d+ of {operation} at "
        rf"{HERE}:\d+ failed ?{subject}: ZeroDivisionError: division by zero \({at}\)",
        str(error),
    )
    assert error.batch_infos[0].failure == str(error)
    assert error.batch_infos[0].outputs[0].failure == str(error).partition(": ")[2]


@pytest.mark.deep
@pytest.mark.parametrize("func", [add, operator.add], ids=["python", "c"])
@pytest.mark.parametrize("name", ["reduce", "reduceByKey", "combineByKey"])
def test_functions_of_two_values_are_named(
    name: str, func: Any, ssc: StreamingContext, sc: SparkContext
) -> None:
    """Also those that are written in C, which no traceback has."""
    values: Any = ssc.queueStream([sc.parallelize([1, "a"], 1)])
    pairs = values.map(lambda value: ("k", value))
    streams = {
        "reduce": lambda: values.reduce(func),
        "reduceByKey": lambda: pairs.reduceByKey(func),
        "combineByKey": lambda: pairs.combineByKey(_same, func, func),
    }
    streams[name]().foreachRDD(lambda rdd: rdd.collect())
    message = str(failing(ssc))
    wanted = "add" if func is add else "_operator.add"
    assert re.search(
        rf"function \S*{wanted}(:\d+)? of {name} at {HERE}:\d+ failed: TypeErr", message
    )


def test_lines_of_a_notebook_are_those_of_its_cells(
    ssc: StreamingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of the cell, with the code that only the driver has."""
    shell = SimpleNamespace(
        compile=SimpleNamespace(
            format_code_name=lambda name: ("Cell", "In[7]") if name == "/kernel/1.py" else None
        )
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    source = "def halve(number):\n    return 1 / number\n"
    monkeypatch.setitem(linecache.cache, "/kernel/1.py", (1, None, source.splitlines(), "1.py"))
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "/kernel/1.py", "exec"), names)  # noqa: S102
    ssc.queueStream([[0]]).map(names["halve"]).foreachRDD(lambda rdd: rdd.collect())
    error = failing(ssc)
    assert str(error).endswith("ZeroDivisionError: division by zero (In[7]:2 in halve)")
    assert with_code(error).splitlines()[-2:] == [
        "  Cell In[7], line 2, in halve",
        "    return 1 / number",
    ]


def _same(value: Any) -> Any:
    return value


def test_who_is_upstream_is_not_blamed_downstream(ssc: StreamingContext, sc: SparkContext) -> None:
    """A function that pulls what fails is not taken for the one that failed."""
    numbers = ssc.queueStream([[0]]).transform(lambda rdd: rdd.map(halve))
    numbers.mapPartitions(lambda part: (n for n in part)).foreachRDD(lambda rdd: rdd.collect())
    message = str(failing(ssc))
    assert "of mapPartitions" not in message
    assert message.endswith(
        f"ZeroDivisionError: division by zero ({HERE}:{line('return 1 ' + '/ number')} in halve)"
    )


def test_transform_is_named(ssc: StreamingContext) -> None:
    """A failure while an RDD is created names the operation."""

    def enrich(rdd: RDD[int]) -> RDD[int]:
        raise LookupError("no table")

    ssc.queueStream([[1]]).transform(enrich).map(str).pprint()
    assert re.fullmatch(
        rf"batch \d+ at 1000 ms \(.*?\) failed in making the RDD for pprint at {HERE}:\d+, "
        rf"in transform at "
        rf"{HERE}:\d+: LookupError: no table \({HERE}:\d+ in enrich\)",
        str(failing(ssc)),
    )


def test_a_failed_job_prints_itself_in_a_few_lines(ssc: StreamingContext) -> None:
    """It is still PySpark's error; the text of the JVM is in an attribute."""

    def save(rdd: RDD[int]) -> None:
        rdd.foreach(halve)

    ssc.queueStream([[0]]).foreachRDD(save)
    error = failing(ssc)
    cause = error.__cause__
    assert isinstance(cause, Py4JJavaError)
    assert type(cause).__name__ == "Py4JJavaError"
    assert type(cause).__module__ == "py4j.protocol"
    assert cause.java_exception is not None
    assert "\tat org.apache.spark" in cause.java
    assert str(cause).splitlines() == [
        "ZeroDivisionError: division by zero",
        f'  File "{__file__}", line {line("rdd.foreach" + "(halve)")}, in save',
        "    rdd.foreach(halve)",
        f'  File "{__file__}", line {line("return 1 " + "/ number")}, in halve',
        "    return 1 / number",
    ]
    assert with_code(error).splitlines() == [str(error), *str(cause).splitlines()[1:]]
    printed = traceback.format_exception(error)
    assert len("".join(printed).splitlines()) < 40
    assert "\tat " not in "".join(printed)


def test_a_brief_error_stays_what_it_says(sc: SparkContext) -> None:
    """Making it brief again, as in the next batch, changes nothing."""
    with pytest.raises(Py4JJavaError) as raised:
        sc.parallelize([0], 1).foreach(halve)
    error = raised.value
    before = summarize(error), located(error), code_of(error), class_of(error)
    make_brief(error)
    kind = type(error)
    make_brief(error)
    assert type(error) is kind
    assert (summarize(error), located(error), code_of(error), class_of(error)) == before
    assert class_of(error) == "ZeroDivisionError"


def test_an_error_of_the_driver_loses_our_frames_alone() -> None:
    """Those of other libraries stay, and all of them where none is the user's."""

    def own() -> None:
        functools.reduce(add, [1, "a"])

    with pytest.raises(TypeError) as raised:
        own()
    make_brief(raised.value)
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["own", "add"]
    assert located(raised.value).endswith(f"({HERE}:{line('return one ' + '+ two')} in add)")


@pytest.mark.parametrize(
    "error",
    [
        SourceError("gone"),
        CorruptCheckpointError("a", "is", "b", "c", Damage.DAMAGED),
        UserFunctionError(),
    ],
)
def test_errors_of_ours_are_not_a_functions(error: Exception) -> None:
    """Errors that stop a stream or already name a function are passed on by other functions."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised, calling("map at a.py:1", fail):
        fail()
    assert raised.value is error


def test_a_worker_that_ended(ssc: StreamingContext) -> None:
    """It cannot say why; the message says what may be, and the attempts that Spark made."""

    def end(_: int) -> None:
        import os  # noqa: PLC0415 - a worker's

        os._exit(3)

    ssc.queueStream([[0]]).foreachRDD(lambda rdd: rdd.foreach(end))
    assert re.search(
        r": a Python worker ended without an exception in all 4 attempts: .*short",
        str(failing(ssc)),
    )
