"""Testers of functions with state and of processors, which need neither Spark nor a JVM.

They run the functions that the tasks of a stream run, over a store in memory. Keys, records, rows
and states are encoded as in production, and the function is pickled for each batch, so that what
cannot be sent to a worker, or stored, fails in the test as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark import RDD, cloudpickle

from checkpoint import BeginRecord
from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StateWriter, StoreId, VersionId
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import Block, BlockBuilder, Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_store_rdd import StoreFunction
from dstreams.spark.state_version import StateMetrics
from dstreams.state.flat_map_groups import TIMEOUTS, EventTime, FlatMapGroups
from dstreams.state.group_state import NO_TIMESTAMP, GroupStateTimeout, OutputMode
from dstreams.state.map_with_state import MapRecords, StateSpec
from dstreams.state.processor_states import KINDS, group_of
from dstreams.state.state_classes import AllowedClasses, classes_of_program
from dstreams.state.state_manager import StateData, StateManager
from dstreams.state.stateful_processor import (
    TIMERS,
    HandleState,
    ListState,
    MapState,
    StatefulProcessorHandle,
    StateVariable,
    ValueState,
)
from dstreams.state.store_maintenance import values_of
from dstreams.state.transform_groups import TransformGroups
from dstreams.structured.api.dataset import GroupedDataset, StreamingDataset
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.incremental import IncrementalExecution
from dstreams.structured.execution.query_records import QueryBatch, batch_start
from dstreams.structured.operators.execution_context import StatefulOperatorStateInfo
from dstreams.structured.operators.flat_map_groups_with_state import (
    FlatMapGroupsWithStateExec,
    GroupedFunctionExec,
)
from dstreams.structured.operators.stateless import EventTimeWatermarkExec
from dstreams.structured.plan.logical import StreamingRelation
from dstreams.structured.plan.planning import plan_query
from dstreams.structured.plan.unsupported import check_supported
from dstreams.structured.sources.memory_source import MemoryStream

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from dstreams.structured.api.writer import WriterEnvironment

_STORE = StoreId("test", "test", "default", 0, 1)
_PLACES = StablePartitioner(1)
_V = TypeVar("_V", ValueState, ListState, MapState)

Pairs = Iterable[tuple[Any, Any]]
InitialStates = Mapping[Any, Any] | Pairs
EventTimeOf = Callable[[Any], "datetime | int | None"]


class _StateTester:
    """Runs the batches of one partition of a stateful operator."""

    def __init__(
        self, parts: Sequence[object], conf: Mapping[str, str] | None, classes: Iterable[type]
    ) -> None:
        self._conf = QueryConf.from_conf(dict(conf or {}))
        allowed = AllowedClasses().and_more(classes, None)
        found = classes_of_program(*parts, allowed=allowed)
        self._backend = MemoryBackend()
        self._store = StateStore(self._backend, values_of(self._conf, found))
        self._version: VersionId = EMPTY
        self._batch_id = 0
        self._time_ms = 0
        self._metrics = StateMetrics()

    @property
    def metrics(self) -> dict[str, int]:
        """The counts of the last batch by Spark's names, such as ``numRowsDroppedByWatermark``."""
        return self._metrics.as_dict()

    def test(self, key: Any, input: Iterable[Any]) -> list[Any]:
        """Run a batch with records of one key, and return its rows.

        As in a stream, timers that are due come last; a batch that fails changes no state.

        Args:
            key: the key.
            input: its records, in order.

        Raises:
            UserFunctionError: the function fails; the message names the key.
            NotStorableError: a state cannot be stored.
            UnpicklableError: the key, a record or a row cannot be pickled.
            InvalidStreamError: the key cannot be a key.
        """
        place = self._key(key)
        return self._batch([(place, record) for record in input])

    def setProcessingTime(self, currentTimeMs: int) -> list[Any]:
        """Set the batch time, and return the rows of the timers that are due then.

        Args:
            currentTimeMs: milliseconds since the epoch; 0 before the first call.

        Raises:
            InvalidStreamError: it is not after the current one.
        """
        self._time_ms = _later("processing time", currentTimeMs, self._time_ms)
        return self._batch([])

    def _batch(self, records: Pairs, initial: Pairs = ()) -> list[Any]:
        return self._run(self._function(), initial, records)

    def _function(self) -> StoreFunction:
        """Return the function of a task of the next batch."""
        raise NotImplementedError

    def _key(self, key: Any) -> Any:
        """Return the key as the function gets it, or raise InvalidStreamError."""
        try:
            _PLACES.partitions_of([key])
        except TypeError as error:
            raise InvalidStreamError(str(error)) from error
        return key

    def _run(self, function: StoreFunction, initial: Pairs, records: Pairs) -> list[Any]:
        """Run a batch as the task of a partition does, and commit its state."""
        task = cloudpickle.loads(cloudpickle.dumps(function))
        metrics = StateMetrics(numStateStoreInstances=1)
        with self._changes() as store:
            made = task(store, _sent(initial), _sent(records), metrics)
            rows = [row for _, row in _sent((None, row) for row in made)]
        self._batch_id += 1
        metrics.numTotalStateRows = self._count()
        self._metrics = metrics
        return rows

    @contextmanager
    def _changes(self) -> Iterator[StateWriter]:
        """Open the store, and commit its changes unless the block fails."""
        before = self._version
        with self._store.writer(_STORE, before) as store:
            yield store
            self._version = store.commit().version_id
        self._backend.forget(_STORE, before)

    @contextmanager
    def _reading(self) -> Iterator[StateWriter]:
        with self._store.writer(_STORE, self._version) as store:
            yield store

    def _count(self) -> int:
        with self._reading() as store:
            return store.count()


