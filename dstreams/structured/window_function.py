"""Windows of event time, as keys of groups.

>>> from dstreams.structured.window_function import window
>>> window("timestamp", "10 seconds", "5 seconds")
window(timestamp, 10000 ms, 5000 ms)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from dstreams.common.settings import Kind, duration
from dstreams.errors import InvalidStreamError
from dstreams.spark.selectors import Spec, show

_LENGTH, _LENGTH_OR_ZERO = duration(), duration(least_ms=0)


@dataclass(frozen=True)
class TimeWindow:
    """Windows of one size, which begin every *slide_ms*; one begins *start_ms* after the epoch."""

    spec: Spec
    size_ms: int
    slide_ms: int
    start_ms: int = 0

    def __repr__(self) -> str:
        start = f", {self.start_ms} ms" if self.start_ms else ""
        return f"window({show(self.spec)}, {self.size_ms} ms, {self.slide_ms} ms{start})"


Gap = str | timedelta | None
"""A gap of a session: an interval such as ``"5 minutes"``, or a timedelta."""


@dataclass(frozen=True)
class RecordGap:
    """The gap of each record, in microseconds."""

    gap: Callable[[Any], Gap]

    def __repr__(self) -> str:
        return show(self.gap)

    def __call__(self, record: Any) -> int:
        """Return the gap after a record; zero or less if it is in no session."""
        gap = self.gap(record)
        if isinstance(gap, timedelta):
            return gap // timedelta(microseconds=1)
        return 0 if gap is None else _gap_us(gap)


@lru_cache(1024)
def _gap_us(text: str) -> int:
    if isinstance(text, str) and text.lstrip().startswith("-"):
        return 0
    return 1000 * _length_ms(text, "gapDuration", "session_window", _LENGTH_OR_ZERO)


@dataclass(frozen=True)
class SessionWindow:
    """Windows around the records of a key that are no further apart than a gap.

    The gap is in microseconds, or a function from a record to them.
    """

    spec: Spec
    gap_us: int | RecordGap

    def __repr__(self) -> str:
        gap_us = self.gap_us
        gap = f"{gap_us // 1000} ms" if isinstance(gap_us, int) else repr(gap_us)
        return f"session_window({show(self.spec)}, {gap})"


def window(
    eventTime: Spec, size: str, slide: str | None = None, startTime: str | None = None
) -> TimeWindow:
    """Return time windows, as a key for ``groupByKey``.

    Semantics: pyspark.sql.functions.window. Records without an event time are in no window.

    Args:
        eventTime: name of a field (the key of a dict), or a function of a record; a datetime or
            milliseconds since the epoch. The watermark ends the windows only if ``withWatermark``
            has the same field or function.
        size: interval, such as ``"10 minutes"``.
        slide: interval, at most *size*; None for *size*, so that windows do not overlap.
        startTime: interval after 1970-01-01 00:00 UTC, or before it with a leading ``-``, at which
            a window begins; shorter than *slide*. None or ``"0 seconds"`` for no offset. Hourly
            windows that begin a quarter past have ``"15 minutes"``.

    Raises:
        InvalidStreamError: an interval cannot be parsed, or is not a valid length of a window.
    """
    size_ms = _length_ms(size, "size", "window")
    slide_ms = size_ms if slide is None else _length_ms(slide, "slide", "window")
    if slide_ms > size_ms:
        raise InvalidStreamError(
            f"slide of window must be at most its size of {size_ms} ms, got {slide_ms} ms: records "
            "between two windows would be lost; use a shorter slide"
        )
    return TimeWindow(eventTime, size_ms, slide_ms, _start_ms(startTime, slide_ms))


def _start_ms(text: str | None, slide_ms: int) -> int:
    """Return an offset of windows, from 0 to before *slide_ms*."""
    if text is None:
        return 0
    is_before = isinstance(text, str) and text.lstrip().startswith("-")
    length = text.replace("-", "", 1) if is_before else text
    length_ms = _length_ms(length, "startTime", "window", _LENGTH_OR_ZERO)
    if length_ms >= slide_ms:
        raise InvalidStreamError(
            f"startTime of window must be shorter than its slide of {slide_ms} ms, got {text!r}"
        )
    return -length_ms % slide_ms if is_before else length_ms


def session_window(eventTime: Spec, gapDuration: str | Callable[[Any], Gap]) -> SessionWindow:
    """Return session windows, as a key for ``groupByKey`` with at least one other key.

    Sessions are computed in microseconds; windows in results are extended to whole milliseconds.

    Semantics: pyspark.sql.functions.session_window.

    Args:
        eventTime: as of :func:`window`.
        gapDuration: interval, such as ``"5 minutes"``; or a function from a record to an interval
            or a timedelta. A record whose gap is None, or not positive, is in no session.

    Raises:
        InvalidStreamError: the interval cannot be parsed, or is not positive.
    """
    if callable(gapDuration):
        return SessionWindow(eventTime, RecordGap(gapDuration))
    gap_ms = _length_ms(gapDuration, "gapDuration", "session_window")
    return SessionWindow(eventTime, 1000 * gap_ms)


def time_spec(key: Spec | TimeWindow | SessionWindow) -> Spec:
    """Return the event time of a window; return other keys unchanged."""
    return key.spec if isinstance(key, (TimeWindow, SessionWindow)) else key


def _length_ms(text: str, name: str, where: str, kind: Kind = _LENGTH) -> int:
    length_ms: int = kind.read(text, f"{name} of {where}")
    if "month" in text.lower() or "year" in text.lower():
        raise InvalidStreamError(
            f"{name} of {where} must not be in months or years, which differ in length, got "
            f"{text!r}; use days"
        )
    return length_ms
