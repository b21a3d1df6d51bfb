"""State managers: convert the state and the timer of a group to and from a row of a store.

The store is that of a partition, or a dict. :class:`BatchedStore` reads and writes it in chunks.

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

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dstreams.errors import InvalidStreamError
from dstreams.state.function_errors import NotStorableError, raise_refused
from dstreams.state.group_state import NO_TIMESTAMP


class Rows(Protocol):
    """Rows that can be read and written by key."""

    def get(self, key: Any) -> Any: ...
    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None: ...
    def remove(self, key: Any) -> None: ...


class StoredRows(Protocol):
    """Rows that can be read by key or all; a plain dict will do."""

    def get(self, key: Any) -> Any: ...
    def items(self) -> Iterable[tuple[Any, Any]]: ...


class KeyedStore(Rows, Protocol):
    """A state store that is open for one partition and batch."""

    def get_many(self, keys: list[Any]) -> list[Any]:
        """Return the values of the first *keys*, as many as fit into memory."""
        ...

    def put_many(self, values: Mapping[Any, Any]) -> None:
        """Set the values of many keys, without timeouts."""
        ...

    def items(self) -> Iterable[tuple[Any, Any]]: ...


@runtime_checkable
class TimerIndex(Protocol):
    """A store that finds keys that are due without reading the others."""

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Iterate over (key, value, due time) of the keys that are due before *until_ms*.

        Each key comes once; changes during the iteration do not disturb it.
        """
        ...


class DictStateStore:
    """A state store over a dict, without files and without an index of timers.

    >>> rows = {}
    >>> DictStateStore(rows).put("a", (1,))
    >>> rows
    {'a': (1,)}

    Args:
        rows: the dict that holds the rows, None for a new one. It is changed in place.
    """

    def __init__(self, rows: dict[Any, Any] | None = None) -> None:
        self.rows: dict[Any, Any] = {} if rows is None else rows

    def get(self, key: Any) -> Any:
        return self.rows.get(key)

    def get_many(self, keys: list[Any]) -> list[Any]:
        return [self.get(key) for key in keys]

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        """Set the row of *key*; the timeout is ignored, because rows contain their timers."""
        self.rows[key] = value

    def put_many(self, values: Mapping[Any, Any]) -> None:
        for key, value in values.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove *key*, if it is there."""
        self.rows.pop(key, None)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over a copy of the rows."""
        return iter(list(self.rows.items()))


_KEYS = 500
_AHEAD_BYTES = 1 << 20
_SMALL = 1000  # characters of a text, or fields of a tuple
_STORED: Any = object()  # marks a changed row that the store already has
NUMBERS = frozenset({int, float, bool, complex, type(None)})
_TEXTS = frozenset({str, bytes})


