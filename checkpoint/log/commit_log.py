"""Commit log: one record for each committed batch, the only truth about what counts.

1. Every task writes its files under names of its own and syncs them.
2. The driver collects the references of the attempts that count.
3. The driver creates the record that names exactly those files, and looks whether a newer driver
   has taken over: then the record does not count.
4. Only then the batch is committed. What no record names does not exist.

One record covers all operators, so a batch commits whole or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Annotated

from msgspec import Meta, field
from msgspec.structs import replace

from checkpoint.log.fencing import WriterLease
from checkpoint.log.lineage import Lineage, read_lineage
from checkpoint.log.record_files import RecordId
from checkpoint.log.record_log import BatchRecord, RecordLog
from checkpoint.log.state_files import StatePartition
from checkpoint.log.version_records import StoreCommit, require_distinct
from checkpoint.storage.files import Files
from checkpoint.storage.framing import FileKind, FileRef
from checkpoint.storage.json_records import JsonRecord, Text

INPUTS_NEEDED_AFTER = "inputs_needed_after_ms"
"""The fact that says of each input, by uid, after which batch time a restart may read it again."""

COMMIT_PREFIX = "commits/"
COMMIT_SUFFIX = ".commit"


class OperatorSnapshot(JsonRecord, frozen=True):
    """The state of one operator: a file for each partition."""

    partitioner: str
    files: Annotated[tuple[FileRef, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        require_distinct(iter(self.files))

    def partitions(
        self, stream_id: str, uid: str, batch_time_ms: int
    ) -> Iterator[tuple[FileRef, StatePartition]]:
        """Yield each file and what it must hold, if the state is that of *uid* after a batch."""
        for number, ref in enumerate(self.files):
            yield (
                ref,
                StatePartition(
                    stream_id, uid, batch_time_ms, number, len(self.files), self.partitioner
                ),
            )


class CommitRecord(BatchRecord, frozen=True):
    """What a committed batch left behind, beside the fields of every :class:`BatchRecord`.

    Args:
        snapshots: the snapshots of state that this batch wrote, by uid of the operator.
        writer: facts that a reader may want to compare, such as the version of Python and the name
            of the hash function; never secrets.
        stores: state in stores; every store of the stream, also if the batch did not change it.
        watermarks: event time that each operator or query has reached, in ms, by its uid.
        failed_outputs: ids of the outputs of the batch that failed.
        without_state: uids of operators that have no state at all after this batch: they need no
            snapshot, and no batch up to this one, to go on.
        previous: the record before this one, None for the first one of a stream.
        newest_snapshots: for each operator of the stream that has had a snapshot, or no state, the
            newest record that says so; this one included.
        facts: JSON that the driver wants back; such as when a timer is due.
    """

    snapshots: Mapping[Text, OperatorSnapshot]
    writer: Mapping[str, str]
    stores: tuple[StoreCommit, ...] = ()
    watermarks: Mapping[str, int] = field(default_factory=dict)
    failed_outputs: tuple[str, ...] = ()
    without_state: tuple[str, ...] = ()
    previous: RecordId | None = None
    newest_snapshots: Mapping[str, RecordId] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.previous is not None and self.previous.time_ms >= self.batch_time_ms:
            raise ValueError(
                f"commit record of batch {self.batch_id} at {self.batch_time_ms} ms must be later "
                f"than that of {self.previous}"
            )
        named = {(commit.operator_uid, commit.store) for commit in self.stores}
        if len(named) < len(self.stores):
            raise ValueError(f"a store is in the record of {self.batch_time_ms} ms more than once")

    def file_names(self) -> frozenset[str]:
        """Names of all state files and changelogs of this record."""
        of_operators = (snapshot.files for snapshot in self.snapshots.values())
        of_stores = (commit.files() for commit in self.stores)
        return frozenset(ref.name for ref in chain(*of_operators, *of_stores))

    def after(
        self, last: CommitRecord | None, operators: Collection[str] | None = None
    ) -> CommitRecord:
        """Return this record linked to *last*, the one before it.

        Args:
            last: None for none.
            operators: uids of the operators of the stream; None for all that there ever were. Of
                one that is not among them, because it was removed, no snapshot is named any more.
        """
        before = {} if last is None else last.newest_snapshots
        newest = {uid: before[uid] for uid in before if operators is None or uid in operators}
        newest.update(dict.fromkeys((*self.snapshots, *self.without_state), self.record_id))
        return replace(
            self, previous=None if last is None else last.record_id, newest_snapshots=newest
        )


class CommitLog(RecordLog[CommitRecord]):
    """The commit records among *files*.

    The driver that has a stream knows which of its records count, since nobody else adds one: it
    neither lists them nor reads one twice. It holds those that are kept; of their parts, which are
    many and cannot be in a circle, the collector of garbage knows nothing.

    Args:
        files: the directory of a stream.
        lease: the epoch of the driver that commits; None only reads, or writes without fencing.
        lineage: as in :class:`RecordLog`.
        known: as in :class:`RecordLog`.
        counted: the records that count, oldest first; the next one to be committed follows the last
            of them. None to list them each time.
        operators: uids of the operators of the stream, as in :meth:`CommitRecord.after`.
    """

    form, kind = CommitRecord, FileKind.COMMIT
    prefix, suffix = COMMIT_PREFIX, COMMIT_SUFFIX
    what, done = "a commit record", "committed"

    def __init__(
        self,
        files: Files,
        lease: WriterLease | None = None,
        lineage: Lineage | None = None,
        known: Mapping[RecordId, CommitRecord] | None = None,
        counted: Collection[RecordId] | None = None,
        operators: Collection[str] | None = None,
    ) -> None:
        super().__init__(files, lease, lineage, known)
        self.operators = operators
        self._counted = None if counted is None else list(counted)
        self.last = self.read_record(self._counted[-1]) if self._counted else None

    def commit(self, record: CommitRecord) -> CommitRecord:
        """Create *record* durably, as the one after the last, and return it as it was written.

        Committing the same record again is fine. After any error the stream must stop: a new driver
        finds out what is on disk.

        Raises:
            ConcurrentWriterError: the batch was committed with other content, or a newer driver has
                taken over: then it does not count, unless that driver has seen it.
            StorageRefusedError: the record was not created.
            StorageUncertainError: the record cannot be read back, and may still appear.
            NotDurableError: the record can be seen, and may not survive a power loss.
        """
        linked = self._linked(record)
        self._create(linked)
        if self._lease is not None:  # or what follows from a commit would follow from a void one
            self._lease.check()
        if self._counted is not None:
            if linked.record_id not in self._counted[-1:]:
                self._counted.append(linked.record_id)
            self._known[linked.record_id] = linked
        self.last = linked
        return linked

    def ids(self) -> list[RecordId]:
        """Return which records count, oldest first, one a batch."""
        if self._counted is not None:
            return list(self._counted)
        return read_lineage(self.files).commits(self.all_ids())

    def records(self) -> list[CommitRecord]:
        """Read all records that count, oldest first."""
        records = [self.read_record(record_id) for record_id in self.ids()]
        if self._counted is not None:
            self._known.update((record.record_id, record) for record in records)
        return records

    def latest(self) -> CommitRecord | None:
        """Read the newest record, None if there is none.

        Raises CorruptCheckpointError.
        """
        ids = self.ids()
        return self.read_record(ids[-1]) if ids else None

    def delete(self, record_id: RecordId) -> None:
        """Delete a record, after its state files; that there is none is fine."""
        self.files.delete(commit_file(record_id))
        self._known.pop(record_id, None)
        if self._counted is not None and record_id in self._counted:
            self._counted.remove(record_id)

    def _linked(self, record: CommitRecord) -> CommitRecord:
        """Return *record* after the last one, or the last one if that is what it is."""
        last = self.last
        if last is not None and last.record_id == record.record_id:
            again = replace(record, previous=last.previous, newest_snapshots=last.newest_snapshots)
            if again == last:
                return last
        return record.after(last, self.operators)


def commit_file(record_id: RecordId) -> str:
    """Return the name of the file of a record."""
    return f"{COMMIT_PREFIX}{record_id.stem}{COMMIT_SUFFIX}"
