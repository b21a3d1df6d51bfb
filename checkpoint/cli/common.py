"""Helpers that the commands share: results, arguments, times, streams, sizes."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TypeAlias

from checkpoint.cli.command_parser import CommandParser
from checkpoint.cli.progress_bar import Progress, progress_on
from checkpoint.log.recovery import list_claimed, list_streams, newest_stream, stream_url
from checkpoint.state_store import LmdbBackend, StoreId, VersionId
from checkpoint.state_store.backend import RawVersion
from checkpoint.storage.files import Files
from checkpoint.storage.open_location import open_existing

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"

SUCCEEDED, FAILED, MISUSED, PROBLEMS, IN_USE, INTERRUPTED = 0, 1, 2, 3, 4, 130  # 2 is argparse's

STATUS = """\
exit status:
    0  success; verify found no problem, diff found differences or none
    1  failure: a file is damaged, missing or rejected, the storage does not
       answer, or part of the requested state cannot be shown
    2  usage error, or the requested object does not exist
    3  verify found problems, and listed them
    4  refused, because a driver of the stream may be running
  130  interrupted by Ctrl-C
"""

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
A time is ISO 8601, such as 2026-11-23T20:15:00Z; without a zone it is the local time of this
machine. A number is milliseconds since 1970.
"""
"""Text about times in help pages."""


class UsageError(Exception):
    """The requested object does not exist; the message lists the existing ones."""


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    *verdict* is the last line of text, green if the status is good; *advice* follows it, with a
    command to paste in its last line.
    """

    data: object = None
    lines: Iterable[str] | None = None
    verdict: str | None = None
    rows: Iterable[object] | None = None
    status: int = SUCCEEDED
    note: str | None = None
    advice: tuple[str, ...] = ()


def add_location(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select a stream."""
    parser.add_argument(
        "url", metavar="CHECKPOINT", help="path or URL of the checkpoint, or of one stream in it"
    )
    parser.add_argument(
        "--stream", metavar="ID", help="id of the stream; the newest one by default"
    )


def command_line(options: argparse.Namespace, *words: str) -> str:
    """Return the command *words* for the stream selected by *options*."""
    command, *rest = words
    url = os.path.abspath(options.url) if "://" not in options.url else options.url
    stream = ["--stream", options.stream] if options.stream else []
    return f"{options.program} {shlex.join([command, url, *stream, *rest])}"


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for JSON output."""
    parser.add_argument("--json", action="store_true", help="machine-readable (JSON)")


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that can take long."""
    parser.add_argument("--quiet", action="store_true", help="print only the result and errors")
    parser.add_argument(
        "--json",
        action="store_true",
        help="machine-readable (JSON), also the progress",
    )


def progress_of(options: argparse.Namespace) -> Progress:
    """Return the progress of a command with these arguments."""
    name = f"{options.program} {options.command}"
    return progress_on(sys.stderr, name, as_json=options.json, is_quiet=options.quiet)


