"""IncrementalExecution: the plan of a query with the facts of one batch filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark import RDD

from dstreams.structured.execution.batch_records import QueryBatch
from dstreams.structured.operators.aggregation import HashAggregateExec, StateStoreSaveExec
from dstreams.structured.operators.event_time_watermark import EventTimeWatermarkExec
from dstreams.structured.operators.execution_context import StatefulOperatorStateInfo
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.grouping import EVENT_TIME
from dstreams.structured.operators.join import JoinType, StreamingSymmetricHashJoinExec
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.operators.stateless import StreamingRelationExec, WindowTimeExec
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.plan.planning import PlannedQuery


class IncrementalExecution:
    """One batch of a query, planned; without *rdds* there are no records yet.

    Two rules prepare the plan: the state rule fills in the facts of the batch, and stateful
    operators are fused with those below them, unless a setting says otherwise. An operator is given
    the watermark that reaches it: ``flatMapGroupsWithState`` lets none through.

    Semantics: IncrementalExecution and its state rule (Spark 4.3).
    """

    def __init__(
        self,
        query: PlannedQuery,
        batch: QueryBatch,
        states: Sequence[StatefulOperatorStateInfo],
        rdds: Sequence[RDD[Any]] | None = None,
    ) -> None:
        self.batch = batch
        self._states = states
        self._rdds = rdds
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
        number = self._filled
        if number == len(self._states):  # above the last one with state
            return operator
        self._filled += operator.writesState
        filled = operator.inBatch(
            self._states[number], self._late[number].late_ms, self._evicting[number].evict_ms
        )
        if isinstance(filled, FlatMapGroupsWithStateExec):
            groups = replace(filled.groups, batchTimestampMs=self.batch.timestamp_ms)
            return replace(filled, groups=groups)
        return filled

    def stateful(self) -> list[StateStoreWriter]:
        """Return the stateful operators, in the order of the plan."""
        return [step for step in self.plan.walk() if isinstance(step, StateStoreWriter)]

    def should_run_another_batch(self, watermark_ms: int) -> bool:
        """Whether a batch without data would change anything, at this watermark of the query."""
        reached: list[Reached] = []
        output_watermark(self.plan, watermark_ms, reached)
        return any(
            operator.shouldRunAnotherBatch(at.evict_ms)
            for operator, at in zip(self.stateful(), reached, strict=True)
        )


class Mark(NamedTuple):
    """A watermark on its way up a plan.

    Event times of rows may be *early_ms* too early: rows of a window have its last millisecond, and
    the watermark is past them when it is past the window's end.
    """

    watermark_ms: int
    early_ms: int = 0

    @property
    def of_times_ms(self) -> int:
        """The watermark to compare the event times of rows with."""
        return max(0, self.watermark_ms - self.early_ms)


class Reached(NamedTuple):
    """Up to which event times rows are late, and state is given up; None for none."""

    late_ms: int | None
    evict_ms: int | None


def output_watermark(
    operator: PhysicalOperator,
    watermark_ms: int,
    reached: list[Reached],
) -> Mark | None:
    """Return the watermark that an operator passes on.

    What *reached* the stateful operators is appended in the order of the plan.
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
    if incoming is None or isinstance(operator, FlatMapGroupsWithStateExec):
        return None
    if isinstance(operator, StreamingSymmetricHashJoinExec):
        return incoming._replace(watermark_ms=_after_join(operator, incoming.watermark_ms))
    if isinstance(operator, WindowTimeExec):
        return incoming._replace(early_ms=_early_ms(operator, incoming.early_ms))
    return incoming


def _reached(operator: StateStoreWriter, mark: Mark | None) -> Reached:
    if mark is None:
        return Reached(None, None)
    if isinstance(operator, FlatMapGroupsWithStateExec):
        return Reached(mark.of_times_ms, mark.watermark_ms)  # timers are the user's own times
    if isinstance(operator, StateStoreSaveExec) and isinstance(
        operator.keyExpressions.windows, TimeWindows
    ):
        return Reached(mark.watermark_ms, mark.watermark_ms)  # goes by the ends of windows
    return Reached(mark.of_times_ms, mark.of_times_ms)


def _early_ms(operator: WindowTimeExec, before_ms: int) -> int:
    """Return how much too early the event times of the rows of an aggregation are."""
    final = operator.child
    if not isinstance(final, HashAggregateExec):
        return before_ms + 1  # a session ends a gap after the time of its last row
    return before_ms if final.grouping.windows == EVENT_TIME else 1


def _after_join(operator: StreamingSymmetricHashJoinExec, incoming_ms: int) -> int:
    """Return the watermark after a join, where a row that met no other goes out late."""
    time_range = operator.condition.time_range
    if time_range is None or operator.joinType in _ON_TIME:
        return incoming_ms
    return max(0, incoming_ms - max(time_range.most_ms, -time_range.least_ms, 0))


_ON_TIME = (JoinType.Inner,)
"""Joins whose rows have, each, a record of the batch in them."""
