"""State managers: the layout of the rows of an aggregation in a state store.

A row is a pair ``(key, buffer)``. The key in the store is the key of the row:

=======  ===================  =================================================
version  value in the store   a stored row is read as
=======  ===================  =================================================
1        ``(key, buffer)``    the value, which is the whole row
2        ``(buffer,)``        the key, joined with the value, which lacks the key
=======  ===================  =================================================

The version is that of ``spark.sql.streaming.aggregation.stateFormatVersion``.

Semantics: StreamingAggregationStateManager and its ImplV1 and ImplV2 (Spark 4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from dstreams.errors import InvalidStreamError

Row = tuple[Any, Any]

AGGREGATION_STATE_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"


class ReadableStore(Protocol):
    """A state store that is open for reading, for one partition and version."""

    def get(self, key: Any) -> Any: ...

    def items(self) -> Iterator[tuple[Any, Any]]: ...


class WritableStore(ReadableStore, Protocol):
    """A state store that is open for an attempt to make the next version."""

    def put(self, key: Any, value: Any) -> None: ...

    def remove(self, key: Any) -> None: ...


class StreamingAggregationStateManager(Protocol):
    """Reads and writes the rows of an aggregation in a state store."""

    def value_of(self, row: Row) -> Any:
        """Return the value that the store has for a row."""
        ...

    def row_of(self, key: Any, value: Any) -> Row:
        """Return the row of a key and its value in the store."""
        ...

    def get_key(self, row: Row) -> Any:
        """Return the key of a row."""
        ...

    def get(self, store: ReadableStore, key: Any) -> Row | None:
        """Return the stored row of a key, None if it is missing."""
        ...

    def put(self, store: WritableStore, row: Row) -> None:
        """Store a row under its key."""
        ...

    def remove(self, store: WritableStore, key: Any) -> None:
        """Remove the row of a key, if it is stored."""
        ...

    def iterator(self, store: ReadableStore) -> Iterator[tuple[Any, Row]]:
        """Iterate over all keys and their rows, in the order of the store."""
        ...

    def values(self, store: ReadableStore) -> Iterator[Row]:
        """Iterate over all rows, in the order of the store."""
        ...


class _Rows:
    """The base of both versions."""

    def value_of(self, row: Row) -> Any:
        raise NotImplementedError

    def row_of(self, key: Any, value: Any) -> Row:
        raise NotImplementedError

    def get_key(self, row: Row) -> Any:
        return row[0]

    def get(self, store: ReadableStore, key: Any) -> Row | None:
        value = store.get(key)
        return None if value is None else self.row_of(key, value)

    def put(self, store: WritableStore, row: Row) -> None:
        store.put(row[0], self.value_of(row))

    def remove(self, store: WritableStore, key: Any) -> None:
        store.remove(key)

    def iterator(self, store: ReadableStore) -> Iterator[tuple[Any, Row]]:
        return ((key, self.row_of(key, value)) for key, value in store.items())

    def values(self, store: ReadableStore) -> Iterator[Row]:
        return (self.row_of(key, value) for key, value in store.items())

    def rows_of(self, keys: Iterable[Any], values: Iterable[Any]) -> list[Row]:
        """Return the rows of some keys and values."""
        return list(map(self.row_of, keys, values))


@dataclass(frozen=True)
class StreamingAggregationStateManagerImplV1(_Rows):
    """The value is the whole row."""

    def value_of(self, row: Row) -> Row:
        return row[0], row[1]

    def row_of(self, key: Any, value: Row) -> Row:
        return value


@dataclass(frozen=True)
class StreamingAggregationStateManagerImplV2(_Rows):
    """The value is the row without its key."""

    def value_of(self, row: Row) -> tuple[Any]:
        return (row[1],)

    def row_of(self, key: Any, value: tuple[Any]) -> Row:
        return key, value[0]


StateManagerImpl = StreamingAggregationStateManagerImplV1 | StreamingAggregationStateManagerImplV2

_VERSIONS: dict[int, type[StateManagerImpl]] = {
    1: StreamingAggregationStateManagerImplV1,
    2: StreamingAggregationStateManagerImplV2,
}


def create_aggregation_state_manager(state_format_version: int) -> StateManagerImpl:
    """Return the state manager of a version of the state format.

    Raises:
        InvalidStreamError: the version is neither 1 nor 2.
    """
    if state_format_version not in _VERSIONS:
        raise InvalidStreamError(
            f"{AGGREGATION_STATE_FORMAT}: the state format must be 1 or 2, got "
            f"{state_format_version!r}; use 2, or the format of the checkpoint"
        )
    return _VERSIONS[state_format_version]()
