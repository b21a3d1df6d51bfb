"""``batches``: the batches that a stream can be rewound to, the newest first.

Each has what it read, which states it wrote as a snapshot, and whether it is sound: a restart can
begin after it, for which all is read that this restart would read. Batches that were taken back are
listed as well; a rewind makes them count again.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from checkpoint.cli.command_parser import about
from checkpoint.cli.common import (
    CommandResult,
    Commands,
    UsageError,
    add_location,
    add_progress,
    open_stream_at,
    progress_of,
)
from checkpoint.cli.rewind import plan_rewind
from checkpoint.cli.times import iso
from checkpoint.errors import CheckpointError
from checkpoint.log.batch_records import BatchLog, CommitLog, CommitRecord
from checkpoint.log.fencing import EPOCH_PREFIX, TAKEOVER, epochs_with
from checkpoint.log.inputs import INPUT_END, INPUT_FILES, INPUT_START
from checkpoint.log.lineage import Lineage, lineage_from
from checkpoint.log.record_files import RecordId
from checkpoint.storage.files import Files

_SHOWN = 18  # with head and foot on a screen of 24 lines
_ROW = "{:24}  {:>7}  {:>5}  {:>15}  {:14}  {:5}"
_RECORDS = "records"


@dataclass(frozen=True)
class Batch:
    """A batch that can be asked for."""

    record_id: RecordId
    lineage: Lineage
    counts: bool


def add_batches(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "batches",
        help="which batches can be rewound to",
        description=about(__doc__),
        examples=["/data/app", "/data/app --all --no-verify"],
    )
    add_location(parser)
    parser.add_argument(
        "--all", action="store_true", help=f"all batches, not the newest {_SHOWN} of them"
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not find out which ones are sound"
    )
    add_progress(parser)
    parser.set_defaults(run=_batches)


def _batches(options: argparse.Namespace) -> CommandResult:
    files = open_stream_at(options.url, options.stream)
    found = batches_of(files)
    listed = found if options.all else found[:_SHOWN]
    with progress_of(options) as progress:
        stage = "reading batches" if options.no_verify else "verifying batches"
        facts = [
            _facts(files, batch, verifies=not options.no_verify)
            for batch in progress.over(listed, stage)
        ]
    data = {"url": files.url, "batches": facts, "more": len(found) - len(listed)}
    return CommandResult(data, _lines(facts, len(found) - len(listed)))


def batches_of(files: Files) -> list[Batch]:
    """Return the batches that a rewind would find, one for each batch time, the newest first."""
    there = epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)
    commit_ids = CommitLog(files).all_ids()
    found: dict[int, Batch] = {}
    for epoch in reversed(there):
        with suppress(CheckpointError, FileNotFoundError):  # of which verify tells
            lineage = lineage_from(files, epoch, there)
            for record_id in lineage.commits(commit_ids):
                batch = Batch(record_id, lineage, counts=epoch == there[-1])
                found.setdefault(record_id.time_ms, batch)
    return [batch for _, batch in sorted(found.items(), reverse=True)]


def _facts(files: Files, batch: Batch, *, verifies: bool) -> dict[str, object]:
    time_ms = batch.record_id.time_ms
    facts: dict[str, object] = {
        "time_ms": time_ms,
        "epoch": batch.record_id.epoch,
        "counts": batch.counts,
    }
    inputs: Mapping[str, object] = {}
    record: CommitRecord | None = None
    problem = None
    try:
        if verifies:
            plan_rewind(files, time_ms)
        record = CommitLog(files).read_record(batch.record_id)
    except (CheckpointError, UsageError, FileNotFoundError, ValueError) as error:
        problem = str(error)
    with suppress(CheckpointError, FileNotFoundError):
        log = BatchLog(files)
        begun = batch.lineage.begins(log.all_ids()).get(time_ms)
        inputs = {} if begun is None else log.read_record(begun).inputs
    if record is None:
        with suppress(CheckpointError, FileNotFoundError):
            record = CommitLog(files).read_record(batch.record_id)
    if record is not None:
        facts |= {
            "batch_id": record.batch_id,
            "snapshots": sorted(record.snapshots),
            "stores": sorted({commit.operator_uid for commit in record.stores}),
            "failed_outputs": list(record.failed_outputs),
        }
    sound = False if problem else True if verifies else None
    return {**facts, "inputs": dict(inputs), "sound": sound, "problem": problem}


def _lines(facts: Collection[Mapping[str, object]], more: int) -> Iterator[str]:
    if not facts:
        yield "no batch can be rewound to: none is committed"
        return
    yield _ROW.format("batch time", "batch", "epoch", "read", "snapshot", "sound").rstrip()
    for one in facts:
        yield _row(one).rstrip()
    problems = dict.fromkeys(str(one["problem"]) for one in facts if one["problem"])
    for problem in islice(problems, 3):
        yield f"not sound: {problem}"
    if len(problems) > 3:
        yield f"and {len(problems) - 3} more reasons; --json has them all"
    if any(not one["counts"] for one in facts):
        yield "(epoch): taken back, and does not count; a rewind makes it count again"
    if more:
        yield f"{more} older batches; --all lists them"


def _row(one: Mapping[str, object]) -> str:
    snapshots, stores = one.get("snapshots"), one.get("stores")
    shown = ", ".join(map(str, snapshots)) if isinstance(snapshots, list) else "?"
    shown = shown or ("in stores" if stores else "-")
    sound = "?" if one["sound"] is None else "yes" if one["sound"] else "no"
    inputs = one["inputs"]
    return _ROW.format(
        iso(int(str(one["time_ms"]))),
        str(one.get("batch_id", "?")),
        str(one["epoch"]) if one["counts"] else f"({one['epoch']})",
        _amount(inputs if isinstance(inputs, dict) else {}),
        shown if len(shown) <= 14 else f"{shown[:11]}...",
        sound,
    )


def _amount(inputs: Mapping[str, object]) -> str:
    """Say how much a batch read, as far as its inputs tell."""
    amounts: dict[str, int] = {}
    for said in inputs.values():
        found = _amount_of(said) if isinstance(said, Mapping) else None
        if found is None:
            return "?"
        amounts[found[1]] = amounts.get(found[1], 0) + found[0]
    return " + ".join(f"{count} {unit}" for unit, count in amounts.items()) or "-"


def _amount_of(said: Mapping[str, object]) -> tuple[int, str] | None:
    records, files = said.get(_RECORDS), said.get(INPUT_FILES)
    if isinstance(records, int):
        return records, _RECORDS
    if isinstance(files, list):
        return len(files), "files"
    end = said.get(INPUT_END)
    offsets = _between(said.get(INPUT_START, end), end)
    return None if offsets is None else (offsets, "offsets")


def _between(start: object, end: object) -> int | None:
    """Return how many offsets lie between two, which may be numbers by topic and partition."""
    if isinstance(start, int) and isinstance(end, int):
        return end - start
    if isinstance(start, Mapping) and isinstance(end, Mapping):
        parts = [_between(start.get(name, 0), part) for name, part in end.items()]
        return None if None in parts else sum(filter(None, parts))
    return 0 if start is None and end is None else None
