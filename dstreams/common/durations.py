"""Durations and batch times: seconds in the public API, integer milliseconds everywhere else.

Seconds are converted once, by rounding: ``int(2.01 * 1000)`` is 2009, ``round`` gives 2010.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from numbers import Real

from dstreams.errors import InvalidStreamError

_WORDS_US = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
    "month": 31 * 86_400_000_000,
    "year": 12 * 31 * 86_400_000_000,
}
_LETTERS = {
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
}
_UNITS_US = {
    **_WORDS_US,
    **{f"{word}s": us for word, us in _WORDS_US.items()},
    **{letters: _WORDS_US[word] for letters, word in _LETTERS.items()},
}
_PART = re.compile(rf"([+-]?\d+)\s*({'|'.join(_UNITS_US)})\b")
_DURATION = re.compile(rf"{_PART.pattern}(\s+{_PART.pattern})*")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def require_duration_ms(seconds: object, name: str) -> int:
    """Return a positive number of seconds, or a timedelta, in milliseconds; *name* for messages."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise InvalidStreamError(
            f"{name} must be a number of seconds, got {seconds!r} ({type(seconds).__name__})"
        )
    value = float(seconds)
    if not math.isfinite(value) or round(value * 1000) < 1:
        raise InvalidStreamError(
            f"{name} must be a positive number of seconds, at least 0.001, got {seconds!r}"
        )
    return round(value * 1000)


def require_multiple(duration_ms: int, of_ms: int, name: str, of_name: str) -> int:
    """Return *duration_ms* if it is a multiple of *of_ms*; the error names the nearest ones."""
    if duration_ms % of_ms == 0:
        return duration_ms
    below, above = duration_ms // of_ms * of_ms, -(-duration_ms // of_ms) * of_ms
    choice = f"{below} or {above} ms" if below else f"{above} ms"
    raise InvalidStreamError(
        f"{name} of {duration_ms} ms must be a multiple of {of_name} of {of_ms} ms; use {choice}"
    )


def parse_duration_ms(text: str, name: str = "duration", default_unit: str = "") -> int:
    """Return the milliseconds of a duration in words, which may be negative.

    The text has numbers and units as in Spark's configuration (``60s``, ``200ms``, ``2min``) or in
    SQL (``1 hour 30 minutes``, ``1 month -31 days``). A month is 31 days, a year 12 months. A bare
    number is in *default_unit*; without one it is refused.
    """
    words = text.strip().lower().removeprefix("interval ").strip() if isinstance(text, str) else ""
    if words.isdecimal():
        words += default_unit
    if _DURATION.fullmatch(words) is None:
        raise InvalidStreamError(
            f"{name} is {text!r}, which is not a duration; write a text of numbers and units, for "
            "example '10s' or '1 hour 30 minutes'"
        )
    total_us = sum(int(number) * _UNITS_US[unit] for number, unit in _PART.findall(words))
    if total_us % 1000:
        raise InvalidStreamError(f"{name} is {text!r}, which is not a whole number of milliseconds")
    return total_us // 1000


def batch_datetime(time_ms: int) -> datetime:
    """Return a batch time as user functions get it: naive, in the driver's local time zone."""
    return datetime.fromtimestamp(time_ms / 1000)  # noqa: DTZ006 - as pyspark.streaming passes it


def batch_name(time_ms: int, batch_id: int) -> str:
    """Return a batch for messages: its number, its time, and its local time."""
    name = f"batch {batch_id} at {time_ms} ms"
    try:
        moment = batch_datetime(time_ms).astimezone()
    except (ValueError, OverflowError, OSError):  # not a date
        return name
    precision = "milliseconds" if time_ms % 1000 else "seconds"
    shown = moment.replace(tzinfo=None).isoformat(" ", precision)
    return f"{name} ({shown} {moment.tzname()})"


def ahead_of_clock_ms(time_ms: int, now_ms: int, batch_ms: int) -> int:
    """Return how far a batch time is ahead of the clock, in whole batch durations."""
    return max(0, time_ms - now_ms - 1) // batch_ms * batch_ms


def event_time_us(moment: datetime) -> int:
    """Return a moment in microseconds since the epoch; a naive one is local time."""
    if moment.tzinfo is not None:
        return (moment - _EPOCH) // _MICROSECOND
    second = round(moment.replace(microsecond=0).timestamp())
    return second * 1_000_000 + moment.microsecond


def event_time_ms(moment: datetime) -> int:
    """Return a moment in milliseconds since the epoch, rounded down; a naive one is local time.

    Rounded to the nearest, the last half millisecond of a day would be in the next day.
    """
    return event_time_us(moment) // 1000


def ms_upto(time_us: int) -> int:
    """Return the first whole millisecond that is not before a time in microseconds."""
    return -(-time_us // 1000)


def batch_time_ms(moment: object, name: str) -> int:
    """Return a datetime (naive: local time), or seconds since the epoch, in milliseconds."""
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, Real) or not math.isfinite(moment):
        raise InvalidStreamError(
            f"{name} must be a datetime or a number of seconds, got {moment!r} "
            f"({type(moment).__name__})"
        )
    return round(float(moment) * 1000)
