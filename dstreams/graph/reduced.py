"""ReducedDStream: each batch of a stream of pairs, reduced by key."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import RDD

from dstreams.graph.node import BatchView, ChildNode, Node
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import Reduction, reduce_pairs
from dstreams.spark.shuffle import BlockPairsRDD


@dataclass(frozen=True, eq=False)
class ReducedDStream(ChildNode):
    """Each key of the parent's RDD once, with its values reduced, in blocks that stay in place.

    Parents: the parent, nothing else. Slide: the parent's. RDD at time t: the parent's RDD at t
    reduced by key, none where the parent has none. What the parent has partitioned by an equal
    partitioner is reduced where it is.
    """

    parent: Node
    reduction: Reduction
    partitioner: StablePartitioner
    operation: str

    def compute(self, time_ms: int, rdds: BatchView) -> BlockPairsRDD | None:
        pairs: RDD[object] | None = rdds.at(self.parent, time_ms)
        if pairs is None:
            return None
        return reduce_pairs(pairs, self.reduction, self.partitioner, self.operation)
