"""InputProcessor: what ``flatMapGroupsWithState`` does in one partition of one batch.

It needs neither Spark nor files: any store and any iterator will do.

    new rows -----> function, group by group -----> rows out
                       |  when a group's rows have gone out: state and timer -> store
    when all groups are done:
    keys due -----> function, key by key ---------> rows out
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dstreams.errors import InvalidStreamError
from dstreams.rdd.blocks import shorten
from dstreams.rdd.failures import UserFunctionError
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.state.batched_store import BatchedStore
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
from dstreams.state.group_state_rows import GroupStateManager, KeyedStore, Rows, StateData

Keyed = Iterable[tuple[Any, Any]]
GroupFunction = Callable[[Any, Iterator[Any], GroupState[Any]], Iterable[Any]]


@dataclass(frozen=True)
class InputProcessor:
    """Calls a function for each group and each key that is due, and keeps what it asked for.

    All results are lazy: the function of a group runs when its rows are pulled, and its state is
    written after the last of them, or with those of some groups after it. So pull everything, in
    order. With *keep_timer* a timer that a call did not set again stays, unless it was due; Spark
    clears it.

    Semantics: FlatMapGroupsWithStateExec.InputProcessor (Spark 4.3), the Scala rules.
    """

    store: KeyedStore
    manager: GroupStateManager
    func: GroupFunction
    timeout: GroupStateTimeout
    batch_time_ms: int
    watermark_ms: int | None
    where: str
    keep_timer: bool = False
    metrics: StateMetrics = field(default_factory=StateMetrics)

    def process_groups(
        self, groups: Iterable[tuple[Any, list[Any]]], *, are_in_memory: bool = True
    ) -> Iterator[Any]:
        """Call the function for each group: several are pulled at once if that costs no memory."""
        if not are_in_memory:
            return self._call((self._stored(key), iter(values), None) for key, values in groups)
        batched, data_of = BatchedStore(self.store, self.where), self.manager.data_of
        keyed = batched.of(groups, are_in_memory=True)
        calls = ((data_of(key, row), iter(values), None) for key, values, row in keyed)
        return self._call(calls, rows=batched)

    def process_new_data_with_initial_state(
        self, groups: Iterable[tuple[Any, Iterable[Any], Iterable[Any]]], *, skip_keys: bool = False
    ) -> Iterator[Any]:
        """Store initial states, and call the function for their keys too, unless *skip_keys*.

        *groups* are (key, values, initial states), each key once.
        """
        for key, values, initial in groups:
            states = list(initial)
            values = iter(values)  # noqa: PLW2901 - read once
            if not states:
                yield from self.call_function_and_update_state(self._stored(key), values)
                continue
            self._require_one(key, states)
            self._store(self.store, key, states[0], NO_TIMESTAMP)
            data = StateData(key, states[0], NO_TIMESTAMP)
            if skip_keys:
                first = next(values, _NOTHING)
                if first is _NOTHING:
                    continue
                values = _with_first(first, values)  # noqa: PLW2901
            yield from self.call_function_and_update_state(data, values)

    def process_timed_out_state(self) -> Iterator[Any]:
        """Call the function, without values, for each key whose timer is due.

        A timer is due when it is before the batch time, or before the watermark.
        """
        threshold_ms = self._threshold_ms()
        if threshold_ms is None:
            return
        for data in self.manager.due_states(self.store, threshold_ms):
            yield from self.call_function_and_update_state(data, iter(()), has_timed_out=True)

    def call_function_and_update_state(
        self, data: StateData, values: Iterator[Any], *, has_timed_out: bool = False
    ) -> Iterator[Any]:
        """Call the function for one key; its state is written after its last row was pulled."""
        reader = _GuardedValues(values)
        return self._call([(data, reader, reader)], has_timed_out=has_timed_out)

    def _call(
        self,
        groups: Iterable[tuple[StateData, Iterator[Any], _GuardedValues | None]],
        *,
        rows: Rows | None = None,
        has_timed_out: bool = False,
    ) -> Iterator[Any]:
        """Call the function for each (stored, values, reader that knows errors of the values)."""
        func, metrics, rows = self.func, self.metrics, rows or self.store
        facts = GroupStateContext.of(
            self.timeout, self.batch_time_ms, self.watermark_ms, has_timed_out=has_timed_out
        )
        for data, values, reader in groups:
            key, state, _ = data
            handle: GroupState[Any] = GroupState(state, facts)
            try:
                returned = func(key, values, handle)
                if type(returned) not in PLAIN_ROWS:
                    require_rows(returned, self.where, "key", key)
                for row in returned:
                    metrics.numOutputRows += 1
                    yield row
            except (Exception, SystemExit) as error:
                self._fail(key, error, reader)
            self._on_iterator_completion(rows, data, handle)

    def _on_iterator_completion(self, rows: Rows, data: StateData, handle: GroupState[Any]) -> None:
        """Write what a call asked for, if it asked for anything new."""
        key, _, stored_ms = data
        state, is_updated, is_removed, timeout_ms = handle.effect
        keeps = self.keep_timer and not handle.hasTimedOut and not is_removed
        if keeps and timeout_ms == NO_TIMESTAMP:
            timeout_ms = stored_ms
        if is_removed and timeout_ms == NO_TIMESTAMP:
            self.manager.remove_state(rows, key)
            self.metrics.numRemovedStateRows += 1
        elif is_updated or is_removed or timeout_ms != stored_ms:
            self._store(rows, key, state, timeout_ms)
            self.metrics.numUpdatedStateRows += 1

    def _stored(self, key: Any) -> StateData:
        try:
            return self.manager.get_state(self.store, key)
        except Exception as error:
            raise_refused(self.where, "key", key, error)

    def _store(self, rows: Rows, key: Any, state: Any, timeout_ms: int) -> None:
        try:
            self.manager.put_state(rows, key, state, timeout_ms)
        except Exception as error:
            raise_refused(self.where, "state of key", key, error)

    def _threshold_ms(self) -> int | None:
        if self.timeout is GroupStateTimeout.ProcessingTimeTimeout:
            return self.batch_time_ms
        if self.timeout is GroupStateTimeout.EventTimeTimeout:
            return self.watermark_ms
        return None

    def _require_one(self, key: Any, states: list[Any]) -> None:
        if len(states) > 1:
            raise InvalidStreamError(
                f"{self.where}: the initial state has {len(states)} states for the key "
                f"{shorten(key)}; reduce it by key first"
            )
        if states[0] is None:
            raise InvalidStreamError(
                f"{self.where}: the initial state of the key {shorten(key)} is None, which is no "
                "state; leave the key out"
            )

    def _fail(self, key: Any, error: BaseException, reader: _GuardedValues | None) -> NoReturn:
        is_of_values = reader is not None and error is reader.error
        if is_of_values or isinstance(error, UserFunctionError):
            raise error
        raise failed_with_state(self.where, key, error) from error


_NOTHING: Any = object()


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


class _GuardedValues:
    """The values of a group; it remembers an error of theirs, which is none of the function's."""

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
