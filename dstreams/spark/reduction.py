"""Reductions: by key into columnar blocks with one pair per key, or of all elements to one value.

Windows are reduced from these blocks without a shuffle. Every partition ends with a mark, so that
readers of a union of several such RDDs know where each of them ends.

>>> from dstreams.spark.partitioner import StablePartitioner
>>> from dstreams.spark.reduction import Reduction, reduce_pairs
>>> ones = spark.parallelize([("a", 1), ("b", 1), ("a", 1)])
>>> counts = reduce_pairs(ones, Reduction(lambda v, w: v + w, "my sum"), StablePartitioner(2))
>>> sorted(counts.collect())
[('a', 2), ('b', 1)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, islice
from typing import Any, Final

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import Block, BlockBuilder, Side, UnpicklableError, encode_block
from dstreams.spark.failures import UserFunctionError, calling, failed
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import (
    BlockPairsRDD,
    require_pair,
    rows_of_block,
    shuffle_pairs,
    unhashable_key,
)
from dstreams.spark.worker_gc import settle_worker

END: Final = encode_block(Side.BATCH, [], [])
"""The mark at the end of a partition, the only block without rows."""

_ONE_PLACE = StablePartitioner(1)
_CHUNK_ROWS = 1000
_MOST_KEYS = 100_000
"""Maximum number of keys that are reduced in memory before the shuffle."""


@dataclass(frozen=True)
class UserFunction:
    """A user's function that is called per key; *where* names it in messages."""

    func: Callable[..., Any]
    where: str

    def failed(self, key: Any, error: Exception) -> UserFunctionError:
        """Return the error to raise for an *error* of the function with *key*."""
        unhashable = unhashable_key([key], self.where)
        return UserFunctionError(unhashable) if unhashable else failed(self.where, key, error)


@dataclass(frozen=True)
class Reduction(UserFunction):
    """A user's function ``(v, w) -> x``, associative and commutative; it may change v in place."""

    def merge(self, total: dict[Any, Any], keys: Iterable[Any], values: Iterable[Any]) -> None:
        func = self.func
        key: Any = None
        try:
            for key, value in zip(keys, values, strict=True):
                if key in total:
                    total[key] = func(total[key], value)
                else:
                    total[key] = value
        except Exception as error:
            raise self.failed(key, error) from error


def reduce_pairs(
    rdd: RDD[Any], reduction: Reduction, partitioner: StablePartitioner, operation: str = "reduce"
) -> BlockPairsRDD:
    """Reduce the values of each key, before the shuffle and after it.

    An RDD with an equal *partitioner* is not shuffled.
    """
    if rdd.partitioner == partitioner:
        if isinstance(rdd, BlockPairsRDD):
            reduced = PipelinedRDD(rdd.blocks, _ReduceByKey(reduction, _columns_of_blocks), True)
        else:
            columns = partial(_columns, operation)
            reduced = PipelinedRDD(rdd, _ReduceByKey(reduction, columns), True)
    else:
        combined = PipelinedRDD(rdd, _CombinePairs(reduction, operation))
        moved = shuffle_pairs(combined, partitioner, Side.BATCH, operation)
        reduced = PipelinedRDD(moved, _ReduceByKey(reduction, _columns_of_blocks), True)
    return BlockPairsRDD(jvm.as_frames(reduced, partitioner), Side.BATCH)


@dataclass(frozen=True)
class _CombinePairs:
    """Task: pairs -> pairs, with fewer pairs per key."""

    reduction: Reduction
    operation: str

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        settle_worker()
        total: dict[Any, Any] = {}
        for keys, values in _columns(self.operation, records):
            self.reduction.merge(total, keys, values)
            if len(total) >= _MOST_KEYS:
                yield from total.items()
                total = {}
        yield from total.items()


