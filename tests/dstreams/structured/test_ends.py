"""Ends of queries and of waits for them, also after errors; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from checkpoint.state_store import MemoryBackend, StateStore
from dstreams.engine.garbage_collector import GarbageCollector
from dstreams.monitoring.listener_bus import ListenerBus
from dstreams.monitoring.monitor import Monitor
from dstreams.monitoring.progress import spark_time
from dstreams.sources.source import SourceReader, remedy_of
from dstreams.spark.job_watch import JobWatch
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.state_versions import StateVersions
from dstreams.structured.api.listeners import CALLBACKS, QueryIdleEvent, StreamingQueryListener
from dstreams.structured.api.query import (
    QueryEnvironment,
    StreamingQuery,
    StreamingQueryException,
    Trigger,
    start_query,
)
from dstreams.structured.conf import QueryConf
from dstreams.testing import ManualClock


class Unanswering(SourceReader):
    """A reader that cannot say what to do about an error."""

    def error_hint(self, failure: str) -> str | None:
        raise Py4JError("Spark has stopped")


class Stuck:
    """An execution that fails, and fails again when it is closed."""

    run_id, batch_id, has_new_data = "run", 7, False
    conf = QueryConf()

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.checkpoint = SimpleNamespace(
            query_id="query", close=lambda: self.closed.append("checkpoint")
        )
        sink = SimpleNamespace(close=lambda: self.closed.append("sink"))
        self.definition = SimpleNamespace(name="stuck", sinks=(sink,))
        self.garbage_collector = GarbageCollector()

    def pin(self) -> None:
        pass

    def run_trigger(self, *, allows_no_data: bool, is_stopping: Any) -> Any:
        raise ValueError("no batch today")

    def report_committed(self) -> None:
        pass

    def explain(self, error: BaseException) -> str | None:
        return remedy_of(error, [Unanswering()])

    def close(self, *, in_order: bool) -> None:
        raise Py4JError("Spark has stopped")


def query_bus() -> ListenerBus:
    return ListenerBus(StreamingQueryListener, CALLBACKS, max_queued=100)


def test_a_query_ends_though_it_cannot_give_up_what_it_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A waiting caller gets the first error, and sink and checkpoint are closed."""
    execution: Any = Stuck()
    spark: Any = SimpleNamespace(setJobGroup=lambda *args, **named: None)
    ended: list[StreamingQuery] = []
    clock = ManualClock(0)
    monitor = Monitor("query", "stuck", None, clock, 10)
    watch = JobWatch(spark, clock)
    environment = QueryEnvironment(
        spark, clock, query_bus(), monitor, watch, ended.append, lambda: None
    )
    query = StreamingQuery(execution, Trigger("availableNow"), environment)
    start_query(query)
    with pytest.raises(StreamingQueryException, match="failed in batch 7: ValueError: no batch"):
        query.awaitTermination(60)
    assert not query.isActive
    assert ended == [query]
    assert monitor.status().failure == str(query.exception())
    assert execution.closed == ["sink", "checkpoint"]
    assert "failed to ask" in caplog.text
    assert "could not release resources" in caplog.text


def test_rows_that_cannot_be_given_up_are_no_error() -> None:
    """Spark has stopped, and with it all that it kept."""
    released = []

    class Kept:
        def unpersist(self) -> None:
            released.append(self)
            raise Py4JError("Spark has stopped")

    states: Any = StateVersions(SimpleNamespace(), StateStore(MemoryBackend()))  # type: ignore[arg-type]
    version = states.empty("counts", StablePartitioner(2))
    for batch in (0, 1):
        states.restore("counts", batch, version)
        states._known["counts"][batch] = states._known["counts"][batch]._replace(rdd=Kept())
    states.release()
    states.evict("counts", 1)
    assert len(released) == 2


def test_a_listener_that_exits_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it keep anybody from hearing of what comes next."""
    told: list[str] = []

    class Exits(StreamingQueryListener):
        def onQueryIdle(self, event: QueryIdleEvent) -> None:
            told.append(event.id)
            raise SystemExit(1)

    bus = query_bus()
    bus.add(Exits())
    bus.call_now(QueryIdleEvent("now", "run", "then"))
    for name in ("first", "second"):
        bus.post(QueryIdleEvent(name, "run", "then"))
    assert bus.drain(10)
    assert told == ["now", "first", "second"]
    assert "Exits raised on QueryIdleEvent; it gets further events" in caplog.text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "10000-01-01T00:00:00.000Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
    ],
)
def test_times_of_any_year_can_be_shown(time_ms: int, text: str) -> None:
    """Event times in microseconds by mistake make a strange watermark, not a failed query."""
    assert spark_time(time_ms) == text
