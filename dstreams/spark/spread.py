"""Spreading the elements of an RDD evenly over a number of partitions, in columnar blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import MAX_ROWS, Block, BlockBuilder, Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker

T = TypeVar("T")

_FAIRNESS = 16


def spread(rdd: RDD[T], partitions: int) -> RDD[T]:
    """Return the elements of *rdd* in that many partitions, of about the same size."""
    dealt = PipelinedRDD(rdd, _Deal(partitions))
    moved = jvm.shuffle_frames(dealt, StablePartitioner(partitions))
    elements: RDD[T] = PipelinedRDD(moved, _elements)
    return elements


@dataclass(frozen=True)
class _Deal:
    """Task: elements -> blocks, dealt to one partition after the other.

    The first elements are dealt one by one, later ones by handfuls that are small beside what was
    dealt before: partitions of ten elements are even, and those of a million are cheap.
    """

    partitions: int

    def __call__(self, split: int, elements: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        builders = [BlockBuilder(Side.BATCH) for _ in range(self.partitions)]
        remaining = iter(elements)
        dealt, target = 0, split % self.partitions
        while handful := list(islice(remaining, self._rows(dealt))):
            # Elements stand in the column of values; that of keys costs a byte for each.
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
