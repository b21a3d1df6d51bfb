"""updateStateByKey: the state of every key, updated by each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pyspark import RDD

from dstreams.api.pairs import PairOperations, PartitionFunc
from dstreams.api.stream import T_co, named
from dstreams.callables import require_picklable
from dstreams.errors import InvalidStreamError
from dstreams.graph.state import StateDStream
from dstreams.rdd.blocks import shorten
from dstreams.rdd.shuffle import explain_key
from dstreams.state.update_function import UpdateFunction

if TYPE_CHECKING:
    from dstreams.api.dstream import DStream

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")


class UpdateStateOperations(PairOperations[T_co]):
    """The operation whose state is an RDD; what it keeps costs each batch all of its keys.

    Semantics: org.apache.spark.streaming.dstream.PairDStreamFunctions (4.3).
    """

    @overload
    def updateStateByKey(
        self: UpdateStateOperations[tuple[K, V]],
        updateFunc: Callable[[list[V], S | None], S | None],
        numPartitions: int | None = None,
        initialRDD: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
        preservePartitioning: bool = True,
        form: Literal["values"] = "values",
        uid: str | None = None,
    ) -> DStream[tuple[K, S]]: ...

    @overload
    def updateStateByKey(
        self: UpdateStateOperations[tuple[K, V]],
        updateFunc: Callable[[datetime, K, list[V], S | None], S | None],
        numPartitions: int | None = None,
        initialRDD: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
        preservePartitioning: bool = True,
        form: Literal["keyed"],
        uid: str | None = None,
    ) -> DStream[tuple[K, S]]: ...

    @overload
    def updateStateByKey(
        self: UpdateStateOperations[tuple[K, V]],
        updateFunc: Callable[[Iterator[tuple[K, list[V], S | None]]], Iterable[tuple[K, S]]],
        numPartitions: int | None = None,
        initialRDD: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
        preservePartitioning: bool = True,
        form: Literal["iterator"],
        uid: str | None = None,
    ) -> DStream[tuple[K, S]]: ...

    def updateStateByKey(
        self,
        updateFunc: Callable[..., Any],
        numPartitions: int | None = None,
        initialRDD: RDD[Any] | Iterable[tuple[Any, Any]] | None = None,
        *,
        partitionFunc: PartitionFunc[Any] = None,
        preservePartitioning: bool = True,
        form: str = "values",
        uid: str | None = None,
    ) -> DStream[Any]:
        """Return the stream of the state of every key, updated by each batch.

        The function is called for *every* key that has a state or new values, in every batch: also
        for keys without new values, and in batches without an RDD. 0, "", [] and False are states.

        Args:
            updateFunc: by *form*:
                ``"values"``: ``f(values, state) -> state``, None drops the key;
                ``"keyed"``: ``f(time, key, values, state) -> state``, None drops the key, the time
                being the batch time as a datetime;
                ``"iterator"``: ``f(iterator of (key, values, state)) -> iterator of (key, state)``.
                *values* is a new list, in no defined order, empty without new values; *state* is
                None when there is none. Both may be changed in place.
            numPartitions: partitions of the state. None: the default parallelism.
            initialRDD: pairs of key and state to begin with, each key once; an RDD or a collection.
                It waits for the first batch with an RDD.
            partitionFunc: ``key -> int``, or a :class:`~dstreams.StablePartitioner`. None:
                :func:`~dstreams.stable_hash`.
            preservePartitioning: whether the state claims to be partitioned as its input. False
                lets ``"iterator"`` functions change keys, and costs a shuffle of the whole state in
                every batch.
            form: how *updateFunc* is called.
            uid: name under which the state is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Returns:
            Stream of ``(key, state)``, one RDD for each batch once there is a state. It is
            persisted, serialized in memory, and needs a checkpoint directory.

        Raises:
            InvalidStreamError: the function does not fit *form* or cannot be sent to workers, or
                *numPartitions*, *partitionFunc* or *initialRDD* is not what it should be.

        State: one entry for each key until the function drops it; each batch costs all of them.
        Semantics: org.apache.spark.streaming.dstream.StateDStream (4.3).

        >>> def total(values, state):
        ...     return sum(values) + (state or 0)
        >>> batches = [[("a", 1)], [("a", 2), ("b", 1)], []]
        >>> run(batches, lambda pairs: pairs.updateStateByKey(total))
        [[('a', 1)], [('a', 3), ('b', 1)], [('a', 3), ('b', 1)]]
        """
        operation = self._operation("updateStateByKey")
        update = UpdateFunction.checked(updateFunc, form, operation)
        require_picklable(updateFunc, operation)
        node = StateDStream(
            parent=self._node,
            update=update,
            partitioner=self._partitioner(numPartitions, partitionFunc, operation),
            preserves_partitioning=bool(preservePartitioning),
            initial=self._initial(initialRDD, operation),
            operation=operation,
        )
        return named(self._derived(node), uid)

    def _initial(
        self, initial: RDD[Any] | Iterable[tuple[Any, Any]] | None, operation: str
    ) -> RDD[Any] | None:
        if initial is None or isinstance(initial, RDD):
            return initial
        if isinstance(initial, (str, bytes)) or not isinstance(initial, Iterable):
            raise InvalidStreamError(
                f"initialRDD of {operation} must be an RDD or a collection of (key, state) pairs, "
                f"got {type(initial).__name__}"
            )
        pairs = list(initial.items()) if isinstance(initial, dict) else list(initial)
        _require_states(pairs, operation)
        return self._ssc.sparkContext.parallelize(pairs)


def _require_states(pairs: list[Any], operation: str) -> None:
    """Check an initial state that is in memory while its caller is still there."""
    where = f"initialRDD of {operation}"
    keys: set[Any] = set()
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidStreamError(
                f"{where} must hold (key, state) pairs, got {shorten(pair)} ({type(pair).__name__})"
            )
        try:
            is_known = pair[0] in keys
        except TypeError as error:
            raise InvalidStreamError(str(explain_key(pair[0], error, where))) from error
        if is_known:
            raise InvalidStreamError(
                f"{where} has the key {shorten(pair[0])} twice; a key has one state, so reduce the "
                "pairs by key first"
            )
        keys.add(pair[0])
