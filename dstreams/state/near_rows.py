"""Rows of a store, some at a time: read together before the calls, and written together after them.

One by one, reading and writing the row of a key takes longer than what most functions do with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from dstreams.state.function_errors import raise_refused
from dstreams.state.group_state_rows import KeyedStore

_KEYS = 500
_NOTHING: Any = object()
# What no later call can change: only that may wait to be written.
_FIXED = frozenset({int, float, bool, complex, str, bytes, type(None)})


class NearRows:
    """A store whose rows are asked for by :meth:`of` and changed one after the other.

    Args:
        store: the store.
        where: operation and function, for error messages.
    """

    def __init__(self, store: KeyedStore, where: str) -> None:
        self._store = store
        self._where = where
        self._changed: set[Any] = set()
        self._waiting: dict[Any, Any] = {}

    def of(self, keyed: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any, Any]]:
        """Yield (key, given, row) for pairs of key and given; some of these are pulled ahead.

        Rows are as the store has them, with all changes up to now. What was changed for the last
        pairs is in the store when this ends.
        """
        rest = iter(keyed)
        while chunk := list(islice(rest, _KEYS)):
            while chunk:
                rows = self._read([key for key, _ in chunk])
                for (key, given), row in zip(chunk, rows, strict=False):
                    yield key, given, self.get(key) if key in self._changed else row
                del chunk[: len(rows)]
                self._write()

    def get(self, key: Any) -> Any:
        """Return the row of *key*, None if there is none."""
        row = self._waiting.get(key, _NOTHING)
        return self._store.get(key) if row is _NOTHING else row

    def put(self, key: Any, row: tuple[Any, ...], timeout_ms: int | None = None) -> None:
        """Set the row of *key*, and when it is due, None for never."""
        self._changed.add(key)
        if timeout_ms is None and is_fixed(row[0]):
            self._waiting[key] = row
        else:
            self._waiting.pop(key, None)
            self._store.put(key, row, timeout_ms)

    def remove(self, key: Any) -> None:
        """Remove *key*; that there is none is fine."""
        self._changed.add(key)
        self._waiting.pop(key, None)
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
        waiting = self._waiting
        try:
            if waiting:
                self._store.put_many(waiting)
        except Exception:
            for key, row in waiting.items():  # which says what is wrong
                self._write_one(key, row)
        waiting.clear()
        self._changed.clear()

    def _write_one(self, key: Any, row: Any) -> None:
        try:
            self._store.put(key, row)
        except Exception as error:
            raise_refused(self._where, "state of key", key, error)


def is_fixed(state: Any) -> bool:
    """Whether nobody can change *state*; that a value may be fixed all the same is fine."""
    kind = type(state)
    return kind in _FIXED or (kind is tuple and _FIXED.issuperset(map(type, state)))
