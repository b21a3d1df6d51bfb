"""Streams with state in the state store: a batch costs what the keys cost that it touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pyspark import RDD

from dstreams.graph.node import BatchView, ChildNode, Node
from dstreams.spark.blocks import Side
from dstreams.spark.empty_partitions import empty_partitions
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.state_store_rdd import StoreFunction
from dstreams.state.state_versions import StateUpdate


class StateFunction(Protocol):
    """A function over state, which makes the task of each batch."""

    def in_batch(self, time_ms: int, watermark_ms: int, is_checkpoint: bool) -> StoreFunction: ...


@dataclass(frozen=True, eq=False)
class StateStoreDStream(ChildNode):
    """The rows that a function emits over a state in the state store.

    Parents: the parent. Slide: the parent's. RDD at time t: the rows of the batch; always an RDD,
    because every partition takes part in every batch. :meth:`update` says what a batch does to the
    state, and runs nothing. The runner of the batch makes the next version of the state of it, once
    and in the order of the batches, before anything asks for the rows.

    State: one row for each key until the function removes it or it times out.
    """

    is_stateful: ClassVar[bool] = True

    parent: Node
    function: StateFunction
    partitioner: StablePartitioner
    initial: RDD[Any] | None
    operation: str
    delay_ms: int | None = None

    def update(self, time_ms: int, rdds: BatchView) -> StateUpdate:
        """Say what the batch at *time_ms* does to the state."""
        before = rdds.state_before(self, time_ms, self.partitioner)
        batch = rdds.at(self.parent, time_ms)
        inputs: list[RDD[bytes]] = []
        if before.version == 0 and self.initial is not None:
            inputs.append(self._blocks(self.initial, Side.STATE))
        if batch is not None:
            inputs.append(self._blocks(batch, Side.BATCH))
        is_checkpoint = rdds.checkpoint_due(self, time_ms)
        function = self.function.in_batch(time_ms, before.watermark_ms, is_checkpoint)
        nothing = empty_partitions(rdds.spark, self.partitioner)
        return StateUpdate(before, state_inputs(*(inputs or [nothing])), function, self.delay_ms)

    def compute(self, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        raise LookupError(f"the state of {self.operation} at {time_ms} ms has not been made yet")

    def _blocks(self, pairs: RDD[Any], side: Side) -> RDD[bytes]:
        return shuffle_pairs(pairs, self.partitioner, side, self.operation, ordered=True)


@dataclass(frozen=True, eq=False)
class SnapshotDStream(ChildNode):
    """All keys of a state in the state store after each batch.

    Parents: the stream with the state. Slide: its. RDD at time t: (key, state) of the version that
    the batch made.
    """

    parent: StateStoreDStream
    state_of: Callable[[Any], Any]
    operation: str

    def compute(self, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        if rdds.at(self.parent, time_ms) is None:
            return None
        rows = rdds.state_pairs(self.parent, time_ms, self.parent.partitioner)
        return rows.mapValues(self.state_of).filter(_has_state)


def _has_state(pair: tuple[Any, Any]) -> bool:
    return pair[1] is not None
