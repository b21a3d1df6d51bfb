"""Pairs reduced by key into columnar blocks, each key once, in the partition where it belongs.

A window is reduced from these blocks without a shuffle. Every partition ends with a mark, so that a
reader of several such RDDs, one after the other, knows where each of them ends.

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
from itertools import islice
from typing import Any, Final

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import (
    Block,
    BlockBuilder,
    Side,
    UnpicklableError,
    encode_block,
)
from dstreams.spark.failures import UserFunctionError, failed
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import (
    BlockPairsRDD,
    require_pair,
    shuffle_pairs,
    why_unplaceable,
)
from dstreams.spark.worker_gc import settle_worker

END: Final = encode_block(Side.BATCH, [], [])
"""The mark that ends a partition: the only block without rows."""

_CHUNK_ROWS = 1000
_MOST_KEYS = 100_000
"""Keys that are held back for reduction before the shuffle; then they go out and others come."""


@dataclass(frozen=True)
class UserFunction:
    """A user's function that is called for a key at a time; *where* names it in messages."""

    func: Callable[..., Any]
    where: str

    def failed(self, key: Any, error: Exception) -> UserFunctionError:
        """Return what to raise for an *error* that came up with *key*."""
        unplaceable = why_unplaceable(key, self.where)
        if unplaceable is not None:
            return UserFunctionError(unplaceable)
        return failed(self.where, key, error)


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
    """Reduce the values of each key: first where they are, then where their key belongs.

    Pairs that *partitioner* has placed already are not moved.
    """
    if rdd.partitioner == partitioner:
        if isinstance(rdd, BlockPairsRDD):
            reduced = PipelinedRDD(rdd.blocks, _ReduceBlocks(reduction), True)
        else:
            reduced = PipelinedRDD(rdd, _ReducePairs(reduction, operation), True)
    else:
        combined = PipelinedRDD(rdd, _CombinePairs(reduction, operation))
        moved = shuffle_pairs(combined, partitioner, Side.BATCH, operation)
        reduced = PipelinedRDD(moved, _ReduceBlocks(reduction), True)
    return BlockPairsRDD(jvm.as_frames(reduced, partitioner), Side.BATCH)


@dataclass(frozen=True)
class _CombinePairs:
    """Task: pairs -> pairs, fewer where a key comes several times."""

    reduction: Reduction
    operation: str

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        settle_worker()
        total: dict[Any, Any] = {}
        for keys, values in _columns(records, self.operation):
            self.reduction.merge(total, keys, values)
            if len(total) >= _MOST_KEYS:
                yield from total.items()
                total = {}
        yield from total.items()


@dataclass(frozen=True)
class _ReducePairs:
    """Task: pairs that are in their partition already -> reduced blocks."""

    reduction: Reduction
    operation: str

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        total: dict[Any, Any] = {}
        for keys, values in _columns(records, self.operation):
            self.reduction.merge(total, keys, values)
        yield from _blocks(total, self.reduction.where)


@dataclass(frozen=True)
class _ReduceBlocks:
    """Task: blocks -> reduced blocks."""

    reduction: Reduction

    def __call__(self, _: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        total: dict[Any, Any] = {}
        for block in map(Block, frames):
            if block.rows:
                self.reduction.merge(total, block.keys(), block.values())
        yield from _blocks(total, self.reduction.where)


def _columns(records: Iterable[Any], operation: str) -> Iterator[tuple[list[Any], list[Any]]]:
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
