"""StateDStream: the state of every key, updated by each batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pyspark import RDD, StorageLevel

from dstreams.graph.node import STATE_STORAGE, BatchView, ChildNode, Node
from dstreams.spark.blocks import Side
from dstreams.spark.cogroup import StateTask, cogroup_with_state, replay_batches
from dstreams.spark.frame_layout import FrameLayout
from dstreams.spark.partitioner import StablePartitioner


class StateUpdate(Protocol):
    """What a batch does to a state, and as what that state lies in its frames."""

    @property
    def layout(self) -> FrameLayout: ...

    def task(self, time_ms: int, unique: bool, partitioner: StablePartitioner | None) -> StateTask:
        """Return the task that updates one partition of the state at a batch time.

        The previous state holds each key once if it is *unique*; the new one claims *partitioner*.
        """
        ...


@dataclass(frozen=True, eq=False)
class StateDStream(ChildNode):
    """The state RDD of each batch, a cogroup of the parent's RDD with the previous state RDD.

    Parents: the parent, nothing else. Slide: the parent's. RDD at time t, ``previous`` being this
    stream's own RDD at t - slide:

    ============ ============= =========================================================
    previous     parent's RDD  state RDD
    ============ ============= =========================================================
    an RDD       an RDD        cogroup of both, then the update function
    an RDD       none          update function over previous, each key with no new values
    none         an RDD        the same as the first, with the initial RDD as previous;
                               without an initial RDD every key's state is None
    none         none          none; an initial RDD goes on waiting
    ============ ============= =========================================================

    The update function is called for *every* key of the state in *every* batch. Only the parent's
    records are shuffled; the state stays where it is, in serialized columnar blocks. With
    *preserves_partitioning* false the state RDD claims no partitioner, and the next batch has to
    shuffle the state: that is what the flag means.

    State: one entry for each key until the update function drops it.
    Semantics: org.apache.spark.streaming.dstream.StateDStream (4.3), the Scala rule where the
    parent has no RDD.
    """

    must_checkpoint: ClassVar[bool] = True
    is_stateful: ClassVar[bool] = True
    default_storage: ClassVar[StorageLevel | None] = STATE_STORAGE

    parent: Node
    update: StateUpdate
    partitioner: StablePartitioner
    preserves_partitioning: bool
    initial: RDD[Any] | None
    operation: str

    def compute(self, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        own = rdds.before(self, time_ms)
        batch = rdds.at(self.parent, time_ms)
        if own is None and batch is None:
            return None
        previous = self.initial if own is None else own
        blocks = cogroup_with_state(
            None if batch is None else self._blocks(batch, Side.BATCH),
            None if previous is None else self._blocks(previous, Side.STATE),
            self.update.task(time_ms, self._is_unique(own), self._claimed),
            preserves_partitioning=self.preserves_partitioning,
        )
        return self.layout.rdd(blocks)

    def replay(
        self, own: RDD[Any] | None, times: Iterable[int], rdds: BatchView
    ) -> RDD[Any] | None:
        """Make the RDD at the last of *times* from the one before the first, in one stage.

        The same as :meth:`compute` for one time after the other, without the RDDs between; for a
        stream that preserves its partitioning.
        """
        batches: list[RDD[bytes] | None] = []
        tasks: list[StateTask] = []
        for time_ms in times:
            batch = rdds.at(self.parent, time_ms)
            if own is None and batch is None and not tasks:
                continue
            batches.append(None if batch is None else self._blocks(batch, Side.BATCH))
            is_unique = bool(tasks) or self._is_unique(own)
            tasks.append(self.update.task(time_ms, is_unique, self._claimed))
        if not tasks:
            return None
        previous = self.initial if own is None else own
        state = None if previous is None else self._blocks(previous, Side.STATE)
        blocks = replay_batches(rdds.spark, self.partitioner, batches, state, tasks)
        return self.layout.rdd(blocks)

    def _is_unique(self, own: RDD[Any] | None) -> bool:
        """Whether a state holds each key once: only one that this stream left in place surely."""
        return own is not None and own.partitioner == self.partitioner

    @property
    def _claimed(self) -> StablePartitioner | None:
        return self.partitioner if self.preserves_partitioning else None

    @property
    def layout(self) -> FrameLayout:
        """As what the state lies in its frames."""
        return self.update.layout

    def _blocks(self, records: RDD[Any], side: Side) -> RDD[bytes]:
        return self.layout.frames(records, self.partitioner, side, self.operation)
