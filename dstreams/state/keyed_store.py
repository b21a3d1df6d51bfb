"""The state store of one partition as operators see it, and such a store over a dict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable


class Rows(Protocol):
    """The rows that calls of a function read and write."""

    def get(self, key: Any) -> Any: ...

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None: ...

    def remove(self, key: Any) -> None:
        """Remove *key*, if it is there."""
        ...


class StoredRows(Protocol):
    """All rows of a partition; a plain dict has them."""

    def get(self, key: Any) -> Any: ...

    def items(self) -> Iterable[tuple[Any, Any]]: ...


class KeyedStore(Rows, Protocol):
    """A state store that is open for one partition and batch."""

    def get_many(self, keys: list[Any]) -> list[Any]:
        """Return the values of the first of *keys*, as far as they are not too large together."""
        ...

    def put_many(self, values: Mapping[Any, Any]) -> None:
        """Set the values of many keys, without timeouts."""
        ...

    def items(self) -> Iterable[tuple[Any, Any]]: ...


@runtime_checkable
class TimerIndex(Protocol):
    """A store that finds the keys that are due without reading the others."""

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Iterate over (key, value, when it is due) of what is due before *until_ms*, each key
        once.

        What is put or removed meanwhile does not disturb it.
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
        """Set the row of *key*. The timeout is not kept: rows have their timers themselves."""
        self.rows[key] = value

    def put_many(self, values: Mapping[Any, Any]) -> None:
        """Set many rows."""
        for key, value in values.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove *key*, if it is there."""
        self.rows.pop(key, None)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the rows as they are now; later changes do not disturb it."""
        return iter(list(self.rows.items()))
