"""Sessions: settings, and the examples of docstrings."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import dstreams.structured
from dstreams.errors import InvalidStreamError
from dstreams.monitoring import progress
from dstreams.structured import StreamSession, session_window, window, window_function
from dstreams.structured.api import aggregates, session
from dstreams.structured.execution import watermarks

MODULES = (dstreams.structured, session, aggregates, progress, watermarks, window_function)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_docstrings(sc: SparkContext, module: ModuleType) -> None:
    """What docstrings show is what comes out."""
    result = doctest.testmod(module, extraglobs={"spark": sc})
    assert result.attempted > 0
    assert result.failed == 0


def test_conf(sc: SparkContext) -> None:
    """Settings can be set and forgotten; state has as many partitions as there are cores."""
    made = StreamSession(sc)
    assert made.conf.get("spark.sql.shuffle.partitions") == str(sc.defaultParallelism)
    made.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", False)
    assert made.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "false"
    made.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    assert made.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true"
    assert made.conf.get("spark.nothing", "default") == "default"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "spark.dstreams.state.value",
            r"unknown setting .*; did you mean spark.dstreams.state.values\?",
        ),
        ("spark.dstreams.socket.maxLineBytes", "is read when a session is made"),
        ("spark.sql.files.ignoreMissingFiles", "is read when a session is made"),
    ],
)
def test_conf_without_effect(sc: SparkContext, key: str, message: str) -> None:
    """What no query would ever read is refused."""
    made = StreamSession(sc)
    with pytest.raises(InvalidStreamError, match=message):
        made.conf.set(key, "data")
    assert made.conf.get(key) is None


def test_spark_session(sc: SparkContext) -> None:
    """A SparkSession will do as well; anything else will not."""
    assert StreamSession(SparkSession(sc)).sparkContext is sc
    with pytest.raises(InvalidStreamError, match="needs a SparkContext or a SparkSession"):
        StreamSession("local")


def test_unknown_table(sc: SparkContext) -> None:
    """A table that no query made is named."""
    with pytest.raises(InvalidStreamError, match="there is no table 'nothing'"):
        StreamSession(sc).table("nothing")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: window("t", "10 seconds", "20 seconds"), "records between two windows"),
        (
            lambda: window("t", "0 seconds"),
            "size of window is '0 seconds'; use a duration of at least 1 ms",
        ),
        (lambda: window("t", 10), "size of window is 10; use a duration"),  # type: ignore[arg-type]
        (
            lambda: session_window("t", "-1 second"),
            "gapDuration of session_window is '-1 second'; use a",
        ),
    ],
)
def test_windows_refused(make: object, message: str) -> None:
    """What is no window is refused where it is written."""
    assert callable(make)
    with pytest.raises(InvalidStreamError, match=message):
        make()
