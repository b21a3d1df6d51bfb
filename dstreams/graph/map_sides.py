"""The map side of a state: what lies between the sources and the shuffle in front of the state.

It can be made before its batch has its turn where making it calls no function of the user's on the
driver, keeps nothing that others read, and stands on nothing that an earlier batch makes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from pyspark import RDD, Accumulator, Broadcast, SparkContext, cloudpickle

from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node, TakesBatch
from dstreams.graph.plan import Plan
from dstreams.graph.reduced import ReducedDStream
from dstreams.graph.state import StateDStream
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.graph.transformed import TransformedDStream
from dstreams.rdd import jvm
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.state_version import StateVersion

StateNode = StateDStream | StateStoreDStream


@dataclass(frozen=True)
class MapSides:
    """The states of a plan whose map side can be made early, and what it is made of.

    *nodes* are parents first, without the inputs.
    """

    states: tuple[StateNode, ...]
    nodes: tuple[TransformedDStream | ReducedDStream, ...]
    inputs: tuple[InputDStream, ...]

    @classmethod
    def of(cls, plan: Plan) -> MapSides:
        """Return the map sides of a plan that can be made early."""
        early: set[Node] = set()
        for node, planned in plan.nodes.items():  # parents first
            if planned.storage_level is None and _is_early(node) and early.issuperset(node.parents):
                early.add(node)
        states = tuple(
            node
            for node in plan.nodes
            if isinstance(node, StateDStream | StateStoreDStream) and node.parent in early
        )
        above: set[Node] = {state.parent for state in states}
        for node in reversed(tuple(plan.nodes)):
            if node in above:
                above.update(node.parents)
        return cls(
            states,
            tuple(
                node
                for node in plan.nodes
                if node in above and isinstance(node, TransformedDStream | ReducedDStream)
            ),
            tuple(node for node in plan.nodes if node in above and isinstance(node, InputDStream)),
        )

    def digest(self) -> bytes:
        """Return a digest of the functions as tasks would get them now, with what they capture.

        Raises:
            Exception: a function captures what counts in an order, or cannot be pickled.
        """
        file = io.BytesIO()
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        for node in self.nodes:
            pickler.dump(
                node.func
                if isinstance(node, TransformedDStream)
                else (node.reduction, node.partitioner)
            )
        for state in self.states:
            pickler.dump(state.partitioner)
        return blake2b(file.getbuffer()).digest()


def _is_early(node: Node) -> bool:
    if isinstance(node, TransformedDStream):
        return not node.calls_user
    return isinstance(node, InputDStream | ReducedDStream)


class _Pickler(cloudpickle.Pickler):
    """Pickles functions to compare them; nobody reads what it writes."""

    def persistent_id(self, value: object) -> tuple[str, int] | None:
        if isinstance(value, Accumulator):
            raise TypeError("an accumulator counts the batches in their order")
        if isinstance(value, Broadcast):
            return "broadcast", jvm.broadcast_id(value)
        return None


@dataclass
class EarlyView:
    """What nodes may ask while their map side is made before their batch has its turn.

    *rdds* has those of the inputs, and gets those that are made of them.
    """

    spark: SparkContext
    time_ms: int
    rdds: dict[Node, RDD[Any] | None]
    frames: dict[StateNode, RDD[bytes] | None] = field(default_factory=dict)

    def make(self, states: Sequence[StateNode]) -> None:
        """Make the frames of a batch for each state; this runs nothing."""
        for state in states:
            self.frames[state] = self.batch_frames(state, self.time_ms)

    def at(self, node: Node, time_ms: int) -> RDD[Any] | None:
        if time_ms != self.time_ms:
            raise LookupError(f"{node.operation} is asked for another batch")
        if node not in self.rdds:
            self.rdds[node] = node.compute(time_ms, self)
        return self.rdds[node]

    def batch_frames(self, node: TakesBatch, time_ms: int) -> RDD[bytes] | None:
        return node.batch_frames(time_ms, self)

    def before(self, node: Node, time_ms: int) -> RDD[Any] | None:
        raise LookupError(f"{node.operation} stands on an earlier batch")

    def state_before(
        self, node: Node, time_ms: int, partitioner: StablePartitioner
    ) -> StateVersion:
        raise LookupError(f"{node.operation} stands on an earlier batch")

    def state_pairs(
        self, node: Node, time_ms: int, partitioner: StablePartitioner
    ) -> RDD[tuple[Any, Any]]:
        raise LookupError(f"{node.operation} stands on an earlier batch")

    def checkpoint_due(self, node: Node, time_ms: int) -> bool:
        raise LookupError(f"{node.operation} stands on an earlier batch")


def shuffles_of(frames: Mapping[StateNode, RDD[bytes] | None]) -> list[Any]:
    """Return the shuffles in front of frames, as the JVM has them."""
    return [
        shuffle for rdd in frames.values() if rdd is not None for shuffle in jvm.shuffles_of(rdd)
    ]
