"""InputProcessor: calls a state function for the groups of one partition in one batch.

It needs neither Spark nor files: any store, a dict, and any iterator will do.

    new rows -----> function, group by group -----> rows out
                       |  when a group's rows have gone out: state and timer -> store
    when all groups are done:
    keys due -----> function, key by key ---------> rows out
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NoReturn, Protocol

from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.state_version import StateMetrics
from dstreams.state.function_errors import (
    PLAIN_ROWS,
    failed_with_state,
    raise_refused,
    require_rows,
)
from dstreams.state.group_state import (
    NO_TIMESTAMP,
    GroupState,
    GroupStateContext,
    GroupStateTimeout,
)
from dstreams.state.state_manager import (
    BatchedStore,
    DictStateStore,
    KeyedStore,
    Rows,
    StateData,
    StateManager,
)

GroupFunction = Callable[[Any, Iterator[Any], GroupState[Any]], Iterable[Any]]
Converter = Callable[[Any], Any]

_key = itemgetter(0)
_value = itemgetter(1)


class ParentOperator(Protocol):
    """The facts of an operator in one batch; times are milliseconds since the epoch.

    :class:`~dstreams.state.flat_map_groups.FlatMapGroups` describes them. *eventTimeWatermark* is
    the watermark for eviction, None without event times. Spark always clears a timer that a call
    did not set again.
    """

    @property
    def func(self) -> GroupFunction: ...
    @property
    def timeoutConf(self) -> GroupStateTimeout: ...
    @property
    def batchTimestampMs(self) -> int | None: ...
    @property
    def eventTimeWatermark(self) -> int | None: ...
    @property
    def stateManager(self) -> StateManager: ...
    @property
    def where(self) -> str: ...
    @property
    def keepTimer(self) -> bool: ...
    @property
    def getKeyObj(self) -> Converter | None: ...
    @property
    def getValueObj(self) -> Converter | None: ...
    @property
    def getOutputRow(self) -> Converter | None: ...


class InputProcessor:
    """Calls a function for each group and each timed-out key, and stores their states.

    Results are lazy: the function of a group runs when its rows are pulled, and its state is
    written after the last of them, or later with that of other groups. Pull everything, in order.
    A dict is changed in place.

    Semantics: FlatMapGroupsWithStateExec.InputProcessor (Spark 4.3), the Scala rules.

    Raises:
        InvalidStreamError: the operator lacks the time that its timeout needs, or a time is
            negative.
    """

    def __init__(
        self,
        store: KeyedStore | dict[Any, Any],
        operator: ParentOperator,
        metrics: StateMetrics | None = None,
    ) -> None:
        self.store: KeyedStore = DictStateStore(store) if isinstance(store, dict) else store
        self.operator = operator
        self.metrics = StateMetrics() if metrics is None else metrics
        self._manager = operator.stateManager
        self._keeps_timer = operator.keepTimer
        self._threshold_ms = _threshold_ms(operator)
        self._with_data = self._context(has_timed_out=False)
        self._func = _on_objects(operator)

    def process_new_data(self, rows: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
        """Call the function for each group of rows (key, value) with equal, adjacent keys.

        Values that the function does not read are skipped.
        """
        return self._call(
            (self._stored(key), self._objects(map(_value, group)))
            for key, group in groupby(rows, _key)
        )

    def process_groups(
        self, groups: Iterable[tuple[Any, list[Any]]], *, are_in_memory: bool = True
    ) -> Iterator[Any]:
        """Call the function for each (key, values): several are pulled at once if in memory."""
        objects = iter if self.operator.getValueObj is None else self._objects
        if not are_in_memory:
            return self._call((self._stored(key), objects(values)) for key, values in groups)
        manager, where = self._manager, self.operator.where
        batched = BatchedStore(self.store, where, has_columns=manager.has_columns)
        data_of = manager.state_data
        keyed = batched.of(groups, are_in_memory=True)
        calls = ((data_of(key, row), objects(values)) for key, values, row in keyed)
        return self._call(calls, rows=batched)

    def process_new_data_with_initial_state(
        self, groups: Iterable[tuple[Any, Sequence[Any], Iterable[Any]]], *, skip_keys: bool = False
    ) -> Iterator[Any]:
        """Store initial states, and call the function for their keys as well.

        Groups are (key, values, initial states), each key once. With *skip_keys* the function is
        not called for keys that have an initial state and no values.

        Raises:
            InvalidStreamError: a key has several initial states, or None.
        """
        for key, values, initial in groups:
            states = list(initial)
            if not states:
                yield from self.call_function_and_update_state(self._stored(key), values)
                continue
            self._require_one(key, states)
            self._store(self.store, key, states[0], NO_TIMESTAMP)
            data = StateData(key, states[0], NO_TIMESTAMP)
            if not skip_keys or values:
                yield from self.call_function_and_update_state(data, values)

    def process_timed_out_state(self) -> Iterator[Any]:
        """Call the function, without values, for each key whose timer is due.

        A timer is due when it is before the batch time, or before the watermark. The store is read
        when the first row is pulled, so pull new data first.
        """
        if self._threshold_ms is None:
            return
        found = self._manager.timed_out_states(self.store, self._threshold_ms)
        yield from self._call(((data, iter(())) for data in found), has_timed_out=True)

    def call_function_and_update_state(
        self, state_data: StateData, values: Iterable[Any], has_timed_out: bool = False
    ) -> Iterator[Any]:
        """Call the function for one key; its state is written after its last row was pulled."""
        calls = [(state_data, self._objects(values))]
        return self._call(calls, has_timed_out=has_timed_out)

    def on_iterator_completion(
        self, state_data: StateData, state: GroupState[Any], rows: Rows | None = None
    ) -> None:
        """Write the changes that a call made to *state_data*, to *rows* or else to the store."""
        key, _, stored_ms = state_data
        value, is_updated, is_removed, timeout_ms = state.effect
        keeps = self._keeps_timer and not state.hasTimedOut and not is_removed
        if keeps and timeout_ms == NO_TIMESTAMP:
            timeout_ms = stored_ms
        rows = self.store if rows is None else rows
        if is_removed and timeout_ms == NO_TIMESTAMP:
            self._manager.remove_state(rows, key)
            self.metrics.numRemovedStateRows += 1
        elif is_updated or is_removed or timeout_ms != stored_ms:
            self._store(rows, key, value, timeout_ms)
            self.metrics.numUpdatedStateRows += 1

    def _call(
        self,
        groups: Iterable[tuple[StateData, Iterator[Any]]],
        *,
        rows: Rows | None = None,
        has_timed_out: bool = False,
    ) -> Iterator[Any]:
        """Call the function for each (stored, values), one after the other."""
        func, metrics, where = self._func, self.metrics, self.operator.where
        facts = self._context(has_timed_out=True) if has_timed_out else self._with_data
        for data, values in groups:
            key, state, _ = data
            handle: GroupState[Any] = GroupState(state, facts)
            try:
                returned = func(key, values, handle)
                if type(returned) not in PLAIN_ROWS:
                    require_rows(returned, where, "key", key)
                for row in returned:
                    metrics.numOutputRows += 1
                    yield row
            except (Exception, SystemExit) as error:
                self._fail(key, error, values)
            self.on_iterator_completion(data, handle, rows)

    def _context(self, *, has_timed_out: bool) -> GroupStateContext:
        operator = self.operator
        return GroupStateContext.of(
            operator.timeoutConf,
            operator.batchTimestampMs,
            operator.eventTimeWatermark,
            has_timed_out=has_timed_out,
        )

    def _objects(self, values: Iterable[Any]) -> _GuardedValues:
        get_value = self.operator.getValueObj
        return _GuardedValues(iter(values) if get_value is None else map(get_value, values))

    def _stored(self, key: Any) -> StateData:
        try:
            return self._manager.get_state(self.store, key)
        except Exception as error:
            raise_refused(self.operator.where, "key", key, error)

    def _store(self, rows: Rows, key: Any, state: Any, timeout_ms: int) -> None:
        try:
            self._manager.put_state(rows, key, state, timeout_ms)
        except Exception as error:
            raise_refused(self.operator.where, "state of key", key, error)

    def _require_one(self, key: Any, states: list[Any]) -> None:
        where = self.operator.where
        if len(states) > 1:
            raise InvalidStreamError(
                f"{where}: the initial state has {len(states)} states for the key "
                f"{shorten(key)}; reduce it by key first"
            )
        if states[0] is None:
            raise InvalidStreamError(
                f"{where}: the initial state of the key {shorten(key)} is None; remove the key "
                "from the initial state"
            )

    def _fail(self, key: Any, error: BaseException, values: Iterator[Any]) -> NoReturn:
        is_of_values = isinstance(values, _GuardedValues) and error is values.error
        if is_of_values or isinstance(error, UserFunctionError):
            raise error
        raise failed_with_state(self.operator.where, key, error) from error


def _threshold_ms(operator: ParentOperator) -> int | None:
    """Return the time before which timers are due, None without timeouts."""
    timeout = operator.timeoutConf
    if timeout is GroupStateTimeout.NoTimeout:
        return None
    if timeout is GroupStateTimeout.ProcessingTimeTimeout:
        name, threshold_ms = "batchTimestampMs", operator.batchTimestampMs
    elif timeout is GroupStateTimeout.EventTimeTimeout:
        name, threshold_ms = "eventTimeWatermark", operator.eventTimeWatermark
    else:
        raise InvalidStreamError(
            f"{operator.where}: timeoutConf must be a GroupStateTimeout, got {timeout!r}"
        )
    if threshold_ms is None:
        raise InvalidStreamError(
            f"{operator.where}: {timeout.value} needs {name}, got None; set it for each batch"
        )
    return threshold_ms


def _on_objects(operator: ParentOperator) -> GroupFunction:
    """Return the function, wrapped in the converters of keys and output."""
    func, get_key, get_row = operator.func, operator.getKeyObj, operator.getOutputRow
    if get_key is None and get_row is None:
        return func

    def call(key: Any, values: Iterator[Any], state: GroupState[Any]) -> Iterable[Any]:
        returned = func(key if get_key is None else get_key(key), values, state)
        if get_row is None:
            return returned
        if type(returned) not in PLAIN_ROWS:
            require_rows(returned, operator.where, "key", key)
        return map(get_row, returned)

    return call


class _GuardedValues:
    """The values of a group; keeps their error, to distinguish it from one of the function."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._values)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise
