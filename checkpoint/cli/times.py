"""Times as people read and write them: ISO 8601, with a zone or by the clock of this machine."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_DIGITS = re.compile(r"\d{1,15}")
_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)"
    r"(?:[T ](?P<time>\d\d:\d\d)(?P<seconds>:\d\d(?:[.,]\d{1,3})?)?"
    r"(?P<zone>Z|[+-]\d\d:\d\d)?)?",
    re.IGNORECASE,
)
TIMES = """\
A time is ISO 8601, as 2026-11-23T20:15:00Z; without a zone it is by the clock of this machine. Or
it is a number: milliseconds since 1970.
"""
"""What help pages say of times."""


def time_ms(text: str) -> int:
    """Return the time that *text* says, in milliseconds since 1970.

    Raises argparse.ArgumentTypeError.
    """
    if _DIGITS.fullmatch(text):
        return int(text)
    found = _ISO.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a time such as 2026-11-23T20:15:00Z, or 2026-11-23T20:15:00.250, or "
            "milliseconds since 1970"
        )
    # Of one form in all versions of Python: milliseconds have three digits, and Z is an offset.
    seconds, _, fraction = (found["seconds"] or ":00").replace(",", ".").partition(".")
    zone = (found["zone"] or "").upper().replace("Z", "+00:00")
    written = f"{found['date']}T{found['time'] or '00:00'}{seconds}.{fraction.ljust(3, '0')}{zone}"
    try:
        moment_then = datetime.fromisoformat(written)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: {error}") from error
    if moment_then.tzinfo is None:
        moment_then = _local(moment_then, text)
    shown_ms = (moment_then - _EPOCH) // _MILLISECOND
    if shown_ms < 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a time since 1970")
    return shown_ms


def _local(wall: datetime, text: str) -> datetime:
    """Return a time by the clock of this machine, with its offset."""
    first, second = (wall.replace(fold=fold).astimezone() for fold in (0, 1))
    if first.utcoffset() != second.utcoffset():
        raise argparse.ArgumentTypeError(
            f"{text!r} is twice or never by the clock of this machine, which is put forward or "
            f"back then; write it with a zone: {first.isoformat()} or {second.isoformat()}"
        )
    return first


def iso(time_ms: int) -> str:
    """Return a time as ISO 8601 says it, in UTC; in milliseconds where it says none.

    >>> iso(1_795_464_900_000), iso(1_795_464_900_250)
    ('2026-11-23T20:15:00Z', '2026-11-23T20:15:00.250Z')
    """
    try:
        then = _EPOCH + time_ms * _MILLISECOND
    except OverflowError:
        return str(time_ms)
    parts = "milliseconds" if time_ms % 1000 else "seconds"
    return f"{then.replace(tzinfo=None).isoformat(timespec=parts)}Z"


def moment(time_ms: int | None) -> str:
    """Return a time for people, with its milliseconds, by which files are named."""
    return "none" if time_ms is None else f"{iso(time_ms)} ({time_ms} ms)"
