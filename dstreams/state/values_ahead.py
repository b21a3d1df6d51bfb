"""Entries of many keys, read from the store and written to it together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from checkpoint.state_store import StateWriter
from dstreams.state.function_errors import raise_refused
from dstreams.state.state_manager import NUMBERS, may_be_batched

_KEYS = 500
_ENTRIES = 1000
_UNREAD: Any = object()
_G = TypeVar("_G", bound="tuple[Any, ...]")


class PutsTogether:
    """Writes small entries together. One by one, that takes longer than most processors do.

    Args:
        store: the store of the partition.
        where: the operation, for errors.
    """

    def __init__(self, store: StateWriter, where: str) -> None:
        self._store = store
        self._where = where
        self._changed: dict[Any, tuple[Any, int | None]] = {}

    def get(self, key: Any) -> Any:
        """Return the value of an entry, None if it is missing."""
        changed = self._changed.get(key) if self._changed and is_small(key) else None
        return self._store.get(key) if changed is None else changed[0]

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> bool:
        """Set the value and timeout of an entry; return whether key and value are small."""
        has_small_key = is_small(key)
        if has_small_key and is_small(value):
            self._changed[key] = value, timeout_ms
            if len(self._changed) >= _ENTRIES:
                self.write()
            return True
        if has_small_key:
            self._changed.pop(key, None)
        self._store.put(key, value, timeout_ms)
        return False

    def remove(self, key: Any) -> None:
        """Remove an entry, if it is there."""
        if is_small(key):
            self._changed.pop(key, None)
        self._store.remove(key)

    def write(self) -> None:
        """Write what was put since the last call."""
        changed, self._changed = self._changed, {}
        plain = {key: value for key, (value, timeout_ms) in changed.items() if timeout_ms is None}
        timed = {key: each for key, each in changed.items() if each[1] is not None}
        try:
            if plain:
                self._store.put_many(plain)
            if timed:
                values = {key: value for key, (value, _) in timed.items()}
                self._store.put_many(
                    values, [at_ms for _, at_ms in timed.values() if at_ms is not None]
                )
        except Exception:
            for key, (value, timeout_ms) in changed.items():  # the error names the key
                self._write_one(key, value, timeout_ms)

    def _write_one(self, key: Any, value: Any, timeout_ms: int | None) -> None:
        try:
            self._store.put(key, value, timeout_ms)
        except Exception as error:
            raise_refused(self._where, f"state {key[0]!r} of key", key[1:], error)


class ValuesAhead:
    """Reads values of the keys that come next together, if one of them is read, and writes so.

    Args:
        store: the store of the partition.
        where: the operation, for errors.
    """

    def __init__(self, store: StateWriter, where: str) -> None:
        self._store = store
        self._puts = PutsTogether(store, where)
        self._next: list[tuple[Any, ...]] = []  # keys whose turn it is or will be, the last first
        self._known: dict[Any, Any] = {}

    def of(self, groups: Iterable[_G], *, are_in_memory: bool) -> Iterator[_G]:
        """Iterate over groups, tuples that begin with a key; at the end, all values are written."""
        rest = iter(groups)
        while chunk := list(islice(rest, _KEYS if are_in_memory else 1)):
            self._next = [group[0] for group in reversed(chunk)]
            for group in chunk:
                yield group
                self._next.pop()
            self._next, self._known = [], {}
            self._puts.write()

    def get(self, key: Any) -> Any:
        """Return the value at *key*, ``(name, *key of a group)``, None if it is missing."""
        value = self._known.get(key, _UNREAD)
        if value is _UNREAD:
            if not self._next:
                return self._puts.get(key)
            value = self._read(key)
        if value is not None and not is_small(value):
            del self._known[key]  # the caller may change it
        return value

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        """Set a value and its timeout."""
        self._known.pop(key, None)
        if self._puts.put(key, value, timeout_ms) and self._next:
            self._known[key] = value

    def remove(self, key: Any) -> None:
        """Remove a value, if it is there."""
        self._known.pop(key, None)
        self._puts.remove(key)

    def write(self) -> None:
        """Write what was put outside of :meth:`of`."""
        self._puts.write()

    def _read(self, place: tuple[Any, ...]) -> Any:
        """Read a value, and those of the same name of the keys that come next, if not yet read."""
        name, known = place[0], self._known
        if len(self._next) > 1 and (name, *self._next[-2]) in known:
            known[place] = self._store.get(place)
            return known[place]
        places = [(name, *key) for key in reversed(self._next)]
        places = [each for each in places if each == place or each not in known]
        try:
            known.update(zip(places, self._store.get_many(places), strict=False))
        except Exception:  # reading it alone raises the error if it is this one
            known[place] = self._store.get(place)
        return known[place]


def is_small(value: tuple[Any, ...]) -> bool:
    """Return whether a key, a row, or a row with its expiry, is small and immutable."""
    return NUMBERS.issuperset(map(type, value)) or all(map(may_be_batched, value))
