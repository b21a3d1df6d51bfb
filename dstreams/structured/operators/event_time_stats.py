"""What is known of the event times of a batch, gathered by the jobs that the batch runs anyway."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class EventTimeStats:
    """Event times that one operator has seen, in milliseconds since the epoch.

    The mean is a running one, so that no sum gets large. Semantics: EventTimeStats (Spark 4.3).
    """

    max_ms: int
    min_ms: int
    avg_ms: float
    count: int

    @classmethod
    def of(cls, times_us: Iterable[int]) -> EventTimeStats | None:
        """Return the stats of some times in microseconds, None for none."""
        times = list(times_us)
        if not times:
            return None
        avg_ms = sum(times) / len(times) / 1000
        return cls(max(times) // 1000, min(times) // 1000, avg_ms, len(times))

    def merge(self, other: EventTimeStats | None) -> EventTimeStats:
        if other is None:
            return self
        count = self.count + other.count
        avg_ms = self.avg_ms + (other.avg_ms - self.avg_ms) * (other.count / count)
        return EventTimeStats(
            max(self.max_ms, other.max_ms), min(self.min_ms, other.min_ms), avg_ms, count
        )

    @classmethod
    def of_all(cls, parts: Iterable[EventTimeStats | None]) -> EventTimeStats | None:
        """Return the stats of several parts, None for none."""
        total: EventTimeStats | None = None
        for stats in parts:
            if stats is not None:
                total = stats.merge(total)
        return total
