"""Operations on the elements of a stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import datetime
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pyspark import RDD

from dstreams.api.stream import Stream, T_co
from dstreams.callables import require_arity, require_picklable
from dstreams.durations import batch_datetime
from dstreams.errors import InvalidStreamError
from dstreams.rdd.by_key import Combiner, combine_by_key
from dstreams.rdd.element_tasks import Filter, FlatMap, Map, with_ones
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.spread import spread
from dstreams.rdd.totals import count_all, reduce_all

if TYPE_CHECKING:
    from dstreams.api.dstream import DStream

S = TypeVar("S")
H = TypeVar("H", bound=Hashable)
T = TypeVar("T")
U = TypeVar("U")


class ElementOperations(Stream[T_co]):
    """Operations that need no pairs. Each RDD of the result is made of the parent's RDD.

    A batch in which the parent has no RDD has none here either.
    Semantics: pyspark.streaming.DStream (4.3).
    """

    def map(self, f: Callable[[T_co], U], preservesPartitioning: bool = False) -> DStream[U]:
        """Return the stream of ``f(x)`` for each element x.

        >>> run([[1, 2], []], lambda numbers: numbers.map(lambda x: 10 * x))
        [[10, 20], []]
        """
        self._require_function(f, "map", "f(x) -> y")
        return self._transformed("map", _each(Map(f), preservesPartitioning))

    def flatMap(
        self, f: Callable[[T_co], Iterable[U]], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """Return the stream of all elements of ``f(x)``, for each element x.

        >>> run([["to be", "or"]], lambda lines: lines.flatMap(str.split))
        [['be', 'or', 'to']]
        """
        self._require_function(f, "flatMap", "f(x) -> iterable of y")
        return self._transformed("flatMap", _each(FlatMap(f), preservesPartitioning))

    def filter(self, f: Callable[[T_co], Any]) -> DStream[T_co]:
        """Return the stream of the elements x for which ``f(x)`` is true.

        >>> run([[1, 2, 3], [5]], lambda numbers: numbers.filter(lambda x: x > 1))
        [[2, 3], [5]]
        """
        self._require_function(f, "filter", "f(x) -> bool")
        return self._transformed("filter", _each(Filter(f), True))

    def mapPartitions(
        self, f: Callable[[Iterator[T_co]], Iterable[U]], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """Return the stream of ``f(iterator over a partition)``, for each partition.

        >>> run([[1, 2, 3, 4]], lambda numbers: numbers.mapPartitions(lambda part: [sum(part)]))
        [[3, 7]]
        """
        self._require_function(f, "mapPartitions", "f(iterator) -> iterator")
        return self._transformed(
            "mapPartitions", lambda rdd: rdd.mapPartitions(f, preservesPartitioning)
        )

    def mapPartitionsWithIndex(
        self,
        f: Callable[[int, Iterator[T_co]], Iterable[U]],
        preservesPartitioning: bool = False,
    ) -> DStream[U]:
        """Return the stream of ``f(number of the partition, iterator over it)``.

        >>> def numbered(index, part):
        ...     return [(index, x) for x in part]
        >>> run([["a", "b"]], lambda letters: letters.mapPartitionsWithIndex(numbered))
        [[(0, 'a'), (1, 'b')]]
        """
        name = "mapPartitionsWithIndex"
        self._require_function(f, name, "f(index, iterator) -> iterator", count=2)
        return self._transformed(
            name, lambda rdd: rdd.mapPartitionsWithIndex(f, preservesPartitioning)
        )

    def glom(self) -> DStream[list[T_co]]:
        """Return the stream of lists, one for each partition.

        >>> run([[1, 2, 3, 4]], lambda numbers: numbers.glom())
        [[[1, 2], [3, 4]]]
        """
        return self._transformed("glom", lambda rdd: rdd.glom())

    def repartition(self, numPartitions: int) -> DStream[T_co]:
        """Return the stream with *numPartitions* partitions in each RDD.

        >>> run([[1, 2, 3]], lambda numbers: numbers.repartition(1).glom())
        [[[1, 2, 3]]]
        """
        count = self._require_partitions(numPartitions, self._operation("repartition"))
        return self._transformed("repartition", lambda rdd: spread(rdd, count))

    def reduce(self: ElementOperations[T], func: Callable[[T, T], T]) -> DStream[T]:
        """Return the stream of one element for each batch, none for an empty one.

        Args:
            func: ``(x, y) -> z``, associative and commutative.

        >>> run([[1, 2, 3], []], lambda numbers: numbers.reduce(max))
        [[3], []]
        """
        self._require_function(func, "reduce", "f(x, y) -> z", count=2)
        return self._transformed("reduce", lambda rdd: reduce_all(rdd, func))

    def count(self) -> DStream[int]:
        """Return the stream of the number of elements of each batch, 0 for an empty one.

        >>> run([[1, 2, 3], []], lambda numbers: numbers.count())
        [[3], [0]]
        """
        return self._transformed("count", count_all)

    def countByValue(self: ElementOperations[H]) -> DStream[tuple[H, int]]:
        """Return the stream of (value, how often it comes in the batch).

        >>> run([["a", "b", "a"]], lambda letters: letters.countByValue())
        [[('a', 2), ('b', 1)]]
        """
        operation = self._operation("countByValue")
        partitioner = StablePartitioner(self._ssc.sparkContext.defaultParallelism)
        ones = Combiner.of_reduction(add)
        return self._transformed(
            "countByValue",
            lambda rdd: combine_by_key(
                rdd.mapPartitionsWithIndex(with_ones), ones, partitioner, operation
            ),
        )

    def union(self, other: Stream[U]) -> DStream[T_co | U]:
        """Return the stream of the elements of this stream and then of *other*.

        Raises:
            InvalidStreamError: *other* has another context or slide duration.

        >>> run([[1], []], lambda a, b: a.union(b), [[2], [3]])
        [[1, 2], [3]]
        """
        return self._transformed("union", lambda a, b: a.union(b), other)

    @overload
    def transform(self, func: Callable[[RDD[T_co]], RDD[U] | None]) -> DStream[U]: ...

    @overload
    def transform(self, func: Callable[[datetime, RDD[T_co]], RDD[U] | None]) -> DStream[U]: ...

    def transform(self, func: Callable[..., RDD[Any] | None]) -> DStream[Any]:
        """Return the stream of ``func(rdd)``, called on the driver for each batch.

        Args:
            func: ``f(rdd)`` or ``f(time, rdd)`` with the batch time as a datetime; None for a batch
                without an RDD.

        >>> run([[3, 1, 2]], lambda numbers: numbers.transform(lambda rdd: rdd.sortBy(abs)))
        [[1, 2, 3]]
        """
        shape = "f(rdd) -> RDD or f(time, rdd) -> RDD"
        count = require_arity(func, (1, 2), self._operation("transform"), shape)
        return self._ssc._combine(
            (self,),
            lambda time_ms, rdds: func(*_timed(count == 2, time_ms), *rdds),
            "transform",
        )

    @overload
    def transformWith(
        self,
        func: Callable[[RDD[T_co], RDD[U]], RDD[S] | None],
        other: Stream[U],
        keepSerializer: bool = False,
    ) -> DStream[S]: ...

    @overload
    def transformWith(
        self,
        func: Callable[[datetime, RDD[T_co], RDD[U]], RDD[S] | None],
        other: Stream[U],
        keepSerializer: bool = False,
    ) -> DStream[S]: ...

    def transformWith(
        self,
        func: Callable[..., RDD[Any] | None],
        other: Stream[Any],
        keepSerializer: bool = False,
    ) -> DStream[Any]:
        """Return the stream of ``func(rdd of this, rdd of other)``, called on the driver.

        Args:
            func: ``f(a, b)`` or ``f(time, a, b)`` with the batch time as a datetime. Where a parent
                has no RDD, it gets an empty one.
            other: stream of the same slide duration.
            keepSerializer: taken for compatibility; RDDs know their serializer.

        >>> run([[1, 2]], lambda a, b: a.transformWith(lambda x, y: x.subtract(y), b), [[2]])
        [[1]]
        """
        shape = "f(rdd, rdd) -> RDD or f(time, rdd, rdd) -> RDD"
        count = require_arity(func, (2, 3), self._operation("transformWith"), shape)
        return self._ssc._combine(
            (self, other),
            lambda time_ms, rdds: func(*_timed(count == 3, time_ms), *rdds),
            "transformWith",
        )

    def _require_function(self, f: Any, name: str, shape: str, count: int = 1) -> None:
        """Check at definition what would otherwise fail in every batch."""
        operation = self._operation(name)
        require_arity(f, (count,), operation, shape)
        require_picklable(f, operation)

    def _require_partitions(self, numPartitions: int | None, operation: str) -> int:
        if numPartitions is None:
            return self._ssc.sparkContext.defaultParallelism
        if isinstance(numPartitions, bool) or not isinstance(numPartitions, int):
            raise InvalidStreamError(
                f"numPartitions of {operation} must be an integer, got {numPartitions!r}"
            )
        if numPartitions < 1:
            raise InvalidStreamError(
                f"numPartitions of {operation} must be at least 1, got {numPartitions}"
            )
        return numPartitions


def _timed(wanted: bool, time_ms: int) -> tuple[Any, ...]:
    return (batch_datetime(time_ms),) if wanted else ()


def _each(
    task: Callable[[int, Iterable[Any]], Iterator[Any]], keeps_partitioning: bool
) -> Callable[[RDD[Any]], RDD[Any]]:
    return lambda rdd: rdd.mapPartitionsWithIndex(task, keeps_partitioning)
