"""RDDs in durable files: one synced, checksummed file per partition.

The files count once the caller names them in a commit record (:mod:`checkpoint`). A restored RDD
has the partitioner of the original, so the next narrow union needs no shuffle.

>>> files = open_files("checkpoints")
>>> first = StatePartition("my-run", "counts", 10_000, 0, state.getNumPartitions(), "stable-hash-1")
>>> written = write_rdd(state, files, first, epoch=1)
>>> restored = read_rdd(spark, files, written, like=state)
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from checkpoint import (
    FileRef,
    Files,
    StateFileId,
    StatePartition,
    new_attempt,
    read_state_file,
    write_state_file,
)
from dstreams.spark import jvm
from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.partitions import empty_partitions
from dstreams.spark.per_partition import PerPartition
from dstreams.spark.shuffle import BlockPairsRDD, FrameLayout, rows_of_block
from dstreams.spark.worker_gc import settle_worker

NO_PARTITIONER = "none"
"""The partitioner in files of an RDD without one."""


@dataclass(frozen=True)
class WrittenRdd:
    """The files of an RDD, one per partition; *first* is the header of partition 0."""

    first: StatePartition
    files: tuple[FileRef, ...]


def write_rdd(rdd: RDD[Any], files: Files, first: StatePartition, epoch: int) -> WrittenRdd:
    """Compute *rdd* in one job, and write each partition to a durable file."""
    is_pairs = isinstance(rdd, BlockPairsRDD)
    frames = rdd.blocks if isinstance(rdd, BlockPairsRDD) else jvm.frames_of(rdd)
    # Serializers of our own can count the records of a frame.
    rows_of = getattr(rdd._jrdd_deserializer, "rows_of_frame", _no_rows)
    write = _Write(files, first, epoch, rows_of_block if is_pairs else rows_of)
    written = sorted(map(pickle.loads, jvm.collect_frames(PipelinedRDD(frames, write))))
    return WrittenRdd(first, tuple(ref for _, ref in written))


def read_rdd(spark: SparkContext, files: Files, written: WrittenRdd, like: RDD[Any]) -> RDD[Any]:
    """Return a written RDD, with the partitioner and the serializer of *like*."""
    frames = _frames(spark, files, written, jvm.partitioner_of(like))
    if isinstance(like, BlockPairsRDD):
        return BlockPairsRDD(frames, like.side)
    rdd = jvm.deserialized(frames, like._jrdd_deserializer)
    rdd.partitioner = like.partitioner
    return rdd


def read_state(
    spark: SparkContext,
    files: Files,
    written: WrittenRdd,
    partitioner: StablePartitioner,
    layout: FrameLayout,
    operation: str,
) -> RDD[Any]:
    """Return a state RDD that another driver wrote, partitioned by *partitioner*.

    It is shuffled if its partitioner was a different one. A state that was written without a
    partitioner has none.
    """
    was = written.first.partitioner
    count = written.first.partition_count
    is_placed = (was, count) == (partitioner.name, partitioner.numPartitions)
    frames = _frames(spark, files, written, partitioner if is_placed else None)
    records = layout.rdd(frames)
    if is_placed or was == NO_PARTITIONER:
        return records
    return layout.rdd(layout.frames(records, partitioner, Side.STATE, operation))


def _frames(
    spark: SparkContext, files: Files, written: WrittenRdd, partitioner: StablePartitioner | None
) -> RDD[bytes]:
    task = _Read(files, written.first, PerPartition(FileRef, written.files))
    if partitioner is not None:
        return jvm.as_frames(
            PipelinedRDD(empty_partitions(spark, partitioner), task, True), partitioner
        )
    count = len(written.files)
    return jvm.as_frames(PipelinedRDD(spark.parallelize(range(count), count), task), None)


@dataclass(frozen=True)
class _Write:
    """Task: frames -> the number of the partition and its file, pickled."""

    files: Files
    first: StatePartition
    epoch: int
    rows_of: Callable[[bytes], int]

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        partition = asdict(replace(self.first, partition=split))
        # A new name for each attempt: an attempt that has been retried may still write.
        identity = StateFileId(**partition, epoch=self.epoch, attempt=new_attempt())
        blocks = ((frame, self.rows_of(frame)) for frame in frames)
        yield pickle.dumps((split, write_state_file(self.files, identity, blocks)))


def _no_rows(_: bytes) -> int:
    return 0


@dataclass(frozen=True)
class _Read:
    files: Files
    first: StatePartition
    written: Sequence[FileRef]

    def __call__(self, split: int, frames: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        for _ in frames:  # Spark does not reuse a worker with unread input
            pass
        expected = replace(self.first, partition=split)
        yield from read_state_file(self.files, self.written[split], expected)
