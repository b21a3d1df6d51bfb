"""State managers: convert the state and the timer of a group to and from a row of a state store.

===========  =================================  ==========================
row          with timeouts                      without
===========  =================================  ==========================
format 1     ``(*columns, timer)``              ``(*columns,)``
format 2     ``(columns or None, timer)``       ``(columns,)``
===========  =================================  ==========================

A state encoder makes the columns. Without a declared one, format 2 has the state in their place.

Semantics: FlatMapGroupsWithStateExecHelper (Spark 4.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from dstreams.errors import InvalidStreamError
from dstreams.state.function_errors import NotStorableError
from dstreams.state.group_state import NO_TIMESTAMP
from dstreams.state.keyed_store import Rows, StoredRows, TimerIndex

STATE_FORMAT = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"

_timer = attrgetter("timeout_ms")


class StateData(NamedTuple):
    """The stored state of a key; *timeout_ms* is :data:`NO_TIMESTAMP` without a timer."""

    key: Any
    state: Any
    timeout_ms: int


class StateEncoder(Protocol):
    """Converts states to columns of a row, and back."""

    def columns(self, state: Any) -> tuple[Any, ...]: ...

    def state(self, columns: tuple[Any, ...]) -> Any: ...


@dataclass(frozen=True)
class OneColumnEncoder:
    """Stores a state unchanged, as one column."""

    def columns(self, state: Any) -> tuple[Any, ...]:
        """Return the columns of a state."""
        return (state,)

    def state(self, columns: tuple[Any, ...]) -> Any:
        """Return the state of columns."""
        return columns[0]


ONE_COLUMN = OneColumnEncoder()
"""The default encoder."""


class StateManager(ABC):
    """Reads and writes the states and timers of groups in the store of a partition."""

    @property
    def has_columns(self) -> bool:
        """True if a row begins with the columns of a state, False if it begins with the state."""
        return True

    @abstractmethod
    def state_data(self, key: Any, row: Any) -> StateData:
        """Return the state of *key* in a row of the store; the row is None if it is missing."""

    @abstractmethod
    def put_state(self, store: Rows, key: Any, state: Any, timeout_ms: int) -> None:
        """Store a state, or None, and a timer, or :data:`NO_TIMESTAMP`."""

    def get_state(self, store: Rows | StoredRows, key: Any) -> StateData:
        """Return the stored data of *key*, with a state of None if it is missing."""
        return self.state_data(key, store.get(key))

    def remove_state(self, store: Rows, key: Any) -> None:
        """Remove the row of *key*, if there is one."""
        store.remove(key)

    def get_all_state(self, store: StoredRows) -> Iterator[StateData]:
        """Iterate over all states of the store."""
        return (self.state_data(key, row) for key, row in store.items())

    def timed_out_states(self, store: StoredRows, threshold_ms: int) -> Iterator[StateData]:
        """Iterate over the states whose timer is before *threshold_ms*, the earliest first.

        A store without an index of timers is read completely.
        """
        if isinstance(store, TimerIndex):
            found = (self.state_data(key, row) for key, row, _ in store.due(threshold_ms))
            return (data for data in found if NO_TIMESTAMP != data.timeout_ms < threshold_ms)
        due = (
            data
            for data in self.get_all_state(store)
            if NO_TIMESTAMP != data.timeout_ms < threshold_ms
        )
        return iter(sorted(due, key=_timer))


@dataclass(frozen=True)
class StateManagerImplV1(StateManager):
    """State format 1: flat rows, which cannot have a timer without a state.

    A state whose columns are all None is read as a missing state.
    """

    encoder: StateEncoder
    is_timeout_enabled: bool

    @property
    def has_columns(self) -> bool:
        return not isinstance(self.encoder, OneColumnEncoder)

    def state_data(self, key: Any, row: Any) -> StateData:
        if row is None:
            return StateData(key, None, NO_TIMESTAMP)
        columns, timeout_ms = (
            (row[:-1], row[-1]) if self.is_timeout_enabled else (row, NO_TIMESTAMP)
        )
        is_missing = all(column is None for column in columns)
        return StateData(key, None if is_missing else self.encoder.state(columns), timeout_ms)

    def put_state(self, store: Rows, key: Any, state: Any, timeout_ms: int) -> None:
        if state is None:
            raise NotStorableError(
                "state format 1 cannot store a key without a state, such as a timer alone; "
                f"set a state as well, or give {STATE_FORMAT}=2 to a new checkpoint"
            )
        columns = self.encoder.columns(state)
        if not self.is_timeout_enabled:
            store.put(key, columns)
        else:
            due_ms = None if timeout_ms == NO_TIMESTAMP else timeout_ms
            store.put(key, (*columns, timeout_ms), due_ms)


@dataclass(frozen=True)
class StateManagerImplV2(StateManager):
    """State format 2: the state is one nullable column, so a timer needs no state.

    Without an *encoder* that column is the state itself.
    """

    encoder: StateEncoder | None
    is_timeout_enabled: bool

    @property
    def has_columns(self) -> bool:
        return False

    def state_data(self, key: Any, row: Any) -> StateData:
        if row is None:
            return StateData(key, None, NO_TIMESTAMP)
        state = row[0]
        if self.encoder is not None and state is not None:
            state = self.encoder.state(state)
        return StateData(key, state, row[1] if self.is_timeout_enabled else NO_TIMESTAMP)

    def put_state(self, store: Rows, key: Any, state: Any, timeout_ms: int) -> None:
        if self.encoder is not None and state is not None:
            state = self.encoder.columns(state)
        if not self.is_timeout_enabled:
            store.put(key, (state,))
        else:
            due_ms = None if timeout_ms == NO_TIMESTAMP else timeout_ms
            store.put(key, (state, timeout_ms), due_ms)


def create_state_manager(
    encoder: StateEncoder, is_timeout_enabled: bool, state_format_version: int
) -> StateManager:
    """Return the state manager of a format.

    Args:
        encoder: makes the columns of a state; :data:`ONE_COLUMN` if none is declared.
        is_timeout_enabled: whether rows have a timer.
        state_format_version: 1 or 2.

    Raises:
        InvalidStreamError: the format is unknown.
    """
    if state_format_version == 1:
        return StateManagerImplV1(encoder, is_timeout_enabled)
    if state_format_version == 2:
        declared = None if isinstance(encoder, OneColumnEncoder) else encoder
        return StateManagerImplV2(declared, is_timeout_enabled)
    raise InvalidStreamError(
        f"{STATE_FORMAT}: the state format must be 1 or 2, got {state_format_version!r}; use 2, or "
        "the format of the checkpoint"
    )
