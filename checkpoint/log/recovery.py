"""Recovery: find a stream, read what a restart begins with, and take the stream over.

The newest commit record names the record before it, and for each operator the record of its newest
snapshot. So a missing record is an error that names it: no restart begins from less than was
committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from checkpoint.errors import RESTORE, ConcurrentWriterError, CorruptCheckpointError, Damage
from checkpoint.log.batch_records import (
    BEGIN_PREFIX,
    COMMIT_PREFIX,
    INPUTS_PREFIX,
    STORE_PREFIX,
    BatchLog,
    BeginRecord,
    CommitLog,
    CommitRecord,
    OperatorSnapshot,
    StoreCommit,
    begin_file,
    commit_file,
)
from checkpoint.log.fencing import (
    CLAIM,
    EPOCH_PREFIX,
    TAKEOVER,
    DriverProcess,
    Takeover,
    WriterLease,
    claim_epoch,
    epoch_file,
)
from checkpoint.log.graph_record import GRAPH_PREFIX, all_graphs, read_graph
from checkpoint.log.lineage import Lineage, read_lineage, write_takeover
from checkpoint.log.record_files import RecordId, misplaced, missing
from checkpoint.storage.files import Files, ReadAhead, location
from checkpoint.storage.open_location import open_files

_F = TypeVar("_F", bound=Files)
_READ_AGAIN = 5
_STREAM_ID = re.compile(r"stream-\d+-[0-9a-f]+")
_CLAIM = re.compile(rf"(.+)/{EPOCH_PREFIX}\d{{10,}}\.{CLAIM}")


# Streams of a checkpoint: a directory each, for its life over all restarts ---------------------


def stream_url(url: str, stream_id: str) -> str:
    """Return the location of the directory of a stream."""
    return f"{url.rstrip('/')}/{stream_id}"


def open_stream(url: str, stream_id: str) -> Files:
    """Open the directory of a stream."""
    return open_files(stream_url(url, stream_id))


def began_ms(stream_id: str) -> int:
    """Return the start time of a stream, which is part of its id."""
    return int(stream_id.split("-")[1])


def list_streams(files: Files) -> list[str]:
    """Return the ids of the streams of a checkpoint that have files, oldest first."""
    found = {name.partition("/")[0] for name in files.list("") if "/" in name}
    return sorted(filter(_STREAM_ID.fullmatch, found), key=_age)


def list_claimed(files: Files) -> list[str]:
    """Return all directories with a claim, including those of queries, which users name."""
    return sorted({match[1] for match in map(_CLAIM.fullmatch, files.list("")) if match})


def stream_ids(files: Files) -> list[str]:
    """Return the ids of the streams of a checkpoint, newest first, without listing their files."""
    return sorted(filter(_STREAM_ID.fullmatch, files.directories()), key=_age, reverse=True)


def _age(stream_id: str) -> tuple[int, str]:
    return began_ms(stream_id), stream_id


def newest_stream(
    newest_first: Iterable[str], open_one: Callable[[str], _F]
) -> tuple[str, _F] | None:
    """Return the newest stream that has, or had, a graph, or None.

    A damaged stream counts: an older one is not what the user means. Raises StorageRefusedError.
    """
    for stream_id in newest_first:
        files = open_one(stream_id)
        if all_graphs(files) or _had_graph(files):
            return stream_id, files
    return None


def _had_graph(files: Files) -> bool:
    try:
        return read_plan(files).graph is not None
    except CorruptCheckpointError:
        return True


# Reading the records of a stream, each once ----------------------------------------------------


@dataclass(frozen=True)
class StreamLog:
    """The records of a stream as they were read, before any check of what is missing.

    Args:
        files: the directory of the stream, as it was read.
        lineage: the takeovers.
        commit_ids: all commit records that exist.
        begin_ids: all begin records that exist.
        commits: the commit records that were read: those that count, from the newest back to the
            oldest snapshot that a restart needs.
        begins: the begin records that count.
        removed: operators whose snapshots are gone, and which the newest graph does not have.
    """

    files: ReadAhead
    lineage: Lineage
    commit_ids: Sequence[RecordId]
    begin_ids: Sequence[RecordId]
    commits: Mapping[RecordId, CommitRecord]
    begins: Mapping[RecordId, BeginRecord]
    removed: Collection[str] = ()

    @property
    def last(self) -> CommitRecord | None:
        """The newest commit record that counts."""
        return next(iter(self.commits.values()), None)

    def missing(self, name: str, expected: str) -> CorruptCheckpointError:
        """Return the error for a missing record."""
        return missing(location(self.files, name), expected)


def read_log(
    files: Files, lineage: Lineage | None = None, known: StreamLog | None = None
) -> StreamLog:
    """Read the records of a stream; those that are *known* are not read again.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    ahead = files if isinstance(files, ReadAhead) else read_ahead(files)
    for left in reversed(range(_READ_AGAIN)):
        # A driver that is stopping may be deleting old records.
        with suppress(FileNotFoundError):
            now = lineage or read_lineage(ahead, None if known is None else known.lineage)
            log = _read_log(ahead, now, known)
            if not (left and lineage is None and _without_takeover(log)):
                return log
        _look(ahead)  # another driver started, or deleted records, in the meantime
    found = "has records that were deleted while they were being read"
    raise CorruptCheckpointError(
        files.url, found, "that no other driver is running there", RESTORE, Damage.BUSY
    )


