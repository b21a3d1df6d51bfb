"""Joins of two streams: each row meets the rows of the other side so far.

::

    left rows of the batch  --- meet --- right rows of the state  \\
    left rows of the batch  --- meet --- right rows of the batch   >  pairs out
    left rows of the state  --- meet --- right rows of the batch  /
    then all rows of the batch are stored, and those that no later row can meet are evicted

A row is evicted when the watermark has passed all rows that could meet it, because those would be
late. Only then does an outer join emit a row without a match. So the watermark of a side, and the
end of the range for the other side's rows, bound the rows that are kept of the other side. Without
one of them, rows are kept for ever.

The key of a stored row is (side, key, batch, number), its timeout the time of its eviction. A
prefix finds the rows of a key, and the index of timeouts finds the rows to evict.

If both sides have event times, a pair has the later one. That record is new in its batch, so a pair
is never late for the next operator, however long the other record has been stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

from pyspark import RDD

from checkpoint.state_store import StateWriter
from dstreams.common.durations import ms_upto
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import failed
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.spilling import GroupsInOrder, SpillBuffer
from dstreams.spark.state_version import StateMetrics
from dstreams.spark.worker_gc import settle_worker
from dstreams.structured.operators.deduplication import KeyEventsExec
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    Distribution,
    Event,
    NarrowExec,
    PhysicalOperator,
    Task,
)
from dstreams.structured.operators.stateful_operator import StateStoreWriter

LEFT, RIGHT = 0, 1
Pair = tuple[Any, Any]


@dataclass(frozen=True)
class KeyBefore:
    """From the key of a row to its key in a new store, whose versions begin again at 1.

    The version in it becomes zero or negative. *version* is that of the old store.
    """

    version: int

    def __call__(self, place: tuple[int, Any, int, int]) -> tuple[int, Any, int, int]:
        side, key, version, number = place
        return side, key, version - self.version, number


class JoinType(str, Enum):
    """The rows that are emitted, in addition to matching pairs."""

    Inner = "inner"
    LeftOuter = "left_outer"
    RightOuter = "right_outer"
    FullOuter = "full_outer"
    LeftSemi = "left_semi"
    LeftAnti = "left_anti"

    def keeps(self, side: int) -> bool:
        """Return whether rows of a side without a match are emitted."""
        outer = JoinType.LeftOuter if side == LEFT else JoinType.RightOuter
        return self in (outer, JoinType.FullOuter)

    def waits(self, side: int) -> bool:
        """Return whether it must become known that a row of a side has no match."""
        return self.keeps(side) or (side == LEFT and self is JoinType.LeftSemi)


@dataclass(frozen=True)
class TimeRange:
    """The range of ``time of the right row - time of the left row``, both ends included.

    *least_ms* is negative if the right row may come first; None leaves an end open. Rows without an
    event time never match.
    """

    least_ms: int | None
    most_ms: int | None

    def __post_init__(self) -> None:
        if self.least_ms is None or self.most_ms is None:
            if self.least_ms is self.most_ms:
                raise InvalidStreamError("time range of a join is open at both ends; give one end")
        elif self.least_ms > self.most_ms:
            raise InvalidStreamError(
                f"time range of a join from {self.least_ms} ms to {self.most_ms} ms is empty; give "
                "the least difference first"
            )

    def holds(self, left_us: int | None, right_us: int | None) -> bool:
        """Return whether two times in microseconds are in the range."""
        if left_us is None or right_us is None:
            return False
        after_us = right_us - left_us
        if self.least_ms is not None and after_us < self.least_ms * 1000:
            return False
        return self.most_ms is None or after_us <= self.most_ms * 1000

    def after_ms(self, side: int) -> int | None:
        """Return how long after a row of a side a row of the other side can match; None: always."""
        if side == LEFT:
            return self.most_ms
        return None if self.least_ms is None else -self.least_ms


@dataclass(frozen=True)
class JoinCondition:
    """The condition for two rows of one key to match, and the sides that have a watermark."""

    time_range: TimeRange | None = None
    matches: Callable[[Any, Any], bool] | None = None
    where: str = "join"
    watermarks: tuple[bool, bool] = (True, True)
    ends_itself: tuple[bool, bool] = (False, False)
    """The sides whose rows their own watermark evicts; all rows that match have the same time."""

    def meet(self, key: Any, left: Event, right: Event) -> bool:
        """Return whether two rows match."""
        if self.time_range is not None and not self.time_range.holds(left[0], right[0]):
            return False
        if self.matches is None:
            return True
        try:
            return bool(self.matches(left[1], right[1]))
        except Exception as error:
            raise failed(self.where, key, error) from error

    def after_ms(self, side: int) -> int | None:
        """Return how far the watermark must pass a row of a side to evict it; None: it never is."""
        if self.time_range is None or not (self.watermarks[1 - side] or self.ends_itself[side]):
            return None
        return self.time_range.after_ms(side)

    def last_ms(self, side: int, time_us: int | None) -> int | None:
        """Return the watermark after which no row can match this one; None if unbounded."""
        after_ms = self.after_ms(side)
        return None if after_ms is None or time_us is None else ms_upto(time_us) + after_ms


class StoredRow(NamedTuple):
    """A stored row; *place* is its key in the store, *matched* is True after its first match."""

    place: tuple[Any, ...]
    event: Event
    matched: bool


class SymmetricHashJoinStateManager:
    """The rows of both sides in one store, where Spark has four, and their changes in a batch.

    Changes are written after all reads, which costs less. The version in a key makes numbers
    unique, so the store keeps no counters.
    """

    def __init__(self, store: StateWriter, memory_mb: float) -> None:
        self._store = store
        self._kept, self._matched, self._removed = (SpillBuffer(memory_mb) for _ in range(3))

    def rows(self, side: int, key: Any) -> Iterator[StoredRow]:
        for place, (time_us, record, matched) in self._store.prefix((side, key)):
            yield StoredRow(place, (time_us, record), matched)

    def keep(
        self, side: int, key: Any, number: int, event: Event, matched: bool, last_ms: int | None
    ) -> None:
        """Store a row; *number* is its place among the rows of its side and key in this batch.

        The watermark *last_ms* evicts it; None disables eviction.
        """
        place = (side, key, self._store.version_id.version, number)
        self._kept.add((place, (*event, matched), None if last_ms is None else max(last_ms, 0)))

    def match(self, stored: StoredRow) -> None:
        """Mark a stored row as matched."""
        self._matched.add((stored.place, stored.event))

    def remove(self, stored: StoredRow) -> None:
        self._removed.add(stored.place)

    def write(self, metrics: StateMetrics) -> None:
        """Write the changes of the batch."""
        for place, row, timeout_ms in self._kept.rows():
            self._store.put(place, row, timeout_ms)
            metrics.numUpdatedStateRows += 1
        for place, event in self._matched.rows():  # which Spark does not count as an update
            self._store.put(place, (*event, True), self._store.timeout_ms(place))
        for place in self._removed.rows():
            self._store.remove(place)
            metrics.numRemovedStateRows += 1

    def take_passed(self, watermark_ms: int) -> Iterator[StoredRow]:
        """Evict the rows that no later row can match, and iterate over them."""
        for place, (time_us, record, matched), _ in self._store.take_due(watermark_ms + 1):
            yield StoredRow(place, (time_us, record), matched)


@dataclass(frozen=True)
class JoinRows:
    """Function of a store: rows (key, (side, event)) of both sides -> pairs of records.

    A key of None never matches, as in SQL.

    Semantics: StreamingSymmetricHashJoinExec (Spark 4.3).
    """

    join_type: JoinType
    condition: JoinCondition
    late_ms: int | None = None
    evict_ms: int | None = None
    memory_mb: float = 512

    def __call__(
        self,
        store: StateWriter,
        initial: Iterable[Any],
        records: Iterator[tuple[Any, tuple[int, Event]]],
        metrics: StateMetrics,
    ) -> Iterator[Pair]:
        manager = SymmetricHashJoinStateManager(store, self.memory_mb)
        groups = GroupsInOrder(self.memory_mb, has_sides=True)
        groups.add(self._on_time(records, metrics))
        for key, sides in groups.items():
            for pair in self._of_key(manager, key, sides):
                metrics.numOutputRows += 1
                yield pair
        manager.write(metrics)
        if self.evict_ms is not None:
            started = perf_counter()
            for pair in self._evicted(manager, self.evict_ms, metrics):
                metrics.numOutputRows += 1
                yield pair
            metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)

    def _on_time(self, records: Iterator[Any], metrics: StateMetrics) -> Iterator[Any]:
        late_us = None if self.late_ms is None else self.late_ms * 1000
        watermarks = self.condition.watermarks
        for row in records:
            side, (time_us, _) = row[1]
            if (
                late_us is not None
                and time_us is not None
                and time_us <= late_us
                and watermarks[side]
            ):
                metrics.numRowsDroppedByWatermark += 1
            else:
                yield row

    def _of_key(
        self,
        manager: SymmetricHashJoinStateManager,
        key: Any,
        sides: tuple[list[Event], list[Event]],
    ) -> Iterator[Pair]:
        left, right = sides
        met = ([False] * len(left), [False] * len(right))
        if key is not None:
            yield from self._new_with_stored(manager, key, LEFT, left, met[LEFT])
            yield from self._new_with_stored(manager, key, RIGHT, right, met[RIGHT])
            yield from self._new_with_new(key, left, right, met)
        for side, events in enumerate(sides):
            for number, (event, matched) in enumerate(zip(events, met[side], strict=True)):
                last_ms = self.condition.last_ms(side, event[0])
                if self._is_kept(side, key, event, matched, last_ms):
                    manager.keep(side, key, number, event, matched, last_ms)
                elif not matched and self.join_type.keeps(side):
                    yield _alone(side, event)

    def _is_kept(
        self, side: int, key: Any, event: Event, matched: bool, last_ms: int | None
    ) -> bool:
        if key is None or (matched and side == LEFT and self.join_type is JoinType.LeftSemi):
            return False
        if self.condition.time_range is not None and event[0] is None:
            return False  # without an event time it meets none
        return last_ms is None or self.evict_ms is None or last_ms > self.evict_ms

    def _new_with_stored(
        self,
        manager: SymmetricHashJoinStateManager,
        key: Any,
        side: int,
        events: list[Event],
        met: list[bool],
    ) -> Iterator[Pair]:
        if not events:
            return
        is_semi = self.join_type is JoinType.LeftSemi
        for stored in manager.rows(1 - side, key):
            found = False
            for number, event in enumerate(events):
                if is_semi and (found if side == RIGHT else met[number]):
                    continue
                left, right = (event, stored.event) if side == LEFT else (stored.event, event)
                if self.condition.meet(key, left, right):
                    found = met[number] = True
                    yield left[1] if is_semi else (left[1], right[1])
            if found and is_semi and side == RIGHT:
                manager.remove(stored)
            elif found and not stored.matched and self.join_type.keeps(1 - side):
                manager.match(stored)

    def _new_with_new(
        self,
        key: Any,
        left: list[Event],
        right: list[Event],
        met: tuple[list[bool], list[bool]],
    ) -> Iterator[Pair]:
        is_semi = self.join_type is JoinType.LeftSemi
        for i, one in enumerate(left):
            for j, other in enumerate(right):
                if is_semi and met[LEFT][i]:
                    break
                if self.condition.meet(key, one, other):
                    met[LEFT][i] = met[RIGHT][j] = True
                    yield one[1] if is_semi else (one[1], other[1])

    def _evicted(
        self, manager: SymmetricHashJoinStateManager, evict_ms: int, metrics: StateMetrics
    ) -> Iterator[Pair]:
        for row in manager.take_passed(evict_ms):
            metrics.numRemovedStateRows += 1
            side = row.place[0]
            if not row.matched and self.join_type.keeps(side):
                yield _alone(side, row.event)


def _alone(side: int, event: Event) -> Pair:
    return (event[1], None) if side == LEFT else (None, event[1])


def require_joinable(join_type: JoinType, condition: JoinCondition, has_times: bool) -> None:
    """Raise InvalidStreamError if a join lacks the event times or watermarks that it needs."""
    where, time_range = condition.where, condition.time_range
    if time_range is not None and not has_times:
        raise InvalidStreamError(
            f"{where}: a join with a time range needs event times on both sides; call "
            "withWatermark, or give eventTime or otherEventTime for a side without a watermark"
        )
    for side, name, other in ((LEFT, "left", "right"), (RIGHT, "right", "left")):
        if not join_type.waits(side) or condition.after_ms(side) is not None:
            continue
        if (
            join_type is JoinType.FullOuter
            and all(condition.watermarks)
            and condition.after_ms(1 - side) is not None
        ):
            continue  # as in Spark, the rows of one side wait for ever
        if time_range is None or not condition.watermarks[1 - side]:
            raise InvalidStreamError(
                f"{where}: a {join_type.value} join of two streams needs a watermark on the "
                f"{other} side and a time range, which decide when a {name} row can have no match; "
                "use withWatermark and a time range, or join inner"
            )
        raise InvalidStreamError(
            f"{where}: the time range of a {join_type.value} join must end after each {name} "
            f"row, or it would wait for a match for ever; give "
            f"{'a maximum' if side == LEFT else 'a minimum'}, or join inner"
        )


@dataclass(frozen=True)
class StreamingSymmetricHashJoinExec(StateStoreWriter):
    """Pairs of records of two streams: ``(left, right)``; a semi join emits left records.

    Rows of the children are ``(key, (side, event))``, with side 0 on the left and 1 on the right.
    An outer join emits None for a side without a match.

    Semantics: StreamingSymmetricHashJoinExec (Spark 4.3).
    """

    shortName: ClassVar[str] = "symmetricHashJoin"

    left: PhysicalOperator
    right: PhysicalOperator
    joinType: JoinType = JoinType.Inner
    condition: JoinCondition = field(default_factory=JoinCondition)

    def __post_init__(self) -> None:
        has_times = self.left.hasEventTime and self.right.hasEventTime
        require_joinable(self.joinType, self.condition, has_times)

    @property
    def arguments(self) -> list[str]:
        return [self.joinType.value, self.condition.where, *self.watermarkArguments]

    @property
    def output(self) -> tuple[str, ...]:
        return ("left",) if self.joinType is JoinType.LeftSemi else ("left", "right")

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        return (self.clustered(self.condition.where, self.condition.where),) * 2

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        """Return whether rows may be evicted."""
        evicts = any(self.condition.after_ms(side) is not None for side in (LEFT, RIGHT))
        return evicts and super().shouldRunAnotherBatch(newInputWatermark)

    def function(self, memory_mb: float = 512) -> JoinRows:
        late_ms, evict_ms = self.eventTimeWatermarkForLateEvents, self.eventTimeWatermarkForEviction
        return JoinRows(self.joinType, self.condition, late_ms, evict_ms, memory_mb)

    def data(self, context: ExecutionContext) -> RDD[Any]:
        partitioner = self.getStateInfo().partitioner
        where = self.condition.where
        # Both are placed already: nothing is moved.
        blocks = [
            shuffle_pairs(child.execute(context), partitioner, operation=where)
            for child in (self.left, self.right)
        ]
        return state_inputs(*blocks)


def plan_join(
    left: PhysicalOperator,
    right: PhysicalOperator,
    leftKey: Callable[[Any], Any],
    rightKey: Callable[[Any], Any],
    joinType: JoinType = JoinType.Inner,
    condition: JoinCondition | None = None,
    *,
    numPartitions: int,
) -> PhysicalOperator:
    """Return the operators of a join of two streams of records or events.

    Raises:
        InvalidStreamError: the join needs watermarks or a time range that it does not have.

    Semantics: StreamingJoinStrategy (Spark 4.3).
    """
    condition = condition or JoinCondition()
    where = condition.where
    plan = StreamingSymmetricHashJoinExec(
        KeyEventsExec(left, leftKey, where=where, side=LEFT),
        KeyEventsExec(right, rightKey, where=where, side=RIGHT),
        joinType,
        condition,
    )
    return ensure_requirements(plan, numPartitions)


@dataclass(frozen=True)
class NestedEventsExec(NarrowExec):
    """Puts the event time into the record as well: ``(time, (time, record))``."""

    def task(self, context: ExecutionContext) -> Task:
        return _nest


@dataclass(frozen=True)
class JoinedEventsExec(NarrowExec):
    """Makes events of the rows of a join of nested events: pairs, or records of a semi join."""

    hasEventTime: ClassVar[bool] = True

    is_semi: bool

    def task(self, context: ExecutionContext) -> Task:
        return _unchanged if self.is_semi else _pairs


@dataclass(frozen=True)
class OfNested:
    """Function: the value of *func* for the record of a nested event."""

    func: Callable[[Any], Any]

    def __call__(self, nested: tuple[int | None, Any]) -> Any:
        return self.func(nested[1])


@dataclass(frozen=True)
class MatchesNested:
    """Function: the value of *func* for the records of two nested events."""

    func: Callable[[Any, Any], bool]

    def __call__(self, left: tuple[int | None, Any], right: tuple[int | None, Any]) -> bool:
        return self.func(left[1], right[1])


def _nest(_: int, events: Iterable[Any]) -> Iterator[Any]:
    settle_worker()
    return ((event[0], event) for event in events)


def _unchanged(_: int, rows: Iterable[Any]) -> Iterator[Any]:
    return iter(rows)


def _pairs(_: int, rows: Iterable[Any]) -> Iterator[Any]:
    settle_worker()
    for left, right in rows:
        times = [side[0] for side in (left, right) if side is not None and side[0] is not None]
        pair = (None if left is None else left[1], None if right is None else right[1])
        yield max(times, default=None), pair
