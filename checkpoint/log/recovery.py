"""Recovery: from what is on disk to what a restart begins with, and taking a stream over.

The newest commit record names the record before it, and for each operator the record of its newest
snapshot. So what is missing is found missing and named: no stream begins from less than it had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage
from checkpoint.log.batch_log import BEGIN_PREFIX, BatchLog, BeginRecord, begin_file
from checkpoint.log.commit_log import (
    COMMIT_PREFIX,
    CommitLog,
    CommitRecord,
    OperatorSnapshot,
    commit_file,
)
from checkpoint.log.fencing import TAKEOVER, DriverProcess, WriterLease, claim_epoch, epoch_file
from checkpoint.log.graph_record import all_graphs, read_graph
from checkpoint.log.lineage import Lineage, Takeover, read_lineage, write_takeover
from checkpoint.log.record_files import RecordId
from checkpoint.log.version_records import StoreCommit
from checkpoint.storage.files import Files

_READ_AGAIN = 5


@dataclass(frozen=True)
class StreamLog:
    """What the records of a stream say, read and not yet judged.

    Args:
        url: where the stream is, for messages.
        lineage: which epochs follow from each other.
        commit_ids: all commit records that are there.
        begin_ids: all begin records that are there.
        commits: the commit records that were read: those that count, from the newest back to the
            oldest snapshot that a restart needs.
        begins: the begin records that were read: all that count.
        removed: operators whose snapshots are gone, and which the newest graph does not have.
    """

    url: str
    lineage: Lineage
    commit_ids: Sequence[RecordId]
    begin_ids: Sequence[RecordId]
    commits: Mapping[RecordId, CommitRecord]
    begins: Mapping[RecordId, BeginRecord]
    removed: Collection[str] = ()


@dataclass(frozen=True)
class NewestSnapshot:
    """Where the state of an operator is.

    Args:
        time_ms: the batch after which the state was so.
        snapshot: its files; None when the operator had no state then.
    """

    time_ms: int
    snapshot: OperatorSnapshot | None


@dataclass(frozen=True)
class RecoveryPlan:
    """What a restart begins with.

    Args:
        stream_id: id of the stream; None when nothing was ever begun.
        last: record of the newest committed batch; None when no batch was.
        committed_ms: times of all committed batches that are still known, oldest first. Their
            outputs must not run again; those of any batch before them neither.
        begins: what each batch has read that was begun and is still known, by its time.
        in_flight: batches after the last committed one that were begun, oldest first: to run again.
        snapshots: the newest snapshot of the state of each operator, by its uid; an operator
            without one is made from the first batch on.
        stores: state in stores after the last committed batch.
        watermarks: event time after the last committed batch, by uid.
        lineage: which epochs follow from each other.
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
        """Time of the newest committed batch, None when no batch was."""
        return None if self.last is None else self.last.batch_time_ms

    def missing_begins(self, after_ms: int) -> list[RecordId]:
        """Return the begin records after a time that other records name, and that are not there."""
        named = [begun.previous for begun in self.begins.values() if begun.previous is not None]
        if self.last is not None:
            named += [RecordId(time_ms, self.last.epoch) for time_ms in self.committed_ms]
        lost = {found.time_ms: found for found in reversed(named)}
        return [
            lost[time_ms]
            for time_ms in sorted(lost)
            if time_ms > after_ms and time_ms not in self.begins
        ]

    @property
    def graph(self) -> RecordId | None:
        """The graph snapshot that the newest batch which names one was begun with."""
        graphs = (begun.graph for _, begun in sorted(self.begins.items()) if begun.graph)
        return next(reversed(list(graphs)), None)


@dataclass(frozen=True)
class OwnedStream:
    """A stream in the hands of this driver.

    Args:
        lease: its epoch.
        plan: what it begins with.
        commits: the commit records, which continue after the last committed batch.
        begins: what batches read, which continues after the last batch that was begun.
        lineage: which epochs lead to this one.
    """

    lease: WriterLease
    plan: RecoveryPlan
    commits: CommitLog
    begins: BatchLog
    lineage: Lineage

    @property
    def epoch(self) -> int:
        """The epoch of this driver."""
        return self.lease.epoch


