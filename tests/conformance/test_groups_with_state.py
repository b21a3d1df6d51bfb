"""flatMapGroupsWithState and mapGroupsWithState as Spark's suites say.

Whole streams, on real RDDs through the public API. A case has the rows and the counts of each
batch: keys in the state, states written, states removed, late values left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import (
    BatchFailedError,
    BatchInfo,
    DStream,
    GroupState,
    InvalidStreamError,
    Settings,
    StreamingContext,
)
from dstreams.testing import BatchDriver, ManualClock
from tests.support.group_functions import (
    INITIAL,
    counting,
    lazy_count,
    mapped_count,
    running_count,
    ten_seconds,
)

Counts = tuple[int, int, int, int]
"""Keys in the state, states written, removed, values left out."""


@dataclass(frozen=True)
class Batch:
    """One batch of a case.

    Args:
        values: pairs of key and value; None for no RDD.
        rows: what comes out, in any order.
        counts: what is counted, None where the case does not say.
    """

    values: list[tuple[Any, Any]] | None
    rows: list[Any]
    counts: Counts | None = None


def words(text: str) -> list[tuple[str, int]]:
    return [(word, 1) for word in text.split()]


def latest(key: str, values: Iterator[int], state: GroupState[int]) -> list[Any]:
    """The latest event time; ends five seconds of event time after it."""
    if state.hasTimedOut:
        state.remove()
        return [(key, -1)]
    newest = max([state.getOption or 0, *(value for value in values if value is not None)])
    state.update(newest)
    state.setTimeoutTimestamp((newest + 5) * 1000)
    return [(key, newest)]


def seconds(value: int | None) -> int | None:
    return None if value is None else value * 1000


def arm_once(key: str, values: Iterator[int], state: GroupState[int]) -> list[Any]:
    """Arms a timer at first, and later does nothing at all."""
    if state.hasTimedOut:
        return [(key, "timed out", state.exists)]
    if not state.exists:
        state.update(0)
        state.setTimeoutDuration(1500)
    return [(key, "data", len(list(values)))]


Operation = Callable[[DStream[Any]], DStream[Any]]


@dataclass(frozen=True)
class Case:
    """A stream and its batches, one a second.

    Args:
        operation: from the pairs to the rows.
        batches: by second; the seconds between have no values and no rows.
        settings: settings of the context.
        until: the last second; 0 for that of the last batch.
    """

    operation: Operation
    batches: dict[int, Batch]
    settings: Settings = field(default_factory=Settings)
    until: int = 0


ONLY_S2 = [("OnlyData", "OnlyData"), ("S2", "S2")]


def grouped(func: Any, **options: Any) -> Operation:
    return lambda pairs: pairs.flatMapGroupsWithState(func, **options)


def in_event_time(func: Any) -> Operation:
    return grouped(func, timeout="eventTime", eventTime=seconds, watermark=10)


CASES = {
    "running count": Case(
        grouped(running_count),
        {
            1: Batch(words("a"), [("a", 1)], (1, 1, 0, 0)),
            2: Batch(words("a b"), [("a", 2), ("b", 1)], (2, 2, 0, 0)),
            3: Batch(words("a b"), [("b", 2)], (1, 1, 1, 0)),
            4: Batch(words("a c"), [("a", 1), ("c", 1)], (3, 2, 0, 0)),
        },
    ),
    "lazily, while the output is read": Case(
        grouped(lazy_count, outputMode="append"),
        {
            1: Batch(words("a a b"), [("a", 1), ("a", 2), ("b", 1)], (2, 2, 0, 0)),
            2: Batch(words("a b"), [("b", 2)], (1, 1, 1, 0)),
            3: Batch(words("a c"), [("a", 1), ("c", 1)], (3, 2, 0, 0)),
        },
    ),
    "mapGroupsWithState": Case(
        lambda pairs: pairs.mapGroupsWithState(mapped_count),
        {
            1: Batch(words("a"), [("a", 1)]),
            2: Batch(words("a b"), [("a", 2), ("b", 1)]),
            3: Batch(words("a b"), [("a", -1), ("b", 2)]),
            4: Batch(words("a c"), [("a", 1), ("c", 1)]),
        },
    ),
    "after a union whose partitions change": Case(
        lambda pairs: pairs.union(
            pairs.repartition(3).filter(lambda pair: False)
        ).flatMapGroupsWithState(running_count, numPartitions=3),
        {
            1: Batch(words("x"), [("x", 1)]),
            2: Batch(words("x y"), [("x", 2), ("y", 1)]),
        },
    ),
    "19 to 24: processing time": Case(
        grouped(ten_seconds, timeout="processingTime"),
        {
            1: Batch(words("a"), [("a", 1)], (1, 1, 0, 0)),
            2: Batch(words("b"), [("b", 1)], (2, 1, 0, 0)),
            11: Batch([], [], (2, 0, 0, 0)),
            12: Batch(words("b"), [("a", -1), ("b", 2)], (1, 1, 1, 0)),
            23: Batch(words("c"), [("b", -1), ("c", 1)], (1, 1, 1, 0)),
        },
    ),
    "25 to 27: event time": Case(
        in_event_time(latest),
        {
            1: Batch([("a", 11), ("a", 13), ("a", 15)], [("a", 15)], (1, 1, 0, 0)),
            2: Batch([("a", 4)], [], (1, 0, 0, 1)),
            3: Batch([("a", 10)], [("a", 15)], (1, 1, 0, 0)),
            4: Batch([("a", 25)], [("a", 25)], (1, 1, 0, 0)),
        },
    ),
    "the watermark passes a timer": Case(
        in_event_time(latest),
        {
            1: Batch([("a", 15)], [("a", 15)], (1, 1, 0, 0)),
            2: Batch([("b", 31)], [("b", 31)], (2, 1, 0, 0)),
            3: Batch([], [("a", -1)], (1, 0, 1, 0)),
        },
    ),
    "a value at the watermark, and one without a time": Case(
        in_event_time(latest),
        {
            1: Batch([("a", 15)], [("a", 15)]),
            2: Batch([("a", 5), ("a", None)], [("a", 15)], (1, 1, 0, 1)),
        },
    ),
    "data in the batch in which the timer would be due": Case(
        in_event_time(latest),
        {
            1: Batch([("a", 15)], [("a", 15)]),
            2: Batch([("b", 31)], [("b", 31)]),
            3: Batch([("a", 40)], [("a", 40)], (2, 1, 0, 0)),
            4: Batch([], [], (2, 0, 0, 0)),
            5: Batch([("c", 50)], [("c", 50)]),
        },
    ),
    "a call that does nothing clears the timer": Case(
        grouped(arm_once, timeout="processingTime"),
        {
            1: Batch(words("a"), [("a", "data", 1)], (1, 1, 0, 0)),
            2: Batch(words("a"), [("a", "data", 1)], (1, 1, 0, 0)),
        },
        until=5,
    ),
    "2.6: a timer that is kept": Case(
        grouped(arm_once, timeout="processingTime", keepTimer=True),
        {
            1: Batch(words("a"), [("a", "data", 1)], (1, 1, 0, 0)),
            2: Batch(words("a"), [("a", "data", 1)], (1, 0, 0, 0)),
            3: Batch([], [("a", "timed out", True)], (1, 1, 0, 0)),
        },
        until=5,
    ),
    "a timed-out call that does nothing is made once": Case(
        grouped(arm_once, timeout="processingTime"),
        {
            1: Batch(words("a"), [("a", "data", 1)]),
            3: Batch([], [("a", "timed out", True)], (1, 1, 0, 0)),
        },
        until=5,
    ),
    "initial state": Case(
        grouped(counting, initialState=INITIAL),
        {
            1: Batch(
                ONLY_S2,
                [
                    ("OnlyState", [], 1),
                    ("NoUpdate", [], 2),
                    ("S2", ["S2"], 3),
                    ("S1", [], 1),
                    ("OnlyData", ["OnlyData"], 1),
                ],
                (5, 4, 0, 0),
            ),
            2: Batch([("S1", "S1")], [("S1", ["S1"], 2)], (5, 1, 0, 0)),
        },
    ),
    "None is a key": Case(
        grouped(counting, initialState=[("key", 5), (None, 2)]),
        {
            1: Batch(
                [("key", "x"), (None, "y")], [("key", ["x"], 6), (None, ["y"], 3)], (2, 2, 0, 0)
            )
        },
    ),
    "initial state with timers": Case(
        grouped(ten_seconds, timeout="processingTime", initialState=[("c", 2)]),
        {
            1: Batch(words("a"), [("a", 1), ("c", 2)], (2, 2, 0, 0)),
            12: Batch(words("b"), [("a", -1), ("b", 1), ("c", -1)], (1, 1, 2, 0)),
        },
    ),
    "no calls for keys of the initial state alone": Case(
        grouped(counting, initialState=INITIAL),
        {
            1: Batch(
                ONLY_S2,
                [("S2", ["S2"], 3), ("OnlyData", ["OnlyData"], 1)],
                (5, 2, 0, 0),
            )
        },
        Settings(skip_initial_keys=True),
    ),
}


def counts_of(info: BatchInfo) -> Counts:
    [state] = info.states
    metrics = state.metrics
    return (
        metrics["numTotalStateRows"],
        metrics["numUpdatedStateRows"],
        metrics["numRemovedStateRows"],
        metrics["numRowsDroppedByWatermark"],
    )


@pytest.mark.deep
@pytest.mark.parametrize("name", CASES)
def test_batches(sc: SparkContext, name: str) -> None:
    """Rows and counts of each batch are those of the table; other batches have no rows."""
    case = CASES[name]
    last = case.until or max(case.batches)
    given = [case.batches.get(second, Batch(None, [])) for second in range(1, last + 1)]
    with BatchDriver(sc, settings=case.settings) as driver:
        rows = driver.output(case.operation(driver.input([batch.values for batch in given])))
        infos = driver.run(last)
    for second, (batch, found, info) in enumerate(zip(given, rows, infos, strict=True), 1):
        expected = sorted(batch.rows, key=repr)
        assert (second, sorted(found or [], key=repr)) == (second, expected)
        if batch.counts is not None:
            assert (second, counts_of(info)) == (second, batch.counts)
        assert info.states[0].metrics["numOutputRows"] == len(batch.rows)


def test_a_function_that_fails_in_the_third_batch(sc: SparkContext, tmp_path: Path) -> None:
    """The failed batch left nothing in the store; what it had is counted when it works."""
    outage = tmp_path / "outage"

    def count(key: str, values: Iterator[int], state: GroupState[int]) -> list[Any]:
        state.update((state.getOption or 0) + len(list(values)))
        if outage.exists():
            raise ValueError("on purpose")
        return [(key, state.get)]

    with BatchDriver(sc) as driver:
        stream = driver.input([words("a")] * 4).flatMapGroupsWithState(count)
        rows = driver.output(stream)
        driver.run(2)
        outage.touch()
        with pytest.raises(BatchFailedError, match="on purpose") as raised:
            driver.run(1)
        assert raised.value.batch_infos[-1].states == ()
        assert stream.stateStore().collect() == [("a", 2, None)]
        outage.unlink()
        [info] = driver.run(1)
    assert rows == [[("a", 1)], [("a", 2)], None, [("a", 4)]]
    assert counts_of(info) == (1, 1, 0, 0)


def test_a_watermark_without_an_event_timeout(sc: SparkContext) -> None:
    """Nothing is late, and the function sees the watermark."""

    def seen(key: str, values: Iterator[int], state: GroupState[int]) -> list[Any]:
        return [(sorted(values), state.getCurrentWatermarkMs())]

    for timeout in ("none", "processingTime"):
        with BatchDriver(sc) as driver:
            pairs = driver.input([[("a", 15)], [("a", 1)]])
            rows = driver.output(
                pairs.flatMapGroupsWithState(seen, timeout=timeout, eventTime=seconds, watermark=10)
            )
            infos = driver.run(2)
        assert rows == [[([15], 0)], [([1], 5000)]]
        assert [info.states[0].watermark_ms for info in infos] == [5000, 5000]


def test_complete_mode_is_refused(sc: SparkContext) -> None:
    """A function has no way to say all of its result."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    pairs: DStream[Any] = ssc.queueStream([])
    with pytest.raises(InvalidStreamError, match="should be append or update"):
        pairs.flatMapGroupsWithState(running_count, "complete")


def test_a_stream_is_no_initial_state(sc: SparkContext) -> None:
    """An initial state is there before the first batch."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    pairs: DStream[Any] = ssc.queueStream([])
    with pytest.raises(InvalidStreamError, match="must be an RDD or a collection"):
        pairs.flatMapGroupsWithState(running_count, initialState=pairs)  # type: ignore[arg-type]


def test_an_initial_state_that_another_state_made(sc: SparkContext) -> None:
    """Any RDD of pairs will do, also one that was grouped."""
    initial = sc.parallelize(words("a a b")).reduceByKey(lambda x, y: x + y)
    with BatchDriver(sc) as driver:
        pairs = driver.input([words("a")])
        rows = driver.output(pairs.flatMapGroupsWithState(running_count, initialState=initial))
        driver.run(1)
    assert rows == [[("b", 1)]]
