"""Aggregation by session windows: the operators, and their functions in one partition.

::

    FinishSessions                              buffers -> results
    +- SessionWindowStateStoreSave              saves the sessions, and emits by output mode
       +- MergingSessions                       sessions that touch become one
          +- SessionWindowStateStoreRestore     with those of the state
             +- Sort                            by key and start
                +- Exchange                     to the partition of the key, without the session
                   +- UpdatingSessions          events -> sessions, where they are

    state, gap 5 s:     [10 s ----- 15 s]         [18 s ----- 23 s]
    an event at 14 s:            [14 s --------- 19 s]
    merged:             [10 s ------------------------------- 23 s]

Two sessions are merged if the later one starts before the other ends, or at its end. A session is
stored under (key, start), with its end in milliseconds as timeout: a prefix finds the sessions of a
key, and the index of timeouts finds those that the watermark has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

from checkpoint.state_store import StateReader, StateWriter
from dstreams.arrow.aggregates.functions import AggregateFunction, Count
from dstreams.common.durations import ms_upto
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import failed
from dstreams.spark.spilling import GroupsInOrder, SpillBuffer
from dstreams.spark.state_version import StateMetrics
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.group_state import OutputMode
from dstreams.structured.named_rows import ResultRows, Window, pairs_of, same
from dstreams.structured.operators.aggregation_state import Report
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    describe_state_info,
)
from dstreams.structured.operators.grouping import key_of
from dstreams.structured.operators.physical_operator import (
    BY_KEY_AND_START,
    Distribution,
    NarrowExec,
    Ordering,
    PhysicalOperator,
    StatefulOpClusteredDistribution,
    Task,
    UnaryExec,
)
from dstreams.structured.operators.stateful_operator import SavingOperator, StateStoreReader

_MOST_SESSIONS = 100_000
"""The most sessions that are merged before the shuffle."""
_first = itemgetter(0)


class Session(NamedTuple):
    """A session of one key, in microseconds since the epoch, and its buffer.

    It ends a gap after its last event.
    """

    start_us: int
    end_us: int
    buffer: Any


Rows = Iterator[tuple[Any, Session]]


@dataclass(frozen=True)
class SessionGrouping:
    """The grouping of records, and the gap that ends a session.

    The gap is in microseconds, or a function from a record to them.
    """

    gap_us: int | Callable[[Any], int]
    key: Callable[[Any], Any] | None = None
    name: str = "key, session"

    def key_of(self, record: Any) -> Any:
        return key_of(self.key, record, self.name)

    def gap_of(self, record: Any) -> int:
        """Return the gap after a record in microseconds; zero or less if it is in no session."""
        if isinstance(self.gap_us, int):
            return self.gap_us
        try:
            return self.gap_us(record)
        except Exception as error:
            raise failed("gapDuration of session_window", record, error, "record") from error


def merge_sessions(
    sessions: Iterable[Session], merge: Callable[[Any, Any], Any]
) -> Iterator[Session]:
    """Merge sessions of one key that touch; they come in the order of their starts."""
    current: Session | None = None
    for session in sessions:
        if current is None:
            current = session
        elif session.start_us < current.start_us:
            raise ValueError(
                f"sessions must come in the order of their starts, got {session.start_us} us after "
                f"{current.start_us} us"
            )
        elif session.start_us <= current.end_us:
            end_us = max(current.end_us, session.end_us)
            current = Session(current.start_us, end_us, merge(current.buffer, session.buffer))
        else:
            yield current
            current = session
    if current is not None:
        yield current


@dataclass(frozen=True)
class AggregateSessions:
    """Task: events -> (key, session), merged if they touch.

    Late sessions are not merged, so that the operator with the state can drop and count them.
    """

    aggregate: AggregateFunction
    grouping: SessionGrouping
    late_ms: int | None = None
    where: str = "agg"

    def __call__(self, _: int, events: Iterable[Any]) -> Iterator[tuple[Any, Session]]:
        settle_worker()
        late_us = None if self.late_ms is None else self.late_ms * 1000
        gap_of = self.grouping.gap_of
        found: dict[Any, list[Session]] = {}
        count = 0
        for time_us, record in events:
            if time_us is None or (ends_after_us := gap_of(record)) <= 0:
                continue
            key, end_us = self.grouping.key_of(record), time_us + ends_after_us
            try:
                buffer = self.aggregate.reduce(self.aggregate.zero(), record)
            except Exception as error:
                raise failed(self.where, key, error) from error
            session = Session(time_us, end_us, buffer)
            if late_us is not None and end_us <= late_us:
                yield key, session
                continue
            found.setdefault(key, []).append(session)
            count += 1
            if count >= _MOST_SESSIONS:
                yield from self._of_keys(found)
                found, count = {}, 0
        yield from self._of_keys(found)

    def _of_keys(self, found: dict[Any, list[Session]]) -> Rows:
        for key, sessions in found.items():
            sessions.sort(key=_first)
            for session in merged_sessions(key, sessions, self.aggregate, self.where):
                yield key, session


@dataclass(frozen=True)
class RestoreSessions:
    """Function of a read-only store: late sessions dropped, stored sessions of their key added.

    Rows of a key come together and leave in the order of their starts.
    """

    late_ms: int | None = None
    report: Report | None = None

    def __call__(self, split: int, store: StateReader, rows: Rows) -> Rows:
        counts = StateMetrics()
        for key, group in groupby(not_late(rows, self.late_ms, counts), key=_first):
            sessions = [Session(*session) for _, session in group]
            for session in with_stored(store, key, sessions)[1]:
                counts.numOutputRows += 1
                yield key, session
        if self.report is not None:
            dropped = counts.numRowsDroppedByWatermark
            self.report(
                split,
                counts.numOutputRows + dropped,
                {"numOutputRows": counts.numOutputRows, "numRowsDroppedByWatermark": dropped},
            )


def merge_touching(
    aggregate: AggregateFunction, where: str, _: int, rows: Iterable[tuple[Any, Session]]
) -> Rows:
    """Merge sessions (key, session) that touch; they come and go in the order of their starts."""
    settle_worker()
    for key, group in groupby(rows, key=_first):
        sessions = (Session(*session) for _, session in group)
        for session in merged_sessions(key, sessions, aggregate, where):
            yield key, session


@dataclass(frozen=True)
class SaveSessions:
    """Function of a store: the sessions of a key replace the stored ones, and rows go out.

    In mode append the sessions that the watermark has passed are emitted and evicted, in mode
    complete all are emitted. Rows of a key come together, in the order of their starts.
    """

    mode: OutputMode
    evict_ms: int | None = None

    def __call__(
        self, store: StateWriter, initial: Iterable[Any], records: Rows, metrics: StateMetrics
    ) -> Rows:
        for key, group in groupby(records, key=_first):
            after = [Session(*session) for _, session in group]
            removed = removed_starts(stored_sessions(store, key), after)
            self.save(store, key, removed, after, metrics)
        yield from self.emitted(store, metrics)

    def save(
        self,
        store: StateWriter,
        key: Any,
        removed: Iterable[int],
        sessions: Iterable[tuple[int, int, Any]],
        metrics: StateMetrics,
    ) -> None:
        """Remove the sessions of a key with some starts, and store others."""
        for start_us in removed:
            store.remove((key, start_us))
            metrics.numRemovedStateRows += 1
        for start_us, end_us, buffer in sessions:
            store.put((key, start_us), (end_us, buffer), max(ms_upto(end_us), 0))
            metrics.numUpdatedStateRows += 1

    def emitted(self, store: StateWriter, metrics: StateMetrics) -> Rows:
        """Iterate over the rows to emit; in mode append they are evicted."""
        if self.mode is OutputMode.Complete:
            for (key, start_us), (end_us, buffer) in store.items():
                metrics.numOutputRows += 1
                yield key, Session(start_us, end_us, buffer)
        elif self.evict_ms is not None:
            started = perf_counter()
            for (key, start_us), (end_us, buffer), _ in store.take_due(self.evict_ms + 1):
                metrics.numRemovedStateRows += 1
                metrics.numOutputRows += 1
                yield key, Session(start_us, end_us, buffer)
            metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)


@dataclass(frozen=True)
class SessionsIntoState:
    """Function of a store: sorting, restoring, merging and saving, key by key.

    It does what LocalSortExec, RestoreSessions, merge_touching and SaveSessions do one after the
    other. Everything is read before anything is written, which takes less time.
    """

    aggregate: AggregateFunction
    save: SaveSessions
    late_ms: int | None = None
    where: str = "agg"
    memory_mb: float = 512

    def __call__(
        self,
        store: StateWriter,
        initial: Iterable[Any],
        records: Rows,
        metrics: StateMetrics,
    ) -> Rows:
        changes = SpillBuffer(self.memory_mb)
        groups = GroupsInOrder(self.memory_mb)
        groups.add(not_late(records, self.late_ms, metrics))
        for key, sessions in groups.items():
            before, touching = with_stored(store, key, sessions)
            metrics.numRestoredRows += len(touching)
            after = merged_sessions(key, touching, self.aggregate, self.where)
            changes.add((key, removed_starts(before, after), after))
        for key, removed, after in changes.rows():
            self.save.save(store, key, removed, after, metrics)
        yield from self.save.emitted(store, metrics)


def not_late(rows: Rows, late_ms: int | None, metrics: StateMetrics) -> Rows:
    """Iterate over the sessions that end after a watermark, and count the others as dropped."""
    late_us = None if late_ms is None else late_ms * 1000
    for key, session in rows:
        if late_us is not None and session[1] <= late_us:
            metrics.numRowsDroppedByWatermark += 1
        else:
            yield key, Session(*session)


def with_stored(
    store: StateReader, key: Any, sessions: Sequence[Session]
) -> tuple[list[Session], list[Session]]:
    """Return the stored sessions of a key, and these with others in the order of their starts."""
    before = stored_sessions(store, key)
    return before, sorted([*before, *sessions], key=_first)  # a buffer need not have an order


def merged_sessions(
    key: Any, sessions: Iterable[Session], aggregate: AggregateFunction, where: str
) -> list[Session]:
    """Return the merged sessions of a key, in the order of their starts."""
    try:
        return list(merge_sessions(sessions, aggregate.merge))
    except Exception as error:
        raise failed(where, key, error) from error


def removed_starts(before: list[Session], after: list[Session]) -> list[int]:
    """Return the starts of the sessions that were merged into others."""
    starts = {session.start_us for session in after} if before else set()
    return [session.start_us for session in before if session.start_us not in starts]


def finish_sessions(
    aggregate: AggregateFunction,
    grouping: SessionGrouping,
    result: ResultRows | None,
    _: int,
    rows: Iterable[Any],
) -> Iterator[Any]:
    """Make rows of results, or (``(Window, key)`` or the window alone, result), of (key, session).

    Windows are rounded to milliseconds so that they contain all events.
    """
    settle_worker()
    rows_of = pairs_of if result is None else result.rows
    return rows_of(_with_window(rows, grouping), same, aggregate.finish)


def _with_window(rows: Iterable[Any], grouping: SessionGrouping) -> Iterator[tuple[Any, Any]]:
    for key, (start_us, end_us, buffer) in rows:
        window = Window(start_us // 1000, ms_upto(end_us))
        yield (window if grouping.key is None else (window, key)), buffer


def stored_sessions(store: StateReader, key: Any) -> list[Session]:
    """Return the stored sessions of a key, in the order of their starts."""
    return [
        Session(start_us, end_us, buffer)
        for (_, start_us), (end_us, buffer) in store.prefix((key,))
    ]


def require_session_mode(mode: OutputMode | None) -> OutputMode:
    """Return the output mode if sessions can have it, else raise InvalidStreamError."""
    if mode is OutputMode.Append or mode is OutputMode.Complete:
        return mode
    raise InvalidStreamError(
        f"session windows: output mode must be append or complete, got "
        f"{None if mode is None else mode.value}, because emitted sessions may grow; use append"
    )


@dataclass(frozen=True)
class UpdatingSessionsExec(NarrowExec):
    """Makes a session of each event, and merges those that touch, except late ones.

    Semantics: UpdatingSessionsExec (Spark 4.3).
    """

    output: ClassVar[tuple[str, ...]] = ("key", "session")
    keepsEventTime: ClassVar[bool] = False

    aggregate: AggregateFunction
    grouping: SessionGrouping
    where: str = "agg"
    eventTimeWatermarkForLateEvents: int | None = None

    @property
    def arguments(self) -> list[str]:
        return [type(self.aggregate).__name__, f"by {self.grouping.name}"]

    def task(self, context: ExecutionContext) -> Task:
        if not self.child.hasEventTime:
            raise InvalidStreamError(
                f"session windows by {self.grouping.name} need an event time; call withWatermark "
                "before"
            )
        late_ms = self.eventTimeWatermarkForLateEvents
        return AggregateSessions(self.aggregate, self.grouping, late_ms, self.where)


@dataclass(frozen=True)
class SessionWindowStateStoreRestoreExec(StateStoreReader, UnaryExec):
    """Drops late sessions, and merges those of the state among the sessions of each key.

    Rows are (key, session), those of a key in the order of their starts, before and after.
    ``numOutputRows`` counts the rows out, ``numRowsDroppedByWatermark`` the late ones; the operator
    above that saves the sessions reports the latter as its own.

    Semantics: SessionWindowStateStoreRestoreExec (Spark 4.3).
    """

    outputOrdering: ClassVar[Ordering] = BY_KEY_AND_START
    requiredChildOrdering: ClassVar[tuple[Ordering, ...]] = (BY_KEY_AND_START,)
    keepsEventTime: ClassVar[bool] = False

    keyExpressions: SessionGrouping
    eventTimeWatermarkForLateEvents: int | None = None

    @property
    def arguments(self) -> list[str]:
        late = self.eventTimeWatermarkForLateEvents
        state = describe_state_info(self.stateInfo)
        mark = "<unknown>" if late is None else str(late)
        return [f"by {self.keyExpressions.name}", state, mark]

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        return (self.clustered(self.keyExpressions.name),)

    def countsIn(self, made: StateMetrics) -> dict[str, int]:
        dropped = made.numRowsDroppedByWatermark
        return {**super().countsIn(made), "numRowsDroppedByWatermark": dropped}

    def function(self, report: Report) -> RestoreSessions:
        return RestoreSessions(self.eventTimeWatermarkForLateEvents, report)


@dataclass(frozen=True)
class MergingSessionsExec(NarrowExec):
    """Merges sessions that touch; rows of a key come together, in the order of their starts.

    Semantics: MergingSessionsExec (Spark 4.3).
    """

    outputOrdering: ClassVar[Ordering] = BY_KEY_AND_START
    requiredChildDistribution: ClassVar[tuple[Distribution, ...]] = (
        StatefulOpClusteredDistribution(),
    )
    requiredChildOrdering: ClassVar[tuple[Ordering, ...]] = (BY_KEY_AND_START,)
    keepsEventTime: ClassVar[bool] = False
    keepsPartitioning: ClassVar[bool] = True

    aggregate: AggregateFunction
    where: str = "agg"

    @property
    def arguments(self) -> list[str]:
        return [type(self.aggregate).__name__]

    def task(self, context: ExecutionContext) -> Task:
        return partial(merge_touching, self.aggregate, self.where)


@dataclass(frozen=True)
class SessionWindowStateStoreSaveExec(SavingOperator):
    """Replaces the stored sessions of each key, and emits rows by output mode.

    Semantics: SessionWindowStateStoreSaveExec (Spark 4.3).
    """

    requiredChildOrdering: ClassVar[tuple[Ordering, ...]] = (BY_KEY_AND_START,)
    shortName: ClassVar[str] = "sessionWindowStateStoreSaveExec"

    keyExpressions: SessionGrouping

    def function(self, memory_mb: float = 512) -> SaveSessions:
        mode = require_session_mode(self.outputMode)
        return SaveSessions(mode, self.eventTimeWatermarkForEviction)


@dataclass(frozen=True)
class FinishSessionsExec(NarrowExec):
    """The results of sessions: rows with the fields of *result*, or ``((Window, key), result)``."""

    keepsEventTime: ClassVar[bool] = False

    aggregate: AggregateFunction
    grouping: SessionGrouping
    result: ResultRows | None = None

    @property
    def arguments(self) -> list[str]:
        return [type(self.aggregate).__name__, f"by {self.grouping.name}"]

    @property
    def output(self) -> tuple[str, ...]:
        return ("key", "result") if self.result is None else self.result.names

    def task(self, context: ExecutionContext) -> Task:
        return partial(finish_sessions, self.aggregate, self.grouping, self.result)


def plan_sessions(
    child: PhysicalOperator,
    grouping: SessionGrouping,
    aggregate: AggregateFunction | None = None,
    *,
    numPartitions: int,
    outputMode: OutputMode | None = None,
    where: str = "agg",
    keepsState: bool = True,
    result: ResultRows | None = None,
) -> PhysicalOperator:
    """Return the operators of an aggregation by session windows, by default a count.

    Without *keepsState* they are those of a batch dataset, which merge its sessions once.
    """
    function = Count() if aggregate is None else aggregate
    updating = UpdatingSessionsExec(child, function, grouping, where)
    if not keepsState:
        merged = MergingSessionsExec(updating, function, where)
        finished = FinishSessionsExec(merged, function, grouping, result)
        return ensure_requirements(finished, numPartitions)
    restored = SessionWindowStateStoreRestoreExec(updating, grouping)
    merging = MergingSessionsExec(restored, function, where)
    saved = SessionWindowStateStoreSaveExec(merging, grouping, outputMode)
    return ensure_requirements(FinishSessionsExec(saved, function, grouping, result), numPartitions)
