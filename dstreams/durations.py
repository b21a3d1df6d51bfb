"""Durations: seconds at the public edge, integer milliseconds everywhere below it.

Seconds are converted by rounding, once: ``int(2.01 * 1000)`` is 2009, ``round`` gives 2010.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from numbers import Real

from dstreams.errors import InvalidStreamError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)

_INTERVAL_US = {
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
_INTERVAL_PART = re.compile(rf"([+-]?\d+)\s*({'|'.join(_INTERVAL_US)})s?")
_INTERVAL = re.compile(rf"{_INTERVAL_PART.pattern}(\s+{_INTERVAL_PART.pattern})*")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def require_duration_ms(seconds: object, name: str) -> int:
    """Convert the duration parameter *name* from seconds to milliseconds.

    Args:
        seconds: a positive, finite number of seconds, or a :class:`datetime.timedelta`.
        name: the parameter as the caller wrote it, for the message.

    Raises:
        InvalidStreamError: not a number, not positive, not finite, or less than 1 ms.
    """
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
    """Return *duration_ms* if it is a multiple of *of_ms*, else say which values would do.

    Raises:
        InvalidStreamError: it is not a multiple.
    """
    if duration_ms % of_ms == 0:
        return duration_ms
    below, above = duration_ms // of_ms * of_ms, -(-duration_ms // of_ms) * of_ms
    choice = f"{below} or {above} ms" if below else f"{above} ms"
    raise InvalidStreamError(
        f"{name} of {duration_ms} ms must be a multiple of {of_name} of {of_ms} ms; use {choice}"
    )


def parse_duration_ms(text: str, name: str, default_unit: str = "ms") -> int:
    """Parse a duration as Spark's configuration writes it: ``60s``, ``200ms``, ``2min``, ``500``.

    Args:
        text: digits and an optional unit.
        name: the configuration key, for the message.
        default_unit: unit of a bare number.

    Raises:
        InvalidStreamError: the text is no duration.
    """
    match = _TEXT.fullmatch(text)
    unit = (match.group(2).lower() or default_unit) if match else ""
    if match is None or unit not in _UNITS_MS:
        raise InvalidStreamError(
            f"{name} is {text!r}, which is no duration; write digits and one of "
            f"{', '.join(_UNITS_MS)}, for example '10s'"
        )
    return int(match.group(1)) * _UNITS_MS[unit]


def parse_interval_ms(text: str, name: str = "") -> int:
    """Return the milliseconds of an interval as SQL writes it, which may be negative.

    Args:
        text: numbers and units, such as ``"1 hour 30 minutes"`` or ``"1 month -31 days"``. A month
            is 31 days, a year 12 months.
        name: the parameter, for the message.

    Raises:
        InvalidStreamError: the text is no interval, or not of whole milliseconds.
    """
    what = f"{name} {text!r}".lstrip()
    words = text.strip().lower().removeprefix("interval ").strip() if isinstance(text, str) else ""
    if _INTERVAL.fullmatch(words) is None:
        raise InvalidStreamError(
            f"{what} is no interval; write a text of numbers and units, for example "
            "'1 hour 30 minutes'"
        )
    total_us = 0
    for number, unit in _INTERVAL_PART.findall(words):
        total_us += int(number) * _INTERVAL_US[unit.removesuffix("s")]
    if total_us % 1000:
        raise InvalidStreamError(f"the interval {what} is not one of whole milliseconds")
    return total_us // 1000


def batch_datetime(time_ms: int) -> datetime:
    """Return a batch time as user functions get it: naive, in the driver's local time zone.

    Args:
        time_ms: batch time in milliseconds since the epoch.
    """
    return datetime.fromtimestamp(time_ms / 1000)  # noqa: DTZ006 - as pyspark.streaming passes it


def ahead_of_clock_ms(time_ms: int, now_ms: int, batch_ms: int) -> int:
    """Return how far a batch time is ahead of the clock, in whole batch durations.

    It is where the clock was set back, or where batches have run before their time; the next batch
    that is due is not.

    Args:
        time_ms: the batch time.
        now_ms: what the clock shows.
        batch_ms: batch duration in milliseconds.
    """
    return max(0, time_ms - now_ms - 1) // batch_ms * batch_ms


def event_time_us(moment: datetime) -> int:
    """Return a moment in microseconds since the epoch.

    Args:
        moment: naive: local time.
    """
    if moment.tzinfo is not None:
        return (moment - _EPOCH) // _MICROSECOND
    second = round(moment.replace(microsecond=0).timestamp())
    return second * 1_000_000 + moment.microsecond


def event_time_ms(moment: datetime) -> int:
    """Return the millisecond since the epoch that a moment is in: what is shorter is cut off.

    Rounded, the last half of a millisecond of a day would be in the next day.

    Args:
        moment: naive: local time.
    """
    return event_time_us(moment) // 1000


def ms_upto(time_us: int) -> int:
    """Return the first whole millisecond that is not before a time in microseconds."""
    return -(-time_us // 1000)


def batch_time_ms(moment: object, name: str) -> int:
    """Return the batch time that *moment* stands for, in milliseconds since the epoch.

    Args:
        moment: a datetime (naive: local time) or a number of seconds since the epoch.
        name: the parameter as the caller wrote it, for the message.

    Raises:
        InvalidStreamError: it is neither.
    """
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, Real) or not math.isfinite(moment):
        raise InvalidStreamError(
            f"{name} must be a datetime or a number of seconds, got {moment!r} "
            f"({type(moment).__name__})"
        )
    return round(float(moment) * 1000)
