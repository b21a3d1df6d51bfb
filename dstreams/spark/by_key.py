"""Operations by key on columnar blocks: combine, group, cogroup and join.

Each moves blocks instead of rows, and moves nothing that an equal :class:`StablePartitioner` has
placed already. Memory is bounded as in PySpark (``spark.python.worker.memory``): what does not fit
is spilled to the local disk.

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
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD
from pyspark.resultiterable import ResultIterable
from pyspark.shuffle import Aggregator

from dstreams.spark import jvm
from dstreams.spark.blocks import Block, Side
from dstreams.spark.failures import calling
from dstreams.spark.ordered_groups import append_to_side, extend_sides
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import PairReader, Route, explain_key, shuffle_pairs
from dstreams.spark.spill_buffer import Merger
from dstreams.spark.worker_gc import settle_worker

Pairs = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Combiner:
    """How values become combined values, as in ``RDD.combineByKey``.

    The two merging functions may change their first argument in place.
    """

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
    """Combine the values of each key: first where they are, then where their key belongs."""
    memory_mb = _memory_mb(rdd)
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
    return _mapped(blocks, _Group(_memory_mb(rdd), operation))


def cogroup_by_key(
    left: RDD[tuple[Any, Any]],
    right: RDD[tuple[Any, Any]],
    partitioner: StablePartitioner,
    operation: str = "cogroup_by_key",
) -> RDD[tuple[Any, Any]]:
    """Return the RDD of (key, (values in left, values in right)), for the keys of both."""
    blocks = _both(left, right, partitioner, operation)
    return _mapped(blocks, _Cogroup(_memory_mb(left), operation))


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

    With *all_left* a key that *right* lacks comes as (key, (v, None)); *all_right* likewise.
    """
    blocks = _both(left, right, partitioner, operation)
    return _mapped(blocks, _Join(_memory_mb(left), operation, all_left, all_right))


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


def _memory_mb(rdd: RDD[Any]) -> float:
    return rdd._memory_limit()


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class _CombineHere:
    """Task: pairs -> combined pairs, of a partition that has all of its keys."""

    combiner: Combiner
    memory_mb: float
    operation: str

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        settle_worker()
        merger = self.combiner.merger(self.memory_mb)
        reader = PairReader(records, self.operation)
        with calling(self.operation, *self.combiner.functions):
            try:
                merger.mergeValues(reader)
            except TypeError as error:
                raise reader.explain(error) from error
        return iter(merger.items())


@dataclass(frozen=True)
class _CombineAndRoute:
    """Task: pairs -> blocks of combined pairs, each after its address."""

    combiner: Combiner
    memory_mb: float
    route: Route

    def __call__(self, split: int, records: Iterable[Any]) -> Iterator[bytes]:
        # Nine tenths, as PySpark does: the rest is for what goes out.
        here = _CombineHere(self.combiner, 0.9 * self.memory_mb, self.route.operation)
        return self.route(split, here(split, records))


@dataclass(frozen=True)
class _MergeCombined:
    """Task: blocks of combined pairs -> pairs, each key once."""

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


def _append(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def _extend(values: list[Any], more: list[Any]) -> list[Any]:
    values.extend(more)
    return values


LISTS = Combiner(_first, _append, _extend)
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
            with _explaining(block, self.operation):
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
            with _explaining(block, self.operation):
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


@contextmanager
def _explaining(block: Block, operation: str) -> Iterator[None]:
    """Name the key that a user's partition function let pass and no dict takes."""
    try:
        yield
    except TypeError as error:
        keys = block.keys()
        for key in keys:
            explained = explain_key(key, error, operation)
            if explained is not error:
                raise explained from error
        raise


def _pairs(block: Block) -> Iterator[tuple[Any, Any]]:
    return zip(block.keys(), block.values(), strict=True)
