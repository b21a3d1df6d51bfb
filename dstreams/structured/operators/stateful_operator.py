"""Base classes of operators with state: readers and writers.

Semantics: StatefulOperator, StateStoreReader and StateStoreWriter (Spark 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.spark.state_store_rdd import ReadFunction, ReadStateStoreRDD, StoreFunction
from dstreams.spark.state_version import StateMetrics
from dstreams.state.group_state import OutputMode
from dstreams.state.state_versions import StateUpdate
from dstreams.structured.operators.exchange import ShuffleExchangeExec
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    StatefulOperatorStateInfo,
    describe_state_info,
)
from dstreams.structured.operators.physical_operator import (
    Partitioning,
    PhysicalOperator,
    StatefulOpClusteredDistribution,
    UnaryExec,
)


@dataclass(frozen=True, kw_only=True)
class StatefulOperator(PhysicalOperator):
    """An operator with state; *stateInfo* is None until the state rule sets it."""

    stateInfo: StatefulOperatorStateInfo | None = None

    def getStateInfo(self) -> StatefulOperatorStateInfo:
        """Return the state info, or raise InvalidStreamError if it was not filled in."""
        if self.stateInfo is None:
            raise InvalidStreamError(
                f"{self.nodeName}: state location not present for execution; fill in stateInfo, "
                "for example with StatefulOperatorStateInfo.empty(numPartitions)"
            )
        return self.stateInfo

    def clustered(
        self, expressions: str, operation: str = "groupByKey"
    ) -> StatefulOpClusteredDistribution:
        """Return the distribution of pairs by their key, over the partitions of the state."""
        info = self.stateInfo
        return StatefulOpClusteredDistribution(
            expressions, None if info is None else info.numPartitions, operation
        )


@dataclass(frozen=True, kw_only=True)
class StateStoreReader(StatefulOperator):
    """An operator that reads a state and changes nothing.

    ``context.metrics(operator)`` has ``numOutputRows`` when the rows were computed.
    """

    @property
    def outputPartitioning(self) -> Partitioning:
        return self.children[0].outputPartitioning

    def function(self, report: Callable[[int, int, dict[str, int]], None]) -> ReadFunction:
        """Return the function of each task, which reports its counts."""
        raise NotImplementedError

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        info, store = self.getStateInfo(), context.states.store
        self.requireInput()
        rows = self.children[0].execute(context)
        return ReadStateStoreRDD(rows, store, info.before, self.function(context.count(self)))

    def countsIn(self, made: StateMetrics) -> dict[str, int]:
        """Return the counts of the operator, given those of the function that it is fused into."""
        return {"numOutputRows": made.numRestoredRows}


@dataclass(frozen=True, kw_only=True)
class StateStoreWriter(StatefulOperator):
    """An operator that makes the next version of a state.

    Rows up to one watermark are late, state up to the other is evicted; None for neither. They are
    milliseconds since the epoch. ``context.metrics(operator)`` has the counts of
    :class:`StateMetrics`.
    """

    writesState: ClassVar[bool] = True
    shortName: ClassVar[str]
    """The name of the operator in the progress of a query."""

    eventTimeWatermarkForLateEvents: int | None = None
    eventTimeWatermarkForEviction: int | None = None

    def data(self, context: ExecutionContext) -> RDD[Any]:
        """Return the input of each task."""
        return self.data_of(self.children[0], context)

    def data_of(self, child: PhysicalOperator, context: ExecutionContext) -> RDD[Any]:
        """Return the input of each task, with the rows of *child* for those of the first child."""
        return child.execute(context)

    def function(self, memory_mb: float = 512) -> StoreFunction:
        """Return the function of each task; rows beyond *memory_mb* are spilled."""
        raise NotImplementedError

    def update(self, context: ExecutionContext) -> StateUpdate:
        """Return the change of the state, without running the job that makes it."""
        before = self.getStateInfo().before
        self.requireInput()
        return StateUpdate(before, self.data(context), self.function(context.memory_mb))

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows = context.make(self, self.update(context))
        made = context.state_metrics(self)
        for reader in readers_below(self):
            dropped = context.metrics(reader).get("numRowsDroppedByWatermark", 0)
            made.numRowsDroppedByWatermark += dropped
        return rows

    @property
    def watermarkArguments(self) -> list[str]:
        """The state info and both watermarks, as ``explain`` shows them."""
        marks = (self.eventTimeWatermarkForLateEvents, self.eventTimeWatermarkForEviction)
        shown = ["<unknown>" if mark is None else str(mark) for mark in marks]
        return [describe_state_info(self.stateInfo), *shown]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        """Return whether a batch without data would change anything at a new watermark."""
        before = self.eventTimeWatermarkForEviction
        return before is not None and newInputWatermark is not None and newInputWatermark > before


def readers_below(operator: PhysicalOperator) -> Iterator[StateStoreReader]:
    """Iterate over the operators that read the state that *operator* writes, in its tasks."""
    for child in operator.children:
        if isinstance(child, StateStoreReader):
            yield child
        if not child.writesState and not isinstance(child, ShuffleExchangeExec):
            yield from readers_below(child)


@dataclass(frozen=True)
class SavingOperator(StateStoreWriter, UnaryExec):
    """Saves the rows of an aggregation, and emits rows by output mode."""

    keepsEventTime: ClassVar[bool] = False

    keyExpressions: Any
    outputMode: OutputMode | None = None

    @property
    def arguments(self) -> list[str]:
        mode = "<unknown>" if self.outputMode is None else self.outputMode.name
        state, *marks = self.watermarkArguments
        return [f"by {self.keyExpressions.name}", state, mode, *marks]

    @property
    def requiredChildDistribution(self) -> tuple[StatefulOpClusteredDistribution, ...]:
        return (self.clustered(self.keyExpressions.name),)

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        if self.outputMode is OutputMode.Complete:
            return False
        return super().shouldRunAnotherBatch(newInputWatermark)
