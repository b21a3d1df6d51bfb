"""``rewind``: a stream goes back to an earlier batch, and can come back again.

Nothing is deleted. A new epoch begins that builds on the earlier batch; so what came after it is
void, and the batches after it that were begun run again with the same input. As long as their
files are there, another rewind can make the later batches count again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

from checkpoint.batch_log import BatchLog
from checkpoint.commit_log import CommitLog, CommitRecord
from checkpoint.errors import CorruptCheckpointError
from checkpoint.fencing import (
    EPOCH_PREFIX,
    TAKEOVER,
    DriverProcess,
    claim_epoch,
    epochs_with,
    next_epoch,
    require_unused,
)
from checkpoint.files import Files
from checkpoint.inputs import blocks_of
from checkpoint.lineage import Lineage, Takeover, lineage_from, read_lineage, write_takeover
from checkpoint.record_files import RecordId
from checkpoint.recovery import RecoveryPlan, plan_recovery, read_log
from checkpoint.tools.common import (
    CommandResult,
    Commands,
    UsageError,
    add_driver_gone,
    add_dry_run,
    add_location,
    command_line,
    moment,
    open_stream_at,
)
from checkpoint.tools.verify import Verification, verify_restart


@dataclass(frozen=True)
class Target:
    """Where a stream is to go."""

    record_id: RecordId
    lineage: Lineage
    begins: tuple[RecordId, ...]

    def takeover(self, stream_id: str, epoch: int) -> Takeover:
        """Return the takeover of the epoch that goes there."""
        parent, upto_ms = self.lineage.head, self.record_id.time_ms
        return Takeover(stream_id, epoch, parent, upto_ms, self.begins, "rewind")

    def after(self, stream_id: str, epoch: int) -> Lineage:
        """Return the lineage as it will be."""
        return Lineage((self.takeover(stream_id, epoch), *self.lineage.takeovers))


def add_rewind(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "rewind",
        help="go back to an earlier batch, or forth again",
        description=__doc__,
    )
    add_location(parser)
    parser.add_argument(
        "--to",
        type=int,
        required=True,
        metavar="MS",
        help="time of the batch to be the last",
    )
    parser.add_argument(
        "--epoch",
        type=int,
        metavar="N",
        help="as the driver of this epoch had it; by default the newest one that had the batch",
    )
    add_driver_gone(parser)
    add_dry_run(parser)
    parser.set_defaults(run=_rewind)


def _rewind(options: argparse.Namespace) -> CommandResult:
    files = open_stream_at(options.url, options.stream)
    require_unused(files, is_gone=options.driver_gone)
    before, epoch = CommitLog(files).latest(), read_lineage(files).head
    target, plan = plan_rewind(files, options.to, options.epoch)
    if not options.dry_run:
        rewind(files, target)
    data = {
        "url": files.url,
        "stream": plan.stream_id,
        "to_ms": options.to,
        "from_ms": None if before is None else before.batch_time_ms,
        "from_epoch": epoch,
        "runs_again_ms": [begun.time_ms for begun in target.begins],
        "done": not options.dry_run,
    }
    did = "would go" if options.dry_run else "went"
    lines = [
        f"{plan.stream_id} {did} to the batch at {moment(options.to)}",
        f"{len(target.begins)} batches after it run again, with the same input",
        _undo(options, target, before, epoch),
    ]
    return CommandResult(data, lines)


def _undo(
    options: argparse.Namespace, target: Target, before: CommitRecord | None, epoch: int
) -> str:
    """Say how to go back to the batch that was the last one in the newest *epoch*."""
    if before is None or before.record_id == target.record_id:
        return "it was the last batch before, too: there is nothing to undo"
    back = ["rewind", "--to", str(before.batch_time_ms)]
    if before.batch_time_ms <= target.record_id.time_ms:  # the way there has one of that time
        back += ["--epoch", str(epoch)]
    return f"to undo this, before the stream runs again: {command_line(options, *back)}"


def plan_rewind(files: Files, to_ms: int, epoch: int | None = None) -> tuple[Target, RecoveryPlan]:
    """Find a batch, and make sure that a restart can begin after it.

    Raises UsageError or CheckpointError.
    """
    target = _find(files, to_ms, epoch)
    record = CommitLog(files).read_record(target.record_id)
    lineage = target.after(record.stream_id, next_epoch(files))
    try:
        log = read_log(files, lineage)
        plan = plan_recovery(log)
    except CorruptCheckpointError as error:
        if not error.is_missing:
            raise
        raise UsageError(f"a restart cannot begin at {to_ms} ms: {error}") from error
    _require_snapshots(files, record)
    _require_received(files, record, plan)
    findings = Verification()
    verify_restart(files, log, plan, findings)
    if findings.problems:
        raise findings.problems[0].error()
    return target, plan


def rewind(files: Files, target: Target) -> None:
    """Go there. Raises ConcurrentWriterError."""
    stream_id = CommitLog(files).read_record(target.record_id).stream_id
    lease = claim_epoch(files, stream_id, DriverProcess.of_this_process(0, {"tool": "rewind"}))
    write_takeover(lease, target.takeover(stream_id, lease.epoch))
    lease.release()


def _find(files: Files, to_ms: int, of_epoch: int | None) -> Target:
    """Find the batch in the newest lineage that has it: what counts now comes first."""
    there = epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)
    commit_ids, begin_ids = CommitLog(files).all_ids(), BatchLog(files).all_ids()
    for epoch in reversed(there) if of_epoch is None else [of_epoch]:
        lineage = lineage_from(files, epoch, there)
        for record_id in lineage.commits(commit_ids):
            if record_id.time_ms == to_ms:
                begins = lineage.begins(begin_ids)
                later = (begun for time_ms, begun in begins.items() if time_ms > to_ms)
                return Target(record_id, lineage, tuple(later))
    known = read_lineage(files).commits(commit_ids)
    near = ", ".join(str(record_id.time_ms) for record_id in known[-10:])
    where = "" if of_epoch is None else f" in epoch {of_epoch}"
    raise UsageError(f"no batch at {to_ms} ms is committed{where}; there are {near or 'none'}")


def _require_snapshots(files: Files, record: CommitRecord) -> None:
    """Raise if a state had no snapshot then, and the batches that it could be made of are gone."""
    log = CommitLog(files)
    ids = log.ids()
    newest = log.read_record(ids[-1]) if ids else record
    without = sorted(newest.newest_snapshots.keys() - record.newest_snapshots.keys())
    if without and log.read_record(ids[0]).previous is not None:
        raise UsageError(
            f"a restart cannot begin at {record.batch_time_ms} ms: the state of "
            f"{', '.join(without)} had no snapshot yet, and the first batches are gone"
        )


def _require_received(files: Files, record: CommitRecord, plan: RecoveryPlan) -> None:
    """Raise if received blocks are gone that a restart would read again."""
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
                f"a restart cannot begin at {record.batch_time_ms} ms: it would read again the "
                f"batch at {time_ms} ms, of whose {count} blocks that {uid} received "
                f"{found[time_ms, uid]} are there; go to a later batch"
            )