def read_ahead(files: Files) -> ReadAhead:
    """Return the files of a stream with those read ahead that a restart needs.

    Raises StorageRefusedError.
    """
    ahead = ReadAhead(files)
    _look(ahead)
    return ahead


def _look(ahead: ReadAhead) -> None:
    # Begin records last: the driver that is running writes one before each commit record.
    read = (EPOCH_PREFIX, COMMIT_PREFIX, GRAPH_PREFIX, INPUTS_PREFIX)
    ahead.look(read, BEGIN_PREFIX, listed=(STORE_PREFIX,))


def _read_log(files: ReadAhead, lineage: Lineage, known: StreamLog | None) -> StreamLog:
    commit_log = CommitLog(files, None, lineage, None if known is None else known.commits)
    batch_log = BatchLog(files, None, lineage, None if known is None else known.begins)
    commit_ids, begin_ids = commit_log.all_ids(), batch_log.all_ids()
    commits: dict[RecordId, CommitRecord] = {}
    oldest_ms = -1
    for record_id in reversed(lineage.commits(commit_ids)):
        if record_id.time_ms < oldest_ms:
            break
        commits[record_id] = record = commit_log.read_record(record_id)
        if len(commits) == 1:
            snapshots = [found.time_ms for found in record.newest_snapshots.values()]
            oldest_ms = min(snapshots, default=record.batch_time_ms)
    begins = {
        record_id: batch_log.read_record(record_id)
        for record_id in lineage.begins(begin_ids).values()
    }
    log = StreamLog(files, lineage, commit_ids, begin_ids, commits, begins)
    named = {} if log.last is None else log.last.newest_snapshots
    gone = {uid for uid, record_id in named.items() if record_id not in commits}
    if not gone:
        return log
    removed = _removed(files, lineage, gone)
    return StreamLog(files, lineage, commit_ids, begin_ids, commits, begins, removed)


def _removed(files: Files, lineage: Lineage, gone: set[str]) -> Collection[str]:
    """Return the operators in *gone* without state in the newest graph; none if it is unreadable.

    Without the graph it is unknown whether their snapshots are needed.
    """
    graphs = lineage.snapshots(all_graphs(files))
    with suppress(CorruptCheckpointError):
        with_state = read_graph(files, graphs[0]).with_state if graphs else None
        if with_state is not None:
            return gone.difference(with_state)
    return ()


# The plan of a restart -------------------------------------------------------------------------


@dataclass(frozen=True)
class NewestSnapshot:
    """The newest snapshot of an operator, after the batch at *time_ms*; None if it had no state."""

    time_ms: int
    snapshot: OperatorSnapshot | None


@dataclass(frozen=True)
class RecoveryPlan:
    """The state and the batches that a restart begins with.

    Args:
        stream_id: id of the stream; None if no batch was ever begun.
        last: record of the newest committed batch; None if no batch was committed.
        committed_ms: times of all committed batches that are still known, oldest first. Their
            outputs, and those of any batch before them, must not run again.
        begins: the begin records that are still known, by batch time.
        in_flight: batches after the last committed one that were begun, oldest first, to run again.
        snapshots: the newest snapshot of each operator, by uid; an operator without one is
            computed from the first batch on.
        stores: state in stores after the last committed batch.
        watermarks: event time after the last committed batch, by uid.
        lineage: the takeovers.
    """

    stream_id: str | None
    last: CommitRecord | None
    committed_ms: tuple[int, ...]
    begins: Mapping[int, BeginRecord]
    in_flight: tuple[BeginRecord, ...]
    snapshots: Mapping[str, NewestSnapshot]
    stores: tuple[StoreCommit, ...]
    watermarks: Mapping[str, int]
    lineage: Lineage = field(default_factory=lambda: Lineage((), False), compare=False)

    @property
    def last_ms(self) -> int | None:
        """Time of the newest committed batch, None if no batch was committed."""
        return None if self.last is None else self.last.batch_time_ms

    @property
    def graph(self) -> RecordId | None:
        """The graph snapshot that the newest begin record with one names."""
        graphs = (begun.graph for _, begun in sorted(self.begins.items(), reverse=True))
        return next((graph for graph in graphs if graph), None)

    def missing_begins(self, after_ms: int) -> list[RecordId]:
        """Return the begin records after a time that other records name, and that are missing."""
        named = [begun.previous for begun in self.begins.values() if begun.previous is not None]
        if self.last is not None:
            named += [RecordId(time_ms, self.last.epoch) for time_ms in self.committed_ms]
        lost = {found.time_ms: found for found in reversed(named)}
        return [
            lost[time_ms]
            for time_ms in sorted(lost)
            if time_ms > after_ms and time_ms not in self.begins
        ]


