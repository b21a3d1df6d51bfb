"""Operations over sliding windows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from operator import add, iadd, sub
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.resultiterable import ResultIterable

from dstreams.api.pairs import PairOperations, PartitionFunc
from dstreams.api.stream import T_co, named
from dstreams.callables import describe
from dstreams.durations import require_duration_ms
from dstreams.graph.node import Node
from dstreams.graph.reduced import ReducedDStream
from dstreams.graph.reduced_window import ReducedWindowedDStream
from dstreams.graph.window_times import WindowTimes
from dstreams.graph.windowed import WindowedDStream
from dstreams.rdd.pair_tasks import MapValues
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.reduction import Reduction, UserFunction
from dstreams.rdd.window_step import WindowFunctions

if TYPE_CHECKING:
    from dstreams.api.dstream import DStream

logger = logging.getLogger(__name__)

_SLIDES_OF_INVERSE = 5
"""From so many slides in a window on its inverse function is used, as in pyspark.streaming."""

H = TypeVar("H", bound=Hashable)
K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class WindowOperations(PairOperations[T_co]):
    """Operations over the batches of a sliding window.

    A window at time t covers (t - windowDuration, t]; the first windows are shorter. Everywhere
    *windowDuration* and *slideDuration* are seconds, positive multiples of this stream's slide; a
    slide of None is this stream's slide, and one that is longer than the window leaves gaps. The
    batches of this stream, or their reductions, are persisted and remembered for a window.
    *numPartitions* None means the default parallelism; *partitionFunc* is ``key -> int`` or a
    :class:`~dstreams.StablePartitioner`, None means :func:`~dstreams.stable_hash`.

    An inverse function is used for windows of five slides or more: the result of the window before
    is made into that of the next. A shorter window is made anew, as it is without an inverse
    function, and depends on nothing but its batches. The setting ``spark.dstreams.window.inverse``
    asks for Scala's rule, by which an inverse function is always used.

    All of them raise InvalidStreamError for durations, functions or partitions that are not what
    they should be. Semantics: pyspark.streaming.DStream (4.3); by the setting those of
    org.apache.spark.streaming.dstream.ReducedWindowedDStream (4.3).
    """

    def window(self, windowDuration: float, slideDuration: float | None = None) -> DStream[T_co]:
        """Return the stream of all elements of each window, those of the oldest batch first.

        A level that the result is persisted at is one for the batches of this stream. A window
        without elements has an empty RDD.

        >>> run([[1], [2], [3], []], lambda numbers: numbers.window(2))
        [[1], [1, 2], [2, 3], [3]]
        """
        operation = self._operation("window")
        times = self._times(windowDuration, slideDuration, operation)
        return self._derived(WindowedDStream(self._node, times, operation))

    def reduceByWindow(
        self: WindowOperations[T],
        reduceFunc: Callable[[T, T], T],
        invReduceFunc: Callable[[T, T], T] | None,
        windowDuration: float,
        slideDuration: float | None = None,
        *,
        uid: str | None = None,
    ) -> DStream[T]:
        """Return the stream of one element for each window: all of its elements reduced.

        Args:
            reduceFunc: ``(x, y) -> z``, associative and commutative.
            invReduceFunc: undoes *reduceFunc*: ``(reduced, left) -> reduced``. With it a window of
                five slides or more is made from the window before, which needs a checkpoint
                directory. None: each window is reduced anew.
            windowDuration: seconds.
            slideDuration: seconds.
            uid: as of :meth:`reduceByKeyAndWindow`.

        A window without elements has none in the result, too; where *invReduceFunc* is used that is
        so only before the first element came: later there is what was left when all was taken away.

        >>> run([[1, 5], [2], []], lambda numbers: numbers.reduceByWindow(max, None, 2))
        [[5], [5], [2]]
        """
        self._require_function(reduceFunc, "reduceByWindow", "reduceFunc(x, y) -> z", count=2)
        return self._reduced_by_window(
            "reduceByWindow",
            self.map(_to_one_key),
            (reduceFunc, invReduceFunc, None),
            (windowDuration, slideDuration),
            StablePartitioner(1),
            uid,
        ).map(_value)

    def countByWindow(
        self,
        windowDuration: float,
        slideDuration: float | None = None,
        *,
        uid: str | None = None,
    ) -> DStream[int]:
        """Return the stream of the number of elements of each window.

        Each batch is counted once. A window without elements has no number; one of five slides or
        more has 0 once there were elements, and needs a checkpoint directory.

        >>> run([[7, 8], [9], [], []], lambda numbers: numbers.countByWindow(2))
        [[2], [3], [1], []]
        """
        return self._reduced_by_window(
            "countByWindow",
            self.mapPartitions(_size),
            (add, sub, None),
            (windowDuration, slideDuration),
            StablePartitioner(1),
            uid,
        ).map(_value)

    def countByValueAndWindow(
        self: WindowOperations[H],
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[H] = None,
        uid: str | None = None,
    ) -> DStream[tuple[H, int]]:
        """Return the stream of (value, how often it comes in the window).

        Each batch is counted once. A window of five slides or more needs a checkpoint directory.

        State: of such a window, a number for each value in it.

        >>> run([["a"], ["a", "b"], []], lambda letters: letters.countByValueAndWindow(2))
        [[('a', 1)], [('a', 2), ('b', 1)], [('a', 1), ('b', 1)]]
        """
        name = "countByValueAndWindow"
        return self._reduced_by_window(
            name,
            self.map(_with_one),
            (add, sub, None),
            (windowDuration, slideDuration),
            self._partitioner(numPartitions, partitionFunc, self._operation(name)),
            uid,
            is_counted=_is_counted,
        )

    def groupByKeyAndWindow(
        self: WindowOperations[tuple[K, V]],
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, Iterable[V]]]:
        """Return the stream of (key, iterable of its values in the window).

        The values of an older batch come before those of a younger one; within a batch they are in
        no defined order. Each batch is grouped and shuffled once, windows only put lists together.
        Differs from the source in that it needs no checkpoint directory, and in that a key of which
        all values left is not in the result: from five slides on the source keeps it, with no
        values, for ever.

        >>> batches = [[("a", 1)], [("a", 2)], [("a", 3)]]
        >>> run(batches, lambda pairs: pairs.groupByKeyAndWindow(2).mapValues(sorted))
        [[('a', [1])], [('a', [1, 2])], [('a', [2, 3])]]
        """
        name = "groupByKeyAndWindow"
        task = MapValues(_as_list, self._operation(name))
        return self._reduced_by_window(
            name,
            self._transformed(name, lambda rdd: rdd.mapPartitionsWithIndex(task, True)),
            (iadd, None, None),
            (windowDuration, slideDuration),
            self._partitioner(numPartitions, partitionFunc, self._operation(name)),
            empty_for_none=False,
        ).mapValues(ResultIterable)

    def reduceByKeyAndWindow(
        self: WindowOperations[tuple[K, V]],
        func: Callable[[V, V], V],
        invFunc: Callable[[V, V], V] | None,
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        filterFunc: Callable[[tuple[K, V]], Any] | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
        uid: str | None = None,
    ) -> DStream[tuple[K, V]]:
        """Return the stream of (key, its values in the window reduced by *func*).

        Each batch is reduced by key and shuffled once. With *invFunc* a window of five slides or
        more is made from the window before: what left is taken away, what entered is added, and
        the functions are called for those keys only, so that the cost does not grow with the
        window. A key of which all values left stays in the result, with what is left of its value,
        until *filterFunc* drops it. A shorter window, and one without *invFunc*, is reduced anew
        from the reduced batches: *invFunc* is never called, and a key is in the result as long as
        it is in the window.

        Args:
            func: ``(v, w) -> x``, associative and commutative; may change v in place.
            invFunc: undoes *func*: ``(reduced, left) -> reduced``, so that
                ``invFunc(func(x, y), y)`` is x. None: each window is reduced anew.
            windowDuration: seconds.
            slideDuration: seconds.
            numPartitions: partitions of each resulting RDD.
            filterFunc: ``((key, value)) -> bool``, with *invFunc* called for every pair of the
                result; one that fails it is dropped. From five slides on it is dropped from what
                the next window begins with, too: what is left of its values is in no later window.
                Without *invFunc* it is not used, as in the source, and a warning says so: use
                :meth:`filter`.
            partitionFunc: where keys belong.
            uid: name under which the state of a window that uses *invFunc* is kept, so that a
                changed program finds it (:meth:`StreamingContext.restore`). None: one from its
                place.

        Returns:
            Stream of ``(key, value)``, one RDD for each window; with *invFunc* there is no RDD
            while no batch of the window had one. Where *invFunc* is used it is persisted,
            serialized in memory, and needs a checkpoint directory.

        State: where *invFunc* is used, one value for each key until *filterFunc* drops it.
        Semantics: pyspark.streaming.DStream.reduceByKeyAndWindow (4.3).

        >>> from operator import add, sub
        >>> batches = [[("a", 1)], [("a", 2)], [], []]
        >>> run(batches, lambda pairs: pairs.reduceByKeyAndWindow(add, sub, 2))
        [[('a', 1)], [('a', 3)], [('a', 2)], []]
        """
        name = "reduceByKeyAndWindow"
        self._require_function(func, name, "func(v, w) -> x", count=2)
        if filterFunc is not None and invFunc is None:
            logger.warning(
                "filterFunc of %s is not used without invFunc, as in pyspark.streaming; write "
                ".filter(filterFunc) behind it to have it",
                self._operation(name),
            )
        return self._reduced_by_window(
            name,
            self,
            (func, invFunc, filterFunc),
            (windowDuration, slideDuration),
            self._partitioner(numPartitions, partitionFunc, self._operation(name)),
            uid,
        )

    def _reduced_by_window(
        self,
        name: str,
        pairs: WindowOperations[Any],
        functions: tuple[Any, Any, Any],
        durations: tuple[float, float | None],
        partitioner: StablePartitioner,
        uid: str | None = None,
        *,
        is_counted: Callable[[Any], bool] | None = None,
        empty_for_none: bool = True,
    ) -> DStream[Any]:
        """Return the stream of *pairs* reduced over a window, from the window before or anew.

        Args:
            name: the operation.
            pairs: the stream, of this stream's slide.
            functions: reduce function, its inverse or None, the user's filter or None.
            durations: of the window and its slide, in seconds.
            partitioner: where keys belong.
            uid: name of the state, None for one from its place.
            is_counted: says of a pair whether anything of it is left, None where nobody can.
            empty_for_none: without an inverse, whether a window without any RDD has an empty one.
        """
        operation = self._operation(name)
        func, inverse, keeps = functions
        times = self._times(*durations, operation)
        reduction = Reduction(func, _where("reduce function", func, operation))
        if inverse is not None:
            self._require_function(inverse, name, "inverse(reduced, left) -> reduced", count=2)
        if keeps is not None:
            self._require_function(keeps, name, "filterFunc((key, value)) -> bool")
        batches = ReducedDStream(pairs._node, reduction, partitioner, operation)
        is_scala = self._ssc._settings.window_inverse == "scala"
        if inverse is None or (times.slides < _SLIDES_OF_INVERSE and not is_scala):
            is_there = inverse is None and empty_for_none
            window = WindowedDStream(batches, times, operation, is_there)
            anew = self._derived(ReducedDStream(window, reduction, partitioner, operation))
            return named(anew if inverse is None or keeps is None else anew.filter(keeps), uid)
        keeps = is_counted or keeps
        window_functions = WindowFunctions(
            reduction,
            UserFunction(inverse, _where("inverse function", inverse, operation)),
            None if keeps is None else UserFunction(keeps, _where("filter", keeps, operation)),
            drops_only_empty=is_counted is not None,
            is_scala=is_scala,
        )
        node: Node = ReducedWindowedDStream(batches, window_functions, times, operation)
        return named(self._derived(node), uid)

    def _times(
        self, windowDuration: float, slideDuration: float | None, operation: str
    ) -> WindowTimes:
        parent_ms = self._node.slide_ms
        window_ms = require_duration_ms(windowDuration, f"{operation}: windowDuration")
        slide_ms = (
            parent_ms
            if slideDuration is None
            else require_duration_ms(slideDuration, f"{operation}: slideDuration")
        )
        return WindowTimes.checked(window_ms, slide_ms, parent_ms, operation)


def _where(role: str, func: Callable[..., Any], operation: str) -> str:
    return f"{role} {describe(func)} of {operation}"


def _to_one_key(value: Any) -> tuple[None, Any]:
    return None, value


def _value(pair: tuple[Any, Any]) -> Any:
    return pair[1]


def _with_one(value: Any) -> tuple[Any, int]:
    return value, 1


def _is_counted(pair: tuple[Any, int]) -> bool:
    return pair[1] > 0


def _as_list(value: Any) -> list[Any]:
    return [value]


def _size(items: Iterable[Any]) -> list[tuple[None, int]]:
    size = sum(1 for _ in items)
    return [(None, size)] if size else []
