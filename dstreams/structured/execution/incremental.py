"""IncrementalExecution: the plan of a query with the facts of one batch filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark import RDD

from dstreams.structured.execution.query_records import QueryBatch
from dstreams.structured.operators.aggregation import HashAggregateExec, StateStoreSaveExec
from dstreams.structured.operators.execution_context import StatefulOperatorStateInfo
from dstreams.structured.operators.flat_map_groups_with_state import (
    FlatMapGroupsWithStateExec,
    GroupedFunctionExec,
)
from dstreams.structured.operators.grouping import EVENT_TIME
from dstreams.structured.operators.join import LEFT, RIGHT, JoinType, StreamingSymmetricHashJoinExec
from dstreams.structured.operators.late_records import LateRecordsExec
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.operators.stateless import (
    EventTimeWatermarkExec,
    StreamingRelationExec,
    WindowTimeExec,
)
from dstreams.structured.operators.static_join import (
    StaticJoinExec,
    StaticPartitions,
    StaticTable,
)
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.operators.transform_with_state import TransformWithStateExec
from dstreams.structured.plan.planning import PlannedQuery


class IncrementalExecution:
    """The plan of one batch; without *rdds*, it has no records yet.

    Two rules prepare the plan: the state rule fills in the facts of the batch, and stateful
    operators are fused with those below them, unless a setting prevents it. An operator receives
    the watermark that reaches it; ``flatMapGroupsWithState`` does not pass its watermark on, nor
    does a join with a watermark on one side, nor ``transformWithState`` unless its rows have event
    times.

    Semantics: IncrementalExecution and its state rule (Spark 4.3).
    """

    def __init__(
        self,
        query: PlannedQuery,
        batch: QueryBatch,
        states: Sequence[StatefulOperatorStateInfo],
        rdds: Sequence[RDD[Any]] | None = None,
        static: Mapping[str, StaticTable | StaticPartitions] | None = None,
    ) -> None:
        self.batch = batch
        self._states = states
        self._rdds = rdds
        self._static = static or {}
        self._filled = 0
        self._evicting: list[Reached] = []
        self._late: list[Reached] = []
        output_watermark(query.root, batch.watermark_ms, self._evicting)
        output_watermark(query.root, batch.late_watermark_ms, self._late)
        self.plan = query.prepared(query.root.transform(self._fill))

    def _fill(self, operator: PhysicalOperator) -> PhysicalOperator:
        """Fill the facts of the batch into an operator: Spark's state rule."""
        if isinstance(operator, StreamingRelationExec) and self._rdds is not None:
            return replace(operator, rdd=self._rdds[operator.number])
        if isinstance(operator, LateRecordsExec):
            return replace(operator, lateMs=self._late[operator.number].late_ms)
        if isinstance(operator, StaticJoinExec):
            return replace(operator, rows=self._static.get(operator.static.uid))
        number = self._filled
        if number == len(self._states):  # above the last one with state
            return operator
        self._filled += operator.writesState
        filled = operator.inBatch(
            self._states[number], self._late[number].late_ms, self._evicting[number].evict_ms
        )
        return at_time(filled, self.batch.timestamp_ms, self.batch.batch_id)

    def stateful(self) -> list[StateStoreWriter]:
        """Return the stateful operators, in the order of the plan."""
        return [step for step in self.plan.walk() if isinstance(step, StateStoreWriter)]

    def should_run_another_batch(self, watermark_ms: int) -> bool:
        """Return whether a batch without data would have an effect at this watermark."""
        reached: list[Reached] = []
        output_watermark(self.plan, watermark_ms, reached)
        return any(
            operator.shouldRunAnotherBatch(at.evict_ms)
            for operator, at in zip(self.stateful(), reached, strict=True)
        )


def at_time(operator: PhysicalOperator, time_ms: int, number: int) -> PhysicalOperator:
    """Return an operator with the time and the number of a batch, if it needs them."""
    if isinstance(operator, FlatMapGroupsWithStateExec):
        return replace(operator, groups=replace(operator.groups, batchTimestampMs=time_ms))
    if isinstance(operator, TransformWithStateExec):
        groups = replace(operator.groups, batchTimestampMs=time_ms, batchNumber=number)
        return replace(operator, groups=groups)
    return operator


class Mark(NamedTuple):
    """A watermark at some point of a plan.

    Event times of rows may be *early_ms* too early: rows of a window have its last millisecond, and
    the watermark is past them when it is past the window's end.
    """

    watermark_ms: int
    early_ms: int = 0

    @property
    def of_times_ms(self) -> int:
        """The watermark for comparison with event times of rows."""
        return max(0, self.watermark_ms - self.early_ms)


class Reached(NamedTuple):
    """The watermarks that drop late rows and that evict state, None without a watermark."""

    late_ms: int | None
    evict_ms: int | None


def output_watermark(
    operator: PhysicalOperator,
    watermark_ms: int,
    reached: list[Reached],
) -> Mark | None:
    """Return the watermark that an operator passes on.

    The watermarks of stateful operators are appended to *reached* in the order of the plan.
    """
    below = [output_watermark(child, watermark_ms, reached) for child in operator.children]
    if isinstance(operator, EventTimeWatermarkExec):
        return Mark(watermark_ms)
    known = [mark for mark in below if mark is not None]
    incoming = None
    if known:
        incoming = Mark(min(known).watermark_ms, max(mark.early_ms for mark in known))
    if isinstance(operator, StateStoreWriter):
        reached.append(_reached(operator, incoming))
    if incoming is None:
        return None
    if isinstance(operator, GroupedFunctionExec):
        return Mark(incoming.watermark_ms) if operator.hasEventTime else None
    if isinstance(operator, StreamingSymmetricHashJoinExec):
        return _after_join(operator, incoming)
    if isinstance(operator, WindowTimeExec):
        return incoming._replace(early_ms=_early_ms(operator, incoming.early_ms))
    return incoming


def _reached(operator: StateStoreWriter, mark: Mark | None) -> Reached:
    if mark is None:
        return Reached(None, None)
    if isinstance(operator, GroupedFunctionExec):
        return Reached(mark.of_times_ms, mark.watermark_ms)  # users set timers to any time
    if isinstance(operator, StateStoreSaveExec) and isinstance(
        operator.keyExpressions.windows, TimeWindows
    ):
        return Reached(mark.watermark_ms, mark.watermark_ms)  # compares ends of windows
    return Reached(mark.of_times_ms, mark.of_times_ms)


def _early_ms(operator: WindowTimeExec, before_ms: int) -> int:
    """Return how many milliseconds too early the event times of an aggregation's rows are."""
    final = operator.child
    if not isinstance(final, HashAggregateExec):
        return before_ms + 1  # a session ends one gap after the time of its last row
    return before_ms if final.grouping.windows == EVENT_TIME else 1


def _after_join(operator: StreamingSymmetricHashJoinExec, incoming: Mark) -> Mark | None:
    """Return the watermark after a join, which delays unmatched rows; its rows may lack times."""
    condition = operator.condition
    if not all(condition.watermarks):
        return None
    if condition.time_range is None or operator.joinType in _ON_TIME:
        return incoming
    waits_ms = [after for after in map(condition.after_ms, (LEFT, RIGHT)) if after is not None]
    return incoming._replace(watermark_ms=max(0, incoming.watermark_ms - max(0, *waits_ms)))


_ON_TIME = (JoinType.Inner,)
"""Joins that emit only rows with a record of the current batch."""
