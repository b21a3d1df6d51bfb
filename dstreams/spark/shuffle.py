"""A shuffle of columnar blocks, and RDDs that read blocks as pairs.

>>> from dstreams.spark.partitioner import StablePartitioner
>>> from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
>>> words = spark.parallelize([("a", 1), ("b", 2), ("a", 3)])
>>> blocks = shuffle_pairs(words, StablePartitioner(2))
>>> sorted(BlockPairsRDD(blocks).collect())
[('a', 1), ('a', 3), ('b', 2)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, compress, islice
from typing import Any, Protocol

from pyspark import RDD, StorageLevel
from pyspark.rdd import PipelinedRDD

from checkpoint import with_origin
from dstreams.spark import jvm
from dstreams.spark.blocks import Block, BlockBuilder, PairColumns, Side, shorten
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker

ROUTED_ROWS = 4000
"""Maximum number of rows of a shuffled block, so that a chunk fits into the CPU's caches."""

_FEW_TARGETS = 8
"""Number of partitions up to which one pass over the rows per partition is faster."""


def shuffle_pairs(
    rdd: RDD[tuple[Any, Any]],
    partitioner: StablePartitioner,
    side: Side = Side.BATCH,
    operation: str = "shuffle_pairs",
    *,
    ordered: bool = False,
) -> RDD[bytes]:
    """Move each pair to the partition of its key, and return an RDD of encoded blocks.

    Args:
        rdd: pairs. Not shuffled if its partitioner is equal to *partitioner*.
        partitioner: the partitioner of the result.
        side: the kind of the values.
        operation: names the operation in error messages.
        ordered: add the origin to shuffled blocks (:mod:`dstreams.spark.placed_pairs`).

    Raises:
        TypeError: in the task, if a record is not a pair or a key cannot be placed.
    """
    if isinstance(rdd, BlockPairsRDD) and rdd.partitioner == partitioner and side is rdd.side:
        return rdd.blocks
    if rdd.partitioner == partitioner:
        packed = PipelinedRDD(rdd, _Pack(side, operation), True)
        return jvm.as_frames(packed, partitioner)
    task = Route(partitioner, side, operation, ordered)
    return jvm.shuffle_frames(PipelinedRDD(rdd, task), partitioner)


class BlockPairsRDD(PipelinedRDD):  # type: ignore[misc]
    """The pairs in an RDD of blocks.

    Persisting it persists the blocks, and counting it reads only their headers.
    """

    def __init__(self, blocks: RDD[bytes], side: Side = Side.BATCH) -> None:
        super().__init__(blocks, _unfold, preservesPartitioning=True)
        self.blocks = blocks
        self.side = side

    def persist(self, storageLevel: StorageLevel = StorageLevel.MEMORY_ONLY) -> BlockPairsRDD:  # noqa: N803
        self.blocks.persist(storageLevel)
        return self

    def cache(self) -> BlockPairsRDD:
        return self.persist()

    def unpersist(self, blocking: bool = False) -> BlockPairsRDD:
        self.blocks.unpersist(blocking)
        return self

    def getStorageLevel(self) -> StorageLevel:  # noqa: N802
        return self.blocks.getStorageLevel()

    def getNumPartitions(self) -> int:  # noqa: N802
        return self.blocks.getNumPartitions()

    def count(self) -> int:
        counts = jvm.collect_frames(PipelinedRDD(jvm.in_few_tasks(self.blocks), _count_rows))
        return sum(int.from_bytes(count, "big") for count in counts)


