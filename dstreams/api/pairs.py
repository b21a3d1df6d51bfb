"""Operations on streams of (key, value) pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pyspark.rdd import portable_hash

from dstreams.api.elements import ElementOperations
from dstreams.api.stream import Stream, T_co
from dstreams.errors import InvalidStreamError
from dstreams.rdd.blocks import Side
from dstreams.rdd.by_key import (
    Combiner,
    cogroup_by_key,
    combine_by_key,
    group_by_key,
    join_by_key,
)
from dstreams.rdd.pair_tasks import FlatMapValues, MapValues
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.shuffle import pairs_of_blocks, shuffle_pairs

if TYPE_CHECKING:
    from dstreams.api.dstream import DStream

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")
S = TypeVar("S")
U = TypeVar("U")

PartitionFunc: TypeAlias = "Callable[[K], int] | StablePartitioner | None"
"""Where a key belongs: a function, or a partitioner whole; None for the stable hash."""


class PairOperations(ElementOperations[T_co]):
    """Operations of streams whose elements are pairs.

    Everywhere *numPartitions* None means the default parallelism of the SparkContext.
    Semantics: pyspark.streaming.DStream (4.3).
    """

    def mapValues(self: PairOperations[tuple[K, V]], f: Callable[[V], U]) -> DStream[tuple[K, U]]:
        """Return the stream of ``(k, f(v))``; partitioning is kept.

        >>> run([[("a", 1)]], lambda pairs: pairs.mapValues(lambda v: v + 1))
        [[('a', 2)]]
        """
        self._require_function(f, "mapValues", "f(v) -> w")
        task = MapValues(f, self._operation("mapValues"))
        return self._transformed("mapValues", lambda rdd: rdd.mapPartitionsWithIndex(task, True))

    def flatMapValues(
        self: PairOperations[tuple[K, V]], f: Callable[[V], Iterable[U]]
    ) -> DStream[tuple[K, U]]:
        """Return the stream of ``(k, w)`` for each w of ``f(v)``; partitioning is kept.

        >>> run([[("a", 2), ("b", 0)]], lambda pairs: pairs.flatMapValues(range))
        [[('a', 0), ('a', 1)]]
        """
        self._require_function(f, "flatMapValues", "f(v) -> iterable of w")
        task = FlatMapValues(f, self._operation("flatMapValues"))
        return self._transformed(
            "flatMapValues", lambda rdd: rdd.mapPartitionsWithIndex(task, True)
        )

    def reduceByKey(
        self: PairOperations[tuple[K, V]],
        func: Callable[[V, V], V],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, V]]:
        """Return the stream of (key, its values of the batch reduced by *func*).

        Args:
            func: ``(v, w) -> x``, associative and commutative.
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> run([[("a", 1), ("b", 5), ("a", 2)], []], lambda pairs: pairs.reduceByKey(max))
        [[('a', 2), ('b', 5)], []]
        """
        self._require_function(func, "reduceByKey", "f(v, w) -> x", count=2)
        combiner = Combiner.of_reduction(func)
        return self._combined("reduceByKey", combiner, numPartitions, partitionFunc)

    def combineByKey(
        self: PairOperations[tuple[K, V]],
        createCombiner: Callable[[V], U],
        mergeValue: Callable[[U, V], U],
        mergeCombiners: Callable[[U, U], U],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, U]]:
        """Return the stream of (key, its values of the batch combined).

        Args:
            createCombiner: ``v -> c``, for the first value of a key in a partition.
            mergeValue: ``(c, v) -> c``.
            mergeCombiners: ``(c, d) -> c``, across partitions.
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> def as_list(v):
        ...     return [v]
        >>> def with_one(vs, v):
        ...     return [*vs, v]
        >>> def both(vs, ws):
        ...     return sorted(vs + ws)
        >>> batches = [[("a", 1), ("a", 2)]]
        >>> run(batches, lambda pairs: pairs.combineByKey(as_list, with_one, both))
        [[('a', [1, 2])]]
        """
        name = "combineByKey"
        self._require_function(createCombiner, name, "createCombiner(v) -> c")
        self._require_function(mergeValue, name, "mergeValue(c, v) -> c", count=2)
        self._require_function(mergeCombiners, name, "mergeCombiners(c, d) -> c", count=2)
        combiner = Combiner(createCombiner, mergeValue, mergeCombiners)
        return self._combined(name, combiner, numPartitions, partitionFunc)

    def groupByKey(
        self: PairOperations[tuple[K, V]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, Iterable[V]]]:
        """Return the stream of (key, iterable of its values of the batch, in no defined order).

        Args:
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> run([[("a", 1), ("a", 2)]], lambda pairs: pairs.groupByKey().mapValues(sorted))
        [[('a', [1, 2])]]
        """
        operation = self._operation("groupByKey")
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        return self._transformed(
            "groupByKey", lambda rdd: group_by_key(rdd, partitioner, operation)
        )

    def partitionBy(
        self: PairOperations[tuple[K, V]],
        numPartitions: int,
        partitionFunc: Callable[[K], int] = portable_hash,
    ) -> DStream[tuple[K, V]]:
        """Return the stream with each pair in the partition of its key.

        Args:
            numPartitions: partitions of each RDD.
            partitionFunc: ``key -> int``. Its default stands for :func:`~dstreams.stable_hash`.

        >>> run([[(0, "a"), (1, "b")]], lambda pairs: pairs.partitionBy(2, lambda key: key).glom())
        [[[(0, 'a')], [(1, 'b')]]]
        """
        operation = self._operation("partitionBy")
        func = None if partitionFunc is portable_hash else partitionFunc
        partitioner = self._partitioner(numPartitions, func, operation)
        return self._transformed(
            "partitionBy",
            lambda rdd: pairs_of_blocks(
                shuffle_pairs(rdd, partitioner, Side.BATCH, operation), Side.BATCH
            ),
        )

    def cogroup(
        self: PairOperations[tuple[K, V]],
        other: Stream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[Iterable[V], Iterable[W]]]]:
        """Return the stream of (key, (values here, values in *other*)).

        Args:
            other: stream of pairs, of the same slide duration.
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> def lists(sides):
        ...     return [list(side) for side in sides]
        >>> run([[("a", 1)]], lambda a, b: a.cogroup(b).mapValues(lists), [[("b", 2)]])
        [[('a', [[1], []]), ('b', [[], [2]])]]
        """
        operation = self._operation("cogroup")
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        return self._transformed(
            "cogroup", lambda a, b: cogroup_by_key(a, b, partitioner, operation), other
        )

    def join(
        self: PairOperations[tuple[K, V]],
        other: Stream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[V, W]]]:
        """Return the stream of (key, (v, w)) for each pair of values that meet.

        Args:
            other: stream of pairs, of the same slide duration.
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> run([[("a", 1), ("b", 2)]], lambda a, b: a.join(b), [[("a", 3)]])
        [[('a', (1, 3))]]
        """
        return self._joined("join", other, numPartitions, partitionFunc)

    def leftOuterJoin(
        self: PairOperations[tuple[K, V]],
        other: Stream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[V, W | None]]]:
        """Return the join, with (key, (v, None)) where *other* has no such key.

        Arguments as of :meth:`join`.

        >>> run([[("a", 1)]], lambda a, b: a.leftOuterJoin(b), [[("b", 2)]])
        [[('a', (1, None))]]
        """
        return self._joined("leftOuterJoin", other, numPartitions, partitionFunc, all_left=True)

    def rightOuterJoin(
        self: PairOperations[tuple[K, V]],
        other: Stream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[V | None, W]]]:
        """Return the join, with (key, (None, w)) where this stream has no such key.

        Arguments as of :meth:`join`.

        >>> run([[("a", 1)]], lambda a, b: a.rightOuterJoin(b), [[("b", 2)]])
        [[('b', (None, 2))]]
        """
        return self._joined("rightOuterJoin", other, numPartitions, partitionFunc, all_right=True)

    def fullOuterJoin(
        self: PairOperations[tuple[K, V]],
        other: Stream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[V | None, W | None]]]:
        """Return the join, with None for the side that has no such key.

        Arguments as of :meth:`join`.

        >>> run([[("a", 1)]], lambda a, b: a.fullOuterJoin(b), [[("b", 2)]])
        [[('a', (1, None)), ('b', (None, 2))]]
        """
        return self._joined(
            "fullOuterJoin", other, numPartitions, partitionFunc, all_left=True, all_right=True
        )

    def _combined(
        self,
        name: str,
        combiner: Combiner,
        numPartitions: int | None,
        partitionFunc: PartitionFunc[Any],
    ) -> DStream[Any]:
        operation = self._operation(name)
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        return self._transformed(
            name, lambda rdd: combine_by_key(rdd, combiner, partitioner, operation)
        )

    def _joined(
        self,
        name: str,
        other: Stream[Any],
        numPartitions: int | None,
        partitionFunc: PartitionFunc[Any],
        *,
        all_left: bool = False,
        all_right: bool = False,
    ) -> DStream[Any]:
        operation = self._operation(name)
        join = partial(
            join_by_key,
            partitioner=self._partitioner(numPartitions, partitionFunc, operation),
            all_left=all_left,
            all_right=all_right,
            operation=operation,
        )
        return self._transformed(name, join, other)

    def _partitioner(
        self,
        numPartitions: int | None,
        partitionFunc: PartitionFunc[Any],
        operation: str,
    ) -> StablePartitioner:
        if isinstance(partitionFunc, StablePartitioner):
            if numPartitions not in (None, partitionFunc.numPartitions):
                raise InvalidStreamError(
                    f"{operation} has numPartitions {numPartitions}, but its partitioner has "
                    f"{partitionFunc.numPartitions}; give one of the two"
                )
            return partitionFunc
        if partitionFunc is not None:
            self._require_function(partitionFunc, "partitionFunc", "f(key) -> int")
        count = self._require_partitions(numPartitions, operation)
        return StablePartitioner(count, partitionFunc)
