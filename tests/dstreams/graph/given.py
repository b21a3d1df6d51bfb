"""RDDs for one node, instead of all the RDDs of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.graph.node import InputDStream, Node
from dstreams.sources.queue import QueueSource
from dstreams.state.state_versions import StateVersions

PARENT = InputDStream(0, QueueSource([]), 1000, "queueStream at a.py:1")


@dataclass
class Given:
    """The RDDs that a node may read, and the times that it has read."""

    spark: SparkContext
    rdds: dict[tuple[Node, int], RDD[Any]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    @property
    def states(self) -> StateVersions:
        raise NotImplementedError

    def get(self, node: Node, time_ms: int) -> RDD[Any] | None:
        self.asked.append(time_ms)
        return self.rdds.get((node, time_ms))

    def before(self, node: Node, time_ms: int) -> RDD[Any] | None:
        return self.get(node, time_ms - node.slide_ms)

    def uid(self, node: Node) -> str:
        raise NotImplementedError

    def checkpoint_due(self, node: Node, time_ms: int) -> bool:
        raise NotImplementedError


def compute(node: Node, time_ms: int, given: Given) -> RDD[Any] | None:
    """Compute the RDD of *node* from what is given."""
    parents = [given.rdds.get((parent, time_ms)) for parent in node.parents]
    return node.compute(time_ms, parents, given)
