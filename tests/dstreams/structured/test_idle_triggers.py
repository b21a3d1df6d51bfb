"""A trigger that finds nothing to do costs no Spark job and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from socket import create_server
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.structured import (
    GroupState,
    GroupStateTimeout,
    StreamingDataset,
    StreamingQuery,
    StreamSession,
    session_window,
    window,
)
from dstreams.testing import ManualClock
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun
from tests.support.waiting import wait_for

IDLE_TRIGGERS = 40
EVENTS = [("a", 1), ("b", 7), ("a", 20)]


@pytest.fixture
def session(make_session: MakeSession) -> StreamSession:
    """A session whose queries look for data as fast as they can."""
    return make_session()


def word(event: tuple[str, int]) -> str:
    return event[0]


def moment_ms(event: tuple[str, int]) -> int:
    return event[1] * 1000


def marked(events: StreamingDataset) -> StreamingDataset:
    return events.withWatermark(moment_ms, "5 seconds")


def windows(events: StreamingDataset) -> StreamingDataset:
    return marked(events).groupByKey(word, window(moment_ms, "5 seconds")).count()


def sessions(events: StreamingDataset) -> StreamingDataset:
    return marked(events).groupByKey(word, session_window(moment_ms, "5 seconds")).count()


def distinct(events: StreamingDataset) -> StreamingDataset:
    return marked(events).dropDuplicatesWithinWatermark(word)


def joined(events: StreamingDataset) -> StreamingDataset:
    left, right = marked(events), marked(events)
    return left.join(right, on=word, how="left_outer", within=("0 seconds", "2 seconds"))


def limited(events: StreamingDataset) -> StreamingDataset:
    return events.limit(2)


def ends(key: str, events: Iterator[Any], state: GroupState[int]) -> Iterator[Any]:
    """Ends 10 s of processing time after the last event."""
    if state.hasTimedOut:
        state.remove()
        return iter([key])
    state.update(sum(1 for _ in events))
    state.setTimeoutDuration("10 seconds")
    return iter(())


def ends_by_event_time(key: str, events: Iterator[Any], state: GroupState[int]) -> Iterator[Any]:
    """Ends 10 s of event time after the watermark."""
    if state.hasTimedOut:
        state.remove()
        return iter([key])
    state.update(sum(1 for _ in events))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 10_000)
    return iter(())


def timers(events: StreamingDataset) -> StreamingDataset:
    timeout = GroupStateTimeout.ProcessingTimeTimeout
    return events.groupByKey(word).flatMapGroupsWithState(ends, "update", timeout)


def event_timers(events: StreamingDataset) -> StreamingDataset:
    timeout = GroupStateTimeout.EventTimeTimeout
    groups = marked(events).groupByKey(word)
    return groups.flatMapGroupsWithState(ends_by_event_time, "update", timeout)


def jobs_of(sc: SparkContext, query: StreamingQuery) -> set[int]:
    """Return the jobs of a query, and jobs without a query."""
    sc._jsc.sc().listenerBus().waitUntilEmpty()
    tracker = sc.statusTracker()
    return {*tracker.getJobIdsForGroup(query.runId), *tracker.getJobIdsForGroup()}


def files_below(directory: Path) -> dict[str, int]:
    """Return when each file of a checkpoint was written."""
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def require_idle(sc: SparkContext, query: StreamingQuery, checkpoint: Path) -> None:
    """Let many triggers pass, in which the query must do nothing."""
    query.processAllAvailable()
    jobs, files = jobs_of(sc, query), files_below(checkpoint)
    assert jobs
    assert files
    last = query._triggers + IDLE_TRIGGERS
    wait_for(lambda: query._triggers > last or not query.isActive)
    assert query.exception() is None
    assert jobs_of(sc, query) <= jobs  # Spark forgets old ones, of other tests as well
    assert files_below(checkpoint) == files


@pytest.mark.deep
@pytest.mark.parametrize(
    ("build", "mode"),
    [
        (windows, "append"),
        (windows, "update"),
        (sessions, "append"),
        (distinct, "append"),
        (joined, "append"),
        (limited, "append"),
        (event_timers, "update"),
    ],
)
def test_operators(
    sc: SparkContext,
    session: StreamSession,
    tmp_path: Path,
    build: Callable[..., StreamingDataset],
    mode: str,
) -> None:
    """Once the watermark has had its batch without data, a query does nothing until data come."""
    run = QueryRun(session, build, mode, tmp_path / "checkpoint")
    run.add(*EVENTS)
    require_idle(sc, run.query, tmp_path / "checkpoint")


@pytest.mark.deep
def test_timers(
    sc: SparkContext, session: StreamSession, clock: ManualClock, tmp_path: Path
) -> None:
    """A timer that is not due costs nothing, nor do timers that have all been."""
    checkpoint = tmp_path / "checkpoint"
    run = QueryRun(session, timers, "update", checkpoint)
    assert run.add(*EVENTS) == []
    clock.advance(9000)
    require_idle(sc, run.query, checkpoint)
    clock.advance(2000)
    wait_for(lambda: session.table("run"))
    assert run.outputs() == ["a", "b"]
    clock.advance(60_000)
    require_idle(sc, run.query, checkpoint)


def test_rate(sc: SparkContext, session: StreamSession, clock: ManualClock, tmp_path: Path) -> None:
    """The rate source has nothing until its next second."""
    rows = session.readStream.format("rate").option("rowsPerSecond", 3).load()
    require_idle_from(sc, rows, tmp_path, lambda: clock.advance(1000))


def test_files(sc: SparkContext, session: StreamSession, tmp_path: Path) -> None:
    """A directory is listed, and that is all."""
    incoming = tmp_path / "in"
    incoming.mkdir()
    (incoming / "first.txt").write_text("a\nb\n", encoding="utf-8")
    require_idle_from(sc, session.readStream.format("text").load(str(incoming)), tmp_path)


def test_socket(sc: SparkContext, session: StreamSession, tmp_path: Path) -> None:
    """A socket that is silent is let be silent."""
    with create_server(("127.0.0.1", 0)) as server:
        options = {"host": "127.0.0.1", "port": str(server.getsockname()[1])}
        lines = session.readStream.format("socket").options(**options).load()

        def send() -> None:
            connection, _ = server.accept()
            sent.append(connection)
            connection.sendall(b"a\nb\n")

        sent: list[Any] = []
        try:
            require_idle_from(sc, lines, tmp_path, send)
        finally:
            for connection in sent:
                connection.close()


def require_idle_from(
    sc: SparkContext,
    rows: StreamingDataset,
    tmp_path: Path,
    give: Callable[[], None] = lambda: None,
) -> None:
    """Start a query, give its source something, and let triggers pass once that was read."""
    checkpoint = tmp_path / "checkpoint"
    writer = rows.writeStream.format("memory").queryName("rows").outputMode("append")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    give()
    wait_for(lambda: query.lastProgress is not None and query.lastProgress.numInputRows > 0)
    require_idle(sc, query, checkpoint)
    query.stop()
