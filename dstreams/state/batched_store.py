"""Rows of a store, read together before the calls of a function, and written together after them.

One by one, that takes longer than what most functions do with a row.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from dstreams.state.function_errors import raise_refused
from dstreams.state.keyed_store import KeyedStore

_KEYS = 500
_AHEAD_BYTES = 1 << 20
_SMALL = 1000  # characters of a text, or fields of a tuple
_STORED: Any = object()  # in the place of a row that was changed: ask the store
_NUMBERS = frozenset({int, float, bool, complex, type(None)})
_TEXTS = frozenset({str, bytes})


class BatchedStore:
    """A store whose rows are asked for by :meth:`of` and changed one after the other.

    A row begins with the state; with *has_columns* the state is in several of its columns.
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

        A row is as the store has it with all changes up to now. When this ends, the store has all
        changes.
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
            return [self._read_one(key) for key in keys]  # which says what is wrong

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
            for key, row in waiting.items():  # which says what is wrong
                self._write_one(key, row)

    def _write_one(self, key: Any, row: Any) -> None:
        try:
            self._store.put(key, row)
        except Exception as error:
            raise_refused(self._where, "state of key", key, error)


def may_be_batched(state: Any) -> bool:
    """Whether *state* is small and cannot be changed by a later call."""
    kind = type(state)
    if kind is tuple:
        return len(state) <= _SMALL and all(map(_is_plain, state))
    return _is_plain(state)


def _is_plain(state: Any) -> bool:
    kind = type(state)
    return kind in _NUMBERS or (kind in _TEXTS and len(state) <= _SMALL)


def _pulled_ahead(pair: tuple[Any, Any]) -> int:
    """Return how many pairs are pulled if all are as large as this one."""
    try:
        size_bytes = len(pickle.dumps(pair))
    except Exception:  # it came by another way than most
        return 1
    return max(1, min(_KEYS, _AHEAD_BYTES // size_bytes))
