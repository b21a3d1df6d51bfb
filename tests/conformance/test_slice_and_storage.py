"""Slices, what is remembered and forgotten, what is persisted."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

import pytest
from pyspark import RDD, SparkContext, StorageLevel

from dstreams import DStream, InvalidStreamError, Settings, StreamingContext, StreamLifecycleError
from dstreams.testing import BatchDriver, ManualClock


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def numbered(driver: BatchDriver, batches: int) -> DStream:
    """The stream of 1, then 2, then 3 ..."""
    return driver.input([[number] for number in range(1, batches + 1)])


def records(rdds: list[RDD[Any]]) -> list[Any]:
    return [record for rdd in rdds for record in rdd.collect()]


def remembered(ssc: StreamingContext, stream: DStream) -> list[int]:
    assert ssc._engine is not None
    return ssc._engine.rdds.times(stream._node)


def persisted(sc: SparkContext) -> set[int]:
    """Ids of the RDDs that are marked as persisted in this context."""
    return {int(number) for number in sc._jsc.getPersistentRDDs().keySet()}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("begin", "end", "wanted"),
    [(0, 1, [1]), (0, 2, [1, 2]), (1, 2, [1, 2]), (2, 4, [2, 3, 4])],
)
def test_slice(sc: SparkContext, begin: float, end: float, wanted: list[int]) -> None:
    """Both ends are included, zero time has no RDD."""
    with BatchDriver(sc) as driver:
        driver.context.remember(4)
        numbers = numbered(driver, 4)
        driver.output(numbers)
        driver.run(4)
        assert records(numbers.slice(begin, end)) == wanted


def test_slice_before_the_start(sc: SparkContext) -> None:
    """A stream has no RDDs before its context runs."""
    with BatchDriver(sc) as driver:
        numbers = numbered(driver, 1)
        driver.output(numbers)
        with pytest.raises(StreamLifecycleError, match="has not been initialized"):
            numbers.slice(0, 1)


def test_slice_of_a_stream_that_no_output_uses(sc: SparkContext) -> None:
    """The same error: such a stream never has an RDD."""
    with BatchDriver(sc) as driver:
        numbers = numbered(driver, 1)
        unused = numbers.map(str)
        driver.output(numbers)
        driver.run(1)
        with pytest.raises(StreamLifecycleError, match=r"map at .* has not been initialized"):
            unused.slice(0, 1)


def test_ends_between_batches_are_floored(
    sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """A time between two batches means the earlier one, and a warning says so."""
    with BatchDriver(sc) as driver:
        driver.context.remember(4)
        numbers = numbered(driver, 4)
        driver.output(numbers)
        driver.run(4)
        with caplog.at_level(logging.WARNING, "dstreams"):
            assert records(numbers.slice(1.4, 3.999)) == [1, 2, 3]
    assert "rounded down to the batch times" in caplog.text


@pytest.mark.deep
@pytest.mark.parametrize(
    ("begin", "end", "wanted"),
    [(0, 0, [1]), (1, 2, [2, 3]), (1, 4, [2, 3, 4]), (0, 4, [1, 2, 3, 4])],
)
def test_slice_by_datetimes(sc: SparkContext, begin: int, end: int, wanted: list[int]) -> None:
    """Naive datetimes are local times; the offsets are batches after the first."""
    with BatchDriver(sc) as driver:
        driver.context.remember(10)
        numbers = numbered(driver, 4)
        driver.output(numbers)
        driver.run(4)
        first, last = (datetime.fromtimestamp(1 + offset) for offset in (begin, end))  # noqa: DTZ006
        assert records(numbers.slice(first, last)) == wanted


def test_slice_does_not_run_batches_that_are_to_come(sc: SparkContext) -> None:
    """Differs from the source, which computes them: their records would be lost to the state."""
    with BatchDriver(sc) as driver:
        states = numbered(driver, 3).map(lambda x: ("sum", x)).updateStateByKey(add)
        seen = driver.output(states)
        driver.run(1)
        assert records(states.slice(1, 3)) == [("sum", 1)]
        driver.run(2)
    assert seen == [[("sum", 1)], [("sum", 3)], [("sum", 6)]]


@pytest.mark.deep
def test_slice_does_not_compute_what_was_forgotten(sc: SparkContext) -> None:
    """Differs from the source: a state made anew from part of its input would be another state."""
    with BatchDriver(sc) as driver:
        numbers = numbered(driver, 6).map(lambda x: ("sum", x))
        kept = numbers.map(str)
        kept.checkpoint(2)
        states = numbers.updateStateByKey(add)
        states.checkpoint(1)
        driver.output(kept)
        driver.output(states)
        driver.run(6)
        # The input is remembered for 4 s because of kept, the state for 2 s.
        assert records(states.slice(1, 6)) == [("sum", 15), ("sum", 21)]


def test_outputs_are_remembered_as_long_as_asked(sc: SparkContext) -> None:
    """remember(3) keeps three batches of what outputs use, and of its parents."""
    with BatchDriver(sc) as driver:
        driver.context.remember(3)
        numbers = numbered(driver, 10)
        doubled = numbers.map(lambda x: 2 * x)
        driver.output(doubled)
        driver.run(10)
        for stream in (numbers, doubled):
            assert remembered(driver.context, stream) == [8000, 9000, 10000]


def test_without_remember_one_batch_is_kept(sc: SparkContext) -> None:
    """A stream without state is remembered for its slide."""
    with BatchDriver(sc) as driver:
        numbers = numbered(driver, 3)
        driver.output(numbers)
        driver.run(3)
        assert remembered(driver.context, numbers) == [3000]


@pytest.mark.deep
def test_a_state_is_remembered_for_two_intervals(sc: SparkContext) -> None:
    """checkpoint(3) keeps 6 s of the state and of its parents: 10000, not 4000."""
    with BatchDriver(sc) as driver:
        pairs = numbered(driver, 10).map(lambda x: ("sum", x))
        states = pairs.updateStateByKey(add)
        states.checkpoint(3)
        driver.output(states)
        driver.run(10)
        for stream in (pairs, states):
            assert remembered(driver.context, stream) == [5000, 6000, 7000, 8000, 9000, 10000]


def test_new_rdds_are_persisted_and_old_ones_are_not(sc: SparkContext) -> None:
    """A cached stream keeps the RDDs that are remembered, and no others."""
    before = persisted(sc)
    rdds: list[RDD[Any]] = []
    with BatchDriver(sc) as driver:
        driver.context.remember(2)
        cached = numbered(driver, 4).map(str).cache()
        cached.foreachRDD(rdds.append)
        cached.foreachRDD(lambda rdd: rdd.count())
        driver.run(4)
        assert [rdd.is_cached for rdd in rdds] == [False, False, True, True]
        assert persisted(sc) - before == {rdd.id() for rdd in rdds[2:]}
        assert rdds[3].getStorageLevel() == StorageLevel.MEMORY_ONLY
        assert rdds[3].collect() == ["4"]


def test_unpersist_may_be_left_to_spark(sc: SparkContext) -> None:
    """With spark.streaming.unpersist=false RDDs are forgotten, and stay persisted."""
    before = persisted(sc)
    rdds: list[RDD[Any]] = []
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock, settings=Settings(unpersist=False))
    try:
        cached = ssc.queueStream([[1], [2], [3]]).map(str).cache()
        cached.foreachRDD(rdds.append)
        ssc.step(3)
        assert remembered(ssc, cached) == [3000]
        assert persisted(sc) - before == {rdd.id() for rdd in rdds}
    finally:
        ssc.stop(stopSparkContext=False)
        for rdd in rdds:
            rdd.unpersist()


def test_state_is_persisted(sc: SparkContext) -> None:
    """Differs from the source, whose level is MEMORY_ONLY_SER: here a state is bytes already."""
    levels: list[StorageLevel] = []
    with BatchDriver(sc) as driver:
        states = numbered(driver, 2).map(lambda x: ("sum", x)).updateStateByKey(add)
        states.foreachRDD(lambda rdd: levels.append(rdd.getStorageLevel()))
        driver.run(2)
    assert levels == [StorageLevel.MEMORY_AND_DISK_DESER] * 2


@pytest.mark.parametrize("order", ["persist, checkpoint", "checkpoint, persist"])
def test_checkpoint_does_not_change_a_chosen_level(sc: SparkContext, order: str) -> None:
    """Differs from the source, where checkpoint() after persist(level) takes the level back."""
    levels: list[StorageLevel] = []
    with BatchDriver(sc) as driver:
        states = numbered(driver, 1).map(lambda x: ("sum", x)).updateStateByKey(add)
        for call in order.split(", "):
            argument = {"persist": StorageLevel.DISK_ONLY, "checkpoint": 2}[call]
            assert getattr(states, call)(argument) is states
        states.foreachRDD(lambda rdd: levels.append(rdd.getStorageLevel()))
        driver.run(1)
    assert levels == [StorageLevel.DISK_ONLY]


@pytest.mark.parametrize("order", ["first", "last"])
def test_checkpoint_alone_persists_in_memory(sc: SparkContext, order: str) -> None:
    """A stream without state that is checkpointed is persisted; cache() changes nothing there."""
    levels: list[StorageLevel] = []
    with BatchDriver(sc) as driver:
        numbers = numbered(driver, 1).map(str)
        if order == "last":
            numbers.cache()
        numbers.checkpoint(2)
        numbers.foreachRDD(lambda rdd: levels.append(rdd.getStorageLevel()))
        driver.run(1)
    assert levels == [StorageLevel.MEMORY_ONLY]


def test_persist_needs_a_level(sc: SparkContext) -> None:
    """Anything else is refused with its type."""
    with BatchDriver(sc) as driver, pytest.raises(InvalidStreamError, match="got str"):
        numbered(driver, 1).persist("MEMORY_ONLY")  # type: ignore[arg-type]


def test_an_rdd_that_a_user_persisted_stays_persisted(sc: SparkContext) -> None:
    """What streams did not persist they do not unpersist."""
    mine = sc.parallelize([1, 2]).cache()
    with BatchDriver(sc) as driver:
        driver.output(driver.input([mine]).transform(lambda rdd: rdd))
        driver.run(3)
        assert mine.is_cached
    mine.unpersist()


def test_one_rdd_may_be_that_of_two_streams_with_two_levels(sc: SparkContext) -> None:
    """A function of transform may return the RDD it got; the first level stays."""
    with BatchDriver(sc) as driver:
        states = numbered(driver, 3).map(lambda x: ("sum", x)).updateStateByKey(add)
        same = states.transform(lambda rdd: rdd).persist(StorageLevel.MEMORY_AND_DISK)
        seen = driver.output(same)
        driver.run(3)
    assert seen == [[("sum", 1)], [("sum", 3)], [("sum", 6)]]
