"""How long the parts of a trigger take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Timer:
    """Begins with the trigger; its parts are measured one by one, and added up by name."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure what runs inside."""
        started = perf_counter()
        try:
            yield
        finally:
            self._parts[name] = self._parts.get(name, 0.0) + perf_counter() - started

    def durations_ms(self) -> dict[str, int]:
        """Return the parts, and the whole so far, in milliseconds."""
        parts = {name: round(seconds * 1000) for name, seconds in self._parts.items()}
        return {**parts, "triggerExecution": round((perf_counter() - self._started) * 1000)}
