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

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dstreams.errors import InvalidStreamError
from dstreams.state.keyed_store import Rows, StoredRows

Row = tuple[Any, Any]

AGGREGATION_STATE_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"


class StreamingAggregationStateManager(ABC):
    """Reads and writes the rows of an aggregation in a state store."""

    @abstractmethod
    def value_of(self, row: Row) -> Any:
        """Return the value that the store has for a row."""

    @abstractmethod
    def row_of(self, key: Any, value: Any) -> Row:
        """Return the row of a key and its value in the store."""

    def get_key(self, row: Row) -> Any:
        """Return the key of a row."""
        return row[0]

    def get(self, store: StoredRows, key: Any) -> Row | None:
        """Return the stored row of a key, None if it is missing."""
        value = store.get(key)
        return None if value is None else self.row_of(key, value)

    def put(self, store: Rows, row: Row) -> None:
        """Store a row under its key."""
        store.put(row[0], self.value_of(row))

    def remove(self, store: Rows, key: Any) -> None:
        """Remove the row of a key, if it is stored."""
        store.remove(key)

    def iterator(self, store: StoredRows) -> Iterator[tuple[Any, Row]]:
        """Iterate over all keys and their rows, in the order of the store."""
        return ((key, self.row_of(key, value)) for key, value in store.items())

    def values(self, store: StoredRows) -> Iterator[Row]:
        """Iterate over all rows, in the order of the store."""
        return (self.row_of(key, value) for key, value in store.items())

    def rows_of(self, keys: Iterable[Any], values: Iterable[Any]) -> list[Row]:
        """Return the rows of some keys and values."""
        return list(map(self.row_of, keys, values))


@dataclass(frozen=True)
class StreamingAggregationStateManagerImplV1(StreamingAggregationStateManager):
    """The value is the whole row."""

    def value_of(self, row: Row) -> Row:
        return row[0], row[1]

    def row_of(self, key: Any, value: Row) -> Row:
        return value


@dataclass(frozen=True)
class StreamingAggregationStateManagerImplV2(StreamingAggregationStateManager):
    """The value is the row without its key."""

    def value_of(self, row: Row) -> tuple[Any]:
        return (row[1],)

    def row_of(self, key: Any, value: tuple[Any]) -> Row:
        return key, value[0]

    def rows_of(self, keys: Iterable[Any], values: Iterable[Any]) -> list[Row]:
        return [(key, value[0]) for key, value in zip(keys, values, strict=True)]


_VERSIONS: dict[int, type[StreamingAggregationStateManager]] = {
    1: StreamingAggregationStateManagerImplV1,
    2: StreamingAggregationStateManagerImplV2,
}


def create_aggregation_state_manager(state_format_version: int) -> StreamingAggregationStateManager:
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
