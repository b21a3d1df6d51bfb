"""Windows of event time to group by.

>>> from dstreams.structured.window_function import window
>>> window("timestamp", "10 seconds", "5 seconds")
window(timestamp, 10000 ms, 5000 ms)
"""

from __future__ import annotations

from dataclasses import dataclass

from dstreams.common.configuration import duration
from dstreams.errors import InvalidStreamError
from dstreams.spark.selectors import Spec, show

_LENGTH = duration()


@dataclass(frozen=True)
class TimeWindow:
    """Windows of one size, one beginning every *slide_ms* since the epoch."""

    spec: Spec
    size_ms: int
    slide_ms: int

    def __repr__(self) -> str:
        return f"window({show(self.spec)}, {self.size_ms} ms, {self.slide_ms} ms)"


@dataclass(frozen=True)
class SessionWindow:
    """A window for each run of records of a key that are no further apart than a gap."""

    spec: Spec
    gap_ms: int

    def __repr__(self) -> str:
        return f"session_window({show(self.spec)}, {self.gap_ms} ms)"


def window(eventTime: Spec, size: str, slide: str | None = None) -> TimeWindow:
    """Return windows to group by.

    Semantics: pyspark.sql.functions.window. Records without an event time are in no window.

    Args:
        eventTime: name of a field (the key of a dict), or a function of a record; a datetime or
            milliseconds since the epoch. The watermark ends the windows only if ``withWatermark``
            has the same field or function.
        size: interval, such as ``"10 minutes"``.
        slide: interval, at most *size*; None for *size*, windows that do not overlap.

    Raises:
        InvalidStreamError: an interval cannot be parsed, or is not the length of a window.
    """
    size_ms = _length_ms(size, "size", "window")
    slide_ms = size_ms if slide is None else _length_ms(slide, "slide", "window")
    if slide_ms > size_ms:
        raise InvalidStreamError(
            f"slide of window is {slide_ms} ms, more than its size of {size_ms} ms: records "
            "between two windows would be lost; use a slide of at most the size"
        )
    return TimeWindow(eventTime, size_ms, slide_ms)


def session_window(eventTime: Spec, gapDuration: str) -> SessionWindow:
    """Return session windows to group by, together with at least one other key.

    A session goes by microseconds; its window in a result begins and ends at whole milliseconds,
    and all of the session is in it.

    Semantics: pyspark.sql.functions.session_window.

    Args:
        eventTime: as of :func:`window`.
        gapDuration: interval, such as ``"5 minutes"``.

    Raises:
        InvalidStreamError: the interval cannot be read, or is not positive.
    """
    return SessionWindow(eventTime, _length_ms(gapDuration, "gapDuration", "session_window"))


def time_spec(key: Spec | TimeWindow | SessionWindow) -> Spec:
    """Return the event time of a window, or another key itself."""
    return key.spec if isinstance(key, (TimeWindow, SessionWindow)) else key


def _length_ms(text: str, name: str, where: str) -> int:
    length_ms: int = _LENGTH.read(text, f"{name} of {where}")
    if "month" in text.lower() or "year" in text.lower():
        raise InvalidStreamError(
            f"{name} of {where} must not be in months or years, which differ in length, got "
            f"{text!r}; use days"
        )
    return length_ms
