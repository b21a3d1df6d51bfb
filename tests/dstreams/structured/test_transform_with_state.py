"""Queries with ``transformWithState``: batches, restarts, timers, TTLs, chains and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor as SparkProcessor
from pyspark.sql.streaming import StatefulProcessorHandle

from dstreams.cli.drill import steps as drill
from dstreams.common import faults
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.structured import (
    StreamingDataset,
    StreamSession,
    UnsupportedOperationError,
    window,
)
from dstreams.testing import ManualClock
from tests.dstreams.state.processors import Commands
from tests.dstreams.structured.runs import QueryRun


class RunningCount(SparkProcessor):
    """Counts the records of a user and the last three pages: written for Spark's own API."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "count long")
        self.pages = handle.getListState("pages", "page string")
        self.visits = handle.getMapState("visits", "page string", "visits int")

    def handleInputRows(
        self, key: tuple[Any, ...], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        (user,) = key
        total = self.count.get()[0] if self.count.exists() else 0
        for row in rows:
            total += 1
            self.pages.appendValue((row.page,))
            visits = self.visits.getValue((row.page,))
            self.visits.updateValue((row.page,), (1 if visits is None else visits.visits + 1,))
        self.count.update((total,))
        pages = [page for (page,) in self.pages.get()]
        most = max(self.visits.iterator(), key=lambda pair: pair[1])[0][0]
        yield Row(user=user, count=total, pages=",".join(pages), most=most)

    def close(self) -> None:
        pass


STEPS = [step.name for step in drill.STEPS if not (step.function or step.in_restart)]

COLUMNS = "user string, count long, pages string, most string"


def counted(clicks: StreamingDataset) -> StreamingDataset:
    return clicks.groupByKey("user").transformWithState(
        RunningCount(), COLUMNS, "update", "none", name="counts"
    )


def click(user: str, page: str) -> Row:
    return Row(user=user, page=page)


def test_processor_of_spark(session: StreamSession, tmp_path: Path) -> None:
    """A processor for ``pyspark.sql.streaming`` runs unchanged, over Rows and over dicts."""
    run = QueryRun(session, counted, "update", tmp_path / "checkpoint")
    (first,) = run.add(click("ann", "/"), click("ann", "/shop"))
    assert first == Row(user="ann", count=2, pages="/,/shop", most="/")
    run.restart()
    rows = run.add({"user": "ann", "page": "/shop"}, click("bob", "/"))
    assert rows == [
        Row(user="ann", count=3, pages="/,/shop,/shop", most="/shop"),
        Row(user="bob", count=1, pages="/", most="/"),
    ]
    (state,) = run.query.lastProgress.stateOperators
    assert state.operatorName == "transformWithStateExec"
    assert state.numRowsTotal == 9  # of ann a count, 3 pages and 2 of visits; of bob 3


@pytest.mark.deep
@pytest.mark.parametrize("step", STEPS)
def test_crash(session: StreamSession, tmp_path: Path, step: str) -> None:
    """A batch that dies at any step runs again on the same state, so nothing counts twice."""
    run = QueryRun(session, counted, "update", tmp_path / "checkpoint")
    run.add(click("ann", "/"))
    faults._faults[step] = faults.Fault(None, "raise")
    run.streams[0].addAll([click("ann", "/")])
    with pytest.raises(RuntimeError, match="fault at"):
        run.query.processAllAvailable()
    run.restart()
    run.outputs()
    (row,) = run.add(click("ann", "/"))
    assert (row[1], row.pages, row.most) == (3, "/,/,/", "/")


def commands(mode: str, **of_processor: Any) -> Any:
    def build(records: StreamingDataset) -> StreamingDataset:
        grouped = records.groupByKey(lambda record: record[0])
        return grouped.transformWithState(Commands(**of_processor), None, "update", mode)

    return build


def test_timers_and_ttls(session: StreamSession, clock: ManualClock, tmp_path: Path) -> None:
    """They follow the driver's clock, cause batches without data, and survive restarts."""
    run = QueryRun(
        session, commands("processingTime", ttl_ms=5000), "update", tmp_path / "checkpoint"
    )
    run.add(("a", "timers", "registerTimer", 3000), ("a", "list", "appendValue", (1,)))
    run.restart()
    clock.advance(2000)
    assert run.outputs() == [("a", "timer", 3000, [3000])]
    assert run.add(("a", "list", "get")) == [("a", [(1,)])]
    clock.advance(3000)
    assert run.add(("a", "list", "get")) == [("a", [])]
    (state,) = run.query.lastProgress.stateOperators
    assert state.numRowsTotal == 0
    run.query.stop()
    assert session.readState(str(tmp_path / "checkpoint")).rows().collect() == []


class Sessions(SparkProcessor):
    """Ends a key's session at a watermark, and emits its number of records with its end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.times = handle.getListState("times", "time long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for _, second in rows:
            self.times.appendValue((second,))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer((max(self.times.get())[0] + 5) * 1000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        assert timerValues.getCurrentWatermarkInMs() >= expiredTimerInfo.getExpiryTimeInMs()
        records = len(list(self.times.get()))
        self.times.clear()
        yield Row(user=key[0], time=expiredTimerInfo.getExpiryTimeInMs(), records=records)

    def close(self) -> None:
        pass


def second_ms(record: tuple[str, int]) -> int:
    return record[1] * 1000


def sessions(records: StreamingDataset, time_column: str = "") -> StreamingDataset:
    marked = records.withWatermark(second_ms, "2 seconds").groupByKey(lambda record: record[0])
    columns = "user string, time long, records int"
    return marked.transformWithState(
        Sessions(), columns, "append", "eventTime", eventTimeColumnName=time_column
    )


def test_event_time(session: StreamSession, tmp_path: Path) -> None:
    """Timers fire when the watermark reaches them, and late records are dropped."""
    run = QueryRun(session, sessions, "append", tmp_path / "checkpoint")
    assert run.add(("a", 1), ("a", 3), ("b", 4)) == []
    assert run.add(("c", 10)) == [Row(user="a", time=8000, records=2)]
    run.restart()
    assert run.add(("a", 1), ("c", 11)) == [Row(user="b", time=9000, records=1)]
    dropped = [one.stateOperators[0].numRowsDroppedByWatermark for one in run.query.recentProgress]
    assert sum(dropped) == 1


def test_chain(session: StreamSession, tmp_path: Path) -> None:
    """With an event time column, an aggregation by windows of it can follow."""

    def chained(records: StreamingDataset) -> StreamingDataset:
        ended = sessions(records, "time")
        counts = ended.groupByKey(window("time", "10 seconds")).count()
        return counts.map(lambda row: (row[0].start_ms, row[1]))

    run = QueryRun(session, chained, "append", tmp_path / "checkpoint")
    assert run.add(("a", 1), ("b", 3)) == []
    assert run.add(("c", 10)) == []  # ends the sessions of a at 6, and of b at 8 seconds
    assert run.add(("c", 13)) == [(0, 2)]


class Late(Sessions):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        yield Row(user=key[0], time=1, records=0)


def test_rows_behind_the_watermark(session: StreamSession) -> None:
    """A row that the next operator would drop fails the batch, as in Spark."""

    def build(records: StreamingDataset) -> StreamingDataset:
        marked = records.withWatermark(second_ms, "2 seconds").groupByKey(lambda record: record[0])
        columns = "user string, time long, records int"
        return marked.transformWithState(Late(), columns, "append", "eventTime", None, "time")

    run = QueryRun(session, build, "append")
    run.streams[0].addAll([("a", 10)])
    run.query.processAllAvailable()
    run.streams[0].addAll([("a", 20)])
    with pytest.raises(Exception, match="EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED"):
        run.query.processAllAvailable()


def test_initial_state(session: StreamSession, tmp_path: Path) -> None:
    """Initial rows are there in the first batch, and are not added again by a restart."""

    def build(records: StreamingDataset) -> StreamingDataset:
        grouped = records.groupByKey(lambda record: record[0])
        initial = [(("a",), 1), (("b",), 2), (("a",), 3)]
        return grouped.transformWithState(Commands(), None, "update", "none", initial)

    run = QueryRun(session, build, "update", tmp_path / "checkpoint")
    assert run.add(("a", "list", "get")) == [("a", [(1,), (3,)])]
    run.restart()
    assert run.add(("a", "list", "get"), ("b", "list", "get")) == [
        ("a", [(1,), (3,)]),
        ("b", [(2,)]),
    ]


@pytest.mark.deep
def test_changed_variables(session: StreamSession, tmp_path: Path) -> None:
    """A variable may be added or deleted, but not changed, forgotten or given another clock."""
    plain = commands("processingTime", without=["map"])
    run = QueryRun(session, plain, "update", tmp_path / "checkpoint")
    run.add(("a", "list", "appendValue", (1,)))
    run.restart(commands("processingTime"))
    assert run.add(("a", "map", "updateValue", ("x",), (1,)), ("a", "list", "get")) == [
        ("a", [(1,)])
    ]
    for changed, text in [
        (
            commands("processingTime", ttl_ms=10),
            "variable 'value' .* is a value with a TTL, in the checkpoint a value;",
        ),
        (plain, r"no longer defines .* 'map'.*deleteIfExists\('map'\)"),
        (commands("none"), "has time mode 'none', in the checkpoint 'processingTime'"),
    ]:
        with pytest.raises(RestartError, match=text):
            run.restart(changed)
    run.restart(commands("processingTime", without=["map"], deletes=["map"]))
    assert run.add(("a", "list", "get")) == [("a", [(1,)])]
    run.restart(plain)
    assert run.add(("a", "list", "get")) == [("a", [(1,)])]


def test_refused_queries(session: StreamSession) -> None:
    """What Spark refuses is refused before anything runs."""
    words = session.memoryStream("words").toDS()
    grouped = words.groupByKey(lambda word: word)

    def start(arguments: dict[str, Any]) -> None:
        dataset = grouped.transformWithState(Commands(), **arguments)
        dataset.writeStream.format("noop").start()

    def refused(text: str, error: type[Exception] = InvalidStreamError, **arguments: Any) -> None:
        with pytest.raises(error, match=text):
            start(arguments)

    refused("append or update, got 'complete'", outputMode="complete")
    refused("UNKNOWN_TIME_MODE.*'never'", timeMode="never")
    refused("needs a watermark", UnsupportedOperationError, timeMode="eventTime")
    refused("must be a column of outputStructType, got 'time'", eventTimeColumnName="time")
    refused("tuples of 1 parts, .* got 'a'", initialState=[("a", 1)])
    refused("a schema must be a StructType or its DDL text.*'int'", outputStructType="int")
    with pytest.raises(InvalidStreamError, match="not a window"):
        words.groupByKey(window("t", "1 second")).transformWithState(Commands())
    dataset = grouped.transformWithState(Commands())
    with pytest.raises(UnsupportedOperationError, match="complete is not supported"):
        dataset.writeStream.format("memory").queryName("q").outputMode("complete").start()


def test_plan(session: StreamSession) -> None:
    """``explain`` names the processor, the key, and the modes."""
    text = counted(session.memoryStream("clicks").toDS()).explanation(outputMode="update")
    assert "TransformWithState RunningCount, user, state info" in text
    assert ", Update, NoTime, <unknown>" in text
