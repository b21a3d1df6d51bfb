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
    """Examples in docstrings run."""
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
        ("spark.dstreams.socket.maxLineBytes", "is read when a session is created"),
        ("spark.sql.files.ignoreMissingFiles", "is read when a session is created"),
    ],
)
def test_conf_without_effect(sc: SparkContext, key: str, message: str) -> None:
    """Settings that no query reads are refused."""
    made = StreamSession(sc)
    with pytest.raises(InvalidStreamError, match=message):
        made.conf.set(key, "data")
    assert made.conf.get(key) is None


@pytest.mark.deep
def test_spark_session(sc: SparkContext) -> None:
    """A SparkSession will do as well; anything else will not."""
    assert StreamSession(SparkSession(sc)).sparkContext is sc
    with pytest.raises(InvalidStreamError, match="needs a SparkContext or a SparkSession"):
        StreamSession("local")


def test_spark_connect() -> None:
    """A session of Spark Connect is refused with what to do."""
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(InvalidStreamError, match=r"Spark Connect.* run this program as a driver"):
        StreamSession(remote)


def test_unknown_table(sc: SparkContext) -> None:
    """A table that no query made is named."""
    with pytest.raises(InvalidStreamError, match="unknown table 'nothing'"):
        StreamSession(sc).table("nothing")


@pytest.mark.parametrize("start", [None, "0 seconds", "-0 ms", "0 hours"])
def test_windows_without_an_offset(start: str | None) -> None:
    """Spark's default is accepted, and is the same as none."""
    assert window("t", "1 hour", startTime=start) == window("t", "1 hour")


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
            lambda: window("t", "1 hour", None, "1 hour"),
            "startTime of window must be shorter than its slide of 3600000 ms, got '1 hour'",
        ),
        (
            lambda: window("t", "1 hour", "30 minutes", "-30 minutes"),
            "startTime of window must be shorter than its slide of 1800000 ms, got '-30 minutes'",
        ),
        (lambda: window("t", "1 hour", startTime="soon"), "startTime of window is 'soon'; use a"),
        (
            lambda: session_window("t", "-1 second"),
            "gapDuration of session_window is '-1 second'; use a",
        ),
    ],
)
def test_windows_refused(make: object, message: str) -> None:
    """Invalid windows are refused when they are created."""
    assert callable(make)
    with pytest.raises(InvalidStreamError, match=message):
        make()
