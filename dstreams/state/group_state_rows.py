"""How the state and the timer of a group are put into one row of a state store.

Semantics: FlatMapGroupsWithStateExecHelper (Spark 4.3), format version 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dstreams.state.group_state import NO_TIMESTAMP


class Rows(Protocol):
    """What a call asks of a state store for its key."""

    def get(self, key: Any) -> Any: ...

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None: ...

    def remove(self, key: Any) -> None:
        """Remove *key*; that there is none is fine."""
        ...


class KeyedStore(Rows, Protocol):
    """What an operator asks of a state store that is open for one partition and batch."""

    def get_many(self, keys: list[Any]) -> list[Any]:
        """Return the values of the first of *keys*, as far as they are not too large together."""
        ...

    def put_many(self, values: Mapping[Any, Any]) -> None:
        """Set the values of many keys, none of which is ever due."""
        ...

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Iterate over (key, value, when it is due) of what is due before *until_ms*, each key
        once.

        What is put or removed meanwhile does not disturb it.
        """
        ...


class StateData(NamedTuple):
    """What the store has for a key; *timeout_ms* is :data:`NO_TIMESTAMP` without a timer."""

    key: Any
    state: Any
    timeout_ms: int


@dataclass(frozen=True)
class GroupStateManager:
    """Reads and writes rows ``(state or None, timer)``, without timeouts ``(state,)``."""

    has_timeouts: bool

    def get_state(self, store: Rows, key: Any) -> StateData:
        return self.data_of(key, store.get(key))

    def data_of(self, key: Any, row: Any) -> StateData:
        if row is None:
            return StateData(key, None, NO_TIMESTAMP)
        return StateData(key, row[0], row[1] if self.has_timeouts else NO_TIMESTAMP)

    def put_state(self, store: Rows, key: Any, state: Any, timeout_ms: int) -> None:
        if not self.has_timeouts:
            store.put(key, (state,))
        else:
            due_ms = None if timeout_ms == NO_TIMESTAMP else timeout_ms
            store.put(key, (state, timeout_ms), due_ms)

    def remove_state(self, store: Rows, key: Any) -> None:
        store.remove(key)

    def due_states(self, store: KeyedStore, threshold_ms: int) -> Iterator[StateData]:
        """Iterate over what is due: the timer is before *threshold_ms*, not equal to it."""
        for key, row, _ in store.due(threshold_ms):
            data = self.data_of(key, row)
            if data.timeout_ms != NO_TIMESTAMP and data.timeout_ms < threshold_ms:
                yield data