class BatchedStore:
    """Reads rows ahead in chunks, and writes small changed rows in chunks.

    One by one, that takes longer than most functions do. A row begins with the state; with
    *has_columns* the state is in several of its columns.
    """

    def __init__(self, store: KeyedStore, where: str, *, has_columns: bool = False) -> None:
        self._store = store
        self._where = where
        self._has_columns = has_columns
        self._changed: dict[Any, Any] = {}

    def of(
        self, keyed: Iterable[tuple[Any, Any]], *, are_in_memory: bool = False
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Yield (key, given, row) for pairs of key and given; some pairs are pulled ahead.

        A row includes all changes so far. At the end, the store has all changes.
        """
        rest, changed = iter(keyed), self._changed
        while chunk := list(islice(rest, 1)):
            limit = _KEYS if are_in_memory else _pulled_ahead(chunk[0])
            chunk += islice(rest, limit - 1)
            while chunk:
                rows = self._read([key for key, _ in chunk])
                for (key, given), row in zip(chunk, rows, strict=False):
                    yield key, given, self.get(key) if key in changed else row
                del chunk[: len(rows)]
                self._write()

    def get(self, key: Any) -> Any:
        row = self._changed.get(key, _STORED)
        return self._store.get(key) if row is _STORED else row

    def put(self, key: Any, row: tuple[Any, ...], timeout_ms: int | None = None) -> None:
        if timeout_ms is None and (
            all(map(may_be_batched, row))
            if self._has_columns
            else type(row[0]) in NUMBERS or may_be_batched(row[0])
        ):
            self._changed[key] = row
        else:
            self._changed[key] = _STORED
            self._store.put(key, row, timeout_ms)

    def remove(self, key: Any) -> None:
        self._changed[key] = _STORED
        self._store.remove(key)

    def _read(self, keys: list[Any]) -> list[Any]:
        try:
            return self._store.get_many(keys)
        except Exception:
            return [self._read_one(key) for key in keys]  # the error names the key

    def _read_one(self, key: Any) -> Any:
        try:
            return self._store.get(key)
        except Exception as error:
            raise_refused(self._where, "key", key, error)

    def _write(self) -> None:
        waiting = {key: row for key, row in self._changed.items() if row is not _STORED}
        self._changed.clear()
        try:
            if waiting:
                self._store.put_many(waiting)
        except Exception:
            for key, row in waiting.items():  # the error names the key
                self._write_one(key, row)

    def _write_one(self, key: Any, row: Any) -> None:
        try:
            self._store.put(key, row)
        except Exception as error:
            raise_refused(self._where, "state of key", key, error)


def may_be_batched(state: Any) -> bool:
    """Return whether *state* is small and immutable."""
    kind = type(state)
    if kind is tuple:
        return len(state) <= _SMALL and all(map(_is_plain, state))
    return _is_plain(state)


def _is_plain(state: Any) -> bool:
    kind = type(state)
    return kind in NUMBERS or (kind in _TEXTS and len(state) <= _SMALL)


def _pulled_ahead(pair: tuple[Any, Any]) -> int:
    """Return the number of pairs to pull ahead if all are as large as this one."""
    try:
        size_bytes = len(pickle.dumps(pair))
    except Exception:  # not picklable, so not shuffled
        return 1
    return max(1, min(_KEYS, _AHEAD_BYTES // size_bytes))


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
        """Return the state of *key*, given its row in the store, or None if it is missing."""

    @abstractmethod
    def put_state(self, store: Rows, key: Any, state: Any, timeout_ms: int) -> None:
        """Store a state, or None, and a timer, or :data:`NO_TIMESTAMP`."""

    def get_state(self, store: Rows | StoredRows, key: Any) -> StateData:
        """Return the stored data of *key*, with a state of None if it is missing."""
        return self.state_data(key, store.get(key))

    def remove_state(self, store: Rows, key: Any) -> None:
        store.remove(key)

    def get_all_state(self, store: StoredRows) -> Iterator[StateData]:
        return (self.state_data(key, row) for key, row in store.items())

    def timed_out_states(self, store: StoredRows, threshold_ms: int) -> Iterator[StateData]:
        """Iterate over the states whose timer is before *threshold_ms*, the earliest first.

        A store without an index of timers is read completely.
        """

        def is_due(data: StateData) -> bool:
            return NO_TIMESTAMP != data.timeout_ms < threshold_ms

        if isinstance(store, TimerIndex):
            found = (self.state_data(key, row) for key, row, _ in store.due(threshold_ms))
            return filter(is_due, found)
        return iter(sorted(filter(is_due, self.get_all_state(store)), key=_timer))


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
        _put(store, key, columns, timeout_ms if self.is_timeout_enabled else None)


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
        _put(store, key, (state,), timeout_ms if self.is_timeout_enabled else None)


def _put(store: Rows, key: Any, columns: tuple[Any, ...], timeout_ms: int | None) -> None:
    """Store a row: columns and, unless *timeout_ms* is None, a timer or :data:`NO_TIMESTAMP`."""
    if timeout_ms is None:
        store.put(key, columns)
    else:
        due_ms = None if timeout_ms == NO_TIMESTAMP else timeout_ms
        store.put(key, (*columns, timeout_ms), due_ms)


def create_state_manager(
    encoder: StateEncoder, is_timeout_enabled: bool, state_format_version: int
) -> StateManager:
    """Return the state manager of format 1 or 2, or raise InvalidStreamError.

    The encoder is :data:`ONE_COLUMN` if none is declared.
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
