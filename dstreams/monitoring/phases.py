"""How long the phases of a batch take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

TOTAL = "triggerExecution"


class PhaseTimer:
    """Measures the phases of a batch one by one, and adds them up by name.

    Args:
        before_ms: phases that were measured before, such as those of planning.
    """

    def __init__(self, before_ms: Mapping[str, int] | None = None) -> None:
        self._started = perf_counter()
        self._before_ms = dict(before_ms or {})
        self._phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what runs inside, also when it fails."""
        started = perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + perf_counter() - started

    def phases_ms(self) -> dict[str, int]:
        """Return the phases so far, in milliseconds."""
        return {
            **self._before_ms,
            **{name: round(seconds * 1000) for name, seconds in self._phases.items()},
        }

    def durations_ms(self) -> dict[str, int]:
        """Return the phases, and the whole time since the timer was made, in milliseconds."""
        whole_ms = round((perf_counter() - self._started) * 1000)
        return {**self.phases_ms(), TOTAL: whole_ms + sum(self._before_ms.values())}
