"""``rewind``: a stream goes back to an earlier batch, and can come back again.

Nothing is deleted. A new epoch begins that builds on the earlier batch; so what came after it is
void, and the batches after it that were begun run again with the same input. As long as their
files are there, another rewind can make the later batches count again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
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
    add_dry_run,
    add_location,
    moment,
    open_stream_at,
)
from checkpoint.tools.verify import Verification, verify_inputs, verify_record, verify_stores


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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_location(parser)
    parser.add_argument(
        "--to",
        type=int,
        required=True,
        metavar="MS",
        help="time of the batch to be the last",
    )
    add_dry_run(parser)
    parser.set_defaults(run=_rewind)


def _rewind(options: argparse.Namespace) -> CommandResult:
    files = open_stream_at(options.url, options.stream)
    require_unused(files)
    before = CommitLog(files).latest()
    target, plan = plan_rewind(files, options.to)
    if not options.dry_run:
        rewind(files, target)
    undo = None if before is None else before.batch_time_ms
    data = {
        "url": files.url,
        "stream": plan.stream_id,
        "to_ms": options.to,
        "from_ms": undo,
        "runs_again_ms": [begun.time_ms for begun in target.begins],
        "done": not options.dry_run,
    }
    did = "would go" if options.dry_run else "went"
    lines = [
        f"{plan.stream_id} {did} to the batch at {moment(options.to)}",
        f"{len(target.begins)} batches after it run again, with the same input",
        f"to undo this, before the stream runs again: rewind --to {undo}",
    ]
    return CommandResult(data, lines)


def plan_rewind(files: Files, to_ms: int) -> tuple[Target, RecoveryPlan]:
    """Find a batch, and make sure that a restart can begin after it.

    Raises UsageError or CheckpointError.
    """
    target = _find(files, to_ms)
    record = CommitLog(files).read_record(target.record_id)
    lineage = target.after(record.stream_id, target.lineage.head + 1)
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
    for found in _holders(log.commits, record):
        verify_record(files, found, findings)
    verify_stores(files, record, findings)
    verify_inputs(files, plan, findings)
    if findings.problems:
        raise findings.problems[0].error()
    return target, plan


def rewind(files: Files, target: Target) -> None:
    """Go there. Raises ConcurrentWriterError."""
    stream_id = CommitLog(files).read_record(target.record_id).stream_id
    lease = claim_epoch(files, stream_id, DriverProcess.of_this_process(0, {"tool": "rewind"}))
    write_takeover(lease, target.takeover(stream_id, lease.epoch))
    lease.release()


def _find(files: Files, to_ms: int) -> Target:
    """Find the batch in the newest lineage that has it: what counts now comes first."""
    there = epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)
    commit_ids, begin_ids = CommitLog(files).all_ids(), BatchLog(files).all_ids()
    for epoch in reversed(there):
        lineage = lineage_from(files, epoch, there)
        for record_id in lineage.commits(commit_ids):
            if record_id.time_ms == to_ms:
                begins = lineage.begins(begin_ids)
                later = (begun for time_ms, begun in begins.items() if time_ms > to_ms)
                return Target(record_id, lineage, tuple(later))
    known = read_lineage(files).commits(commit_ids)
    near = ", ".join(str(record_id.time_ms) for record_id in known[-10:])
    raise UsageError(f"no batch at {to_ms} ms is committed; there are {near or 'none'}")


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


def _holders(commits: Mapping[RecordId, CommitRecord], record: CommitRecord) -> list[CommitRecord]:
    """Return the records that hold the snapshots which the state after *record* is made of.

    That of an operator which was removed may be gone.
    """
    holders = sorted(set(record.newest_snapshots.values()))
    return [commits[record_id] for record_id in holders if record_id in commits]
