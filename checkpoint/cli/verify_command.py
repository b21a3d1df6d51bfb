"""``verify``: check every file and every record, and report each problem with a remedy.

Every file is read to its end and compared with its name, and every record is followed to the files
it names. If there are problems, the report says whether a restart is still possible, as it is if
only a rewind needs the damaged file, or else after which batch it is.
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
from checkpoint.errors import CheckpointError, CorruptCheckpointError, Damage, UntrustedFileError
from checkpoint.log.graph_record import all_graphs
from checkpoint.log.recovery import read_plan
from checkpoint.storage.files import Files
from checkpoint.storage.trust import require_trusted


def add_verify(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "verify",
        help="check every file and every record",
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
        "problems": [_as_json(problem) for problem in findings.problems],
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
            advice = ("to repair it, while no driver is running:", command)
    status = PROBLEMS if findings.problems else SUCCEEDED
    return CommandResult(data, lines, verdict=summary, status=status, advice=advice)


def _as_json(problem: CorruptCheckpointError) -> dict[str, str]:
    fields = ("file", "found", "expected", "remedy")
    return {**{name: getattr(problem, name) for name in fields}, "damage": problem.damage.value}


def _untrusted(files: Files) -> list[str]:
    """Return a note if a restart by this user would refuse to run code of the stream."""
    with suppress(CheckpointError):
        if all_graphs(files):
            try:
                require_trusted(files)
            except UntrustedFileError as error:
                return [Note.UNTRUSTED(error=error)]
    return []


def _way_back(files: Files, refusal: CorruptCheckpointError | None, good_ms: int | None) -> str:
    if refusal is None:
        last_ms = read_plan(files).last_ms
        whole = (
            "no batch is committed"
            if last_ms is None
            else f"state and input of the last batch, at {moment(last_ms)}, are intact"
        )
        return f"a restart is possible despite this: {whole}"
    refused = f"a restart is refused: {refusal.file} {refusal.found}"
    if good_ms is None:
        return f"{refused}; it is not possible after any batch: {refusal.remedy}"
    return f"{refused}; it is possible after the batch at {moment(good_ms)}"


def _remedy(
    options: argparse.Namespace,
    findings: Verification,
    refusal: CorruptCheckpointError | None,
    good_ms: int | None,
) -> str | None:
    """Return the command that makes a restart possible, None if no command does or is needed."""
    lacks_claim = any(problem.damage is Damage.NO_CLAIM for problem in findings.problems)
    if good_ms is None or (refusal is None and not lacks_claim):
        return None
    return command_line(options, "rewind", "--to", iso(good_ms))
