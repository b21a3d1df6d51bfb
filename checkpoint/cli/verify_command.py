"""``verify``: every checksum and every promise, each problem with its file and a remedy.

Every file is read to its end, and has to say of itself what its name says; every record is
followed to what it names. Where something is wrong, it is said whether a restart can begin in spite
of it, as it can where only a rewind needs what is damaged; and else after which batch one could.
"""

from __future__ import annotations

import argparse
from contextlib import suppress

from checkpoint.cli.command_parser import about
from checkpoint.cli.common import (
    PROBLEMS,
    SUCCEEDED,
    CommandResult,
    Commands,
    Problem,
    add_location,
    add_progress,
    command_line,
    iso,
    moment,
    open_stream_at,
    progress_of,
)
from checkpoint.cli.rewind import newest_good
from checkpoint.cli.verify import Note, Verification, restart_problem, verify_stream
from checkpoint.errors import CheckpointError, Damage, UntrustedFileError
from checkpoint.log.graph_record import all_graphs
from checkpoint.log.recovery import read_plan
from checkpoint.storage.files import Files
from checkpoint.storage.trust import require_trusted


def add_verify(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "verify",
        help="every checksum, every promise",
        description=about(__doc__),
        examples=["/data/app", "/data/app --quiet --json"],
    )
    add_location(parser)
    add_progress(parser)
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> CommandResult:
    with progress_of(options) as progress:
        files = open_stream_at(options.url, options.stream)
        findings = verify_stream(files, progress)
        findings.notes += _untrusted(files)
        refusal = restart_problem(files) if findings.problems else None
        good = newest_good(files, progress) if findings.problems else None
        good_ms = None if good is None else good.record_id.time_ms
    data: dict[str, object] = {
        "url": files.url,
        "checked_files": findings.checked,
        "problems": [problem.as_json() for problem in findings.problems],
        "notes": findings.notes,
    }
    count = len(findings.problems)
    summary = f"{findings.checked} files verified, {count or 'no'} problem{'s'[: count != 1]}"
    lines = [f"{problem.damage.value}: {problem}" for problem in findings.problems]
    lines += findings.notes
    advice: tuple[str, ...] = ()
    if findings.problems:
        data["good_ms"] = good_ms
        data["restart_refused"] = None if refusal is None else str(refusal)
        lines.append(_way_back(files, refusal, good_ms))
        command = _remedy(options, findings, refusal, good_ms)
        data["command"] = command
        if command is not None:
            advice = ("to mend it, while no driver is at work:", command)
    status = PROBLEMS if findings.problems else SUCCEEDED
    return CommandResult(data, lines, verdict=summary, status=status, advice=advice)


def _untrusted(files: Files) -> list[str]:
    """Say why a restart by this user would run no code of a stream that is whole."""
    with suppress(CheckpointError):
        if all_graphs(files):
            try:
                require_trusted(files)
            except UntrustedFileError as error:
                return [Note.UNTRUSTED(error=error)]
    return []


def _way_back(files: Files, refusal: Problem | None, good_ms: int | None) -> str:
    if refusal is None:
        last_ms = read_plan(files).last_ms
        whole = (
            "no batch is committed"
            if last_ms is None
            else f"state and input of the last batch, at {moment(last_ms)}, are whole"
        )
        return f"a restart can begin in spite of it: {whole}"
    refused = f"a restart is refused: {refusal.file} {refusal.found}"
    if good_ms is None:
        return f"{refused}; there is no batch after which one can begin: {refusal.remedy}"
    return f"{refused}; it can begin after the batch at {moment(good_ms)}"


def _remedy(
    options: argparse.Namespace,
    findings: Verification,
    refusal: Problem | None,
    good_ms: int | None,
) -> str | None:
    """Return the command that repairs the problems, None if there is none."""
    is_claimed_anew = any(problem.damage is Damage.NO_CLAIM for problem in findings.problems)
    if good_ms is None or (refusal is None and not is_claimed_anew):
        return None
    return command_line(options, "rewind", "--to", iso(good_ms))
