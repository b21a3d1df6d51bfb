"""The state store of a partition as operators see it, over a dict, and with a write buffer."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from dstreams.state.function_errors import raise_refused


class Rows(Protocol):
    """Rows that can be read and written by key."""

    def get(self, key: Any) -> Any: ...

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None: ...

    def remove(self, key: Any) -> None:
        """Remove *key*, if it is there."""
        ...


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
        """Return the row of *key*, None if it is missing."""
        return self.rows.get(key)

    def get_many(self, keys: list[Any]) -> list[Any]:
        """Return the rows of *keys*."""
        return [self.get(key) for key in keys]

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        """Set the row of *key*; the timeout is ignored, because rows contain their timers."""
        self.rows[key] = value

    def put_many(self, values: Mapping[Any, Any]) -> None:
        """Set many rows."""
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
_NUMBERS = frozenset({int, float, bool, complex, type(None)})
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
            else type(row[0]) in _NUMBERS or may_be_batched(row[0])
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
    return kind in _NUMBERS or (kind in _TEXTS and len(state) <= _SMALL)


def _pulled_ahead(pair: tuple[Any, Any]) -> int:
    """Return the number of pairs to pull ahead if all are as large as this one."""
    try:
        size_bytes = len(pickle.dumps(pair))
    except Exception:  # not picklable, so not shuffled
        return 1
    return max(1, min(_KEYS, _AHEAD_BYTES // size_bytes))
