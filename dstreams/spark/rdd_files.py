"""RDDs in durable files: one synced, checksummed file for each partition, named by its attempt.

The caller decides between writing and reading, by a commit record, whether the files count
(:mod:`checkpoint`). What is read has the partitioner it was written under, so the next narrow
union needs no shuffle.

>>> files = open_files("checkpoints")
>>> first = StatePartition("my-run", "counts", 10_000, 0, state.getNumPartitions(), "stable-hash-1")
>>> written = write_rdd(state, files, first, epoch=1)
>>> restored = read_rdd(spark, files, written, like=state)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
from dstreams.spark.blocks import Block, Side
from dstreams.spark.empty_partitions import empty_partitions
from dstreams.spark.frame_layout import FrameLayout
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.worker_gc import settle_worker

NO_PARTITIONER = "none"
"""What files say of an RDD that claims no partitioner."""


@dataclass(frozen=True)
class WrittenRdd:
    """The files of one RDD, one a partition; *first* is what that of partition 0 says of itself."""

    first: StatePartition
    files: tuple[FileRef, ...]


def write_rdd(rdd: RDD[Any], files: Files, first: StatePartition, epoch: int) -> WrittenRdd:
    """Compute *rdd* and write each partition to a file of its own, durably; one Spark job."""
    is_pairs = isinstance(rdd, BlockPairsRDD)
    frames = rdd.blocks if isinstance(rdd, BlockPairsRDD) else jvm.frames_of(rdd)
    # A serializer that knows how many records a frame has says so by this method.
    rows_of = getattr(rdd._jrdd_deserializer, "rows_of_frame", _no_rows)
    write = _Write(files, first, epoch, _rows_of_block if is_pairs else rows_of)
    written = PipelinedRDD(frames, write).collect()
    return WrittenRdd(first, tuple(written))


def read_rdd(spark: SparkContext, files: Files, written: WrittenRdd, like: RDD[Any]) -> RDD[Any]:
    """Return the RDD that was written, with the partitioner and the serializer of *like*."""
    partitioner = like.partitioner
    known = partitioner if isinstance(partitioner, StablePartitioner) else None
    frames = _frames(spark, files, written, known)
    if isinstance(like, BlockPairsRDD):
        return BlockPairsRDD(frames, like.side)
    return jvm.from_frames(frames, like)


def read_state(
    spark: SparkContext,
    files: Files,
    written: WrittenRdd,
    partitioner: StablePartitioner,
    layout: FrameLayout,
    operation: str,
) -> RDD[Any]:
    """Return a state RDD that another driver wrote, placed by *partitioner*.

    Keys that another function or number of partitions has placed are shuffled; a state that was
    written without a partitioner keeps none.
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
    task = _Read(files, written)
    if partitioner is not None:
        return jvm.as_frames(
            PipelinedRDD(empty_partitions(spark, partitioner), task, True), partitioner
        )
    count = len(written.files)
    return jvm.as_frames(PipelinedRDD(spark.parallelize(range(count), count), task), None)


@dataclass(frozen=True)
class _Write:
    files: Files
    first: StatePartition
    epoch: int
    rows_of: Callable[[bytes], int]

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[FileRef]:
        settle_worker()
        partition = asdict(replace(self.first, partition=split))
        # A new name for each attempt: one that is retried or given up may write on for seconds.
        identity = StateFileId(**partition, epoch=self.epoch, attempt=new_attempt())
        yield write_state_file(self.files, identity, self._blocks(frames))

    def _blocks(self, frames: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
        return ((frame, self.rows_of(frame)) for frame in frames)


def _rows_of_block(frame: bytes) -> int:
    rows: int = Block(frame).rows
    return rows


def _no_rows(_: bytes) -> int:
    return 0


@dataclass(frozen=True)
class _Read:
    files: Files
    written: WrittenRdd

    def __call__(self, split: int, frames: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        for _ in frames:  # a worker whose input is left unread is not used again
            pass
        expected = replace(self.written.first, partition=split)
        yield from read_state_file(self.files, self.written.files[split], expected)