def read_plan(files: Files) -> RecoveryPlan:
    """Read what a restart would begin with; nothing is changed.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    return plan_recovery(read_log(files))


def plan_recovery(log: StreamLog) -> RecoveryPlan:
    """Plan a restart: a pure function of the records. Raises CorruptCheckpointError."""
    for prefix, epoch in _without_takeover(log):  # or void records could count
        wanted = f"the takeover of epoch {epoch}, which has records in {prefix}"
        raise log.missing(epoch_file(epoch, TAKEOVER), wanted)
    counted, last = log.lineage.commits(log.commit_ids), log.last
    last_ms = -1 if last is None else last.batch_time_ms
    snapshots = {} if last is None else dict(_snapshots(log, last))
    begins = {
        time_ms: log.begins[record_id]
        for time_ms, record_id in log.lineage.begins(log.begin_ids).items()
    }
    in_flight = tuple(begun for time_ms, begun in begins.items() if time_ms > last_ms)
    if log.lineage.takeovers:
        _require_linked(log)
        _require_taken_over(log, last_ms, {begun.batch_time_ms for begun in in_flight})
    if log.lineage.is_claimed and last is not None and snapshots:
        _require_chain(log, last, min(found.time_ms for found in snapshots.values()), begins)
    ids = {record.stream_id for record in (*log.commits.values(), *log.begins.values())}
    ids |= {takeover.stream_id for takeover in log.lineage.takeovers}
    if len(ids) > 1:
        found = f"holds records of the streams {', '.join(sorted(ids))}"
        raise misplaced(log.files.url, found, "those of one")
    return RecoveryPlan(
        stream_id=min(ids, default=None),
        last=last,
        committed_ms=tuple(record_id.time_ms for record_id in counted),
        begins=begins,
        in_flight=in_flight,
        snapshots=snapshots,
        stores=() if last is None else last.stores,
        watermarks={} if last is None else last.watermarks,
        lineage=log.lineage,
    )


def _without_takeover(log: StreamLog) -> list[tuple[str, int]]:
    """Return (prefix, epoch) of the records that are newer than all takeovers."""
    newest = (
        (prefix, max((record_id.epoch for record_id in ids), default=0))
        for prefix, ids in ((COMMIT_PREFIX, log.commit_ids), (BEGIN_PREFIX, log.begin_ids))
    )
    return [(prefix, epoch) for prefix, epoch in newest if epoch > log.lineage.head]


def _require_linked(log: StreamLog) -> None:
    """Raise if a batch follows one that exists and does not count: a takeover is missing."""
    oldest = log.lineage.takeovers[-1]
    if oldest.parent is None:
        return
    counted, there = {record_id.time_ms for record_id in log.begins}, set(log.begin_ids)
    for begun in log.begins.values():
        previous = begun.previous
        if previous in there and previous is not None and previous.time_ms not in counted:
            wanted = f"the takeover of epoch {oldest.parent}, which wrote {begin_file(previous)}"
            raise log.missing(epoch_file(oldest.parent, TAKEOVER), wanted)


def _require_taken_over(log: StreamLog, last_ms: int, in_flight: Collection[int]) -> None:
    """Raise if a batch that the newest takeover names has no record."""
    newest = log.lineage.takeovers[0]
    if newest.upto_ms is not None and last_ms < newest.upto_ms:
        wanted = f"the commit record of {newest.upto_ms} ms, which epoch {newest.epoch} builds on"
        raise log.missing(COMMIT_PREFIX.rstrip("/"), wanted)
    for begun in newest.begins:
        if begun.time_ms > last_ms and begun.time_ms not in in_flight:
            wanted = f"the begin record of {begun}, which epoch {newest.epoch} took over"
            raise log.missing(begin_file(begun), wanted)


def _require_chain(
    log: StreamLog, last: CommitRecord, oldest_ms: int, begins: Mapping[int, BeginRecord]
) -> None:
    """Raise if a record between the oldest snapshot and the last batch is missing."""
    record = last
    while record.batch_time_ms > oldest_ms:
        time_ms = record.batch_time_ms
        if time_ms not in begins:
            wanted = f"the begin record of the committed batch at {time_ms} ms"
            raise log.missing(begin_file(record.record_id), wanted)
        previous = record.previous
        if previous is None:
            return
        if previous not in log.commits:
            wanted = f"the commit record that comes before that of {time_ms} ms"
            raise log.missing(commit_file(previous), wanted)
        record = log.commits[previous]


def _snapshots(log: StreamLog, last: CommitRecord) -> Iterator[tuple[str, NewestSnapshot]]:
    for uid, record_id in last.newest_snapshots.items():
        record = log.commits.get(record_id)
        if record is None and uid in log.removed:
            continue
        if record is None:
            wanted = f"the commit record that names the newest snapshot of the state of {uid!r}"
            raise log.missing(commit_file(record_id), wanted)
        snapshot = record.snapshots.get(uid)
        if snapshot is None and uid not in record.without_state:
            found = f"names no snapshot of the state of {uid!r}"
            wanted = f"one, as the record of {last.record_id} says"
            file = location(log.files, commit_file(record_id))
            raise CorruptCheckpointError(file, found, wanted, RESTORE, Damage.CONTRADICTING)
        yield uid, NewestSnapshot(record_id.time_ms, snapshot)


# Taking a stream over --------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnedStream:
    """A stream that this driver has taken over.

    *commits* and *begins* continue after the last batch in *plan*; *lineage* ends with the epoch of
    *lease*. *ahead* are the files as they were when they were taken over.
    """

    lease: WriterLease
    plan: RecoveryPlan
    commits: CommitLog
    begins: BatchLog
    lineage: Lineage
    ahead: ReadAhead

    @property
    def epoch(self) -> int:
        """The epoch of this driver."""
        return self.lease.epoch


def take_over(
    files: Files, stream_id: str, driver: DriverProcess, found: StreamLog | None = None
) -> OwnedStream:
    """Claim the next epoch of a stream; when this returns, all that older drivers add is void.

    A newer driver may have done the same in the meantime: check the lease before anything depends
    on it. Records that were *found* before are not read again; check there for reasons not to take
    over. Raises ConcurrentWriterError, CorruptCheckpointError or CheckpointError.
    """
    if found is None:
        found = read_log(files)
    ahead = found.files
    _require_stream(files, plan_recovery(found), stream_id)
    lease = claim_epoch(files, stream_id, driver, ahead)
    try:
        try:
            _look(ahead)
            log = read_log(ahead, known=found)  # an older driver may have added records
            plan = plan_recovery(log)
            _require_stream(files, plan, stream_id)
            takeover = next_takeover(stream_id, lease.epoch, log.lineage, plan)
        except Exception:
            lease.check()  # the error may be the work of a newer driver
            raise
        write_takeover(lease, takeover)
    except Exception:
        lease.give_up()
        raise
    counted = log.lineage.commits(log.commit_ids)
    begun = (record.record_id for record in plan.begins.values())
    return OwnedStream(
        lease,
        plan,
        CommitLog(files, lease, log.lineage, log.commits, counted, ahead=ahead),
        BatchLog(files, lease, log.lineage, begun=begun),
        Lineage((takeover, *log.lineage.takeovers)),
        ahead,
    )


def discard_stream(files: Files, stream_id: str, driver: DriverProcess) -> None:
    """Delete a stream without a graph, except for its claims, after fencing its older drivers.

    What an interruption leaves is a valid stream, because newer records are deleted first. Raises
    ConcurrentWriterError if an older driver has written the graph, or a newer one has taken over.
    """
    lease = claim_epoch(files, stream_id, driver)
    lease.check()
    if all_graphs(files):
        lease.release()
        what = f"another driver has just completed {files.url}, so it is not deleted; start again"
        raise ConcurrentWriterError(what, lease.epoch, lease.epoch - 1)
    for prefix in (COMMIT_PREFIX, BEGIN_PREFIX, ""):
        for name in reversed(files.list(prefix)):
            if not name.startswith(EPOCH_PREFIX):
                files.delete(name)
    lease.release()


def next_takeover(
    stream_id: str, epoch: int, lineage: Lineage, plan: RecoveryPlan, reason: str = "start"
) -> Takeover:
    """Return the takeover of an epoch that begins with *plan*."""
    if not lineage.takeovers:
        return Takeover(stream_id, epoch, None, None, (), reason)
    begins = tuple(begun.record_id for begun in plan.in_flight)
    parent = lineage.takeovers[0]
    return Takeover(
        stream_id, epoch, parent.epoch, plan.last_ms, begins, reason, parent_token=parent.token
    )


def _require_stream(files: Files, plan: RecoveryPlan, stream_id: str) -> None:
    if plan.stream_id not in (None, stream_id):
        found = f"is the directory of stream {plan.stream_id}"
        raise misplaced(files.url, found, f"that of {stream_id}")
