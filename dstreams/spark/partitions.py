"""RDDs of empty partitions, unions, and even distribution over partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from pyspark import RDD, SparkContext, StorageLevel
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import MAX_ROWS, Block, BlockBuilder, Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.worker_gc import settle_worker

T = TypeVar("T")

_FAIRNESS = 16


def no_records(spark: SparkContext, partitions: int) -> RDD[Any]:
    """Return an RDD of that many partitions without records, cached per context."""
    known: dict[int, RDD[Any]] = vars(spark).setdefault("_dstreams_no_records", {})
    if partitions not in known:
        known[partitions] = spark.parallelize([], partitions)
    return known[partitions]


def empty_partitions(spark: SparkContext, partitioner: StablePartitioner) -> RDD[bytes]:
    """Return an RDD with *partitioner* and one empty frame in each partition.

    In the JVM only a shuffle sets a partitioner, so one tiny shuffle runs per context.
    """
    # Kept in the context, to which they refer, so that both are freed together.
    known: dict[StablePartitioner, RDD[bytes]] = vars(spark).setdefault("_dstreams_empty", {})
    if partitioner not in known:
        known[partitioner] = _dealt(spark, partitioner)
    return known[partitioner]


def pinned_partitions(spark: SparkContext, partitioner: StablePartitioner) -> RDD[bytes]:
    """Return empty partitions that are persisted on the hosts that first computed them.

    Spark prefers these hosts for partitions that are united with them, so the replica of a
    partition's state is local. Their lineage does not grow.
    """
    # Not shared with empty_partitions, whose users need no fixed host.
    known: dict[StablePartitioner, RDD[bytes]] = vars(spark).setdefault("_dstreams_pinned", {})
    if partitioner not in known:
        known[partitioner] = _dealt(spark, partitioner).persist(StorageLevel.MEMORY_AND_DISK)
    return known[partitioner]


def _dealt(spark: SparkContext, partitioner: StablePartitioner) -> RDD[bytes]:
    numbers = spark.parallelize(range(partitioner.numPartitions), 1)
    return jvm.shuffle_frames(PipelinedRDD(numbers, _deal), partitioner)


def _deal(_: int, numbers: Iterable[int]) -> Iterator[bytes]:
    settle_worker()
    for number in numbers:
        yield from jvm.addressed(number, b"")


def unite(spark: SparkContext, rdds: list[RDD[Any]]) -> RDD[Any]:
    """Return the union of *rdds* in order, an empty RDD for an empty list.

    The union of RDDs with equal partitioners is narrow and keeps the partitioner. The union of
    RDDs of blocks is an RDD of blocks.
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
    # The union has more partitions if the JVM does not find that the partitioners are equal.
    if partitioner is not None and union.getNumPartitions() == partitioner.numPartitions:
        union.partitioner = partitioner
    return union


def _shared_partitioner(rdds: list[RDD[Any]]) -> Any:
    first = rdds[0].partitioner
    return first if all(rdd.partitioner == first for rdd in rdds) else None


def spread(rdd: RDD[T], partitions: int) -> RDD[T]:
    """Return the elements of *rdd* in *partitions* of about the same size."""
    dealt = PipelinedRDD(rdd, _Deal(partitions))
    moved = jvm.shuffle_frames(dealt, StablePartitioner(partitions))
    elements: RDD[T] = PipelinedRDD(moved, _elements)
    return elements


@dataclass(frozen=True)
class _Deal:
    """Task: elements -> blocks, dealt to the partitions in turn.

    The first elements are dealt one by one, later ones in handfuls that are small compared with the
    number dealt so far: small partitions are even, and large ones are cheap.
    """

    partitions: int

    def __call__(self, split: int, elements: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        builders = [BlockBuilder(Side.BATCH) for _ in range(self.partitions)]
        remaining = iter(elements)
        dealt, target = 0, split % self.partitions
        while handful := list(islice(remaining, self._rows(dealt))):
            # Elements are the values; the None keys cost a byte each.
            for block in builders[target].extend([None] * len(handful), handful):
                yield from jvm.addressed(target, block)
            dealt += len(handful)
            target = (target + 1) % self.partitions
        for target, builder in enumerate(builders):
            for block in builder.flush():
                yield from jvm.addressed(target, block)

    def _rows(self, dealt: int) -> int:
        return max(1, min(MAX_ROWS // 10, dealt // (_FAIRNESS * self.partitions)))


def _elements(_: int, frames: Iterable[bytes]) -> Iterator[Any]:
    settle_worker()
    return chain.from_iterable(block.values() for block in map(Block, frames))