def add_driver_gone(parser: argparse.ArgumentParser) -> None:
    """Add the option that vouches for a driver that cannot be checked from this host."""
    parser.add_argument(
        "--driver-gone",
        action="store_true",
        help="you are certain that the driver, which cannot be checked from here, has ended",
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add the option that only shows what a command would change."""
    parser.add_argument("--dry-run", action="store_true", help="show the changes, make none")


def nearest(times: Sequence[int], time_ms: int) -> str:
    """Return text with the sorted *times* nearest to a missing one."""
    if not times:
        return "no batch is"
    place = bisect(times, time_ms)
    shown = ", ".join(map(iso, times[max(place - 3, 0) : place + 2]))
    is_number = time_ms < _LEAST_TIME_MS <= times[0]
    hint = f"; {_NO_NUMBERS}" if is_number else ""
    return f"the nearest are {shown}{hint}"


_LEAST_TIME_MS = 10**10
"""A smaller number is probably not a batch time in milliseconds: this is in spring 1970."""
_NO_NUMBERS = "a number is milliseconds since 1970; batches lists the time of each batch"


@contextmanager
def opened_version(files: Files, store: StoreId, version_id: VersionId) -> Iterator[RawVersion]:
    """Build a version of a store in a temporary replica, which verifies everything it reads."""
    with ExitStack() as stack:
        local = stack.enter_context(tempfile.TemporaryDirectory(prefix="checkpoint-state-"))
        yield stack.enter_context(LmdbBackend(files, local).open_apart(store, version_id))


def open_location(url: str) -> Files:
    """Open the files at *url*, which must exist."""
    try:
        return open_existing(url)
    except FileNotFoundError as error:
        raise UsageError(f"{error}; give the location of a checkpoint") from error


def open_stream_at(url: str, stream_id: str | None) -> Files:
    """Open a stream, by default the newest one. Raises UsageError."""
    files = open_location(url)
    if stream_id is None and is_stream(files):
        return files
    streams = list_streams(files)
    if not streams:
        raise UsageError(_no_stream(url, list_claimed(files)))
    if stream_id is not None and stream_id not in streams:
        raise UsageError(f"{url} has no stream {stream_id!r}; it has {', '.join(streams)}")
    if stream_id is None:
        newest = newest_stream(reversed(streams), lambda one: open_location(stream_url(url, one)))
        if newest is not None:
            return newest[1]
    return open_location(stream_url(url, stream_id or streams[-1]))


def _no_stream(url: str, queries: Sequence[str]) -> str:
    """Return the error for a location without a stream, with the queries below it."""
    if not queries:
        return f"{url} holds no commit record and no stream; is it a checkpoint?"
    return (
        f"{url} is not a checkpoint, but contains these: {', '.join(queries)}; give "
        f"one of them, such as {stream_url(url, queries[0])}"
    )


def is_stream(files: Files) -> bool:
    """Return whether *files* belong to one stream."""
    return any(files.list(prefix) for prefix in ("epochs/", "commits/", "batches/"))


def size(size_bytes: int) -> str:
    """Return a size with its unit."""
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def time_ms(text: str) -> int:
    """Return a time in milliseconds since 1970. Raises argparse.ArgumentTypeError."""
    if _DIGITS.fullmatch(text):
        return int(text)
    found = _ISO.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a time such as 2026-11-23T20:15:00Z, or 2026-11-23T20:15:00.250, or "
            "milliseconds since 1970"
        )
    # Python 3.10 accepts only three digits of a fraction, and no Z.
    seconds, _, fraction = (found["seconds"] or ":00").replace(",", ".").partition(".")
    zone = (found["zone"] or "").upper().replace("Z", "+00:00")
    written = f"{found['date']}T{found['time'] or '00:00'}{seconds}.{fraction.ljust(3, '0')}{zone}"
    try:
        moment_then = datetime.fromisoformat(written)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: {error}") from error
    if moment_then.tzinfo is None:
        moment_then = _local(moment_then, text)
    shown_ms = (moment_then - _EPOCH) // _MILLISECOND
    if shown_ms < 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a time since 1970")
    return shown_ms


def _local(wall: datetime, text: str) -> datetime:
    """Return a local time with its offset."""
    first, second = (wall.replace(fold=fold).astimezone() for fold in (0, 1))
    if first.utcoffset() != second.utcoffset():
        raise argparse.ArgumentTypeError(
            f"{text!r} is ambiguous or skipped in local time, because the clock changes then; "
            f"write it with a zone: {first.isoformat()} or {second.isoformat()}"
        )
    return first


def iso(time_ms: int) -> str:
    """Return a time in ISO 8601 and UTC, or the number if it is out of range.

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
    """Return a time in ISO 8601 and in milliseconds, which are part of file names."""
    return "none" if time_ms is None else f"{iso(time_ms)} ({time_ms} ms)"