def _unfold(_: int, frames: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
    settle_worker()
    blocks = map(Block, frames)
    return chain.from_iterable(zip(block.keys(), block.values(), strict=True) for block in blocks)


def _count_rows(_: int, frames: Iterable[bytes]) -> list[bytes]:
    settle_worker()
    return [sum(map(rows_of_block, frames)).to_bytes(8, "big")]


def rows_of_block(frame: bytes) -> int:
    """Return the number of rows of an encoded block."""
    rows: int = Block(frame).rows
    return rows


@dataclass(frozen=True)
class _Pack:
    """Task: pairs in the partitions of their keys -> blocks."""

    side: Side
    operation: str

    def __call__(self, _: int, records: Iterable[tuple[Any, Any]]) -> Iterator[bytes]:
        settle_worker()
        builder = BlockBuilder(self.side)
        for record in records:
            key, value = require_pair(record, self.operation)
            block = builder.add(key, value)
            if block is not None:
                yield block
        yield from builder.flush()


@dataclass(frozen=True)
class Route:
    """Task: pairs -> blocks, each after the number of its partition."""

    partitioner: StablePartitioner
    side: Side
    operation: str
    ordered: bool = False

    def __call__(self, split: int, records: Iterable[tuple[Any, Any]]) -> Iterator[bytes]:
        settle_worker()
        for number, (target, block) in enumerate(self._blocks(records)):
            yield from jvm.addressed(
                target, with_origin(block, split, number) if self.ordered else block
            )

    def _blocks(self, records: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, bytes]]:
        count = self.partitioner.numPartitions
        builders = [BlockBuilder(self.side, ROUTED_ROWS) for _ in range(count)]
        if isinstance(records, PairColumns):
            yield from self._routed(records, builders)
            return
        remaining = iter(records)
        # As many records at once as fill a block for each partition: fewer if they are large.
        while chunk := list(islice(remaining, self._rows_at_once(builders))):
            columns = self._split(chunk)
            for target, (keys, values) in enumerate(columns):
                for block in builders[target].extend(keys, values):
                    yield target, block
        for target, builder in enumerate(builders):
            for block in builder.flush():
                yield target, block

    def _routed(
        self, records: PairColumns, builders: list[BlockBuilder]
    ) -> Iterator[tuple[int, bytes]]:
        for keys, values in records.columns():
            are_fields = isinstance(values, tuple)
            columns = [keys, *values] if are_fields else [keys, values]
            for target, parts in self._parted(keys, columns):
                builder = builders[target]
                extend = builder.extend_fields if are_fields else builder.extend
                for block in extend(*parts):
                    yield target, block
        for target, builder in enumerate(builders):
            for block in builder.flush():
                yield target, block

    def _parted(
        self, keys: list[Any], columns: list[Any]
    ) -> Iterator[tuple[int, list[Iterable[Any]]]]:
        """Yield (partition, the part of each column that belongs there)."""
        targets, count = self._targets(keys), self.partitioner.numPartitions
        if count == 1:
            yield 0, columns
        elif count <= _FEW_TARGETS:
            for target in range(count):
                is_there = [each == target for each in targets]
                yield target, [compress(column, is_there) for column in columns]
        else:
            places: list[list[int]] = [[] for _ in range(count)]
            for place, target in enumerate(targets):
                places[target].append(place)
            for target, found in enumerate(places):
                yield target, [map(column.__getitem__, found) for column in columns]

    def _targets(self, keys: list[Any]) -> list[int]:
        try:
            return self.partitioner.partitions_of(keys)
        except TypeError as error:
            raise TypeError(f"{self.operation}: {error}") from error

    def _rows_at_once(self, builders: list[BlockBuilder]) -> int:
        return min(ROUTED_ROWS, len(builders) * max(builder.limit for builder in builders))

    def _split(self, records: list[Any]) -> list[tuple[list[Any], list[Any]]]:
        columns: list[tuple[list[Any], list[Any]]] = [
            ([], []) for _ in range(self.partitioner.numPartitions)
        ]
        if not are_pairs(records):
            records = [require_pair(record, self.operation) for record in records]
        targets = self._targets([key for key, _ in records])
        appends = [(keys.append, values.append) for keys, values in columns]
        for (key, value), target in zip(records, targets, strict=True):
            add_key, add_value = appends[target]
            add_key(key)
            add_value(value)
        return columns


class NotAPairError(TypeError):
    """A record is not a pair."""


def are_pairs(records: list[Any]) -> bool:
    """Return whether all records are tuples of length two, the common case."""
    return set(map(type, records)) <= {tuple} and set(map(len, records)) <= {2}


class PairReader:
    """An iterable over records that raises NotAPairError if one is not a pair."""

    def __init__(self, records: Iterable[Any], operation: str) -> None:
        self._records = records
        self._operation = operation
        self._last: Any = None

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for record in self._records:
            if record.__class__ is not tuple or len(record) != 2:
                require_pair(record, self._operation)
            self._last = record
            yield record

    def last_keys(self) -> list[Any]:
        """Return the key of the last record, if there was one."""
        return [] if self._last is None else [self._last[0]]


@contextmanager
def naming_unhashable(operation: str, keys: Callable[[], list[Any]]) -> Iterator[None]:
    """Name the first unhashable key of *keys* if a TypeError is raised in the block."""
    try:
        yield
    except TypeError as error:
        reason = unhashable_key(keys(), operation)
        if reason is None:
            raise
        raise TypeError(reason) from error


def unhashable_key(keys: Iterable[Any], operation: str) -> str | None:
    """Return the message for the first unhashable key, None if all keys are hashable."""
    for key in keys:
        try:
            {key}  # noqa: B018 - hashed as a dict would
        except TypeError as unhashable:
            return (
                f"{operation}: the key {shorten(key)} cannot be placed: {unhashable}; use an "
                "immutable value, for example tuple(key) for a list or frozenset(key) for a set"
            )
    return None


def require_pair(record: Any, operation: str) -> tuple[Any, Any]:
    """Return *record* as a tuple, or raise NotAPairError."""
    if isinstance(record, (tuple, list)) and len(record) == 2:
        return record[0], record[1]
    raise NotAPairError(
        f"{operation}: expected (key, value) pairs, got {shorten(record)} "
        f"({type(record).__name__}); map the stream to pairs first, "
        "for example stream.map(lambda x: (x, 1))"
    )


class FrameLayout(Protocol):
    """Converts between an RDD of records and an RDD of frames."""

    def frames(
        self, rdd: RDD[Any], partitioner: StablePartitioner, side: Side, operation: str
    ) -> RDD[bytes]:
        """Move each record to the partition of its key, unless it is already there."""
        ...

    def rdd(self, frames: RDD[bytes]) -> RDD[Any]:
        """Return the RDD of the records in *frames*."""
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
