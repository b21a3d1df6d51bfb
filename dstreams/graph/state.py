"""Streams with state: state RDDs in memory, and state in the state store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pyspark import RDD, SparkContext, StorageLevel

from dstreams.graph.node import STATE_STORAGE, ChildNode, Node, Previous
from dstreams.spark.blocks import Side
from dstreams.spark.cogroup import StateTask, cogroup_with_state, replay_batches
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.partitions import empty_partitions
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.rejected_records import LatePairs, LateRecords
from dstreams.spark.shuffle import FrameLayout, shuffle_pairs
from dstreams.spark.state_store_rdd import StoreFunction
from dstreams.spark.state_version import StateVersion
from dstreams.state.state_versions import StateUpdate


class StateFunction(Protocol):
    """A function over stored state, which makes the task of each batch.

    *pair_key* returns the key of a pair from a key in the store; None if they are equal.
    """

    @property
    def pair_key(self) -> Callable[[Any], Any] | None: ...

    def in_batch(self, time_ms: int, watermark_ms: int, is_checkpoint: bool) -> StoreFunction: ...


class UpdateTask(Protocol):
    """An update of a state RDD by one batch."""

    @property
    def layout(self) -> FrameLayout: ...

    def task(self, time_ms: int, unique: bool, partitioner: StablePartitioner | None) -> StateTask:
        """Return the task that updates one partition of the state at a batch time.

        The previous state has each key once if it is *unique*; the new one claims *partitioner*.
        """
        ...


@dataclass(frozen=True, eq=False)
class StateDStream(ChildNode):
    """The state RDD of each batch, a cogroup of the parent's RDD with the previous state RDD.

    ============ ============= =========================================================
    previous     parent's RDD  state RDD
    ============ ============= =========================================================
    an RDD       an RDD        cogroup of both, then the update function
    an RDD       no RDD        update function over previous, each key with no new values
    no RDD       an RDD        as in the first row, with the initial RDD as previous; without
                               an initial RDD, the state of every key is None
    no RDD       no RDD        no RDD; the initial RDD is still unused
    ============ ============= =========================================================

    The update function is called for *every* key of the state in *every* batch. Only the parent's
    records are shuffled; the state stays where it is, in serialized columnar blocks. Unless
    *preserves_partitioning*, the state RDD claims no partitioner and the next batch shuffles the
    state.

    Semantics: org.apache.spark.streaming.dstream.StateDStream (4.3), the Scala rule if the parent
    has no RDD.
    """

    must_checkpoint: ClassVar[bool] = True
    is_stateful: ClassVar[bool] = True
    default_storage: ClassVar[StorageLevel | None] = STATE_STORAGE

    parent: Node
    update: UpdateTask
    partitioner: StablePartitioner
    preserves_partitioning: bool
    initial: RDD[Any] | None
    operation: str

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        own, [batch] = previous.before(self, time_ms), parents
        if own is None and batch is None:
            return None
        state = self.initial if own is None else own
        blocks = cogroup_with_state(
            None if batch is None else self._blocks(batch, Side.BATCH),
            None if state is None else self._blocks(state, Side.STATE),
            self.update.task(time_ms, self._is_unique(own), self._claimed),
            preserves_partitioning=self.preserves_partitioning,
        )
        return self.layout.rdd(blocks)

    def replay(
        self, own: RDD[Any] | None, batches: Mapping[int, RDD[Any] | None], spark: SparkContext
    ) -> RDD[Any] | None:
        """Return the RDD after several batches of the parent, by time, computed in one stage.

        Equals :meth:`compute` for each time in turn; only for a stream that preserves its
        partitioning.
        """
        inputs: list[RDD[bytes] | None] = []
        tasks: list[StateTask] = []
        for time_ms, batch in batches.items():
            if own is None and batch is None and not tasks:
                continue
            inputs.append(None if batch is None else self._blocks(batch, Side.BATCH))
            is_unique = bool(tasks) or self._is_unique(own)
            tasks.append(self.update.task(time_ms, is_unique, self._claimed))
        if not tasks:
            return None
        previous = self.initial if own is None else own
        state = None if previous is None else self._blocks(previous, Side.STATE)
        return self.layout.rdd(replay_batches(spark, self.partitioner, inputs, state, tasks))

    def _is_unique(self, own: RDD[Any] | None) -> bool:
        """Return whether a state surely has each key once: if this stream left it in place."""
        return own is not None and own.partitioner == self.partitioner

    @property
    def _claimed(self) -> StablePartitioner | None:
        return self.partitioner if self.preserves_partitioning else None

    @property
    def layout(self) -> FrameLayout:
        """The layout of the state's records in frames."""
        return self.update.layout

    def _blocks(self, records: RDD[Any], side: Side) -> RDD[bytes]:
        return self.layout.frames(records, self.partitioner, side, self.operation)


