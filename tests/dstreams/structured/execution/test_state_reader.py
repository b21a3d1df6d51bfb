"""Looking into the state of a query, and at what keeps a changed query from a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoint import open_files
from checkpoint.log.batch_records import BatchLog
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.structured import GroupStateTimeout, StreamingDataset, StreamSession, window
from dstreams.structured.api.aggregates import Count, Max
from dstreams.structured.conf import AGGREGATION_STATE_FORMAT
from dstreams.structured.execution.query_records import QueryBatch
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun


def itself(record: Any) -> Any:
    return record


def seconds(record: Any) -> int:
    return int(record) * 1000


def armed(key: Any, values: Any, state: Any) -> Any:
    state.update((state.getOption or 0) + len(list(values)))
    state.setTimeoutDuration(5000)
    return []


def grouped(words: StreamingDataset) -> StreamingDataset:
    timeout = GroupStateTimeout.ProcessingTimeTimeout
    return words.groupByKey(itself).flatMapGroupsWithState(armed, "update", timeout, name="seen")


@pytest.mark.deep
def test_rows(session: StreamSession, tmp_path: Path) -> None:
    """The state after any batch that is kept, with timers and partitions."""
    run = QueryRun(session, grouped, "update", tmp_path)
    run.add("a", "b")
    run.add("a")
    state = session.readState(str(tmp_path))
    (operator,) = state.operators()
    assert operator[:4] == (0, "flatMapGroupsWithState", "seen", 2)
    assert (operator.minBatchId, operator.maxBatchId) == (0, 1)
    newest = sorted(row[:3] for row in state.rows().collect())
    assert newest == [("a", 2, 6000), ("b", 1, 6000)]
    before = sorted(row[:2] for row in state.rows(batchId=0).collect())
    assert before == [("a", 1), ("b", 1)]
    assert {row.partition for row in state.rows().collect()} <= {0, 1}


def test_changes(session: StreamSession, tmp_path: Path) -> None:
    """The changes of each key by each batch."""

    def counted(events: StreamingDataset) -> StreamingDataset:
        marked = events.withWatermark(seconds, "0 seconds")
        return marked.groupByKey(window(seconds, "10 seconds")).count()

    run = QueryRun(session, counted, "update", tmp_path)
    run.add(1, 2)
    run.add(11)
    changes = session.readState(str(tmp_path)).changes(0).collect()
    kinds = sorted((change.batchId, change.changeType, change.key) for change in changes)
    last = max(kind[0] for kind in kinds)
    assert kinds[0] == (0, "update", 10_000)
    assert (last, "delete", 10_000) in kinds
    assert (2, "update", 20_000) in kinds or (1, "update", 20_000) in kinds


def test_windows_in_front_of_a_key(session: StreamSession, tmp_path: Path) -> None:
    """A window and a key are distinguished, for every kind of key."""

    def counted(events: StreamingDataset) -> StreamingDataset:
        marked = events.withWatermark(seconds, "0 seconds")
        return marked.groupByKey(window(seconds, "10 seconds"), str).count()

    run = QueryRun(session, counted, "update", tmp_path)
    run.add(1, 2)
    rows = session.readState(str(tmp_path)).rows().collect()
    assert sorted(row.key for row in rows) == [(10_000, "1"), (10_000, "2")]
    changes = session.readState(str(tmp_path)).changes(0, 0).collect()
    assert sorted(change.key for change in changes) == [(10_000, "1"), (10_000, "2")]


@pytest.mark.deep
@pytest.mark.parametrize("version", ["1", "2"])
def test_values_of_aggregations(make_session: MakeSession, tmp_path: Path, version: str) -> None:
    """A count is its number; several aggregates have their names, in both state formats."""
    session = make_session(**{AGGREGATION_STATE_FORMAT: version})

    def counted(events: StreamingDataset) -> StreamingDataset:
        return events.groupByKey(itself).count()

    def summed(events: StreamingDataset) -> StreamingDataset:
        return events.groupByKey(itself).agg(Count(), Max())

    for define, value in ((counted, 2), (summed, {"Count()": 2, "Max()": 7})):
        location = tmp_path / define.__name__
        run = QueryRun(session, define, "update", location)
        run.add(7, 7)
        state = session.readState(str(location))
        assert [row[:2] for row in state.rows().collect()] == [(7, value)]
        assert [change.value for change in state.changes(0).collect()] == [value]
        run.query.stop()


def test_keys_of_a_deduplication_with_event_time(session: StreamSession, tmp_path: Path) -> None:
    """The event time, in microseconds, and the key as the query's functions made it."""

    def distinct(events: StreamingDataset) -> StreamingDataset:
        return events.withWatermark(seconds, "5 seconds").dropDuplicates([seconds, itself])

    run = QueryRun(session, distinct, "append", tmp_path)
    run.add(1, 2)
    rows = session.readState(str(tmp_path)).rows().collect()
    assert sorted(row.key for row in rows) == [(1_000_000, 1), (2_000_000, 2)]


