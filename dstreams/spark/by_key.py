"""Operations by key on columnar blocks: combine, group, cogroup and join.

They shuffle blocks instead of rows, and do not shuffle RDDs that have an equal
:class:`StablePartitioner`. Memory is bounded as in PySpark (``spark.python.worker.memory``); data
that does not fit is spilled to the local disk.

>>> from dstreams.spark.by_key import Combiner, cogroup_by_key, combine_by_key
>>> from dstreams.spark.partitioner import StablePartitioner
>>> ones = spark.parallelize(["a", "b", "a"]).map(lambda word: (word, 1))
>>> counts = combine_by_key(ones, Combiner.of_reduction(lambda a, b: a + b), StablePartitioner(2))
>>> sorted(counts.collect())
[('a', 2), ('b', 1)]
>>> both = cogroup_by_key(counts, ones, StablePartitioner(2))
>>> sorted((key, list(left), list(right)) for key, (left, right) in both.collect())
[('a', [2], [1, 1]), ('b', [1], [1])]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD
from pyspark.resultiterable import ResultIterable
from pyspark.shuffle import Aggregator

from dstreams.spark import jvm
from dstreams.spark.blocks import Block, Side
from dstreams.spark.failures import calling
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import PairReader, Route, naming_unhashable, shuffle_pairs
from dstreams.spark.spilling import Merger, append, append_to_side, extend, extend_sides
from dstreams.spark.worker_gc import settle_worker

Pairs = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Combiner:
    """The functions of ``RDD.combineByKey``; the merging ones may change their first argument."""

    create: Callable[[Any], Any]
    merge_value: Callable[[Any, Any], Any]
    merge_combiners: Callable[[Any, Any], Any]

    @classmethod
    def of_reduction(cls, func: Callable[[Any, Any], Any]) -> Combiner:
        return cls(_itself, func, func)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.create, self.merge_value, self.merge_combiners)

    def merger(self, memory_mb: float) -> Merger:
        """Return a merger that spills beyond *memory_mb* MiB of the worker's memory."""
        aggregator = Aggregator(self.create, self.merge_value, self.merge_combiners)
        return Merger(aggregator, memory_mb)


def combine_by_key(
    rdd: RDD[tuple[Any, Any]],
    combiner: Combiner,
    partitioner: StablePartitioner,
    operation: str = "combine_by_key",
) -> RDD[tuple[Any, Any]]:
    """Combine the values of each key, before the shuffle and after it."""
    memory_mb = rdd._memory_limit()
    if rdd.partitioner == partitioner:
        return _mapped(rdd, _CombineHere(combiner, memory_mb, operation))
    route = Route(partitioner, Side.BATCH, operation)
    routed = PipelinedRDD(rdd, _CombineAndRoute(combiner, memory_mb, route))
    blocks = jvm.shuffle_frames(routed, partitioner)
    return _mapped(blocks, _MergeCombined(combiner, memory_mb, operation))


def group_by_key(
    rdd: RDD[tuple[Any, Any]], partitioner: StablePartitioner, operation: str = "group_by_key"
) -> RDD[tuple[Any, Any]]:
    """Return the RDD of (key, iterable of its values)."""
    blocks = shuffle_pairs(rdd, partitioner, Side.BATCH, operation)
    return _mapped(blocks, _Group(rdd._memory_limit(), operation))


def cogroup_by_key(
    left: RDD[tuple[Any, Any]],
    right: RDD[tuple[Any, Any]],
    partitioner: StablePartitioner,
    operation: str = "cogroup_by_key",
) -> RDD[tuple[Any, Any]]:
    """Return the RDD of (key, (values in left, values in right)), for the keys of either."""
    blocks = _both(left, right, partitioner, operation)
    return _mapped(blocks, _Cogroup(left._memory_limit(), operation))


def join_by_key(
    left: RDD[tuple[Any, Any]],
    right: RDD[tuple[Any, Any]],
    partitioner: StablePartitioner,
    *,
    all_left: bool = False,
    all_right: bool = False,
    operation: str = "join_by_key",
) -> RDD[tuple[Any, Any]]:
    """Return the RDD of (key, (v, w)) for each pair of values of a key.

    With *all_left*, a key that is missing in *right* gives (key, (v, None)); likewise *all_right*.
    """
    blocks = _both(left, right, partitioner, operation)
    return _mapped(blocks, _Join(left._memory_limit(), operation, all_left, all_right))


