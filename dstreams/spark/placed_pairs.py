"""The input of operators with state: pairs in the partitions of their keys.

The blocks are united with partitions that are pinned to a host, so that a task runs on the host
with the replica of its state.

Spark fetches the blocks of a shuffle in a different order in each attempt. The output of a function
over state must not change if a task runs again, so blocks carry their origin
(:func:`~dstreams.spark.shuffle.shuffle_pairs` with ``ordered``), and pairs are in the order of the
records before the shuffle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import Block, Columns, PairColumns, Side
from dstreams.spark.partitions import pinned_partitions
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.worker_gc import settle_worker


class StateInputs:
    """The input of a task: the initial state, then the records of the batch."""

    def __init__(self, frames: Iterable[bytes]) -> None:
        # All frames are read now, so that no store stays open during a slow shuffle.
        self._blocks = in_order(filter(None, frames))
        self._next: Block | None = None

    def initial(self) -> Iterator[tuple[Any, Any]]:
        """Return pairs of key and initial state; read all of them before the records."""
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
    """The pairs of shuffled blocks, in the order of the records before the shuffle.

    Raises:
        ValueError: *blocks* have no partitioner.
    """

    def __init__(self, blocks: RDD[bytes], side: Side = Side.BATCH) -> None:
        # Not BlockPairsRDD.__init__, whose pairs are in the order of the shuffle.
        PipelinedRDD.__init__(self, _pinned(blocks), _read_pairs, preservesPartitioning=True)
        self.blocks = blocks
        self.side = side


def state_inputs(*blocks: RDD[bytes]) -> RDD[Any]:
    """Return an RDD with one :class:`StateInputs` per partition.

    Raises:
        ValueError: *blocks* have no partitioner, or different ones.
    """
    inputs: RDD[Any] = PipelinedRDD(_pinned(*blocks), _read_inputs, preservesPartitioning=True)
    return inputs


def _pinned(*blocks: RDD[bytes]) -> RDD[bytes]:
    partitioner = jvm.partitioner_of(blocks[0])
    if partitioner is None:
        raise ValueError(
            "the input of a stateful operator: has no StablePartitioner; shuffle it first, "
            "for example by shuffle_pairs"
        )
    return jvm.unite_frames(*blocks, pinned_partitions(blocks[0].context, partitioner))


def _read_pairs(_: int, frames: Iterable[bytes]) -> PairColumns:
    settle_worker()
    return StateInputs(frames).records()


def _read_inputs(_: int, frames: Iterable[bytes]) -> StateInputs:
    settle_worker()
    return StateInputs(frames)


_BUFFER_BYTES = 64 << 20


class _Piece(NamedTuple):
    """A frame in a file."""

    file: BinaryIO
    start: int
    size: int

    def read(self) -> bytes:
        self.file.seek(self.start)
        return self.file.read(self.size)


def in_order(frames: Iterable[bytes], limit_bytes: int = _BUFFER_BYTES) -> Iterator[Block]:
    """Return all blocks, states first, then in the order of their records before the shuffle.

    Blocks without an origin precede the others, in the order in which they arrived. All frames are
    read at once; those beyond *limit_bytes* are stored in a temporary file.
    """
    waiting: list[tuple[tuple[bool, tuple[int, int], int], bytes | _Piece]] = []
    file: BinaryIO | None = None
    room = limit_bytes
    for number, frame in enumerate(frames):
        block = Block(frame)
        room -= len(frame)
        stored: bytes | _Piece = frame
        if room < 0:
            file = file or TemporaryFile()  # noqa: SIM115 - closed in _blocks
            stored = _Piece(file, file.tell(), len(frame))
            file.write(frame)
        waiting.append(((block.side is not Side.STATE, block.origin, number), stored))
    waiting.sort(key=itemgetter(0), reverse=True)
    return _blocks([stored for _, stored in waiting], file)


def _blocks(waiting: list[bytes | _Piece], file: BinaryIO | None) -> Iterator[Block]:
    """Yield the blocks from the last to the first, and free the memory of each."""
    try:
        while waiting:
            stored = waiting.pop()
            yield Block(stored.read() if isinstance(stored, _Piece) else stored)
    finally:
        if file is not None:
            file.close()
