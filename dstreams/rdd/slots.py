"""An RDD with nothing in it but its partitions, for tasks that need no input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.rdd import jvm
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.worker import settle_worker


def slots(spark: SparkContext, partitioner: StablePartitioner) -> RDD[bytes]:
    """Return an RDD with one empty frame in each partition that claims *partitioner*.

    Only a shuffle makes an RDD claim a partitioner, so a tiny one is run, once a context.
    """
    # Kept on the context, so that they end with it: they refer back to it.
    known: dict[StablePartitioner, RDD[bytes]] = vars(spark).setdefault("_dstreams_slots", {})
    if partitioner not in known:
        numbers = spark.parallelize(range(partitioner.numPartitions), 1)
        known[partitioner] = jvm.shuffle_frames(PipelinedRDD(numbers, _deal), partitioner)
    return known[partitioner]


def _deal(_: int, numbers: Iterable[int]) -> Iterator[bytes]:
    settle_worker()
    for number in numbers:
        yield from jvm.addressed(number, b"")
