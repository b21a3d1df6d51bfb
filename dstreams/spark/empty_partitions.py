"""RDDs with nothing in them but their partitions, for tasks that need no input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark import RDD, SparkContext, StorageLevel
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker


def no_records(spark: SparkContext, partitions: int) -> RDD[Any]:
    """Return an RDD without records in so many partitions; it is kept for who asks again."""
    known: dict[int, RDD[Any]] = vars(spark).setdefault("_dstreams_no_records", {})
    if partitions not in known:
        known[partitions] = spark.parallelize([], partitions)
    return known[partitions]


def empty_partitions(spark: SparkContext, partitioner: StablePartitioner) -> RDD[bytes]:
    """Return an RDD with one empty frame in each partition that claims *partitioner*.

    Only a shuffle makes an RDD claim a partitioner, so a tiny one is run, once a context.
    """
    # Kept on the context, so that they end with it: they refer back to it.
    known: dict[StablePartitioner, RDD[bytes]] = vars(spark).setdefault("_dstreams_empty", {})
    if partitioner not in known:
        known[partitioner] = _dealt(spark, partitioner)
    return known[partitioner]


def pinned_partitions(spark: SparkContext, partitioner: StablePartitioner) -> RDD[bytes]:
    """Return empty partitions that stay where they were computed first.

    Spark computes what is united with them on the same host again, if it finds a free core in time,
    so that host has a local replica of the partition's state. Their lineage does not grow.
    """
    # Not those above: what else is built on empty partitions may be computed anywhere.
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
