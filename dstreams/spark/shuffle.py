"""A shuffle that moves columnar blocks, and the way from blocks back to pairs.

>>> from dstreams.spark.partitioner import StablePartitioner
>>> from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
>>> words = spark.parallelize([("a", 1), ("b", 2), ("a", 3)])
>>> blocks = shuffle_pairs(words, StablePartitioner(2))
>>> sorted(BlockPairsRDD(blocks).collect())
[('a', 1), ('a', 3), ('b', 2)]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, islice
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.rdd import PipelinedRDD

from checkpoint import with_origin
from dstreams.spark import jvm
from dstreams.spark.blocks import Block, BlockBuilder, Side, shorten
from dstreams.spark.pair_columns import PairColumns
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker

ROUTED_ROWS = 4000
"""Rows a block has at most that is moved: what is made of them at once stays in near caches."""

_FEW_TARGETS = 8
"""Partitions up to which it is faster to go over rows once for each."""


def shuffle_pairs(
    rdd: RDD[tuple[Any, Any]],
    partitioner: StablePartitioner,
    side: Side = Side.BATCH,
    operation: str = "shuffle_pairs",
    *,
    ordered: bool = False,
) -> RDD[bytes]:
    """Bring each pair to the partition of its key, in columnar blocks.

    Args:
        rdd: pairs. When it is partitioned by an equal partitioner, nothing is moved.
        partitioner: says where a key belongs.
        side: what the values are.
        operation: who asks, for error messages.
        ordered: let blocks that are moved say where they come from
            (:mod:`dstreams.spark.ordered_frames`).

    Returns:
        RDD of encoded blocks with *partitioner*.

    Raises:
        TypeError: in the task, for a record that is no pair or a key that cannot be placed.
    """
    if isinstance(rdd, BlockPairsRDD) and rdd.partitioner == partitioner and side is rdd.side:
        return rdd.blocks
    if rdd.partitioner == partitioner:
        packed = PipelinedRDD(rdd, _Pack(side, operation), True)
        return jvm.as_frames(packed, partitioner)
    task = Route(partitioner, side, operation, ordered)
    return jvm.shuffle_frames(PipelinedRDD(rdd, task), partitioner)


class BlockPairsRDD(PipelinedRDD):  # type: ignore[misc]
    """Pairs whose data are the blocks of another RDD.

    Persisting it persists the blocks, and counting it reads their headers only.
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
        counts = jvm.collect_frames(PipelinedRDD(self.blocks, _count_rows))
        return sum(int.from_bytes(count, "big") for count in counts)


def _unfold(_: int, frames: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
    settle_worker()
    blocks = map(Block, frames)
    return chain.from_iterable(zip(block.keys(), block.values(), strict=True) for block in blocks)


def _count_rows(_: int, frames: Iterable[bytes]) -> list[bytes]:
    settle_worker()
    return [sum(Block(frame).rows for frame in frames).to_bytes(8, "big")]


@dataclass(frozen=True)
class _Pack:
    """Task: pairs that are in their partition already -> blocks."""

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
    """Task: pairs -> alternately a partition number and a block that belongs there."""

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
        # As many records at once as fill a block everywhere: few where they are large.
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
        """Yield (partition, what belongs there of each column)."""
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
    """A record that should be a pair is something else."""


def are_pairs(records: list[Any]) -> bool:
    """Whether all records are tuples of two, which they nearly always are."""
    return set(map(type, records)) <= {tuple} and set(map(len, records)) <= {2}


class PairReader:
    """Iterates over records that have to be pairs."""

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

    def explain(self, error: TypeError) -> TypeError:
        """Return the error to raise for *error*, which came of using the last record."""
        return explain_key(None if self._last is None else self._last[0], error, self._operation)


def explain_key(key: Any, error: TypeError, operation: str) -> TypeError:
    """Return *error*, or a better one if *key* cannot be looked up in a dict."""
    reason = why_unplaceable(key, operation)
    return error if reason is None else TypeError(reason)


def why_unplaceable(key: Any, operation: str) -> str | None:
    """Return why a key cannot be looked up in a dict, None if it can."""
    try:
        {key}  # noqa: B018 - hashed as a dict would
    except TypeError as unhashable:
        return (
            f"{operation}: the key {shorten(key)} cannot be placed: {unhashable}; use an immutable "
            "value, for example tuple(key) for a list or frozenset(key) for a set"
        )
    return None


def require_pair(record: Any, operation: str) -> tuple[Any, Any]:
    """Return *record* as a pair, or raise NotAPairError, which names it."""
    if isinstance(record, (tuple, list)) and len(record) == 2:
        return record[0], record[1]
    raise NotAPairError(
        f"{operation}: expected (key, value) pairs, got {shorten(record)} "
        f"({type(record).__name__}); map the stream to pairs first, "
        "for example stream.map(lambda x: (x, 1))"
    )
