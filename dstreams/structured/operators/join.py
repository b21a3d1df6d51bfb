"""StreamingSymmetricHashJoinExec: two streams joined, row by row as they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark import RDD

from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.structured.operators.deduplication import KeyEventsExec
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.join_state import (
    LEFT,
    RIGHT,
    JoinCondition,
    JoinRows,
    JoinType,
    require_joinable,
)
from dstreams.structured.operators.partitioning import Distribution
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.stateful_operator import StateStoreWriter


@dataclass(frozen=True)
class StreamingSymmetricHashJoinExec(StateStoreWriter):
    """Pairs of records of two streams: ``(left, right)``; of a semi join the left record alone.

    Rows of the children are ``(key, (side, event))``, with side 0 on the left and 1 on the right.
    In an outer join, a side without a matching row is None.

    Semantics: StreamingSymmetricHashJoinExec (Spark 4.3).
    """

    left: PhysicalOperator
    right: PhysicalOperator
    joinType: JoinType = JoinType.Inner
    condition: JoinCondition = field(default_factory=JoinCondition)

    def __post_init__(self) -> None:
        has_watermarks = self.left.hasEventTime and self.right.hasEventTime
        require_joinable(self.joinType, self.condition, has_watermarks)

    @property
    def shortName(self) -> str:
        return "symmetricHashJoin"

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
        """Return whether rows may be evicted, which needs a time range."""
        return self.condition.time_range is not None and super().shouldRunAnotherBatch(
            newInputWatermark
        )

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
