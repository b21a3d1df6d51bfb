"""Errors that a user can read: his function, his line, and the rest where he asks for it."""

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

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext

from checkpoint import CorruptCheckpointError
from checkpoint.errors import Damage
from dstreams import BatchFailedError, SourceError, StreamingContext
from dstreams.spark.failures import (
    UserFunctionError,
    calling,
    class_of,
    code_of,
    located,
    make_brief,
    summarize,
    with_code,
)

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
    """What fails while an RDD is made is told by the operation that makes it."""

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
    """Who catches it gets what PySpark raises; the JVM's part is there for who asks."""

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
    """What stops a stream, or names a function already, passes through other functions."""

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
        r": a Python worker ended without a word in all 4 attempts: .*short", str(failing(ssc))
    )