class _OperatorTester(_StateTester):
    """Runs the batches of the stateful operator of a query."""

    def __init__(
        self,
        define: Callable[[GroupedDataset[Any, Any]], StreamingDataset[Any]],
        mode: OutputMode,
        event_time: EventTimeOf | None,
        conf: Mapping[str, str] | None,
        classes: Iterable[type],
    ) -> None:
        no_session = cast("WriterEnvironment", None)  # only a query that is started needs it
        records: StreamingDataset[Any] = StreamingDataset(
            StreamingRelation(MemoryStream()), no_session
        )
        if event_time is not None:
            records = records.withWatermark(event_time, "0 seconds")
        plan = define(records.groupByKey(_whole)).plan
        check_supported(plan, mode)
        super().__init__((plan,), conf, classes)
        self._planned = plan_query(plan, mode, self._conf)
        self._event_time = next(
            (
                EventTime(step.eventTime, step.where)
                for step in self._planned.root.walk()
                if isinstance(step, EventTimeWatermarkExec)
            ),
            None,
        )
        self._watermark_ms = self._late_ms = 0

    def setWatermark(self, currentWatermarkMs: int) -> list[Any]:
        """Set the watermark, and return the rows of the timers that are due then.

        The watermark does not follow the records that :meth:`test` gets.

        Args:
            currentWatermarkMs: milliseconds since the epoch; 0 before the first call.

        Raises:
            InvalidStreamError: it is not after the current one, or there is no
                *eventTimeExtractor*.
        """
        if self._event_time is None:
            raise InvalidStreamError(
                "setWatermark needs the event times of records; give eventTimeExtractor to the "
                "tester"
            )
        later_ms = _later("watermark", currentWatermarkMs, self._watermark_ms)
        self._late_ms, self._watermark_ms = self._watermark_ms, later_ms
        try:
            return self._batch([])
        finally:
            self._late_ms = later_ms

    def _batch(self, records: Pairs, initial: Pairs = ()) -> list[Any]:
        time_of = self._event_time
        if time_of is not None:
            records = [(key, (time_of(record), record)) for key, record in records]
        rows = super()._batch(records, initial)
        return [row[1] for row in rows] if self._operator().hasEventTime else rows

    def _function(self) -> StoreFunction:
        operator = self._operator()
        if isinstance(operator, FlatMapGroupsWithStateExec):
            return operator.function(is_sorted=False)
        return operator.function()

    def _operator(self) -> GroupedFunctionExec:
        """Return the operator with the facts of the next batch."""
        start = batch_start(self._time_ms, self._watermark_ms, self._late_ms, ())
        number = self._batch_id
        batch = QueryBatch(BeginRecord("test", number, self._time_ms, 1, **start))
        filled = IncrementalExecution(
            self._planned, batch, [StatefulOperatorStateInfo.empty(1)]
        ).stateful()
        return cast(GroupedFunctionExec, filled[0])