@dataclass(frozen=True)
class _ReduceByKey:
    """Task: records in the partitions of their keys, read by *columns* -> reduced blocks."""

    reduction: Reduction
    columns: Callable[[Iterable[Any]], Iterable[tuple[list[Any], list[Any]]]]

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        total: dict[Any, Any] = {}
        for keys, values in self.columns(records):
            self.reduction.merge(total, keys, values)
        yield from _blocks(total, self.reduction.where)


def _columns_of_blocks(frames: Iterable[bytes]) -> Iterator[tuple[list[Any], list[Any]]]:
    return ((block.keys(), block.values()) for block in map(Block, frames) if block.rows)


def _columns(operation: str, records: Iterable[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    remaining = iter(records)
    while chunk := list(islice(remaining, _CHUNK_ROWS)):
        for record in chunk:
            if record.__class__ is not tuple or len(record) != 2:
                require_pair(record, operation)
        yield [record[0] for record in chunk], [record[1] for record in chunk]


def _blocks(total: dict[Any, Any], where: str) -> Iterator[bytes]:
    builder = BlockBuilder(Side.BATCH)
    try:
        yield from builder.extend(total.keys(), total.values())
        yield from builder.flush()
    except UnpicklableError as error:
        raise UserFunctionError(f"{where}: {error}") from error
    yield END


def reduce_all(
    rdd: RDD[Any], func: Callable[[Any, Any], Any], operation: str = "reduce"
) -> RDD[Any]:
    """Return the RDD of all elements reduced by *func*, empty if *rdd* is empty."""
    reduce_parts = partial(_reduce_parts, func, operation)
    return _in_one_place(rdd, partial(_reduce, func, operation), reduce_parts)


def count_all(rdd: RDD[Any], size: Callable[[Any], int] | None = None) -> RDD[int]:
    """Return the RDD of the number of elements, or of the sum of their sizes.

    The result is 0 even if *rdd* has no partitions.
    """
    if size is not None:
        return _in_one_place(rdd, partial(_add_sizes, size), _add_counts)
    if isinstance(rdd, BlockPairsRDD):
        return _in_one_place(rdd.blocks, partial(_add_sizes, rows_of_block), _add_counts)
    return _in_one_place(rdd, _count, _add_counts)


def _in_one_place(rdd: RDD[Any], task: Any, final: Any) -> RDD[Any]:
    moved = jvm.shuffle_frames(PipelinedRDD(rdd, task), _ONE_PLACE)
    total: RDD[Any] = PipelinedRDD(moved, final)
    return total


def _reduce(
    func: Callable[[Any, Any], Any], operation: str, _: int, elements: Iterable[Any]
) -> Iterator[bytes]:
    settle_worker()
    for value in _reduced(func, elements, operation):
        yield from _to_the_place(value)


def _reduce_parts(
    func: Callable[[Any, Any], Any], operation: str, _: int, frames: Iterable[bytes]
) -> list[Any]:
    settle_worker()
    return _reduced(func, _values(frames), operation)


def _reduced(func: Callable[[Any, Any], Any], elements: Iterable[Any], operation: str) -> list[Any]:
    iterator = iter(elements)
    with calling(operation, func):
        for first in iterator:
            return [reduce(func, iterator, first)]
    return []


def _add_sizes(size: Callable[[Any], int], _: int, elements: Iterable[Any]) -> Iterator[bytes]:
    settle_worker()
    return _to_the_place(sum(map(size, elements)))


def _count(_: int, elements: Iterable[Any]) -> Iterator[bytes]:
    settle_worker()
    return _to_the_place(sum(1 for _ in elements))


def _add_counts(_: int, frames: Iterable[bytes]) -> list[int]:
    settle_worker()
    return [sum(_values(frames))]


def _to_the_place(value: Any) -> Iterator[bytes]:
    return iter(jvm.addressed(0, encode_block(Side.BATCH, [None], [value])))


def _values(frames: Iterable[bytes]) -> Iterator[Any]:
    return chain.from_iterable(block.values() for block in map(Block, frames))