def take_over(
    files: Files, stream_id: str, driver: DriverProcess, found: StreamLog | None = None
) -> OwnedStream:
    """Claim the next epoch of a stream, and find out what it begins with.

    From when this returns, nothing that an older driver adds counts. Whatever can be a reason not
    to take over should be looked at before, with the log of :func:`read_log`. Raises
    ConcurrentWriterError, CorruptCheckpointError or CheckpointError.
    """
    if found is None:
        found = read_log(files)
    _require_stream(files, plan_recovery(found), stream_id)
    lease = claim_epoch(files, stream_id, driver)
    try:
        try:
            log = read_log(files, known=found)
            plan = plan_recovery(log)
            _require_stream(files, plan, stream_id)
        finally:
            lease.check()  # a newer driver may be at work on what was read
        takeover = next_takeover(stream_id, lease.epoch, log.lineage, plan)
        write_takeover(lease, takeover)
    except Exception:
        lease.give_up()
        raise
    counted = log.lineage.commits(log.commit_ids)
    begun = (record.record_id for record in plan.begins.values())
    return OwnedStream(
        lease,
        plan,
        CommitLog(files, lease, log.lineage, log.commits, counted),
        BatchLog(files, lease, log.lineage, begun=begun),
        Lineage((takeover, *log.lineage.takeovers)),
    )


def next_takeover(
    stream_id: str, epoch: int, lineage: Lineage, plan: RecoveryPlan, reason: str = "start"
) -> Takeover:
    """Return the takeover of an epoch that goes on where *plan* says."""
    if not lineage.takeovers:
        return Takeover(stream_id, epoch, None, None, (), reason)
    begins = tuple(begun.record_id for begun in plan.in_flight)
    parent = lineage.takeovers[0]
    return Takeover(
        stream_id,
        epoch,
        parent.epoch,
        plan.last_ms,
        begins,
        reason,
        parent_token=parent.token,
    )


def newest_stream(
    newest_first: Iterable[str], open_one: Callable[[str], Files]
) -> tuple[str, Files] | None:
    """Return the newest stream that has a graph, or has lost the one it had; None for none.

    Also one that is damaged, and so cannot say. An older one is not what the user means, even where
    it is the only one that has a graph. Raises StorageRefusedError.
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


def read_plan(files: Files) -> RecoveryPlan:
    """Read what a restart would begin with; nothing is changed.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    return plan_recovery(read_log(files))


