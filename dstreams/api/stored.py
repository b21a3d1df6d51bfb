"""Operations with stored state: a batch costs what it touches, not what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import RDD

from dstreams.api.pairs import PartitionFunc
from dstreams.api.stream import T_co, named
from dstreams.api.update_state import UpdateStateOperations
from dstreams.callables import describe, require_picklable
from dstreams.durations import require_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.graph.node import Node
from dstreams.graph.stored import SnapshotDStream, StoredStateDStream
from dstreams.state.batch_functions import EventClock, GroupsOf, MapRecordsOf, OneRow
from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode
from dstreams.state.input_processor import GroupFunction
from dstreams.state.state_spec import StateSpec
from dstreams.state.store_functions import EventTime

if TYPE_CHECKING:
    from dstreams.api.dstream import DStream
    from dstreams.api.map_with_state import MapWithStateDStream

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")
U = TypeVar("U")

_TIMEOUTS = {
    "none": GroupStateTimeout.NoTimeout,
    "processingTime": GroupStateTimeout.ProcessingTimeTimeout,
    "eventTime": GroupStateTimeout.EventTimeTimeout,
}


class StoredStateOperations(UpdateStateOperations[T_co]):
    """Operations whose state is in the state store.

    All of them need a checkpoint directory. A batch writes what it changed, synced, before any
    output runs. States and keys are plain data (numbers, text, bytes, dates, and tuples, lists,
    sets and dicts of such) and instances of classes of data that the program names (dataclasses,
    classes of attrs, named tuples, enums, Rows; see :meth:`~dstreams.StreamingContext.stateClasses`
    for others), unless ``spark.dstreams.state.values`` is ``pickle``.
    """

    def mapWithState(
        self: StoredStateOperations[tuple[K, V]], spec: StateSpec, *, uid: str | None = None
    ) -> MapWithStateDStream:
        """Return the stream of what a function emits for each record and the state of its key.

        Args:
            spec: the function, and what else is to be said (:class:`~dstreams.StateSpec`).
            uid: as in :meth:`updateStateByKey`.

        Returns:
            Stream of what the function emits, one RDD for each batch; its ``stateSnapshots()`` is
            the stream of all keys and states.

        Raises:
            InvalidStreamError: *spec* is no StateSpec.

        State: one entry for each key until the function removes it or it times out, in the first
        batch after it was without a record for longer than the timeout.
        Semantics: org.apache.spark.streaming.dstream.PairDStreamFunctions.mapWithState (4.3).

        >>> from dstreams import StateSpec
        >>> def count(key, value, state):
        ...     state.update((state.getOption or 0) + value)
        ...     return key, state.get
        >>> batches = [[("a", 1), ("b", 1)], [("a", 5)], []]
        >>> run(batches, lambda pairs: pairs.mapWithState(StateSpec.function(count)))
        [[('a', 1), ('b', 1)], [('a', 6)], []]
        """
        operation = self._operation("mapWithState")
        if not isinstance(spec, StateSpec):
            raise InvalidStreamError(
                f"{operation} needs a StateSpec, got {type(spec).__name__}; make one with "
                "StateSpec.function(f)"
            )
        settings = self._ssc._settings
        node = StoredStateDStream(
            parent=self._node,
            function=MapRecordsOf(spec.mapping, spec.idle_ms, settings.map_with_state_timeouts),
            partitioner=self._partitioner(spec.partitions, spec.partition_func, operation),
            initial=self._initial(spec.initial, operation),
            operation=operation,
        )
        return named(self._ssc._stored_stream_of(node), uid)

    def flatMapGroupsWithState(
        self: StoredStateOperations[tuple[K, V]],
        f: Callable[[K, Iterator[V], GroupState[S]], Iterable[U]],
        outputMode: str = "update",
        timeout: str = "none",
        *,
        eventTime: Callable[[V], datetime | int | None] | None = None,
        watermark: float | None = None,
        initialState: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        numPartitions: int | None = None,
        partitionFunc: PartitionFunc[K] = None,
        keepTimer: bool = False,
        uid: str | None = None,
    ) -> MapWithStateDStream:
        """Return the stream of what a function returns for the values of each key of a batch.

        Args:
            f: ``f(key, iterator of values, state) -> rows``, called once for each key that has
                values in the batch, and, with empty values and ``state.hasTimedOut``, for each key
                whose timer is due. *state* is a :class:`~dstreams.GroupState`.
            outputMode: ``"update"`` or ``"append"``; says what the rows mean.
            timeout: ``"none"``; ``"processingTime"``: timers are set by
                ``state.setTimeoutDuration`` and are due in the first batch after their time; or
                ``"eventTime"``: timers are set by ``state.setTimeoutTimestamp`` and are due in the
                first batch whose watermark is after them. Values of an event time up to the
                watermark are late then, and left out.
            eventTime: ``value -> datetime (naive: local time), milliseconds since the epoch, or
                None``; goes with *watermark*.
            watermark: seconds that the watermark of a batch is behind the latest event time of the
                batches before.
            initialState: pairs of key and state to begin with, each key once; the function is
                called for their keys in the first batch.
            numPartitions: partitions of the state. None: the default parallelism.
            partitionFunc: as in :meth:`updateStateByKey`.
            keepTimer: let a timer stay that a call with values does not set again. False: it is
                none after the call, as in Spark.
            uid: as in :meth:`updateStateByKey`.

        Raises:
            InvalidStreamError: the function takes other arguments, or a mode or timeout is unknown.

        State: one entry for each key until the function removes it.
        Semantics: FlatMapGroupsWithStateExec (Spark 4.3); the processing time is the batch time.

        >>> def count(key, values, state):
        ...     state.update((state.getOption or 0) + len(list(values)))
        ...     return [(key, state.get)]
        >>> batches = [["a", "b", "a"], ["b"]]
        >>> def counts(words):
        ...     return words.map(lambda word: (word, 1)).flatMapGroupsWithState(count)
        >>> run(batches, counts)
        [[('a', 2), ('b', 1)], [('b', 2)]]
        """
        name = "flatMapGroupsWithState"
        self._require_function(f, name, "f(key, values, state) -> rows", count=3)
        clock = self._event_clock(name, timeout, eventTime, watermark)
        groups = self._groups(name, f, f, timeout, clock, keepTimer=keepTimer)
        stream = self._grouped(name, outputMode, groups, initialState, numPartitions, partitionFunc)
        return named(stream, uid)

    def mapGroupsWithState(
        self: StoredStateOperations[tuple[K, V]],
        f: Callable[[K, Iterator[V], GroupState[S]], U],
        timeout: str = "none",
        *,
        eventTime: Callable[[V], datetime | int | None] | None = None,
        watermark: float | None = None,
        initialState: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        numPartitions: int | None = None,
        partitionFunc: PartitionFunc[K] = None,
        keepTimer: bool = False,
        uid: str | None = None,
    ) -> MapWithStateDStream:
        """Return the stream of one row for each call of :meth:`flatMapGroupsWithState`.

        Args:
            f: ``f(key, iterator of values, state) -> row``.
            timeout: as there, and so are the others.

        >>> def count(key, values, state):
        ...     state.update((state.getOption or 0) + len(list(values)))
        ...     return key, state.get
        >>> batches = [[("a", 1), ("a", 2)], [("a", 3)]]
        >>> run(batches, lambda pairs: pairs.mapGroupsWithState(count))
        [[('a', 2)], [('a', 3)]]
        """
        name = "mapGroupsWithState"
        self._require_function(f, name, "f(key, values, state) -> row", count=3)
        clock = self._event_clock(name, timeout, eventTime, watermark)
        groups = self._groups(name, OneRow(f), f, timeout, clock, keepTimer=keepTimer)
        stream = self._grouped(name, "update", groups, initialState, numPartitions, partitionFunc)
        return named(stream, uid)

    def _groups(
        self,
        name: str,
        f: GroupFunction,
        user: Callable[..., Any],
        timeout: str,
        clock: EventClock | None,
        *,
        keepTimer: bool,
    ) -> GroupsOf:
        operation = self._operation(name)
        require_picklable(user, operation)
        where = f"function {describe(user)} of {operation}"
        skip = self._ssc._settings.skip_initial_keys
        return GroupsOf(f, _TIMEOUTS[timeout], clock, where, bool(keepTimer), skip)

    def _grouped(
        self,
        name: str,
        output_mode: str,
        groups: GroupsOf,
        initial: RDD[Any] | Iterable[tuple[Any, Any]] | None,
        num_partitions: int | None,
        partition_func: PartitionFunc[Any],
    ) -> MapWithStateDStream:
        operation = self._operation(name)
        if output_mode not in (OutputMode.Append.value, OutputMode.Update.value):
            raise InvalidStreamError(
                f"outputMode of {operation} is {output_mode!r}; the output mode of the function "
                "should be append or update"
            )
        node = StoredStateDStream(
            parent=self._node,
            function=groups,
            partitioner=self._partitioner(num_partitions, partition_func, operation),
            initial=self._initial(initial, operation),
            operation=operation,
            delay_ms=None if groups.clock is None else groups.clock.delay_ms,
        )
        return self._ssc._stored_stream_of(node)

    def _event_clock(
        self, name: str, timeout: str, event_time: Any, watermark: float | None
    ) -> EventClock | None:
        operation = self._operation(name)
        if timeout not in _TIMEOUTS:
            raise InvalidStreamError(
                f"timeout of {operation} is {timeout!r}; use one of {', '.join(_TIMEOUTS)}"
            )
        if (event_time is None) != (watermark is None):
            raise InvalidStreamError(
                f"eventTime and watermark of {operation} go together; give both, or neither"
            )
        if event_time is None or watermark is None:
            if timeout == "eventTime":
                raise InvalidStreamError(
                    f"{operation} has timeout='eventTime', which needs eventTime and watermark"
                )
            return None
        self._require_function(event_time, name, "eventTime(value) -> datetime")
        delay_ms = 0 if watermark == 0 else require_duration_ms(watermark, "watermark")
        where = f"eventTime {describe(event_time)} of {operation}"
        return EventClock(EventTime(event_time, where), delay_ms)

    def _snapshots(self, node: Node) -> DStream[Any]:
        if not isinstance(node, StoredStateDStream):
            raise InvalidStreamError(f"{node.operation} has no stored state")
        operation = self._operation("stateSnapshots")
        return self._derived(SnapshotDStream(node, itemgetter(0), operation))
