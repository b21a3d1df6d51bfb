"""One value for a whole RDD, as an RDD of one partition: no job runs before somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import Block, Side, encode_block
from dstreams.spark.failures import calling
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.worker_gc import settle_worker

_ONE_PLACE = StablePartitioner(1)


def reduce_all(
    rdd: RDD[Any], func: Callable[[Any, Any], Any], operation: str = "reduce"
) -> RDD[Any]:
    """Return the RDD of all elements reduced by *func*; it is empty where there is no element."""
    return _in_one_place(rdd, _Reduce(func, operation), _ReduceParts(func, operation))


def count_all(rdd: RDD[Any], size: Callable[[Any], int] | None = None) -> RDD[int]:
    """Return the RDD of the number of elements, which is 0 also where there is no partition.

    With *size* it is the sum of the sizes of the elements.
    """
    if size is not None:
        return _in_one_place(rdd, _AddSizes(size), _add_counts)
    if isinstance(rdd, BlockPairsRDD):
        return _in_one_place(rdd.blocks, _count_rows, _add_counts)
    return _in_one_place(rdd, _count, _add_counts)


def _in_one_place(rdd: RDD[Any], task: Any, final: Any) -> RDD[Any]:
    moved = jvm.shuffle_frames(PipelinedRDD(rdd, task), _ONE_PLACE)
    total: RDD[Any] = PipelinedRDD(moved, final)
    return total


@dataclass(frozen=True)
class _Reduce:
    func: Callable[[Any, Any], Any]
    operation: str

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        for value in _reduced(self.func, elements, self.operation):
            yield from _to_the_place(value)


@dataclass(frozen=True)
class _ReduceParts:
    func: Callable[[Any, Any], Any]
    operation: str

    def __call__(self, _: int, frames: Iterable[bytes]) -> list[Any]:
        settle_worker()
        return _reduced(self.func, _values(frames), self.operation)


def _reduced(func: Callable[[Any, Any], Any], elements: Iterable[Any], operation: str) -> list[Any]:
    iterator = iter(elements)
    with calling(operation, func):
        for first in iterator:
            return [reduce(func, iterator, first)]
    return []


@dataclass(frozen=True)
class _AddSizes:
    size: Callable[[Any], int]

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        return _to_the_place(sum(map(self.size, elements)))


def _count(_: int, elements: Iterable[Any]) -> Iterator[bytes]:
    settle_worker()
    return _to_the_place(sum(1 for _ in elements))


def _count_rows(_: int, frames: Iterable[bytes]) -> Iterator[bytes]:
    settle_worker()
    return _to_the_place(sum(Block(frame).rows for frame in frames))


def _add_counts(_: int, frames: Iterable[bytes]) -> list[int]:
    settle_worker()
    return [sum(_values(frames))]


def _to_the_place(value: Any) -> Iterator[bytes]:
    return iter(jvm.addressed(0, encode_block(Side.BATCH, [None], [value])))


def _values(frames: Iterable[bytes]) -> Iterator[Any]:
    return chain.from_iterable(block.values() for block in map(Block, frames))
