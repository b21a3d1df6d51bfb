"""IncrementalExecution: the plan of a query with the facts of one batch filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark import RDD

from dstreams.structured.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.event_time_watermark import EventTimeWatermarkExec
from dstreams.structured.operators.join import StreamingSymmetricHashJoinExec
from dstreams.structured.operators.join_state import JoinType
from dstreams.structured.operators.physical_operator import PhysicalOperator, StatefulOperator
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo
from dstreams.structured.physical import StreamingRelationExec
from dstreams.structured.planning import PlannedQuery


@dataclass(frozen=True)
class BatchFacts:
    """What every operator of a batch goes by.

    Args:
        batch_id: number of the batch.
        timestamp_ms: its time, milliseconds since the epoch.
        watermark_ms: the watermark for eviction and timers.
        late_watermark_ms: the watermark for late records.
    """

    batch_id: int
    timestamp_ms: int
    watermark_ms: int
    late_watermark_ms: int


class IncrementalExecution:
    """One batch of a query, planned.

    Semantics: IncrementalExecution and its state rule (Spark 4.3). An operator is given the
    watermark that reaches it: a ``flatMapGroupsWithState`` below lets none through.

    Args:
        query: the plan.
        facts: of the batch.
        states: of each stateful operator, in the order of the plan.
        rdds: the records of each source; None before there are any.
    """

    def __init__(
        self,
        query: PlannedQuery,
        facts: BatchFacts,
        states: Sequence[StatefulOperatorStateInfo],
        rdds: Sequence[RDD[Any]] | None = None,
    ) -> None:
        self.facts = facts
        self._states = states
        self._rdds = rdds
        self._filled = 0
        self._evicting: dict[int, int | None] = {}
        self._late: dict[int, int | None] = {}
        output_watermark(query.root, facts.watermark_ms, self._evicting, Numbers())
        output_watermark(query.root, facts.late_watermark_ms, self._late, Numbers())
        self.plan = query.root.transform(self._fill)

    def _fill(self, operator: PhysicalOperator) -> PhysicalOperator:
        """The state rule: what stands in each operator before a batch runs."""
        if isinstance(operator, StreamingRelationExec) and self._rdds is not None:
            return replace(operator, rdd=self._rdds[operator.number])
        number = self._filled
        if number == len(self._states):  # above the last one with state
            return operator
        self._filled += isinstance(operator, StatefulOperator)
        filled = operator.inBatch(
            self._states[number], self._late.get(number), self._evicting.get(number)
        )
        if isinstance(filled, FlatMapGroupsWithStateExec):
            return replace(filled, batchTimestampMs=self.facts.timestamp_ms)
        return filled

    def stateful(self) -> list[StatefulOperator]:
        """Return the stateful operators, in the order of the plan."""
        return [step for step in self.plan.walk() if isinstance(step, StatefulOperator)]

    def should_run_another_batch(self, watermark_ms: int) -> bool:
        """Whether a batch without data would change anything, at this watermark of the query."""
        reached: dict[int, int | None] = {}
        output_watermark(self.plan, watermark_ms, reached, Numbers())
        return any(
            operator.shouldRunAnotherBatch(reached.get(number))
            for number, operator in enumerate(self.stateful())
        )


class Numbers:
    """Counts stateful operators in the order of the plan."""

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        """Return the next number."""
        self._next += 1
        return self._next - 1


def output_watermark(
    operator: PhysicalOperator,
    watermark_ms: int,
    reached: dict[int, int | None],
    numbers: Numbers,
) -> int | None:
    """Return the watermark that an operator hands on, None for none.

    Args:
        operator: of a plan.
        watermark_ms: that of the query.
        reached: filled with what reaches each stateful operator, by its number.
        numbers: counts them.
    """
    below = [output_watermark(child, watermark_ms, reached, numbers) for child in operator.children]
    if isinstance(operator, EventTimeWatermarkExec):
        return watermark_ms
    known = [mark for mark in below if mark is not None]
    incoming = min(known, default=None)
    if isinstance(operator, StatefulOperator):
        reached[numbers.take()] = incoming
    if isinstance(operator, FlatMapGroupsWithStateExec):
        return None
    if isinstance(operator, StreamingSymmetricHashJoinExec):
        return _after_join(operator, incoming)
    return incoming


def _after_join(operator: StreamingSymmetricHashJoinExec, incoming: int | None) -> int | None:
    """Return the watermark after a join: a row that met no other goes out late."""
    time_range = operator.condition.time_range
    if incoming is None or time_range is None or operator.joinType in _ON_TIME:
        return incoming
    return max(0, incoming - max(time_range.most_ms, -time_range.least_ms, 0))


_ON_TIME = (JoinType.Inner,)
"""Joins whose rows have, each, a record of the batch in them."""
