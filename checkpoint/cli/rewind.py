"""``rewind``: return a stream to an earlier batch, or undo that.

Nothing is deleted. A new epoch begins, which builds on that batch. Later commits become void, and
the batches after it that were begun run again with the same input. As long as the files of later
batches exist, another rewind can make them count again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from checkpoint.cli.command_parser import about
from checkpoint.cli.common import (
    TIMES,
    CommandResult,
    Commands,
    UsageError,
    add_driver_gone,
    add_dry_run,
    add_location,
    add_progress,
    command_line,
    iso,
    moment,
    nearest,
    open_stream_at,
    progress_of,
)
from checkpoint.cli.common import time_ms as read_time
from checkpoint.cli.progress_bar import SILENT, Progress
from checkpoint.cli.verify import Verification, verify_restart
from checkpoint.errors import CheckpointError, CorruptCheckpointError
from checkpoint.log.batch_records import BatchLog, CommitLog, CommitRecord
from checkpoint.log.fencing import (
    EPOCH_PREFIX,
    TAKEOVER,
    DriverProcess,
    Takeover,
    claim_epoch,
    epochs_with,
    next_epoch,
    require_unused,
)
from checkpoint.log.graph_record import read_graph_in
from checkpoint.log.input_offsets import blocks_of
from checkpoint.log.lineage import Lineage, lineage_from, read_lineage, write_takeover
from checkpoint.log.record_files import RecordId
from checkpoint.log.recovery import RecoveryPlan, plan_recovery, read_log
from checkpoint.storage.files import Files

NEWEST_GOOD = "newest-good"
"""Used instead of a time: the newest batch after which a restart is possible."""


@dataclass(frozen=True)
class Target:
    """The destination of a rewind."""

    stream_id: str
    record_id: RecordId
    lineage: Lineage
    begins: tuple[RecordId, ...]

    def takeover(self, epoch: int) -> Takeover:
        """Return the takeover record of the rewind."""
        parent, upto_ms = self.lineage.head, self.record_id.time_ms
        return Takeover(self.stream_id, epoch, parent, upto_ms, self.begins, "rewind")

    def after(self, epoch: int) -> Lineage:
        """Return the lineage after the rewind."""
        return Lineage((self.takeover(epoch), *self.lineage.takeovers))


def add_rewind(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "rewind",
        help="return to an earlier batch, or undo that",
        description=about(__doc__),
        examples=[
            f"/data/app --to {NEWEST_GOOD}",
            "/data/app --to 2026-11-23T20:15:00Z --dry-run",
        ],
        epilog=TIMES,
    )
    add_location(parser)
    parser.add_argument(
        "--to",
        type=_destination,
        required=True,
        metavar="TIME",
        help=f"time of the batch to return to; {NEWEST_GOOD}: the newest one that verifies",
    )
    parser.add_argument(
        "--epoch",
        type=int,
        metavar="N",
        help="epoch whose history has the batch; the newest one by default",
    )
    add_driver_gone(parser)
    add_dry_run(parser)
    add_progress(parser)
    parser.set_defaults(run=_rewind)


def _rewind(options: argparse.Namespace) -> CommandResult:
    files = open_stream_at(options.url, options.stream)
    require_unused(files, is_gone=options.driver_gone)
    before, epoch = None, 0
    with suppress(CorruptCheckpointError):  # it may be the newest record that is damaged
        before, epoch = next(reversed(CommitLog(files).ids()), None), read_lineage(files).head
    target = _target(options, files)
    to_ms = target.record_id.time_ms
    if not options.dry_run:
        rewind(files, target)
    data = {
        "url": files.url,
        "stream": target.stream_id,
        "to_ms": to_ms,
        "from_ms": None if before is None else before.time_ms,
        "from_epoch": epoch,
        "runs_again_ms": [begun.time_ms for begun in target.begins],
        "done": not options.dry_run,
    }
    did = "would go" if options.dry_run else "went"
    lines = [
        f"{target.stream_id} {did} to the batch at {moment(to_ms)}",
        f"{len(target.begins)} batches after it run again, with the same input",
        _undo(options, target, before, epoch),
    ]
    return CommandResult(data, lines)


def _target(options: argparse.Namespace, files: Files) -> Target:
    if options.to != NEWEST_GOOD:
        return plan_rewind(files, options.to, options.epoch)
    if options.epoch is not None:
        raise UsageError(f"--epoch needs the time of a batch, not {NEWEST_GOOD}; remove it")
    with progress_of(options) as progress:
        target = newest_good(files, progress)
    if target is None:
        raise CheckpointError(
            f"{files.url} has no batch after which a restart is possible; verify lists the "
            "problems; restore it from a copy or an export"
        )
    return target


def newest_good(files: Files, progress: Progress = SILENT) -> Target | None:
    """Return the newest batch that counts and after which a restart is possible, if any."""
    with suppress(CheckpointError, FileNotFoundError):  # records cannot be listed
        there = epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)
        lineage = next(_lineages(files, there), None)
        commit_ids = CommitLog(files).all_ids()
        counted = () if lineage is None else lineage.commits(commit_ids)
        times = [record_id.time_ms for record_id in counted]
        for time_ms in progress.over(times[::-1], "looking for a batch to go back to"):
            with suppress(CheckpointError, UsageError, FileNotFoundError, ValueError):
                return plan_rewind(files, time_ms)
    return None


def _destination(text: str) -> int | str:
    if text == NEWEST_GOOD:
        return text
    try:
        return read_time(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or {NEWEST_GOOD}") from error


def _undo(options: argparse.Namespace, target: Target, before: RecordId | None, epoch: int) -> str:
    """Return the line that explains how to return to *before*, the last batch of *epoch*."""
    if before is None:
        return "this cannot be undone, because the previous last batch is unknown"
    if before == target.record_id:
        return "it is the last batch already; there is nothing to undo"
    back = ["rewind", "--to", iso(before.time_ms)]
    if before.time_ms <= target.record_id.time_ms:  # the new lineage has a batch of that time, too
        back += ["--epoch", str(epoch)]
    return f"to undo this, before the stream runs again: {command_line(options, *back)}"


def plan_rewind(files: Files, to_ms: int, epoch: int | None = None) -> Target:
    """Find a batch after which a restart is possible. Raises UsageError or CheckpointError."""
    record_id, found, begins = _find(files, to_ms, epoch)
    record = CommitLog(files).read_record(record_id)
    target = Target(record.stream_id, record_id, found, begins)
    lineage = target.after(next_epoch(files))
    try:
        log = read_log(files, lineage)
        plan = plan_recovery(log)
    except CorruptCheckpointError as error:
        if not error.is_missing:
            raise
        raise UsageError(f"a restart is not possible at {moment(to_ms)}: {error}") from error
    _require_snapshots(files, record, lineage)
    _require_received(files, record, plan)
    findings = Verification()
    verify_restart(files, log, plan, findings)
    if findings.problems:
        raise findings.problems[0]
    return target


def rewind(files: Files, target: Target) -> None:
    """Claim an epoch that builds on the target. Raises ConcurrentWriterError."""
    stream_id = target.stream_id
    lease = claim_epoch(files, stream_id, DriverProcess.of_this_process(0, {"tool": "rewind"}))
    write_takeover(lease, target.takeover(lease.epoch))
    lease.check()
    lease.release()


def _find(
    files: Files, to_ms: int, of_epoch: int | None
) -> tuple[RecordId, Lineage, tuple[RecordId, ...]]:
    """Find the batch in the newest lineage that has it."""
    there = epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)
    if of_epoch is not None:
        lineage_from(files, of_epoch, there)  # raises if it cannot be read
    commit_ids, begin_ids = CommitLog(files).all_ids(), BatchLog(files).all_ids()
    for lineage in _lineages(files, there if of_epoch is None else [of_epoch]):
        for record_id in lineage.commits(commit_ids):
            if record_id.time_ms == to_ms:
                begins = lineage.begins(begin_ids)
                later = (begun for time_ms, begun in begins.items() if time_ms > to_ms)
                can_run_again = partial(_can_run_again, BatchLog(files), set(begins.values()))
                return record_id, lineage, tuple(takewhile(can_run_again, later))
    known = [record_id.time_ms for record_id in read_lineage(files).commits(commit_ids)]
    where = "" if of_epoch is None else f" in epoch {of_epoch}"
    near = nearest(known, to_ms)
    raise UsageError(f"no batch at {moment(to_ms)} is committed{where}; {near}")


def _lineages(files: Files, epochs: Sequence[int]) -> Iterator[Lineage]:
    """Yield the readable lineages of these epochs, the newest first."""
    there = epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)
    for epoch in reversed(epochs):
        with suppress(CorruptCheckpointError, FileNotFoundError):
            yield lineage_from(files, epoch, there)


def _can_run_again(log: BatchLog, there: Container[RecordId], record_id: RecordId) -> bool:
    """Return whether a begin record can be read and its predecessor exists."""
    with suppress(CorruptCheckpointError, FileNotFoundError):
        previous = log.read_record(record_id).previous
        return previous is None or previous in there
    return False


def _require_snapshots(files: Files, record: CommitRecord, lineage: Lineage) -> None:
    """Raise if a state had no snapshot yet, and the first batches are gone."""
    log = CommitLog(files)
    try:
        ids = log.ids()
        newest = log.read_record(ids[-1]) if ids else record
    except CorruptCheckpointError:  # which may be the reason for the rewind
        _require_history(files, record, lineage)
        return
    without = sorted(newest.newest_snapshots.keys() - record.newest_snapshots.keys())
    if without and log.read_record(ids[0]).previous is not None:
        raise UsageError(_no_snapshot(record, without))


def _no_snapshot(record: CommitRecord, uids: Sequence[str]) -> str:
    return (
        f"a restart is not possible at {moment(record.batch_time_ms)}: the state of "
        f"{', '.join(uids)} had no snapshot yet, and the first batches are gone"
    )


def _require_history(files: Files, record: CommitRecord, lineage: Lineage) -> None:
    """Do the same if the newest record cannot be read: the graph lists the states."""
    graph = read_graph_in(files, lineage)
    with_state = () if graph is None else graph.with_state or ()
    stored = {commit.operator_uid for commit in record.stores}  # each record names their state
    without = sorted(set(with_state).difference(record.newest_snapshots, stored))
    log = BatchLog(files)
    begun = list(lineage.begins(log.all_ids()).values())
    if without and (not begun or log.read_record(begun[0]).previous is not None):
        raise UsageError(_no_snapshot(record, without))


def _require_received(files: Files, record: CommitRecord, plan: RecoveryPlan) -> None:
    """Raise if a restart would read received blocks that are gone."""
    times_ms = [one.time_ms for one in record.newest_snapshots.values()]
    oldest_ms = min([record.batch_time_ms, *times_ms])
    wanted: Counter[tuple[int, str]] = Counter()
    found: Counter[tuple[int, str]] = Counter()
    for time_ms, uid, ref in blocks_of(files, plan):
        if time_ms > oldest_ms:
            wanted[time_ms, uid] += 1
            found[time_ms, uid] += files.exists(ref.name)
    for (time_ms, uid), count in wanted.items():
        if found[time_ms, uid] != count:
            raise UsageError(
                f"a restart is not possible at {moment(record.batch_time_ms)}: it would read the "
                f"batch at {moment(time_ms)} again, and {found[time_ms, uid]} of its {count} "
                f"blocks received by {uid} exist; choose a later batch"
            )
