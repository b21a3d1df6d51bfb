"""A failed job in a line: the worker's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import py4j.java_gateway
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from checkpoint import CorruptCheckpointError, NotDurableError, StorageRefusedError
from checkpoint.errors import Damage
from dstreams.spark.failures import stops_stream, summarize


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
    """An exception without words is told by its type."""

    def fail(_: Any) -> None:
        raise KeyError

    assert summarize(failure_of(sc, fail)) == "KeyError"


def test_failure_of_the_jvm(sc: SparkContext, tmp_path: Path) -> None:
    """Where no Python was involved, the JVM's exception is told, without its frames."""
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
    """Whatever the text of a failure looks like, something of it is told."""
    assert summarize(Told(text)) == summary.strip()


def test_an_exception_that_cannot_say_what_it_is() -> None:
    """What a user's own class does wrong does not take the place of the failure."""

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
    """What comes from the storage of checkpoints is told from what users' functions raise."""
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