def test_keys_with_an_event_time(session: StreamSession, tmp_path: Path) -> None:
    """A key that has the event time in it is shown as the query's functions made it."""

    def counted(events: StreamingDataset) -> StreamingDataset:
        return events.withWatermark(seconds, "5 seconds").groupByKey(itself, seconds).count()

    run = QueryRun(session, counted, "update", tmp_path)
    run.add(1, 2)
    rows = session.readState(str(tmp_path)).rows().collect()
    assert sorted(row.key for row in rows) == [(1, 1000), (2, 2000)]


def test_what_is_not_there(session: StreamSession, tmp_path: Path) -> None:
    """Errors name a missing checkpoint, batch or operator."""
    with pytest.raises(RestartError, match="no committed batch"):
        session.readState(str(tmp_path / "nothing"))
    run = QueryRun(session, grouped, "update", tmp_path / "checkpoint")
    run.add("a")
    state = session.readState(str(tmp_path / "checkpoint"))
    with pytest.raises(InvalidStreamError, match="has no state of batch 7"):
        state.rows(batchId=7)
    with pytest.raises(InvalidStreamError, match=r"operatorId must be below 1, .*, got 1"):
        state.rows(operatorId=1)
    with pytest.raises(
        InvalidStreamError, match="endBatchId of changes must be at least startBatchId, "
    ):
        state.changes(1, 0)


def test_restart_checks(session: StreamSession, tmp_path: Path) -> None:
    """A query that cannot resume is refused before it starts, and the error names the operator."""
    run = QueryRun(session, grouped, "update", tmp_path)
    run.add("a")
    run.query.stop()
    location = str(tmp_path)
    words = run.streams[0].toDS()
    assert session.checkRestart(grouped(words), "update", location) == []
    assert session.checkRestart(grouped(words.map(itself)), "update", location) == []

    without_timer = words.groupByKey(itself).flatMapGroupsWithState(armed, "update", name="seen")
    (problem,) = session.checkRestart(without_timer, "update", location)
    assert "'seen' has timeout 'NoTimeout', in the checkpoint 'ProcessingTimeTimeout'" in problem

    unnamed = words.groupByKey(itself).count()
    problems = session.checkRestart(unnamed, "update", location)
    assert "'seen' (flatMapGroupsWithState) of the checkpoint is not in this query" in problems[0]
    assert "'stateStoreSave-0' (stateStoreSave) is not in the checkpoint" in problems[1]

    other = grouped(words.union(session.memoryStream().toDS()))
    (problem,) = session.checkRestart(other, "update", location)
    assert "the checkpoint has 1 sources, this query has 2" in problem
    with pytest.raises(RestartError, match="cannot resume from the checkpoint: the checkpoint has"):
        run.restart(lambda words: words.union(session.memoryStream().toDS()))


def test_names_keep_state(session: StreamSession, tmp_path: Path) -> None:
    """An operator that has a name keeps its state when another one comes before it."""

    def counted(words: StreamingDataset) -> StreamingDataset:
        return words.groupByKey(itself).count(name="counts")

    run = QueryRun(session, counted, "complete", tmp_path)
    run.add("a", "b")
    run.restart(lambda words: counted(words).orderBy(lambda row: row[1], ascending=False))
    assert run.add("a") == [("a", 2), ("b", 1)]


def test_two_operators_of_one_name(session: StreamSession) -> None:
    """Two operators cannot have one identity."""
    words = session.memoryStream().toDS()
    twice = words.dropDuplicates(name="same").groupByKey(itself).count(name="same")
    with pytest.raises(InvalidStreamError, match="two stateful operators are named 'same'"):
        twice.writeStream.format("noop").outputMode("update").start()


def test_pinned_settings(session: StreamSession, tmp_path: Path) -> None:
    """The checkpoint's number of partitions is used instead of the session's."""
    run = QueryRun(session, grouped, "update", tmp_path)
    run.add("a")
    session.conf.set("spark.sql.shuffle.partitions", 5)
    run.restart()
    run.add("b")
    assert run.query.lastProgress is not None
    assert run.query.lastProgress["stateOperators"][0]["numShufflePartitions"] == 2
    (first, *_) = BatchLog(open_files(tmp_path)).ids()
    conf = QueryBatch(BatchLog(open_files(tmp_path)).read_record(first)).conf
    assert conf["spark.sql.shuffle.partitions"] == "2"
