"""Joins without state: of a stream with static data, and of two batch datasets.

:class:`StaticJoinExec` looks up each row of the stream in static rows. Few static rows are a table
in every worker. Many are in partitions of their keys, to which the rows of the batch are shuffled:
:class:`ShuffledHashJoinExec`, which also joins batch datasets.

Only a row of the stream can be known to have no match: rows of the static side are never emitted
alone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from pyspark import RDD, Broadcast
from pyspark.rdd import PipelinedRDD

from checkpoint import rows_of_fields
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import columns_of, two_columns
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import StateInputs, state_inputs
from dstreams.spark.shuffle import BlockPairsRDD, naming_unhashable, shuffle_pairs
from dstreams.spark.spilling import GroupsInOrder
from dstreams.spark.worker_gc import settle_worker
from dstreams.structured.operators.deduplication import KeyEvents, KeyEventsExec
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.join import (
    LEFT,
    RIGHT,
    JoinCondition,
    JoinType,
    require_joinable,
)
from dstreams.structured.operators.physical_operator import (
    Distribution,
    Event,
    HashPartitioning,
    PhysicalOperator,
    RDDScanExec,
    ShownOperator,
    StatefulOpClusteredDistribution,
    Task,
    UnaryExec,
    mapped_records,
)

Table = dict[Any, list[Event]]
"""The rows of the static side by key, without those that match nothing."""

_ALONE: Event = (None, None)

_MOST_TABLES = 16
_tables: dict[str, tuple[str, Table]] = {}
"""In a worker, the newest table of each side. Spark forgets a broadcast with each task that does
not use it, and loading one takes longer than a batch."""


@dataclass(frozen=True)
class MatchRows:
    """Makes the rows of a join of the events of one key.

    Args:
        kind: the join type.
        condition: the condition, in addition to equal keys.
        side: the side whose rows are looked up one by one among those of the other side.
        are_events: rows are events.
        latest: the event time of a pair is the later one; otherwise that of *side*.
    """

    kind: JoinType
    condition: JoinCondition
    side: int = LEFT
    are_events: bool = False
    latest: bool = False

    def of(self, key: Any, event: Event, others: Iterable[Event]) -> Iterator[Any]:
        """Yield the rows of one event of the side, given the other events of its key."""
        found, is_semi = False, self.kind in (JoinType.LeftSemi, JoinType.LeftAnti)
        for other in others:
            left, right = (event, other) if self.side == LEFT else (other, event)
            if key is not None and self.condition.meet(key, left, right):
                found = True
                if is_semi:
                    break
                yield self._pair(left, right, event)
        if is_semi:
            if found is (self.kind is JoinType.LeftSemi):
                yield event if self.are_events else event[1]
        elif not found and self.kind.keeps(self.side):
            yield self._alone(self.side, event)

    def of_group(self, key: Any, sides: tuple[list[Event], list[Event]]) -> Iterator[Any]:
        """Yield the rows of all events of a key."""
        others = sides[1 - self.side]
        for event in sides[self.side]:
            yield from self.of(key, event, others)
        if self.kind is JoinType.FullOuter:
            for other in others:
                if key is None or not any(
                    self.condition.meet(key, event, other) for event in sides[LEFT]
                ):
                    yield self._alone(RIGHT, other)

    def _pair(self, left: Event, right: Event, event: Event) -> Any:
        pair = (left[1], right[1])
        if not self.are_events:
            return pair
        if not self.latest:
            return event[0], pair
        return max((time for time in (left[0], right[0]) if time is not None), default=None), pair

    def _alone(self, side: int, event: Event) -> Any:
        left, right = (event, _ALONE) if side == LEFT else (_ALONE, event)
        return self._pair(left, right, event)


@dataclass(frozen=True)
class LookUpRows:
    """Task: rows of the stream -> rows of the join, by a table of the static rows."""

    match: MatchRows
    keys: KeyEvents
    static: StaticTable

    def __call__(self, split: int, rows: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        table, match, condition = self.static.in_worker(), self.match, self.match.condition
        has_condition = condition.time_range is not None or condition.matches is not None
        is_plain = match.kind is JoinType.Inner and not (has_condition or match.are_events)
        for keys, column in columns_of(self.keys(split, rows)):
            times, records = two_columns(column)
            with naming_unhashable(condition.where, lambda keys=keys: keys):  # type: ignore[misc]
                found = [table.get(key, ()) for key in keys]
            if is_plain:
                pairs = [
                    (record, other[1])
                    for record, others in zip(rows_of_fields(records), found, strict=True)
                    for other in others
                ]
                yield from pairs if match.side == LEFT else map(_swapped, pairs)
                continue
            for key, time, record, others in zip(
                keys, times, rows_of_fields(records), found, strict=True
            ):
                yield from match.of(key, (time, record), others)


_swapped = itemgetter(1, 0)


@dataclass(frozen=True)
class JoinGroups:
    """Task: rows (key, (side, event)) of both sides -> rows of the join."""

    match: MatchRows
    memory_mb: float

    def __call__(self, _: int, inputs: StateInputs) -> Iterator[Any]:
        settle_worker()
        groups = GroupsInOrder(self.memory_mb, has_sides=True)
        groups.add(inputs.records())
        for key, sides in groups.items():
            yield from self.match.of_group(key, sides)


@dataclass(frozen=True)
class ShuffledHashJoinExec(PhysicalOperator):
    """Joins the rows ``(key, (side, event))`` of two children, without state.

    Semantics: ShuffledHashJoinExec (Spark 4.3).
    """

    left: PhysicalOperator
    right: PhysicalOperator
    match: MatchRows

    @property
    def hasEventTime(self) -> bool:
        return self.match.are_events

    @property
    def arguments(self) -> list[str]:
        return [self.match.kind.value, self.match.condition.where]

    @property
    def output(self) -> tuple[str, ...]:
        return _output(self.match.kind)

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        where = self.match.condition.where
        return (StatefulOpClusteredDistribution(where, None, where),) * 2

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        self.requireInput()
        where = self.match.condition.where
        blocks = []
        for child in (self.left, self.right):
            placed = child.outputPartitioning
            assert isinstance(placed, HashPartitioning), "the requirement of the operator"
            partitioner = StablePartitioner(placed.numPartitions)
            # The rows are placed already: nothing is moved.
            blocks.append(shuffle_pairs(child.execute(context), partitioner, operation=where))
        task = JoinGroups(self.match, context.memory_mb)
        rows: RDD[Any] = PipelinedRDD(state_inputs(*blocks), task)
        return rows


def _output(kind: JoinType) -> tuple[str, ...]:
    return ("left",) if kind in (JoinType.LeftSemi, JoinType.LeftAnti) else ("left", "right")


class StaticTable(NamedTuple):
    """A version of static rows that fit into every worker; *side* is unique for each run."""

    table: Broadcast[Table]
    rows: int
    side: str
    version: str

    def in_worker(self) -> Table:
        """Return the table, which this process loads once."""
        version, table = _tables.get(self.side, ("", {}))
        if version != self.version:
            while self.side in _tables or len(_tables) >= _MOST_TABLES:
                del _tables[self.side if self.side in _tables else next(iter(_tables))]
            table = self.table.value
            _tables[self.side] = self.version, table
            gc.freeze()  # or the worker searches the table for garbage after each task
        return table

    def __str__(self) -> str:
        return f"broadcast of {self.rows} rows"


class StaticPartitions(NamedTuple):
    """Static rows ``(key, (side, event))`` in the partitions of their keys."""

    pairs: BlockPairsRDD

    def __str__(self) -> str:
        return f"shuffle into {self.pairs.getNumPartitions()} partitions"


@dataclass(frozen=True)
class StaticSide:
    """The plan of static rows, and how a query reads them.

    Args:
        uid: the identity of the side in the checkpoint of a query.
        plan: the rows, of a batch dataset.
        key: the key of a record.
        side: :data:`LEFT` or :data:`RIGHT`.
        where: the join, for messages.
        refresh_ms: interval after which the rows are read again; None: they are read once.
    """

    uid: str
    plan: PhysicalOperator
    key: Callable[[Any], Any]
    side: int
    where: str
    refresh_ms: int | None = None

    def table(self, events: Iterable[Event]) -> Table:
        """Return the events by key."""
        rows = list(events)
        keys = mapped_records(self.key, [record for _, record in rows], self.where)
        table: Table = {}
        with naming_unhashable(self.where, lambda: keys):
            for key, event in zip(keys, rows, strict=True):
                if key is not None:
                    table.setdefault(key, []).append(event)
        return table

    def pairs(self, rows: RDD[Any], partitioner: StablePartitioner) -> BlockPairsRDD:
        """Return the keyed rows in the partitions of their keys."""
        scan = RDDScanExec(rows, events=self.plan.hasEventTime)
        keyed = KeyEventsExec(scan, self.key, where=self.where, side=self.side)
        placed = keyed.execute(ExecutionContext(rows.context))
        return BlockPairsRDD(shuffle_pairs(placed, partitioner, operation=self.where, ordered=True))


@dataclass(frozen=True)
class StaticJoinExec(UnaryExec):
    """Joins the rows of a stream with static rows.

    *rows* are those of the batch, None before the first one.

    Semantics: BroadcastHashJoinExec and ShuffledHashJoinExec (Spark 4.3), with one side that is not
    streamed.
    """

    nodeName: ClassVar[str] = "StaticJoin"

    key: Callable[[Any], Any]
    static: StaticSide
    match: MatchRows
    numPartitions: int
    rows: StaticTable | StaticPartitions | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        has_times = self.child.hasEventTime and self.static.plan.hasEventTime
        require_joinable(JoinType.Inner, self.match.condition, has_times)

    @property
    def hasEventTime(self) -> bool:
        return self.match.are_events

    @property
    def arguments(self) -> list[str]:
        how = "<unknown>" if self.rows is None else str(self.rows)
        return [self.match.kind.value, self.match.condition.where, how]

    @property
    def output(self) -> tuple[str, ...]:
        return _output(self.match.kind)

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        where = self.match.condition.where
        if self.rows is None:
            raise InvalidStreamError(f"{where}: static rows are missing; set them for each batch")
        if isinstance(self.rows, StaticTable):
            keys = KeyEvents(self.key, self.child.hasEventTime, where=where)
            task: Task = LookUpRows(self.match, keys, self.rows)
            rows: RDD[Any] = PipelinedRDD(self.child.execute(context), task)
            return rows
        keyed = KeyEventsExec(self.child, self.key, where=where, side=self.match.side)
        static = RDDScanExec(self.rows.pairs, "static rows", columns=("key", "event"))
        left, right = (keyed, static) if self.match.side == LEFT else (static, keyed)
        joined = ShuffledHashJoinExec(left, right, self.match)
        return ensure_requirements(joined, self.numPartitions).execute(context)

    def shown(self, stage: int = 0, fused: int = 0) -> ShownOperator:
        own = super().shown(stage, fused)
        children = [*own.children, self.static.plan.shown()]
        return own._replace(children=children if self.match.side == LEFT else children[::-1])


def plan_batch_join(
    left: PhysicalOperator,
    right: PhysicalOperator,
    leftKey: Callable[[Any], Any],
    rightKey: Callable[[Any], Any],
    match: MatchRows,
    *,
    numPartitions: int,
) -> PhysicalOperator:
    """Return the operators of a join of two batch datasets."""
    has_times = left.hasEventTime and right.hasEventTime
    require_joinable(JoinType.Inner, match.condition, has_times)
    where = match.condition.where
    side = RIGHT if match.kind is JoinType.RightOuter else LEFT
    joined = ShuffledHashJoinExec(
        KeyEventsExec(left, leftKey, where=where, side=LEFT),
        KeyEventsExec(right, rightKey, where=where, side=RIGHT),
        replace(match, side=side),
    )
    return ensure_requirements(joined, numPartitions)
