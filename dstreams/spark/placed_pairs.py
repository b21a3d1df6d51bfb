"""Pairs in the partition of their key: the input of an operator with state.

Their blocks are united with partitions that stay where they were computed first, so a task runs
on the host with the replica of its state. Pairs are in the order of the records before the shuffle,
which is the same in each attempt of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import Block, Side
from dstreams.spark.empty_partitions import pinned_partitions
from dstreams.spark.ordered_frames import in_order
from dstreams.spark.pair_columns import Columns, PairColumns
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.worker_gc import settle_worker


class StateInputs:
    """The input of a task in two parts: the initial state, and the records of the batch."""

    def __init__(self, frames: Iterable[bytes]) -> None:
        # All frames are read now, so that a slow shuffle does not hold a store open.
        self._blocks = in_order(filter(None, frames))
        self._next: Block | None = None

    def initial(self) -> Iterator[tuple[Any, Any]]:
        """Return the pairs of key and state; read them to their end before the records."""
        for block in self._blocks:
            if block.side is not Side.STATE:
                self._next = block
                return
            yield from zip(block.keys(), block.values(), strict=True)

    def records(self) -> PairColumns:
        """Return the pairs of the batch."""
        return PairColumns(self._columns())

    def _columns(self) -> Iterator[Columns]:
        begun = () if self._next is None else (self._next,)
        for block in chain(begun, self._blocks):
            yield block.keys(), block.column()


class PlacedPairsRDD(BlockPairsRDD):
    """The pairs of blocks that a shuffle has brought to the partitions of their keys.

    Args:
        blocks: blocks of one side, with a partitioner.
        side: what the values are.

    Raises:
        ValueError: *blocks* have no partitioner.
    """

    def __init__(self, blocks: RDD[bytes], side: Side = Side.BATCH) -> None:
        # Not by BlockPairsRDD, whose pairs come as the shuffle delivers them.
        PipelinedRDD.__init__(self, _pinned(blocks), _read_pairs, preservesPartitioning=True)
        self.blocks = blocks
        self.side = side


def state_inputs(*blocks: RDD[bytes]) -> RDD[Any]:
    """Return the RDD of :class:`StateInputs`, one in each partition, of equally placed blocks.

    Raises:
        ValueError: the first blocks have no partitioner, or others have another one.
    """
    inputs: RDD[Any] = PipelinedRDD(_pinned(*blocks), _read_inputs, preservesPartitioning=True)
    return inputs


def _pinned(*blocks: RDD[bytes]) -> RDD[bytes]:
    partitioner = jvm.partitioner_of(blocks[0])
    if partitioner is None:
        raise ValueError("the input of a state must be placed by a partitioner")
    return jvm.unite_frames(*blocks, pinned_partitions(blocks[0].context, partitioner))


def _read_pairs(_: int, frames: Iterable[bytes]) -> PairColumns:
    settle_worker()
    return StateInputs(frames).records()


def _read_inputs(_: int, frames: Iterable[bytes]) -> StateInputs:
    settle_worker()
    return StateInputs(frames)
