"""Queries over grouped state: the cases of Spark's own suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dstreams.structured import (
    GroupState,
    GroupStateTimeout,
    StreamingDataset,
    StreamingQueryException,
    StreamSession,
)
from dstreams.testing import ManualClock
from examples.structured_sessions import sessions_of
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun
from tests.support.group_functions import (
    INITIAL,
    counting,
    lazy_count,
    mapped_count,
    running_count,
    ten_seconds,
)
from tests.support.waiting import wait_for

PROCESSING_TIME = GroupStateTimeout.ProcessingTimeTimeout
EVENT_TIME = GroupStateTimeout.EventTimeTimeout


def itself(record: Any) -> Any:
    return record


def first(record: tuple[Any, Any]) -> Any:
    return record[0]


def second_ms(record: tuple[Any, Any]) -> int | None:
    return None if record[1] is None else record[1] * 1000


def by_word(func: Any) -> Any:
    def build(words: StreamingDataset) -> StreamingDataset:
        return words.groupByKey(itself).flatMapGroupsWithState(func, "update")

    return build


@pytest.mark.deep
def test_running_count(session: StreamSession, tmp_path: Path) -> None:
    """State is kept across batches and restarts, and counters report the updates."""
    run = QueryRun(session, by_word(running_count), "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1)]
    assert run.state() == {"tot": 1, "upd": 1, "rem": 0, "drop": 0}
    assert run.add("a", "b") == [("a", 2), ("b", 1)]
    assert run.state()["upd"] == 2
    assert run.add("a", "b") == [("b", 2)]
    assert run.state() == {"tot": 1, "upd": 1, "rem": 1, "drop": 0}
    run.restart()
    assert run.add("a", "c") == [("a", 1), ("c", 1)]
    assert run.state()["tot"] == 3
    assert run.state()["upd"] == 2


def test_lazy_rows(session: StreamSession, tmp_path: Path) -> None:
    """Changes of state by a generator are kept."""
    run = QueryRun(session, by_word(lazy_count), "update", tmp_path / "checkpoint")
    assert run.add("a", "a", "b") == [("a", 1), ("a", 2), ("b", 1)]
    run.restart()
    assert run.add("a", "b") == [("b", 2)]
    run.restart()
    assert run.add("a", "c") == [("a", 1), ("c", 1)]


def test_map_groups(session: StreamSession, tmp_path: Path) -> None:
    """mapGroupsWithState gives one row a call."""

    def build(words: StreamingDataset) -> StreamingDataset:
        return words.groupByKey(itself).mapGroupsWithState(mapped_count)

    run = QueryRun(session, build, "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1)]
    assert run.add("a", "b") == [("a", 2), ("b", 1)]
    run.restart()
    assert run.add("a", "b") == [("a", -1), ("b", 2)]
    run.restart()
    assert run.add("a", "c") == [("a", 1), ("c", 1)]


@pytest.mark.deep
def test_failed_batch_leaves_nothing(session: StreamSession, tmp_path: Path) -> None:
    """A batch that failed runs again after a restart, on the state before it."""
    flag = tmp_path / "fail"

    def count(key: str, values: Iterator[str], state: GroupState[int]) -> Iterator[Any]:
        for _ in values:
            state.update((state.getOption or 0) + 1)
        if flag.exists():
            raise ValueError("told to fail")
        yield key, state.get

    run = QueryRun(session, by_word(count), "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1)]
    assert run.add("a") == [("a", 2)]
    flag.touch()
    with pytest.raises(StreamingQueryException, match=r"failed in batch 2.*told to fail"):
        run.add("a")
    assert not run.query.isActive
    assert isinstance(run.query.exception(), StreamingQueryException)
    flag.unlink()
    run.restart()
    assert run.outputs() == [("a", 3)]


@pytest.mark.deep
def test_union_with_changing_partitions(session: StreamSession, tmp_path: Path) -> None:
    """State stays with its keys when another branch has other partitions."""

    def build(words: StreamingDataset, others: StreamingDataset) -> StreamingDataset:
        return others.map(itself).union(by_word(running_count)(words))

    run = QueryRun(session, build, "update", tmp_path / "checkpoint", inputs=2)
    run.streams[1].addAll(session.sparkContext.parallelize([1, 2], 2))
    assert run.add("x") == [("x", 1), 1, 2]
    run.streams[1].addAll(session.sparkContext.parallelize([1, 2, 3], 3))
    run.restart()
    assert run.add("x", "y") == [("x", 2), ("y", 1), 1, 2, 3]


def with_timer(func: Any, **options: Any) -> Any:
    def build(words: StreamingDataset) -> StreamingDataset:
        grouped = words.groupByKey(itself)
        return grouped.flatMapGroupsWithState(func, "update", PROCESSING_TIME, **options)

    return build


def test_processing_time_timeout(
    session: StreamSession, clock: ManualClock, tmp_path: Path
) -> None:
    """Timers fire in the first batch after they are due, also after a restart."""
    run = QueryRun(session, with_timer(ten_seconds), "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1)]
    assert run.state() == {"tot": 1, "upd": 1, "rem": 0, "drop": 0}
    clock.advance(1000)
    assert run.add("b") == [("b", 1)]
    clock.advance(10_000)
    assert run.add("b") == [("a", -1), ("b", 2)]
    assert run.query.lastProgress is not None
    run.restart()
    clock.advance(11_000)
    assert run.add("c") == [("b", -1), ("c", 1)]


def test_timer_fires_without_data(
    session: StreamSession, clock: ManualClock, tmp_path: Path
) -> None:
    """A due timer causes a batch, not earlier, also right after a restart.

    Spark runs a batch at every trigger instead, and after a restart waits for data.
    """
    run = QueryRun(session, with_timer(ten_seconds), "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1)]
    clock.advance(10_000)
    assert run.outputs() == []  # due at 11 s, and it is 11 s
    assert len(run.query.recentProgress) == 1
    run.query.stop()
    clock.advance(1)
    run.restart()
    assert run.outputs() == [("a", -1)]
    assert run.state()["tot"] == 0
    clock.advance(1_000_000)
    assert run.outputs() == []
    assert len(run.query.recentProgress) == 1


def test_no_op_call_clears_the_timer(session: StreamSession, clock: ManualClock) -> None:
    """A call that does not set the timer again clears it, unless timers are kept."""

    def arm_once(key: str, values: Iterator[str], state: GroupState[int]) -> Any:
        if state.hasTimedOut:
            state.remove()
            return [(key, "timed out")]
        if not state.exists:
            state.update(1)
            state.setTimeoutDuration(5000)
        return []

    run = QueryRun(session, with_timer(arm_once), "update")
    run.add("a")
    run.add("a")
    assert run.state()["upd"] == 1
    clock.advance(10_000)
    assert run.add("b") == []
    run.query.stop()
    kept = QueryRun(session, with_timer(arm_once, keepTimer=True), "update")
    kept.add("a")
    kept.add("a")
    assert kept.state()["upd"] == 0
    clock.advance(10_000)
    assert kept.outputs() == [("a", "timed out")]


def latest(key: str, values: Iterator[Any], state: GroupState[int]) -> Any:
    """The latest event second, until event time has passed it by five seconds."""
    if state.hasTimedOut:
        state.remove()
        return [(key, -1)]
    times = [second or 0 for _, second in values]
    state.update(max([state.getOption or 0, *times]))
    state.setTimeoutTimestamp(max((state.get + 5) * 1000, state.getCurrentWatermarkMs()))
    return [(key, state.get)]


def by_event_time(events: StreamingDataset) -> StreamingDataset:
    marked = events.withWatermark(second_ms, "10 seconds")
    return marked.groupByKey(first).flatMapGroupsWithState(latest, "update", EVENT_TIME)


def test_event_time_timeout(session: StreamSession, tmp_path: Path) -> None:
    """Late records are dropped, timers fire when the watermark has passed."""
    run = QueryRun(session, by_event_time, "update", tmp_path / "checkpoint")
    assert run.add(("a", 11), ("a", 13), ("a", 15)) == [("a", 15)]
    assert run.watermark() == 5
    assert run.add(("a", 4), ("b", 5)) == []
    assert run.state()["drop"] == 2
    assert run.add(("a", 10)) == [("a", 15)]
    assert run.add(("c", None)) == [("c", 0)]
    run.restart()
    # The watermark becomes 25 s: the batch without data after this one fires a's timer of 20 s.
    assert run.add(("b", 35)) == [("a", -1), ("b", 35), ("c", -1)]
    assert run.watermark() == 25


def test_data_and_timer_in_one_batch(session: StreamSession, clock: ManualClock) -> None:
    """A key that has records when its timer is due is called for these alone."""

    def rearmed(key: str, values: Iterator[str], state: GroupState[int]) -> Any:
        state.update(0)
        state.setTimeoutDuration(1000)
        return [(key, len(list(values)), state.hasTimedOut)]

    run = QueryRun(session, with_timer(rearmed), "update", trigger={"processingTime": "5 seconds"})
    wait_for(lambda: run.query.status["message"] == "Waiting for data to arrive")
    run.streams[0].addData("a")
    clock.advance(4000)
    wait_for(lambda: len(run.query.recentProgress) == 1)
    run.streams[0].addData("a")
    clock.advance(5000)
    wait_for(lambda: len(run.query.recentProgress) == 2)
    assert session.tableBatches("run") == {0: [("a", 1, False)], 1: [("a", 1, False)]}


def test_timers_after_a_batch_that_runs_again(
    session: StreamSession, clock: ManualClock, tmp_path: Path
) -> None:
    """Timers of a batch that was not committed fire after it has run again."""
    run = QueryRun(session, with_timer(ten_seconds), "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1)]
    run.query.stop()
    (commit,) = (tmp_path / "checkpoint" / "commits").iterdir()
    commit.unlink()
    clock.advance(60_000)
    run.restart()
    run.query.processAllAvailable()
    assert session.tableBatches("run") == {0: [("a", 1)], 1: [("a", -1)]}


@pytest.mark.deep
@pytest.mark.parametrize("timeout", [GroupStateTimeout.NoTimeout, PROCESSING_TIME])
def test_other_timeouts_drop_nothing(session: StreamSession, timeout: GroupStateTimeout) -> None:
    """With a watermark and another timeout nothing is late."""

    def count(key: str, values: Iterator[Any], state: GroupState[int]) -> Any:
        state.update((state.getOption or 0) + sum(1 for _ in values))
        return [(key, state.get, state.getCurrentWatermarkMs())]

    def build(events: StreamingDataset) -> StreamingDataset:
        marked = events.withWatermark(second_ms, "10 seconds")
        return marked.groupByKey(first).flatMapGroupsWithState(count, "update", timeout)

    run = QueryRun(session, build, "update")
    assert run.add(("a", 100)) == [("a", 1, 0)]
    assert run.add(("a", 100)) == [("a", 2, 90_000)]
    assert run.add(("a", 1)) == [("a", 3, 90_000)]


def initial_query(initial: Any) -> Any:
    def build(words: StreamingDataset) -> StreamingDataset:
        grouped = words.groupByKey(itself)
        return grouped.flatMapGroupsWithState(counting, "update", initialState=initial)

    return build


def test_initial_state(session: StreamSession, tmp_path: Path) -> None:
    """Initial states are there in the first batch, and only there."""
    run = QueryRun(session, initial_query(INITIAL), "update", tmp_path / "checkpoint")
    assert run.add("OnlyData", "S2") == [
        ("NoUpdate", [], 2),
        ("OnlyData", ["OnlyData"], 1),
        ("OnlyState", [], 1),
        ("S1", [], 1),
        ("S2", ["S2"], 3),
    ]
    assert run.state() == {"tot": 5, "upd": 4, "rem": 0, "drop": 0}
    run.restart()
    assert run.add("S1") == [("S1", ["S1"], 2)]
    assert run.state()["tot"] == 5
    assert run.state()["upd"] == 1


@pytest.mark.deep
def test_initial_state_that_was_computed(session: StreamSession) -> None:
    """Any RDD of pairs, dict or DataFrame will do, also one that was grouped."""
    words = session.sparkContext.parallelize(["S1", "S2", "S2"], 2)
    initial = words.map(lambda word: (word, 1)).reduceByKey(lambda one, two: one + two)
    frame = SparkSession(session.sparkContext).createDataFrame(initial)
    for each in (initial, {"S1": 1, "S2": 2}, frame):
        run = QueryRun(session, initial_query(each), "update")
        assert run.add("S1") == [("S1", ["S1"], 2), ("S2", [], 2)]
        run.query.stop()


def test_initial_state_of_the_key_none(session: StreamSession) -> None:
    """None is a key like any other."""
    run = QueryRun(session, initial_query([("key", 5), (None, 2)]), "update")
    assert run.add("key", None) == [("key", ["key"], 6), (None, [None], 3)]
    assert run.state()["upd"] == 2


def test_initial_state_with_timers(session: StreamSession, clock: ManualClock) -> None:
    """Keys of the initial state can set timers."""
    run = QueryRun(session, with_timer(ten_seconds, initialState=[("c", 2)]), "update")
    assert run.add("a") == [("a", 1), ("c", 2)]
    clock.advance(11_000)
    assert run.add("b") == [("a", -1), ("b", 1), ("c", -1)]


def test_initial_keys_skipped(make_session: MakeSession) -> None:
    """Keys with an initial state only can be left uncalled."""
    key = "spark.sql.streaming.flatMapGroupsWithState.skipEmittingInitialStateKeys"
    session = make_session(**{key: "true"})
    run = QueryRun(session, initial_query(INITIAL), "update")
    assert run.add("OnlyData", "S2") == [("OnlyData", ["OnlyData"], 1), ("S2", ["S2"], 3)]
    assert run.state()["tot"] == 5
    assert run.state()["upd"] == 2


@pytest.mark.deep
def test_example_of_sessions(session: StreamSession, clock: ManualClock, tmp_path: Path) -> None:
    """The groups of the example are counted, closed when event time has passed, and start again."""
    writer = sessions_of(session).writeStream.format("memory").queryName("sessions")
    query = writer.outputMode("update").option("checkpointLocation", str(tmp_path)).start()
    for second in range(7):
        if second == 4:
            query.stop()
            query = writer.outputMode("update").option("checkpointLocation", str(tmp_path)).start()
        query.processAllAvailable()
        clock.advance(1000)
    query.processAllAvailable()
    rows = session.table("sessions")
    assert {(0, 10, "closed"), (1, 10, "open"), (1, 10, "closed")} <= set(rows)
    assert (0, 10, "open") in rows
