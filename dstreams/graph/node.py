"""What a node of a stream graph is: three facts, and nothing that changes.

A node says which streams it depends on (``parents``), how often it fires (``slide_ms``) and how to
make the RDD for a batch time (``compute``). It holds no context, no clock and no RDD of an earlier
batch: RDDs that were made stand in the history (:mod:`dstreams.graph.history`), and what follows
from the whole graph is computed once, when it is frozen into a plan (:mod:`dstreams.graph.plan`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from pyspark import RDD, SparkContext, StorageLevel

from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_version import StateVersion

MEMORY_ONLY_SER = StorageLevel(False, True, False, False, 1)
"""Serialized, in memory: Spark's level for streams it persists, which PySpark calls MEMORY_ONLY."""

STATE_STORAGE = StorageLevel.MEMORY_AND_DISK_DESER
"""Level of a state: its frames are bytes already, which to serialize would copy and compress."""


class BatchView(Protocol):
    """What a node may ask while it makes an RDD."""

    @property
    def spark(self) -> SparkContext:
        """The context RDDs are made in."""
        ...

    def at(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """The RDD of *node* at a batch time, made now if it was not; None when there is none."""
        ...

    def before(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """What the RDD of *node* at a time stands on, *node* asking: its own one before that."""
        ...

    def state_before(
        self, node: Node, time_ms: int, partitioner: StablePartitioner
    ) -> StateVersion:
        """The version of the state of *node* in the state store that a batch begins with."""
        ...

    def state_pairs(
        self, node: Node, time_ms: int, partitioner: StablePartitioner
    ) -> RDD[tuple[Any, Any]]:
        """All keys of the state of *node* in the state store, as the batch at a time left it."""
        ...

    def checkpoint_due(self, node: Node, time_ms: int) -> bool:
        """Whether a batch time is a multiple of the stream's checkpoint interval."""
        ...


class Node(ABC):
    """One stream of the graph.

    Nodes are compared by identity: two ``map(f)`` of one stream are two streams.
    """

    must_checkpoint: ClassVar[bool] = False
    """Whether the stream grows a lineage without end and so needs snapshots of its RDDs."""

    is_stateful: ClassVar[bool] = False
    """Whether a batch of the stream stands on what the stream was in the batch before."""

    rereads_parents: ClassVar[bool] = False
    """Whether ``compute`` asks for RDDs of parents that earlier batches asked for, too, so that
    these are persisted unless the user decides otherwise."""

    default_storage: ClassVar[StorageLevel | None] = None
    """Storage level of the stream's RDDs when the user chooses none; None: not persisted."""

    operation: str
    """Operation and call site, for example ``map at app.py:12``."""

    @property
    @abstractmethod
    def parents(self) -> tuple[Node, ...]:
        """The streams this one is made from, itself not counted."""

    @property
    @abstractmethod
    def slide_ms(self) -> int:
        """Milliseconds from one RDD to the next."""

    @property
    def holder(self) -> Node:
        """The stream whose RDDs are persisted when this one is to be: itself, or where it only
        puts RDDs of its parent together, that parent's."""
        return self

    @abstractmethod
    def compute(self, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        """Make the RDD for *time_ms*, a time at which the node fires; None for no RDD."""

    def earlier_times(self, time_ms: int) -> Iterable[int]:
        """Times before *time_ms* for which ``compute`` may ask parents there for their RDDs."""
        return ()

    def parents_remember_ms(self, remember_ms: int) -> int:
        """How long parents must be remembered for this node to be remembered *remember_ms*."""
        return remember_ms

    def __reduce__(self) -> Any:
        raise TypeError(
            f"the stream {self.operation} was captured by a function that runs on the workers; "
            "use streams only to define the graph, and pass plain values to functions"
        )


class ChildNode(Node):
    """A node that is made from one other, and fires as often unless it says otherwise."""

    parent: Node

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)

    @property
    def slide_ms(self) -> int:
        return self.parent.slide_ms