def read_log(
    files: Files, lineage: Lineage | None = None, known: StreamLog | None = None
) -> StreamLog:
    """Read what the records of a stream say.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    for left in reversed(range(_READ_AGAIN)):
        # A driver that is about to end may be deleting what nobody needs any more.
        with suppress(FileNotFoundError):
            now = lineage or read_lineage(files, None if known is None else known.lineage)
            log = _read_log(files, now, known)
            if left and lineage is None and _without_takeover(log):
                continue  # of a driver that began while this was read
            return log
    found = "has records that are gone before they can be read"
    raise CorruptCheckpointError(
        files.url, found, "that nobody else is at work there", RESTORE, Damage.BUSY
    )


def _read_log(files: Files, lineage: Lineage, known: StreamLog | None) -> StreamLog:
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
    last = next(iter(commits.values()), None)
    named = {} if last is None else last.newest_snapshots
    gone = [uid for uid, record_id in named.items() if record_id not in commits]
    removed = _removed(files, lineage, gone)
    return StreamLog(files.url, lineage, commit_ids, begin_ids, commits, begins, removed)


def _removed(files: Files, lineage: Lineage, gone: Collection[str]) -> Collection[str]:
    """Return those of the operators *gone* that have no state in the newest graph.

    None of them, where that cannot be read: then nobody knows that their snapshots are not needed.
    """
    graphs = lineage.snapshots(all_graphs(files)) if gone else []
    with suppress(CorruptCheckpointError):
        with_state = read_graph(files, graphs[0]).with_state if graphs else None
        if with_state is not None:
            return set(gone).difference(with_state)
    return ()


def plan_recovery(log: StreamLog) -> RecoveryPlan:
    """Plan what a restart begins with: a pure function of the records.

    Raises CorruptCheckpointError.
    """
    _require_takeovers(log)
    counted = log.lineage.commits(log.commit_ids)
    last = log.commits[counted[-1]] if counted else None
    snapshots = _snapshots(log, last)
    last_ms = -1 if last is None else last.batch_time_ms
    begins = {
        time_ms: log.begins[record_id]
        for time_ms, record_id in log.lineage.begins(log.begin_ids).items()
    }
    in_flight = tuple(begun for time_ms, begun in begins.items() if time_ms > last_ms)
    if log.lineage.is_claimed:
        _require_linked(log)
        _require_end(log, last_ms)
        _require_chain(log, last, snapshots, begins)
        _require_taken_over(log, last_ms, in_flight)
    ids = {record.stream_id for record in log.commits.values()}
    ids |= {record.stream_id for record in log.begins.values()}
    ids |= {takeover.stream_id for takeover in log.lineage.takeovers}
    if len(ids) > 1:
        found = f"holds records of the streams {', '.join(sorted(ids))}"
        raise CorruptCheckpointError(log.url, found, "those of one", RESTORE, Damage.MISPLACED)
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


def _require_stream(files: Files, plan: RecoveryPlan, stream_id: str) -> None:
    if plan.stream_id not in (None, stream_id):
        found = f"is the directory of stream {plan.stream_id}"
        raise CorruptCheckpointError(
            files.url, found, f"that of {stream_id}", RESTORE, Damage.MISPLACED
        )


def _require_takeovers(log: StreamLog) -> None:
    """Raise if a record is of an epoch that has no takeover and is newer than all that have one.

    Also where all that says which epochs there were is gone: then void records would count.
    """
    for prefix, epoch in _without_takeover(log):
        wanted = f"the takeover of epoch {epoch}, of which there are records in {prefix}"
        raise _missing(log, epoch_file(epoch, TAKEOVER), wanted)


def _without_takeover(log: StreamLog) -> list[tuple[str, int]]:
    """Return (prefix, epoch) of the records that are newer than all takeovers."""
    newest = (
        (prefix, max((record_id.epoch for record_id in ids), default=0))
        for prefix, ids in ((COMMIT_PREFIX, log.commit_ids), (BEGIN_PREFIX, log.begin_ids))
    )
    return [(prefix, epoch) for prefix, epoch in newest if epoch > log.lineage.head]


def _require_linked(log: StreamLog) -> None:
    """Raise if a batch was begun after one that is there and does not count: a takeover is lost."""
    oldest = log.lineage.takeovers[-1] if log.lineage.takeovers else None
    if oldest is None or oldest.parent is None:
        return
    counted, there = {record_id.time_ms for record_id in log.begins}, set(log.begin_ids)
    for begun in log.begins.values():
        previous = begun.previous
        if previous in there and previous is not None and previous.time_ms not in counted:
            wanted = f"what epoch {oldest.parent} builds on, of which {begin_file(previous)} is"
            raise _missing(log, epoch_file(oldest.parent, TAKEOVER), wanted)


def _require_end(log: StreamLog, last_ms: int) -> None:
    """Raise if the batch that the newest epoch builds on is not there."""
    if not log.lineage.takeovers:
        return
    upto_ms = log.lineage.takeovers[0].upto_ms
    if upto_ms is not None and last_ms < upto_ms:
        wanted = f"the commit record of {upto_ms} ms, which epoch {log.lineage.head} builds on"
        raise _missing(log, COMMIT_PREFIX.rstrip("/"), wanted)


def _require_chain(
    log: StreamLog,
    last: CommitRecord | None,
    snapshots: Mapping[str, NewestSnapshot],
    begins: Mapping[int, BeginRecord],
) -> None:
    """Raise if a record between the oldest snapshot and the last batch is not there."""
    oldest_ms = min((found.time_ms for found in snapshots.values()), default=None)
    if last is None or oldest_ms is None:
        return
    record = last
    while record.batch_time_ms > oldest_ms:
        time_ms = record.batch_time_ms
        if time_ms not in begins:
            wanted = f"the begin record of the committed batch at {time_ms} ms"
            raise _missing(log, begin_file(record.record_id), wanted)
        previous = record.previous
        if previous is None:
            return
        if previous not in log.commits:
            wanted = f"the commit record that comes before that of {time_ms} ms"
            raise _missing(log, commit_file(previous), wanted)
        record = log.commits[previous]


def _require_taken_over(log: StreamLog, last_ms: int, in_flight: Sequence[BeginRecord]) -> None:
    """Raise if a batch that the newest epoch has to run again has no begin record."""
    there = {begun.batch_time_ms for begun in in_flight}
    for begun in log.lineage.takeovers[0].begins if log.lineage.takeovers else ():
        if begun.time_ms > last_ms and begun.time_ms not in there:
            wanted = f"the begin record of {begun}, which epoch {log.lineage.head} took over"
            raise _missing(log, begin_file(begun), wanted)


def _snapshots(log: StreamLog, last: CommitRecord | None) -> dict[str, NewestSnapshot]:
    return {} if last is None else dict(_each_snapshot(log, last))


def _each_snapshot(log: StreamLog, last: CommitRecord) -> Iterator[tuple[str, NewestSnapshot]]:
    for uid, record_id in last.newest_snapshots.items():
        record = log.commits.get(record_id)
        if record is None and uid in log.removed:
            continue
        if record is None:
            wanted = f"the commit record that names the newest snapshot of the state of {uid!r}"
            raise _missing(log, commit_file(record_id), wanted)
        snapshot = record.snapshots.get(uid)
        if snapshot is None and uid not in record.without_state:
            found = f"names no snapshot of the state of {uid!r}"
            wanted = f"one, as the record of {last.record_id} says"
            file = f"{log.url}/{commit_file(record_id)}"
            raise CorruptCheckpointError(file, found, wanted, RESTORE, Damage.CONTRADICTING)
        yield uid, NewestSnapshot(record_id.time_ms, snapshot)


def _missing(log: StreamLog, name: str, wanted: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{log.url}/{name}", "is missing", wanted, RESTORE, Damage.MISSING
    )
