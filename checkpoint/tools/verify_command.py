"""``verify``: every checksum and every promise, each problem with its file and a remedy.

Every file is read to its end, and has to say of itself what its name says; every record is
followed to what it names. Where something is wrong, the newest batch is named after which a restart
can begin in spite of it; that can be the last one, where only a rewind needs what is damaged.
"""

from __future__ import annotations

import argparse
import shlex

from checkpoint.commit_log import CommitLog
from checkpoint.errors import CheckpointError
from checkpoint.files import Files
from checkpoint.tools.common import (
    PROBLEMS,
    SUCCEEDED,
    CommandResult,
    Commands,
    UsageError,
    add_location,
    moment,
    open_stream_at,
)
from checkpoint.tools.rewind import plan_rewind
from checkpoint.tools.verify import verify_stream


def add_verify(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "verify", help="every checksum, every promise", description=__doc__
    )
    add_location(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> CommandResult:
    files = open_stream_at(options.url, options.stream)
    findings = verify_stream(files)
    data: dict[str, object] = {
        "url": files.url,
        "checked_files": findings.checked,
        "problems": [vars(problem) for problem in findings.problems],
        "notes": findings.notes,
    }
    count = len(findings.problems)
    summary = f"{findings.checked} files verified, {count or 'no'} problem{'s'[: count != 1]}"
    lines = [*map(str, findings.problems), *findings.notes]
    if findings.problems:
        good_ms, last_ms = newest_good(files)
        data["good_ms"] = good_ms
        lines.append(_way_back(options, good_ms, last_ms))
    lines.append(summary)
    return CommandResult(data, lines, status=PROBLEMS if findings.problems else SUCCEEDED)


def newest_good(files: Files) -> tuple[int | None, int | None]:
    """Return the newest batch after which a restart can begin, and the last one; None for none."""
    times: list[int] = []
    try:
        times = CommitLog(files).times()
        for time_ms in reversed(times):
            try:
                plan_rewind(files, time_ms)
            except (CheckpointError, UsageError, FileNotFoundError, ValueError):
                continue
            return time_ms, times[-1]
    except (CheckpointError, FileNotFoundError):
        pass  # not even the records can be listed
    return None, times[-1] if times else None


def _way_back(options: argparse.Namespace, good_ms: int | None, last_ms: int | None) -> str:
    if good_ms is None:
        return "there is no batch after which a restart can begin: restore the files from a copy"
    if good_ms == last_ms:
        return f"state and input of the last batch, at {moment(good_ms)}, are whole"
    stream = f" --stream {shlex.quote(options.stream)}" if options.stream else ""
    command = f"python -m checkpoint rewind {shlex.quote(options.url)}{stream} --to {good_ms}"
    return f"a restart can begin after the batch at {moment(good_ms)}: {command}"
