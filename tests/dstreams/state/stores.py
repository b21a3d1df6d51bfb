"""A state store in memory, as simple as can be: what operators are tested on without files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class DictStore:
    """Keeps values and timeouts in dicts, and counts writes."""

    def __init__(self, rows: dict[Any, Any] | None = None) -> None:
        self.rows = dict(rows or {})
        self.timeouts: dict[Any, int] = {}
        self.writes = 0

    def get(self, key: Any) -> Any:
        return self.rows.get(key)

    def get_many(self, keys: list[Any]) -> list[Any]:
        return [self.get(key) for key in keys[:2]]

    def put_many(self, values: Mapping[Any, Any]) -> None:
        for key, value in values.items():
            self.put(key, value)

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        self.writes += 1
        self.rows[key] = value
        self.timeouts.pop(key, None)
        if timeout_ms is not None:
            self.timeouts[key] = timeout_ms

    def remove(self, key: Any) -> None:
        self.writes += 1
        self.rows.pop(key, None)
        self.timeouts.pop(key, None)

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        due = [key for key, time_ms in self.timeouts.items() if time_ms < until_ms]
        for key in sorted(due, key=self.timeouts.__getitem__):
            yield key, self.rows[key], self.timeouts[key]
