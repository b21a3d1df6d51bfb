"""The union of many RDDs, which keeps their common partitioner and their form."""

from __future__ import annotations

from typing import Any

from pyspark import RDD, SparkContext

from dstreams.spark import jvm
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD


def unite(spark: SparkContext, rdds: list[RDD[Any]]) -> RDD[Any]:
    """Return the union of *rdds* in order; that of none is an RDD without partitions.

    The union of RDDs with one partitioner is narrow and has it, that of RDDs of blocks is one of
    blocks.
    """
    if len(rdds) < 2:
        return rdds[0] if rdds else spark.emptyRDD()
    blocks = [rdd for rdd in rdds if isinstance(rdd, BlockPairsRDD)]
    partitioner = _shared_partitioner(rdds)
    if (
        len(blocks) == len(rdds)
        and isinstance(partitioner, StablePartitioner)
        and len({rdd.side for rdd in blocks}) == 1
    ):
        united = jvm.unite_frames(*(rdd.blocks for rdd in blocks))
        return BlockPairsRDD(united, blocks[0].side)
    union: RDD[Any] = spark.union(rdds)
    # The JVM may not see that partitioners are equal: then the union has more partitions.
    if partitioner is not None and union.getNumPartitions() == partitioner.numPartitions:
        union.partitioner = partitioner
    return union


def _shared_partitioner(rdds: list[RDD[Any]]) -> Any:
    first = rdds[0].partitioner
    return first if all(rdd.partitioner == first for rdd in rdds) else None
