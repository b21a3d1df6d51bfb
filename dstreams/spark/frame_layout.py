"""As what the records of a state lie in frames."""

from __future__ import annotations

from typing import Any, Protocol

from pyspark import RDD

from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs


class FrameLayout(Protocol):
    """How records become frames, and frames an RDD of records again."""

    def frames(
        self, rdd: RDD[Any], partitioner: StablePartitioner, side: Side, operation: str
    ) -> RDD[bytes]:
        """Bring each record to the partition of its key; nothing is moved that is there."""
        ...

    def rdd(self, frames: RDD[bytes]) -> RDD[Any]:
        """Return the RDD of the records of a state."""
        ...


class PairFrames:
    """Pairs in blocks (:mod:`dstreams.spark.blocks`)."""

    def frames(
        self, rdd: RDD[Any], partitioner: StablePartitioner, side: Side, operation: str
    ) -> RDD[bytes]:
        return shuffle_pairs(rdd, partitioner, side, operation)

    def rdd(self, frames: RDD[bytes]) -> RDD[Any]:
        return BlockPairsRDD(frames, Side.STATE)


PAIR_FRAMES: FrameLayout = PairFrames()
