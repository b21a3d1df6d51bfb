"""The nodes of a stream graph.

A node knows its parents, its slide and how to compute its RDD for one batch time. It holds no
context, no clock and no RDD: :mod:`dstreams.graph.generated_rdds` keeps RDDs, and
:mod:`dstreams.graph.plan` keeps everything that follows from the whole graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pyspark import RDD, SparkContext, StorageLevel

from dstreams.sinks.output_batch import AT_LEAST_ONCE, DeliveryGuarantee, OutputBatch
from dstreams.sources.source import Source
from dstreams.state.state_versions import StateVersions

MEMORY_ONLY_SER = StorageLevel(False, True, False, False, 1)
"""Serialized, in memory: Spark's level for streams it persists, which PySpark calls MEMORY_ONLY."""

STATE_STORAGE = StorageLevel.MEMORY_AND_DISK_DESER
"""The level of a state RDD. Its frames are bytes already; serializing would copy them again."""


class Previous(Protocol):
    """The RDDs and state that a node may read while it computes its RDD; nothing is computed."""

    @property
    def spark(self) -> SparkContext:
        """The context in which RDDs are made."""
        ...

    @property
    def states(self) -> StateVersions:
        """The versions of the state in the state store."""
        ...

    def get(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """Return the RDD of *node* at a batch time, None if it has none."""
        ...

    def before(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """Return the RDD of a stateful *node* one slide before *time_ms*."""
        ...

    def uid(self, node: Node) -> str:
        """Return the uid of a node."""
        ...

    def checkpoint_due(self, node: Node, time_ms: int) -> bool:
        """Return whether a batch time is a multiple of the checkpoint interval of *node*."""
        ...


class Node(ABC):
    """One stream of the graph.

    Nodes are compared by identity: two ``map(f)`` of one stream are two streams.
    """

    must_checkpoint: ClassVar[bool] = False
    """True if the lineage of the stream grows without bound, so that it needs snapshots."""

    is_stateful: ClassVar[bool] = False
    """True if a batch of the stream depends on the stream's previous batch."""

    rereads_parents: ClassVar[bool] = False
    """True if later batches read the RDDs of parents again, so that these are persisted."""

    default_storage: ClassVar[StorageLevel | None] = None
    """Storage level if the user chooses none; None if RDDs are not persisted."""

    operation: str
    """Operation and call site, for example ``map at app.py:12``."""

    @property
    @abstractmethod
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is made from."""

    @property
    @abstractmethod
    def slide_ms(self) -> int:
        """Milliseconds from one RDD to the next."""

    @property
    def holder(self) -> Node:
        """The stream that is persisted in place of this one: a window persists its parent."""
        return self

    @abstractmethod
    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        """Return the RDD for *time_ms*, a multiple of the slide; None for no RDD.

        *parents* are the RDDs of the parents at that time. *previous* has those of the parents at
        ``earlier_times(time_ms)``, and for a stateful node its own of one slide earlier.
        """

    def earlier_times(self, time_ms: int) -> Iterable[int]:
        """Return the times before *time_ms* at which ``compute`` reads its parents."""
        return ()

    def parents_remember_ms(self, remember_ms: int) -> int:
        """Return how long parents are kept if this node is kept for *remember_ms*."""
        return remember_ms

    def __reduce__(self) -> Any:
        raise TypeError(
            f"the stream {self.operation} was captured by a function that runs on the workers; "
            "use streams only to define the graph, and pass plain values to functions"
        )


class ChildNode(Node):
    """A node with one parent and, unless overridden, the slide of that parent."""

    parent: Node

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)

    @property
    def slide_ms(self) -> int:
        return self.parent.slide_ms


@dataclass(frozen=True, eq=False)
class InputDStream(Node):
    """A stream of the records of a source. Its RDDs are read before the batch runs."""

    stream_id: int
    source: Source
    batch_ms: int
    operation: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def slide_ms(self) -> int:
        return self.batch_ms

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        return None


@dataclass(frozen=True, eq=False)
class OutputOperation:
    """A function that is called with each RDD of a stream.

    *identity* distinguishes its batches from those of other outputs in the same place, if needed.
    """

    parent: Node
    func: Callable[[OutputBatch, RDD[Any]], None]
    operation: str
    promise: DeliveryGuarantee = AT_LEAST_ONCE
    identity: str | None = None
