"""Sessions: without Spark, against sessions computed at once, and one plan on RDDs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext

from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StoreId
from dstreams.arrow.aggregates.functions import Count
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.spilling import SpillBuffer
from dstreams.spark.state_version import StateMetrics
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators import sessions
from dstreams.structured.operators.physical_operator import RDDScanExec
from dstreams.structured.operators.sessions import (
    AggregateSessions,
    SaveSessions,
    Session,
    SessionGrouping,
    SessionsIntoState,
    finish_sessions,
    merge_sessions,
    not_late,
    plan_sessions,
    require_session_mode,
)
from dstreams.structured.operators.stateless import EventTimeWatermarkExec
from tests.dstreams.structured.operators.local_query import LocalQuery
from tests.dstreams.structured.operators.query import SparkQuery

STORE = StoreId("stream", "sessions", "default", 0, 1)
GAP_MS = 5_000
BY_KEY = SessionGrouping(GAP_MS * 1000, key=lambda value: value)


class Sessions:
    """A count by sessions on a store in memory."""

    def __init__(self, mode: OutputMode = OutputMode.Append, grouping: Any = BY_KEY) -> None:
        self.mode, self.grouping = mode, grouping
        no_data = mode is OutputMode.Append
        self.query = LocalQuery(self._map_side, self._state_side, no_data=no_data)

    def _map_side(self, events: list[Any]) -> list[Any]:
        # In two tasks, because those of one task are merged before they are shuffled.
        tasks = (events[::2], events[1::2])
        partial = AggregateSessions(Count(), self.grouping, self.query.late_ms)
        return [row for task in tasks for row in partial(0, task)]

    def _state_side(self, late_ms: int | None, evict_ms: int | None) -> SessionsIntoState:
        return SessionsIntoState(Count(), SaveSessions(self.mode, evict_ms), late_ms)

    def add(self, *events: Any) -> dict[Any, int]:
        """Add events: seconds, or (seconds, key); return counts by (start, end, key) in seconds."""
        given = [event if isinstance(event, tuple) else (event, "k") for event in events]
        rows = self.query.add([(None if s is None else s * 1000, key) for s, key in given])
        found = finish_sessions(Count(), self.grouping, None, 0, rows)
        return {(w.start_ms // 1000, w.end_ms // 1000, key): n for (w, key), n in found}


def test_append() -> None:
    """A session goes out when the watermark has passed its end."""
    sessions = Sessions()
    assert sessions.add(10, 11) == {}
    assert sessions.add(17) == {}
    assert sessions.add(25) == {}
    assert sessions.add(35) == {(10, 16, "k"): 2, (17, 22, "k"): 1}
    assert sessions.query.batches[-1].counts == (2, 0, 2, 0)
    assert sessions.query.batches[-1].metrics.numOutputRows == 2


def test_an_event_between_two_sessions() -> None:
    """It merges both: the later row is removed, and the earlier one is written again."""
    sessions = Sessions(OutputMode.Complete)
    assert sessions.add(10, 18) == {(10, 15, "k"): 1, (18, 23, "k"): 1}
    assert sessions.add(14) == {(10, 23, "k"): 3}
    assert sessions.query.batches[-1].counts == (1, 1, 1, 0)


def test_complete() -> None:
    """Every batch emits all sessions; none is evicted or late."""
    sessions = Sessions(OutputMode.Complete)
    sessions.add((10, "a"))
    assert sessions.add((100, "b")) == {(10, 15, "a"): 1, (100, 105, "b"): 1}


@pytest.mark.parametrize("mode", [OutputMode.Update, None])
def test_update_is_refused(mode: OutputMode | None) -> None:
    """Mode update is rejected, and the error names the supported modes."""
    with pytest.raises(InvalidStreamError, match=r"must be append or complete, .*; use append"):
        require_session_mode(mode)


def test_sessions_that_touch() -> None:
    """An event exactly at the end of a session belongs to it."""
    sessions = Sessions(OutputMode.Complete)
    assert sessions.add(10, 15) == {(10, 20, "k"): 2}
    assert sessions.add(21) == {(10, 20, "k"): 2, (21, 26, "k"): 1}


def test_an_earlier_event_moves_the_start() -> None:
    """The row of the old start goes, and one with the new start comes."""
    sessions = Sessions(OutputMode.Complete)
    sessions.add(10)
    assert sessions.add(8) == {(8, 15, "k"): 2}
    assert sessions.query.batches[-1].counts == (1, 1, 1, 0)


def test_late_events_count_one_by_one() -> None:
    """A late event is dropped, also if it touches one that is not late."""
    sessions = Sessions()
    sessions.add(30)
    assert sessions.add(15, 14, 16) == {}
    assert sessions.query.batches[-1].counts == (2, 2, 0, 2)
    assert sessions.add(60) == {(16, 21, "k"): 1, (30, 35, "k"): 1}


def test_an_event_without_a_time() -> None:
    """A record without an event time is in no session."""
    assert Sessions(OutputMode.Complete).add(10, (None, "k")) == {(10, 15, "k"): 1}


def test_without_a_key() -> None:
    """Sessions of all records together have a window for a key."""
    grouping = SessionGrouping(GAP_MS * 1000)
    partial = AggregateSessions(Count(), grouping)
    rows = list(partial(0, [(1_000_000, "a"), (3_000_000, "b")]))
    assert rows == [((), Session(1_000_000, 8_000_000, 2))]
    assert list(finish_sessions(Count(), grouping, None, 0, rows)) == [((1_000, 8_000), 2)]


def test_sessions_go_by_microseconds() -> None:
    """Only windows are rounded, so that they contain all events; lateness and merging are not."""
    grouping = SessionGrouping(1_000)
    events = [(999, "a"), (1_000, "b"), (2_001, "c")]
    rows = list(AggregateSessions(Count(), grouping)(0, events))
    assert rows == [((), Session(999, 2_000, 2)), ((), Session(2_001, 3_001, 1))]
    assert list(finish_sessions(Count(), grouping, None, 0, rows)) == [((0, 2), 2), ((2, 4), 1)]
    metrics = StateMetrics()
    assert list(not_late(iter(rows), 3, metrics)) == [((), Session(2_001, 3_001, 1))]
    assert metrics.numRowsDroppedByWatermark == 1


def test_sessions_out_of_order_are_refused() -> None:
    """Merging relies on the order of starts."""
    with pytest.raises(ValueError, match="in the order of their starts, got 1 us after 2 us"):
        list(merge_sessions([Session(2, 9, 1), Session(1, 9, 1)], max))


def test_a_key_that_fails() -> None:
    """The error names the record."""
    grouping = SessionGrouping(5_000, key=len, name="sessions by len")
    with pytest.raises(UserFunctionError, match="sessions by len failed for record 3: TypeError"):
        list(AggregateSessions(Count(), grouping)(0, [(1, 3)]))


@pytest.mark.deep
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 80), st.sampled_from("ab")), max_size=6), max_size=8)
)
def test_append_is_the_sessions_of_what_was_not_late(batches: list[list[tuple[int, str]]]) -> None:
    """The sessions of events that were not late are emitted when the watermark passes them."""
    sessions = Sessions()
    there: list[tuple[str, int]] = []
    for batch in [*batches, [(1000, "end")]]:
        late_s, before_s = sessions.query.late_ms // 1000, sessions.query.watermark_ms // 1000
        there = sorted([*there, *((key, s) for s, key in batch if s + 5 > late_s)])
        expected: dict[Any, int] = {}
        found = sessions.add(*batch)
        for watermark_s in (before_s, sessions.query.watermark_ms // 1000):
            for session in clusters(there):
                key, start_s, end_s = session[0][0], session[0][1], session[-1][1] + 5
                if end_s <= watermark_s:
                    expected[start_s, end_s, key] = len(session)
                    there = [event for event in there if event not in session]
        assert found == expected


def clusters(events: list[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    """Cut sorted (key, second) where a key ends or 5 seconds pass."""
    found: list[list[tuple[str, int]]] = []
    for key, second in events:
        if found and found[-1][-1][0] == key and second - found[-1][-1][1] <= 5:
            found[-1].append((key, second))
        else:
            found.append([(key, second)])
    return found


def many_sessions() -> list[tuple[Any, Session]]:
    """Sessions of 3,000 keys, two of each that touch and one that does not."""
    starts = (0, 100_000, 4_000)
    return [(f"k{n}", Session(start, start + GAP_MS, 1)) for start in starts for n in range(3000)]


@pytest.mark.deep
def test_what_changes_is_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is larger than memory comes to the same, in the same order."""
    made: list[SpillBuffer] = []

    def held_rows(memory_mb: float) -> SpillBuffer:
        made.append(SpillBuffer(memory_mb))
        return made[-1]

    monkeypatch.setattr(sessions, "SpillBuffer", held_rows)
    found = []
    for memory_mb in (1 << 62, 0.001):
        walk = SessionsIntoState(Count(), SaveSessions(OutputMode.Complete), memory_mb=memory_mb)
        states, version_id, rows, metrics = StateStore(MemoryBackend()), EMPTY, [], StateMetrics()
        for _ in range(2):
            with states.writer(STORE, version_id) as store:
                rows.append(list(walk(store, iter(()), iter(many_sessions()), metrics)))
                version_id = store.commit().version_id
        found.append((*rows, metrics.numUpdatedStateRows))
    assert found[0] == found[1]
    assert [held.are_in_memory for held in made] == [True, True, False, False]
    assert ("k7", Session(0, 9_000, 2)) in found[0][0]
    assert ("k7", Session(0, 9_000, 4)) in found[0][1]
    assert found[0][2] == 2 * 6000


@pytest.mark.deep
def test_on_rdds(sc: SparkContext, tmp_path: Path) -> None:
    """The plan on real RDDs, with its batches without data."""
    marked = EventTimeWatermarkExec(RDDScanExec(None), lambda record: record[0] * 1000, 10_000)
    grouping = SessionGrouping(GAP_MS * 1000, key=lambda record: record[1])
    plan = plan_sessions(marked, grouping, numPartitions=2, outputMode=OutputMode.Append)
    query = SparkQuery(sc, plan, tmp_path)
    assert query.add([(10, "k"), (11, "k"), (3, "x")]) == []
    assert query.add([(17, "k"), (25, "k")]) == [(((3_000, 8_000), "x"), 1)]
    assert sorted(query.add([(35, "k")])) == [
        (((10_000, 16_000), "k"), 2),
        (((17_000, 22_000), "k"), 1),
    ]
    assert query.add([(12, "k"), (34, "k")]) == []
    assert query.metrics["sessionWindowStateStoreSaveExec"].numRowsDroppedByWatermark == 1
    assert sorted(query.add([(99, "k")])) == [
        (((25_000, 30_000), "k"), 1),
        (((34_000, 40_000), "k"), 2),
    ]
