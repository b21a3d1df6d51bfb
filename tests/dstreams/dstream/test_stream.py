"""Methods of every stream: its description, persistence and slices, and element functions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, StorageLevel

from dstreams import InvalidStreamError, StreamingContext
from dstreams.testing import BatchDriver, ManualClock


def test_a_stream_says_what_it_is(sc: SparkContext) -> None:
    """The operation and its place in the program."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    source = ssc.queueStream([])
    for stream, name in (
        (source, "queueStream"),
        (source.map(str), "map"),
        (source.updateStateByKey(lambda values, state: state), "updateStateByKey"),
        (ssc.union(source, source), "union"),
        (source.count(), "count"),
        (source.countByValue(), "countByValue"),
        (source.join(source), "join"),
    ):
        assert re.fullmatch(rf"DStream\({name} at test_stream.py:\d+\)", repr(stream))


def test_options_return_the_stream(sc: SparkContext) -> None:
    """So calls can be chained."""
    stream = StreamingContext(sc, 1).queueStream([])
    assert stream.cache() is stream
    assert stream.persist() is stream
    assert stream.persist(StorageLevel.DISK_ONLY) is stream
    assert stream.checkpoint(2) is stream


def test_the_last_level_counts(sc: SparkContext) -> None:
    """It may be changed before the start."""
    with BatchDriver(sc) as driver:
        stream = driver.input([[1]]).map(str).cache().persist(StorageLevel.DISK_ONLY)
        levels: list[Any] = []
        stream.foreachRDD(lambda rdd: levels.append(rdd.getStorageLevel()))
        driver.run(1)
    assert levels == [StorageLevel.DISK_ONLY]


@pytest.mark.deep
@pytest.mark.parametrize(("begin", "end"), [("a", 1), (1, None), (True, 2), (1, [2])])
def test_slice_needs_times(sc: SparkContext, begin: Any, end: Any) -> None:
    """Datetimes or seconds; the error has the parameter."""
    with BatchDriver(sc) as driver:
        stream = driver.input([[1]])
        driver.output(stream)
        driver.run(1)
        with pytest.raises(InvalidStreamError, match="must be a datetime or a number of seconds"):
            stream.slice(begin, end)


def test_a_range_that_runs_backwards_has_nothing(sc: SparkContext) -> None:
    """A range that ends before it begins is empty and not an error."""
    with BatchDriver(sc) as driver:
        stream = driver.input([[1], [2]])
        driver.output(stream)
        driver.run(2)
        assert stream.slice(2, 1) == []


def test_functions_may_be_of_any_kind(sc: SparkContext) -> None:
    """Methods of types and of objects, builtins, and types."""
    with BatchDriver(sc) as driver:
        words = driver.input([["b", "a", ""]])
        streams = (
            words.map(str.upper),
            words.map(len),
            words.filter(bool),
            words.map(Path),
            words.map("-".join),
        )
        seen = [driver.output(stream) for stream in streams]
        driver.run(1)
    assert seen == [
        [["B", "A", ""]],
        [[1, 1, 0]],
        [["b", "a"]],
        [[Path("b"), Path("a"), Path()]],
        [["b", "a", ""]],
    ]


def test_partitioning_is_kept_on_request(sc: SparkContext) -> None:
    """As with RDDs, map and similar methods keep the partitioner only on request."""
    kept: list[bool] = []
    with BatchDriver(sc) as driver:
        states = driver.input([[("a", 1)]]).updateStateByKey(lambda values, state: 1)
        for preserves in (True, False):
            for stream in (
                states.map(tuple, preserves),
                states.flatMap(lambda pair: [pair], preserves),
                states.mapPartitions(list, preserves),
                states.mapPartitionsWithIndex(lambda index, pairs: pairs, preserves),
            ):
                stream.foreachRDD(lambda rdd: kept.append(rdd.partitioner is not None))
        driver.run(1)
    assert kept == [True] * 4 + [False] * 4
