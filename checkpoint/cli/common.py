"""Shared by the tools: results of commands, arguments, times, streams, sizes."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import sys
import tempfile
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

from checkpoint.cli.command_parser import CommandParser
from checkpoint.cli.progress import Progress, progress_on
from checkpoint.errors import CorruptCheckpointError, Damage
from checkpoint.log.batch_records import CommitLog, CommitRecord
from checkpoint.log.recovery import list_claimed, list_streams, newest_stream, stream_url
from checkpoint.state_store import LmdbBackend, StoreId, VersionId
from checkpoint.state_store.backend import RawVersion
from checkpoint.storage.files import Files
from checkpoint.storage.open_location import open_existing

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"

SUCCEEDED, FAILED, MISUSED, PROBLEMS, IN_USE, INTERRUPTED = 0, 1, 2, 3, 4, 130  # 2 is argparse's

STATUS = """\
exit status:
    0  done; verify has found nothing wrong, diff no difference or some
    1  it failed: a file is damaged, missing or refused, or the storage does not
       answer; or something of the state that was asked for cannot be shown
    2  usage error, or the requested object does not exist
    3  verify has found problems, and has named them
    4  refused, because a driver may be at work on the stream
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
A time is ISO 8601, as 2026-11-23T20:15:00Z; without a zone it is by the clock of this machine. Or
it is a number: milliseconds since 1970.
"""
"""Text about times in help pages."""

_COLUMNS, _LINES = 80, 24
_CUT = "..."


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


@dataclass(frozen=True)
class Problem:
    """A problem with a file.

    Args:
        file: where it is.
        found: what is wrong.
        expected: what should be there.
        remedy: what to do.
        damage: what is wrong, by the heading of the runbook that has it.
    """

    file: str
    found: str
    expected: str
    remedy: str
    damage: Damage

    def as_json(self) -> dict[str, str]:
        """Return the problem as a JSON object."""
        return {**vars(self), "damage": self.damage.value}

    @classmethod
    def of(cls, error: CorruptCheckpointError) -> Problem:
        """Return the problem that an error describes."""
        return cls(error.file, error.found, error.expected, error.remedy, error.damage)

    def error(self) -> CorruptCheckpointError:
        """Return the error that describes this problem."""
        return CorruptCheckpointError(
            self.file, self.found, self.expected, self.remedy, self.damage
        )

    def __str__(self) -> str:
        return str(self.error())


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


def add_operator(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select an operator and a part of its state."""
    parser.add_argument(
        "--operator", metavar="UID", help="uid of the operator, where there are several"
    )
    parser.add_argument(
        "--store", metavar="NAME", help="name of the store, where there are several"
    )
    parser.add_argument("--partition", type=int, metavar="N", help="one partition only")


def add_time(parser: argparse.ArgumentParser, name: str, text: str, **arguments: Any) -> None:
    """Add an argument that takes the time of a batch."""
    parser.add_argument(name, type=time_ms, metavar="TIME", help=text, **arguments)


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
    """Add the argument of a command that refuses while a driver may be at work."""
    parser.add_argument(
        "--driver-gone",
        action="store_true",
        help="the driver that cannot be seen from here is gone, for certain",
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that changes something."""
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and stop")


def record_at(log: CommitLog, time_ms: int | None) -> CommitRecord:
    """Read the record of a batch that counts; None for the newest."""
    times = log.times()
    if not times:
        raise UsageError(f"{log.files.url} has no committed batch; is it a checkpoint?")
    if time_ms is not None and time_ms not in times:
        raise UsageError(f"no batch at {moment(time_ms)} is committed; {nearest(times, time_ms)}")
    return log.read(times[-1] if time_ms is None else time_ms)


def nearest(times: Sequence[int], time_ms: int) -> str:
    """Return text with the sorted *times* nearest to a missing one."""
    if not times:
        return "there are none"
    place = bisect(times, time_ms)
    shown = ", ".join(map(iso, times[max(place - 3, 0) : place + 2]))
    is_number = time_ms < _LEAST_TIME_MS <= times[0]
    hint = f"; {_NO_NUMBERS}" if is_number else ""
    return f"near it are {shown}{hint}"


_LEAST_TIME_MS = 10**10
"""A smaller number is probably not a batch time in milliseconds: this is in spring 1970."""
_NO_NUMBERS = "a number is milliseconds since 1970; batches lists the time of each batch"


@contextmanager
def opened_version(files: Files, store: StoreId, version_id: VersionId) -> Iterator[RawVersion]:
    """Build a version of a store in a replica of its own, which verifies all that it reads."""
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
    """Open the stream that is meant. Raises UsageError."""
    files = open_location(url)
    if stream_id is None and is_stream(files):
        return files
    streams = list_streams(files)
    if not streams:
        raise UsageError(_no_stream(url, list_claimed(files)))
    known = {stream.stream_id: stream for stream in streams}
    if stream_id is not None and stream_id not in known:
        raise UsageError(f"{url} has no stream {stream_id!r}; it has {', '.join(known)}")
    ids = [stream.stream_id for stream in reversed(streams)]
    if stream_id is None:
        newest = newest_stream(ids, lambda one: open_location(stream_url(url, one)))
        if newest is not None:
            return newest[1]
    return open_location(stream_url(url, stream_id or ids[0]))


def _no_stream(url: str, queries: Sequence[str]) -> str:
    """Return the error for a location without a stream, with the queries below it."""
    if not queries:
        return f"{url} holds no commit record and no stream; is it a checkpoint?"
    return (
        f"{url} is no checkpoint, but has those of queries below it: {', '.join(queries)}; give "
        f"one of them, such as {stream_url(url, queries[0])}"
    )


def is_stream(files: Files) -> bool:
    """Return whether *files* are those of one stream."""
    return any(files.list(prefix) for prefix in ("epochs/", "commits/", "batches/"))


def literal(text: str) -> Any:
    """Return the Python literal that *text* is, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def size(size_bytes: int) -> str:
    """Show a size, for people."""
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


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


@dataclass(frozen=True)
class Section:
    """Lines that belong together, and what they are."""

    what: str
    lines: Sequence[str]


def on_screen(sections: Sequence[Section]) -> Iterator[str]:
    """Yield the lines of all *sections*, cut so that they fit the screen above the next prompt.

    The longest ones lose the most, and say how many lines are not shown.
    """
    columns, lines = shutil.get_terminal_size((_COLUMNS, _LINES))
    shares = [len(section.lines) for section in sections]
    while sum(shares) > max(lines, _LINES) - 1 and max(shares) > 2:
        longest = max(shares)
        # The last of those that are as long: what stands first is looked for first.
        shares[len(shares) - 1 - shares[::-1].index(longest)] -= 1
    for section, share in zip(sections, shares, strict=True):
        if share == len(section.lines):
            shown = section.lines
        else:
            left = len(section.lines) - share + 1
            shown = [*section.lines[: share - 1], f"{left} more {section.what}; --all shows them"]
        yield from (_cut(line, max(columns, _COLUMNS)) for line in shown)


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else f"{line[: columns - len(_CUT)]}{_CUT}"
