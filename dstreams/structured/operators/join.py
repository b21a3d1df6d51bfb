"""StreamingSymmetricHashJoinExec: two streams joined, row by row as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.rdd import PipelinedRDD

from dstreams.kernel.state_versions import StateUpdate
from dstreams.rdd.shuffle import shuffle_pairs
from dstreams.structured.operators.deduplication import KeyEvents
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.join_state import (
    LEFT,
    RIGHT,
    JoinCondition,
    JoinRows,
    JoinType,
    require_joinable,
)
from dstreams.structured.operators.physical_operator import PhysicalOperator, StatefulOperator


@dataclass(frozen=True)
class StreamingSymmetricHashJoinExec(StatefulOperator):
    """Pairs of records of two streams: ``(left, right)``; of a semi join the left record alone.

    In an outer join the side that has none is None.

    Semantics: StreamingSymmetricHashJoinExec (Spark 4.3).
    """

    left: PhysicalOperator
    right: PhysicalOperator
    leftKey: Callable[[Any], Any]
    rightKey: Callable[[Any], Any]
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

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        """Whether rows may be given up, which needs a time range."""
        return self.condition.time_range is not None and super().shouldRunAnotherBatch(
            newInputWatermark
        )

    def function(self, memory_mb: float = 512) -> JoinRows:
        """Return what a task does where the state is."""
        late_ms, evict_ms = self.eventTimeWatermarkForLateEvents, self.eventTimeWatermarkForEviction
        return JoinRows(self.joinType, self.condition, late_ms, evict_ms, memory_mb)

    def update(self, context: ExecutionContext) -> StateUpdate:
        info = self.getStateInfo()
        sides = ((LEFT, self.left, self.leftKey), (RIGHT, self.right, self.rightKey))
        blocks = []
        memory_mb = 512.0
        for side, child, key in sides:
            rows = child.execute(context)
            memory_mb = rows._memory_limit()
            keys = KeyEvents(key, child.hasEventTime, where=self.condition.where)
            keyed = PipelinedRDD(rows, _OfSide(side, keys))
            blocks.append(
                shuffle_pairs(keyed, info.partitioner, operation=self.condition.where, ordered=True)
            )
        return StateUpdate(info.before, blocks, self.function(memory_mb))


@dataclass(frozen=True)
class _OfSide:
    """Task: rows -> (key, (side, event))."""

    side: int
    keys: KeyEvents

    def __call__(self, split: int, rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        side = self.side
        return ((key, (side, event)) for key, event in self.keys(split, rows))
