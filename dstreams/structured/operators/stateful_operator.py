"""The shuffle of an aggregation, and the base of the operators above it that save its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pyspark import RDD

from dstreams.kernel.state_versions import StateUpdate
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.rdd.state_store_rdd import StoreFunction
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import StatefulOperator, UnaryExec


class Named(Protocol):
    """What rows are grouped by, as far as ``explain`` is concerned."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class ShuffleExchangeExec(UnaryExec):
    """Brings pairs to the partition of their key, in columnar blocks."""

    numPartitions: int

    @property
    def arguments(self) -> list[str]:
        return [f"{self.numPartitions} partitions"]

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows = self.child.execute(context)
        partitioner = StablePartitioner(self.numPartitions)
        return BlockPairsRDD(shuffle_pairs(rows, partitioner, operation="groupByKey", ordered=True))


@dataclass(frozen=True)
class SavingOperator(StatefulOperator, UnaryExec):
    """Writes the state of the batch, and puts out what the output mode asks for.

    The operators between it and the next shuffle below run in its task.
    """

    keepsEventTime: ClassVar[bool] = False
    grouping: Named
    outputMode: OutputMode | None = None

    @property
    def arguments(self) -> list[str]:
        mode = "<unknown>" if self.outputMode is None else self.outputMode.name
        state, *marks = self.watermarkArguments
        return [f"by {self.grouping.name}", state, mode, *marks]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        if self.outputMode is OutputMode.Complete:
            return False
        return super().shouldRunAnotherBatch(newInputWatermark)

    def function(self, memory_mb: float = 512) -> StoreFunction:
        """Return what a task does where the state is; merging beyond *memory_mb* is spilled."""
        raise NotImplementedError

    def update(self, context: ExecutionContext) -> StateUpdate:
        info = self.getStateInfo()
        below = self.child
        while not isinstance(below, ShuffleExchangeExec):
            (below,) = below.children
        rows = below.execute(context)
        blocks = shuffle_pairs(rows, info.partitioner, ordered=True)
        return StateUpdate(info.before, [blocks], self.function(rows._memory_limit()))