class TransformWithStateTester(_OperatorTester):
    """Runs a stateful processor without Spark, key by key.

    >>> from dstreams.structured import StatefulProcessor
    >>> class Count(StatefulProcessor):
    ...     def init(self, handle):
    ...         self._handle = handle
    ...         self._count = handle.getValueState("count", "n long")
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         n = (self._count.get() or (0,))[0] + len(list(rows))
    ...         self._count.update((n,))
    ...         self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10_000)
    ...         return [(*key, n)]
    ...     def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
    ...         return [(*key, "idle")]
    >>> tester = TransformWithStateTester(Count(), timeMode="processingTime")
    >>> tester.test("ann", ["/", "/shop"])
    [('ann', 2)]
    >>> tester.peekValueState("count", "ann"), tester.peekTimers("ann")
    ((2,), [10000])
    >>> tester.setProcessingTime(10_000)
    [('ann', 'idle')]

    The processor may be one for ``pyspark.sql.streaming``. In contrast to Spark's ``TwsTester``,
    states are encoded and checked against their schemas, TTLs expire, rows have the columns of
    *outputStructType*, and a copy of the processor runs each batch, as in a query: what it keeps in
    attributes is lost. A key that is a tuple is the whole key; any other is its only part.

    Semantics: pyspark.sql.streaming.tws_tester.TwsTester (4.3), for rows.

    Args:
        processor: the processor.
        initialStateRow: pairs of key and row, for ``handleInitialState``.
        timeMode: ``none``, ``processingTime`` or ``eventTime``, in any case.
        outputMode: ``append`` or ``update``, in any case.
        eventTimeExtractor: ``f(row)``, the event time: milliseconds since the epoch, a datetime,
            or None; required with *timeMode* ``eventTime``.
        outputStructType, eventTimeColumnName: as of
            :meth:`dstreams.structured.GroupedDataset.transformWithState`.
        conf: settings of a query, such as ``spark.dstreams.state.values``.
        stateClasses: more classes of state, as of
            :meth:`dstreams.structured.StreamSession.stateClasses`.

    Raises:
        InvalidStreamError: an argument is invalid, or ``init`` fails.
    """

    def __init__(
        self,
        processor: Any,
        initialStateRow: InitialStates | None = None,
        *,
        timeMode: str = "none",
        outputMode: str = "append",
        eventTimeExtractor: EventTimeOf | None = None,
        outputStructType: StructType | str | None = None,
        eventTimeColumnName: str = "",
        conf: Mapping[str, str] | None = None,
        stateClasses: Iterable[type] = (),
    ) -> None:
        if str(timeMode).lower() == "eventtime" and eventTimeExtractor is None:
            raise InvalidStreamError(
                "timeMode 'eventTime' needs eventTimeExtractor, a function from a row to its time"
            )
        mode = _output_mode(outputMode)

        def define(groups: GroupedDataset[Any, Any]) -> StreamingDataset[Any]:
            return groups.transformWithState(
                processor,
                outputStructType,
                mode.value,
                timeMode,
                eventTimeColumnName=eventTimeColumnName,
            )

        super().__init__(define, mode, eventTimeExtractor, conf, stateClasses)
        if initialStateRow is not None:
            pairs = _pairs(initialStateRow, "initialStateRow")
            self._batch([], [(self._key(key), row) for key, row in pairs])

    def peekValueState(self, stateName: str, key: Any) -> tuple[Any, ...] | None:
        """Return the row of a value state, None if the key has none.

        Raises:
            InvalidStreamError: ``init`` defines no such state.
        """
        with self._state(ValueState, stateName, key) as state:
            return state.get()

    def peekListState(self, stateName: str, key: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a list state. Raises as :meth:`peekValueState`."""
        with self._state(ListState, stateName, key) as state:
            return list(state.get())

    def peekMapState(self, stateName: str, key: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Return the rows of a map state by map key. Raises as :meth:`peekValueState`."""
        with self._state(MapState, stateName, key) as state:
            return dict(state.iterator())

    def peekTimers(self, key: Any) -> list[int]:
        """Return the times of the timers of a key, in order, milliseconds since the epoch."""
        with self._reading() as store:
            return [place[-1] for place, _ in store.prefix((TIMERS, *self._key(key)))]

    def updateValueState(self, stateName: str, key: Any, value: tuple[Any, ...]) -> None:
        """Set the row of a value state.

        Raises:
            InvalidStreamError: ``init`` defines no such state, or the row does not fit its schema.
            NotStorableError: the row cannot be stored.
        """
        with self._state(ValueState, stateName, key) as state:
            state.update(value)

    def updateListState(self, stateName: str, key: Any, value: list[tuple[Any, ...]]) -> None:
        """Set the rows of a list state. Raises as :meth:`updateValueState`."""
        with self._state(ListState, stateName, key) as state:
            state.put(value)

    def updateMapState(
        self, stateName: str, key: Any, value: Mapping[tuple[Any, ...], tuple[Any, ...]]
    ) -> None:
        """Set the rows of a map state. Raises as :meth:`updateValueState`."""
        with self._state(MapState, stateName, key) as state:
            state.clear()
            for map_key, row in value.items():
                state.updateValue(map_key, row)

    def deleteState(self, stateName: str, key: Any) -> None:
        """Remove the state of a key. Raises as :meth:`peekValueState`."""
        kind: Any = KINDS[self._variable(stateName).kind]
        with self._state(kind, stateName, key) as state:
            state.clear()

    def _key(self, key: Any) -> tuple[Any, ...]:
        place: tuple[Any, ...] = super()._key(group_of(key))
        return place

    def _groups(self) -> TransformGroups:
        return cast(TransformGroups, self._operator().groups)

    def _variable(self, name: str) -> StateVariable:
        variables = self._groups().variables
        if name not in variables:
            known = ", ".join(sorted(variables)) or "none"
            raise InvalidStreamError(
                f"the processor defines no state {name!r}; its state variables: {known}"
            )
        return variables[name]

    @contextmanager
    def _state(self, kind: type[_V], name: str, key: Any) -> Iterator[_V]:
        """Open a state variable of a key, and commit its changes."""
        variable, groups = self._variable(name), self._groups()
        if KINDS[variable.kind] is not kind:
            raise InvalidStreamError(
                f"state {name!r} is a {variable.kind} state; use the methods of {variable.kind} "
                f"states, such as peek{variable.kind.title()}State"
            )
        with self._changes() as store:
            handle = StatefulProcessorHandle(
                groups.where,
                groups.timeMode,
                store,
                groups.variables,
                self._time_ms,
                self._batch_id,
            )
            handle.state, handle.key = HandleState.INITIALIZED, self._key(key)
            yield kind(handle, variable)
            handle.write()
        self._batch_id += 1


class _OneState(_StateTester):
    """The methods of testers of functions with one state per key."""

    @property
    def _manager(self) -> StateManager:
        raise NotImplementedError

    def peekState(self, key: Any) -> Any:
        """Return the state of a key, None if it has none."""
        return self._peek(key).state

    def peekTimeout(self, key: Any) -> int | None:
        """Return when the key is due, milliseconds since the epoch; None without a timeout."""
        timeout_ms = self._peek(key).timeout_ms
        return None if timeout_ms == NO_TIMESTAMP else timeout_ms

    def updateState(self, key: Any, state: Any) -> None:
        """Set the state of a key as a call without a timeout would.

        Raises:
            InvalidStreamError: the state is None.
            TypeError: the state cannot be stored.
        """
        if state is None:
            raise InvalidStreamError("a state must not be None; use deleteState")
        with self._changes() as store:
            self._manager.put_state(store, self._key(key), state, NO_TIMESTAMP)

    def deleteState(self, key: Any) -> None:
        """Remove the state and the timeout of a key."""
        with self._changes() as store:
            self._manager.remove_state(store, self._key(key))

    def _peek(self, key: Any) -> StateData:
        with self._reading() as store:
            return self._manager.get_state(store, self._key(key))


class FlatMapGroupsWithStateTester(_OneState, _OperatorTester):
    """Runs a function of ``flatMapGroupsWithState`` without Spark, key by key.

    >>> def count(user, clicks, state):
    ...     if state.hasTimedOut:
    ...         total = state.get
    ...         state.remove()
    ...         return [(user, total)]
    ...     state.update((state.getOption or 0) + len(list(clicks)))
    ...     state.setTimeoutDuration(10_000)
    ...     return []
    >>> tester = FlatMapGroupsWithStateTester(count, "processingTime")
    >>> tester.test("ann", ["/", "/shop"]), tester.peekState("ann"), tester.peekTimeout("ann")
    ([], 2, 10000)
    >>> tester.setProcessingTime(10_001)
    [('ann', 2)]

    It serves streams and queries, which call such functions in the same way.

    Args:
        func: ``f(key, iterator of records, state) -> rows``.
        timeoutConf: the clock of timeouts: a ``GroupStateTimeout``, or ``none``,
            ``processingTime`` or ``eventTime``.
        initialState: pairs of key and state; the function is called for their keys at once.
        outputMode: ``append`` or ``update``, in any case.
        eventTimeExtractor, conf, stateClasses: as of :class:`TransformWithStateTester`.
        keepTimer: keep a timer that a call did not set again, unless it was due.

    Raises:
        InvalidStreamError: an argument is invalid.
    """

    _is_map = False

    def __init__(
        self,
        func: Callable[..., Any],
        timeoutConf: GroupStateTimeout | str = GroupStateTimeout.NoTimeout,
        initialState: InitialStates | None = None,
        *,
        outputMode: str = "append",
        eventTimeExtractor: EventTimeOf | None = None,
        keepTimer: bool = False,
        conf: Mapping[str, str] | None = None,
        stateClasses: Iterable[type] = (),
    ) -> None:
        timeout = TIMEOUTS.get(timeoutConf, timeoutConf)
        mode = OutputMode.Update if self._is_map else _output_mode(outputMode)

        def define(groups: GroupedDataset[Any, Any]) -> StreamingDataset[Any]:
            if self._is_map:
                return groups.mapGroupsWithState(func, timeout, keepTimer=keepTimer)
            return groups.flatMapGroupsWithState(func, mode, timeout, keepTimer=keepTimer)

        super().__init__(define, mode, eventTimeExtractor, conf, stateClasses)
        self.initialRows: list[Any] = []
        """The rows of the calls for initial states."""
        if initialState is not None:
            pairs = _pairs(initialState, "initialState")
            self.initialRows = self._batch([], [(self._key(key), state) for key, state in pairs])

    @property
    def _manager(self) -> StateManager:
        return cast(FlatMapGroups, self._operator().groups).stateManager


class MapGroupsWithStateTester(FlatMapGroupsWithStateTester):
    """Runs a function of ``mapGroupsWithState``, which returns one row, without Spark.

    Otherwise like :class:`FlatMapGroupsWithStateTester`.
    """

    _is_map = True


class MapWithStateTester(_OneState):
    """Runs a function of ``mapWithState`` without Spark, record by record.

    >>> from dstreams import StateSpec
    >>> def running(key, value, state):
    ...     if state.isTimingOut:
    ...         return key, "idle", state.get
    ...     state.update((state.getOption or 0) + value)
    ...     return key, state.get
    >>> tester = MapWithStateTester(StateSpec.function(running).timeout(10))
    >>> tester.test("ann", [3, 4]), tester.peekTimeout("ann")
    ([('ann', 3), ('ann', 7)], 10000)
    >>> tester.setProcessingTime(10_001)
    [('ann', 'idle', 7)]

    The processing time is the batch time; keys time out in the first batch after they are due.

    Args:
        spec: a :class:`dstreams.StateSpec`, or its function. Initial states must be a collection.
        conf: settings, such as ``spark.dstreams.state.values``.

    Raises:
        InvalidStreamError: an argument is invalid.
    """

    def __init__(
        self, spec: StateSpec | Callable[..., Any], *, conf: Mapping[str, str] | None = None
    ) -> None:
        if not isinstance(spec, StateSpec):
            spec = StateSpec.function(spec)
        super().__init__((spec,), conf, spec.mapping.classes)
        self._records = MapRecords(spec.mapping, idle_ms=spec.idle_ms)
        if spec.initial is not None:
            pairs = _pairs(spec.initial, "initialState")
            self._batch([], [(self._key(key), state) for key, state in pairs])

    @property
    def _manager(self) -> StateManager:
        return self._function().stateManager

    def _function(self) -> MapRecords:
        return self._records.in_batch(self._time_ms, NO_TIMESTAMP, is_checkpoint=True)


def _whole(record: Any) -> Any:
    return record


def _sent(pairs: Pairs) -> Iterator[tuple[Any, Any]]:
    """Return pairs as another process gets them."""
    found = list(pairs)
    builder = BlockBuilder(Side.BATCH)
    full = builder.extend([key for key, _ in found], [value for _, value in found])
    blocks = map(Block, [*full, *builder.flush()])
    return chain.from_iterable(zip(block.keys(), block.values(), strict=True) for block in blocks)


def _later(what: str, given: object, now_ms: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given <= now_ms:
        raise InvalidStreamError(
            f"the {what} must be a whole number of milliseconds after {now_ms}, got {given!r}"
        )
    return given


def _output_mode(name: object) -> OutputMode:
    for mode in OutputMode:
        if str(getattr(name, "value", name)).lower() == mode.value:
            return mode
    raise InvalidStreamError(f"outputMode must be append or update, got {name!r}")


def _pairs(states: object, name: str) -> list[tuple[Any, Any]]:
    if isinstance(states, RDD):
        raise InvalidStreamError(f"{name} of a tester must be a collection, got an RDD")
    found: Any = states.items() if isinstance(states, Mapping) else states
    try:
        return [(key, state) for key, state in found]
    except (TypeError, ValueError) as error:
        raise InvalidStreamError(
            f"{name} must be pairs of key and state, got {states!r:.80}"
        ) from error
