"""Windows of event time: which of them a moment belongs to.

>>> from dstreams.structured.operators.time_windows import TimeWindows
>>> TimeWindows(10_000).ends(12_000)
(20000,)
>>> [window.start_ms for window in map(TimeWindows(10_000, 5_000).at, (15_000, 20_000))]
[5000, 10000]

::

    size 10 s, slide 5 s:      event at 12 s
                                    |
    [ 5 s ------------------- 15 s )|         in
              [ 10 s ---------------+-- 20 s )    in
                        [ 15 s ------------------- 25 s )   not
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from dstreams.errors import InvalidStreamError


class Window(NamedTuple):
    """A span of event time, its end excluded.

    Args:
        start_ms: milliseconds since the epoch.
        end_ms: milliseconds since the epoch.
    """

    start_ms: int
    end_ms: int

    @property
    def start(self) -> datetime:
        """When it begins, in UTC."""
        return datetime.fromtimestamp(self.start_ms / 1000, timezone.utc)

    @property
    def end(self) -> datetime:
        """When it ends, in UTC."""
        return datetime.fromtimestamp(self.end_ms / 1000, timezone.utc)


@dataclass(frozen=True)
class TimeWindows:
    """Windows of one size, each a slide after the one before.

    Semantics: ``pyspark.sql.functions.window`` (4.3).
    """

    size_ms: int
    slide_ms: int | None = None

    def __post_init__(self) -> None:
        if self.size_ms <= 0:
            raise InvalidStreamError(f"window size of {self.size_ms} ms must be greater than 0 ms")
        if not 0 < self.step_ms <= self.size_ms:
            raise InvalidStreamError(
                f"window slide of {self.slide_ms} ms must be greater than 0 ms, and at most the "
                f"size of {self.size_ms} ms; a larger one would leave records out"
            )

    @property
    def step_ms(self) -> int:
        """How far apart windows begin."""
        return self.size_ms if self.slide_ms is None else self.slide_ms

    def ends(self, time_ms: int) -> tuple[int, ...]:
        """Return the ends of the windows that a moment is in, the latest first."""
        step_ms = self.step_ms
        latest_ms = time_ms - time_ms % step_ms + self.size_ms
        return tuple(range(latest_ms, time_ms, -step_ms))

    def at(self, end_ms: int) -> Window:
        return Window(end_ms - self.size_ms, end_ms)
