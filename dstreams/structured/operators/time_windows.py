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

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

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

    A window begins at *start_ms* after the epoch, and all others a multiple of the slide from
    there.

    Semantics: ``pyspark.sql.functions.window`` (4.3).
    """

    size_ms: int
    slide_ms: int | None = None
    start_ms: int = 0

    def __post_init__(self) -> None:
        if self.size_ms <= 0:
            raise InvalidStreamError(f"window size of {self.size_ms} ms must be greater than 0 ms")
        if not 0 < self.step_ms <= self.size_ms:
            raise InvalidStreamError(
                f"window slide of {self.slide_ms} ms must be greater than 0 ms, and at most the "
                f"size of {self.size_ms} ms; a larger one would leave records out"
            )
        if abs(self.start_ms) >= self.step_ms:
            raise InvalidStreamError(
                f"window start of {self.start_ms} ms must be less than the slide of "
                f"{self.step_ms} ms; use {self.start_ms % self.step_ms} ms"
            )

    @property
    def step_ms(self) -> int:
        """How far apart windows begin."""
        return self.size_ms if self.slide_ms is None else self.slide_ms

    def ends(self, time_ms: int) -> tuple[int, ...]:
        """Return the ends of the windows that a moment is in, the latest first."""
        step_ms = self.step_ms
        latest_ms = time_ms - (time_ms - self.start_ms) % step_ms + self.size_ms
        return tuple(range(latest_ms, time_ms, -step_ms))

    def at(self, end_ms: int) -> Window:
        return Window(end_ms - self.size_ms, end_ms)


@dataclass(frozen=True)
class SessionWindows:
    """Windows that last while records come, and end a gap after the last one.

    The gap is milliseconds, or a function of a record; one of not more than 0 leaves a record out.

    Semantics: ``pyspark.sql.functions.session_window`` (4.3).
    """

    gap: int | Callable[[Any], int]

    def __post_init__(self) -> None:
        if isinstance(self.gap, int) and self.gap <= 0:
            raise InvalidStreamError(f"session gap of {self.gap} ms must be greater than 0 ms")

    def gap_ms(self, record: Any) -> int:
        return self.gap if isinstance(self.gap, int) else self.gap(record)