def _both(
    left: RDD[Any], right: RDD[Any], partitioner: StablePartitioner, operation: str
) -> RDD[bytes]:
    return jvm.unite_frames(
        shuffle_pairs(left, partitioner, Side.BATCH, operation),
        shuffle_pairs(right, partitioner, Side.STATE, operation),
    )


def _mapped(rdd: RDD[Any], task: Callable[[int, Iterable[Any]], Iterator[Any]]) -> RDD[Any]:
    mapped: RDD[Any] = PipelinedRDD(rdd, task, True)
    return mapped


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class _CombineHere:
    """Task: pairs -> combined pairs of the partition."""

    combiner: Combiner
    memory_mb: float
    operation: str

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        settle_worker()
        merger = self.combiner.merger(self.memory_mb)
        reader = PairReader(records, self.operation)
        with (
            calling(self.operation, *self.combiner.functions),
            naming_unhashable(self.operation, reader.last_keys),
        ):
            merger.mergeValues(reader)
        return iter(merger.items())


@dataclass(frozen=True)
class _CombineAndRoute:
    """Task: pairs -> blocks of combined pairs, each after its address."""

    combiner: Combiner
    memory_mb: float
    route: Route

    def __call__(self, split: int, records: Iterable[Any]) -> Iterator[bytes]:
        # Nine tenths, as in PySpark: the rest is for output buffers.
        here = _CombineHere(self.combiner, 0.9 * self.memory_mb, self.route.operation)
        return self.route(split, here(split, records))


@dataclass(frozen=True)
class _MergeCombined:
    """Task: blocks of combined pairs -> one pair per key."""

    combiner: Combiner
    memory_mb: float
    operation: str

    def __call__(self, _: int, frames: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
        settle_worker()
        merger = self.combiner.merger(self.memory_mb)
        with calling(self.operation, *self.combiner.functions):
            for block in map(Block, frames):
                merger.mergeCombiners(_pairs(block))
        return iter(merger.items())


def _first(value: Any) -> list[Any]:
    return [value]


LISTS = Combiner(_first, append, extend)
"""Puts the values of a key into a list."""


@dataclass(frozen=True)
class _Group:
    """Task: blocks of pairs -> (key, iterable of values)."""

    memory_mb: float
    operation: str

    def __call__(self, _: int, frames: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
        settle_worker()
        merger = LISTS.merger(self.memory_mb)
        for block in map(Block, frames):
            with naming_unhashable(self.operation, block.keys):
                merger.mergeValues(_pairs(block))
        return ((key, ResultIterable(values)) for key, values in merger.items())


_Sides = tuple[list[Any], list[Any]]


def _first_of_side(value: tuple[int, Any]) -> _Sides:
    return ([value[1]], []) if value[0] == 0 else ([], [value[1]])


PAIRS_OF_LISTS = Combiner(_first_of_side, append_to_side, extend_sides)
"""Puts values (0, v) and (1, w) of a key into a list of all v and a list of all w."""


@dataclass(frozen=True)
class _Cogroup:
    """Task: blocks of both sides -> (key, (values of the left, values of the right))."""

    memory_mb: float
    operation: str

    def __call__(self, _: int, frames: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
        return (
            (key, (ResultIterable(left), ResultIterable(right)))
            for key, (left, right) in self._sides(frames)
        )

    def _sides(self, frames: Iterable[bytes]) -> Iterable[tuple[Any, _Sides]]:
        settle_worker()
        merger = PAIRS_OF_LISTS.merger(self.memory_mb)
        for block in map(Block, frames):
            side = int(block.side is Side.STATE)
            with naming_unhashable(self.operation, block.keys):
                merger.mergeValues((key, (side, value)) for key, value in _pairs(block))
        items: Iterable[tuple[Any, _Sides]] = merger.items()
        return items


@dataclass(frozen=True)
class _Join(_Cogroup):
    """Task: blocks of both sides -> (key, (v, w))."""

    all_left: bool
    all_right: bool

    def __call__(self, _: int, frames: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
        for_no_left = [None] if self.all_right else []
        for_no_right = [None] if self.all_left else []
        return (
            (key, (v, w))
            for key, (left, right) in self._sides(frames)
            for v in (left or for_no_left)
            for w in (right or for_no_right)
        )


def _pairs(block: Block) -> Iterator[tuple[Any, Any]]:
    return zip(block.keys(), block.values(), strict=True)
