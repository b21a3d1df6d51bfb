"""Streams with stored state: its cost is that of the keys that a batch touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.graph.node import ChildNode, Node, Rdds
from dstreams.rdd.blocks import Side
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.shuffle import shuffle_pairs
from dstreams.rdd.state_store_rdd import StoreFunction
from dstreams.state.batch_functions import StoredBatch


@dataclass(frozen=True, eq=False)
class StoredStateDStream(ChildNode):
    """The rows that a function emits over a state kept in the state store.

    Parents: the parent. Slide: the parent's. RDD at time t: the rows of the batch; always an RDD,
    because every partition takes part in every batch. Making it runs one job, which makes the next
    version of the state; a version is made once, in the order of the batches, before any output.

    State: one row for each key until the function removes it or it times out.

    Args:
        parent: stream of pairs.
        function: ``batch ->`` what tasks do with their store in it.
        partitioner: where keys belong.
        initial: pairs of key and state to begin with, or None.
        operation: operation and call site.
        delay_ms: how far the watermark is behind the latest event time, None for no watermark.
    """

    asks_itself: ClassVar[bool] = True
    stores: ClassVar[bool] = True

    parent: Node
    function: Callable[[StoredBatch], StoreFunction]
    partitioner: StablePartitioner
    initial: RDD[Any] | None
    operation: str
    delay_ms: int | None = None

    def compute(self, time_ms: int, rdds: Rdds) -> RDD[Any] | None:
        states = rdds.stored()
        before = states.before(self, time_ms, self.partitioner)
        batch = rdds.at(self.parent, time_ms)
        inputs: list[RDD[bytes]] = []
        if before.version == 0 and self.initial is not None:
            inputs.append(self._blocks(self.initial, Side.STATE))
        if batch is not None:
            inputs.append(self._blocks(batch, Side.BATCH))
        is_checkpoint = rdds.checkpoint_due(self, time_ms)
        function = self.function(StoredBatch(time_ms, before, is_checkpoint))
        return states.advance(
            self, time_ms, inputs, before, function, rdds.spark, self.partitioner, self.delay_ms
        )

    def _blocks(self, pairs: RDD[Any], side: Side) -> RDD[bytes]:
        return shuffle_pairs(pairs, self.partitioner, side, self.operation, ordered=True)


@dataclass(frozen=True, eq=False)
class SnapshotDStream(ChildNode):
    """All keys of a stored state after each batch.

    Parents: the stream with the state. Slide: its. RDD at time t: (key, state) of the version that
    the batch made.

    Args:
        parent: the stream with the state.
        state_of: ``stored row -> state``, None where the row holds none.
        operation: operation and call site.
    """

    parent: StoredStateDStream
    state_of: Callable[[Any], Any]
    operation: str

    def compute(self, time_ms: int, rdds: Rdds) -> RDD[Any] | None:
        if rdds.at(self.parent, time_ms) is None:
            return None
        partitioner = self.parent.partitioner
        rows = rdds.stored().pairs(self.parent, time_ms, rdds.spark, partitioner)
        return rows.mapValues(self.state_of).filter(_has_state)


def _has_state(pair: tuple[Any, Any]) -> bool:
    return pair[1] is not None