@dataclass(frozen=True, eq=False)
class StateStoreDStream(ChildNode):
    """The rows that a function emits over a state in the state store.

    Computing it makes the next version of the state in one job; every partition takes part in every
    batch, so there is always an RDD. The engine computes it once per batch, before any output.
    """

    is_stateful: ClassVar[bool] = True

    parent: Node
    function: StateFunction
    partitioner: StablePartitioner
    initial: RDD[Any] | None
    operation: str
    delay_ms: int | None = None

    @property
    def event_time_of_late(self) -> Callable[[Any], int | None] | None:
        """The event time of a value, by which late ones are dropped; None if none is."""
        if getattr(self.function.in_batch(0, 0, False), "lateWatermark", None) is None:
            return None
        found: Callable[[Any], int | None] | None = getattr(self.function, "event_time", None)
        return found

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        uid, states = previous.uid(self), previous.states
        before = states.at(uid, time_ms - self.slide_ms) or states.empty(uid, self.partitioner)
        return states.make(uid, time_ms, self.update(time_ms, before, parents[0], previous))

    def update(
        self, time_ms: int, before: StateVersion, batch: RDD[Any] | None, previous: Previous
    ) -> StateUpdate:
        """Return the update of the state by a batch; runs nothing."""
        inputs: list[RDD[bytes]] = []
        if before.version == 0 and self.initial is not None:
            inputs.append(self._blocks(self.initial, Side.STATE))
        if batch is not None:
            inputs.append(self._blocks(batch, Side.BATCH))
        is_due = previous.checkpoint_due(self, time_ms)
        data = inputs or [empty_partitions(previous.spark, self.partitioner)]
        function = self.function.in_batch(time_ms, before.watermark_ms, is_due)
        return StateUpdate(before, state_inputs(*data), function, self.delay_ms)

    def _blocks(self, pairs: RDD[Any], side: Side) -> RDD[bytes]:
        return shuffle_pairs(pairs, self.partitioner, side, self.operation, ordered=True)


@dataclass(frozen=True, eq=False)
class LateDStream(Node):
    """The pairs that a stateful stream drops as late, as rejected records."""

    stateful: StateStoreDStream
    event_time: Callable[[Any], int | None]
    operation: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.stateful, self.stateful.parent)

    @property
    def slide_ms(self) -> int:
        return self.stateful.slide_ms

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        uid, states, pairs = previous.uid(self.stateful), previous.states, parents[1]
        if states.at(uid, time_ms) is None:
            raise LookupError(
                f"{self.operation} cannot have an RDD at {time_ms} ms: its state was made by an "
                "earlier run"
            )
        if pairs is None:
            return None
        before = states.at(uid, time_ms - self.slide_ms)
        watermark_ms = 0 if before is None else max(before.watermark_ms, 0)
        late = LateRecords(uid, watermark_ms, time_ms)
        return pairs.mapPartitionsWithIndex(LatePairs(late, self.event_time))


@dataclass(frozen=True, eq=False)
class SnapshotDStream(ChildNode):
    """All (key, state) pairs of a state in the state store after each batch."""

    parent: StateStoreDStream
    state_of: Callable[[Any], Any]
    operation: str

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        if parents[0] is None:
            return None
        uid = previous.uid(self.parent)
        rows = previous.states.pairs(uid, time_ms, self.parent.partitioner)
        return rows.mapValues(self.state_of).filter(_has_state)


def _has_state(pair: tuple[Any, Any]) -> bool:
    return pair[1] is not None
