"""State stores in memory, and an encoder of states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dstreams.state.state_manager import DictStateStore


class CountingStore(DictStateStore):
    """Counts writes."""

    def __init__(self, rows: dict[Any, Any] | None = None) -> None:
        super().__init__(rows)
        self.writes = 0

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        self.writes += 1
        super().put(key, value, timeout_ms)

    def remove(self, key: Any) -> None:
        self.writes += 1
        super().remove(key)


class DictStore(CountingStore):
    """Has an index of timers, as stores with files do, and reads few rows at once."""

    def __init__(self, rows: dict[Any, Any] | None = None) -> None:
        super().__init__(rows)
        self.timeouts: dict[Any, int] = {}

    def get_many(self, keys: list[Any]) -> list[Any]:
        return super().get_many(keys[:2])

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        super().put(key, value, timeout_ms)
        self.timeouts.pop(key, None)
        if timeout_ms is not None:
            self.timeouts[key] = timeout_ms

    def remove(self, key: Any) -> None:
        super().remove(key)
        self.timeouts.pop(key, None)

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        due = [key for key, time_ms in self.timeouts.items() if time_ms < until_ms]
        for key in sorted(due, key=self.timeouts.__getitem__):
            yield key, self.rows[key], self.timeouts[key]


@dataclass(frozen=True)
class FieldsEncoder:
    """A state encoder with a column for each field of a tuple or named tuple."""

    kind: type

    def columns(self, state: Any) -> tuple[Any, ...]:
        return tuple(state)

    def state(self, columns: tuple[Any, ...]) -> Any:
        return columns if self.kind is tuple else self.kind(*columns)
