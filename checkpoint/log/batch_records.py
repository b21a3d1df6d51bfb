"""The log of a stream: for each batch a begin record before it runs, and a commit record after it.

1. The driver creates the begin record, which fixes what the batch reads. If the batch is not
   committed, it runs again after a restart with the same id, time, input and watermark.
2. Every task writes its files under unique names and syncs them, and the driver collects the
   references of the attempts that count.
3. The driver creates the commit record, which names exactly those files for all operators, and
   checks that no newer driver has taken over. Only then is the batch known to be committed, as a
   whole.

A record names the records it builds on: the one before it, the graph, and the newest snapshot of
the inputs. So a record that is lost is reported as missing, never mistaken for one that was never
written. A file that no commit record names does not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, ClassVar, Generic, TypeVar, cast

from msgspec import Meta, field
from msgspec.structs import replace

from checkpoint.errors import ConcurrentWriterError, CorruptCheckpointError
from checkpoint.log.fencing import Takeover, WriterLease, read_takeover
from checkpoint.log.lineage import Lineage, read_lineage, require_written_under
from checkpoint.log.record_files import (
    RecordId,
    create_once,
    misplaced,
    open_record,
    record_frames,
    record_ids,
)
from checkpoint.log.state_files import StatePartition
from checkpoint.storage.files import Files, in_parallel, location
from checkpoint.storage.framing import FileKind, FileRef
from checkpoint.storage.json_records import Count, JsonRecord, Text

_UID = re.compile(r"[0-9a-f]{8,64}")

INPUTS_NEEDED_AFTER = "inputs_needed_after_ms"
"""Commit record fact: by input uid, the batch time after which a restart may read it again."""

INPUTS_PREFIX, STORE_PREFIX = "inputs/", "stores/"
BEGIN_PREFIX, BEGIN_SUFFIX = "batches/", ".begin"
COMMIT_PREFIX, COMMIT_SUFFIX = "commits/", ".commit"
_CLAIM = "claim"  # in the header: token of the claim under which a record was written


@dataclass(frozen=True)
class StoreId:
    """One partition of one named store of an operator.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        operator_uid: uid of the stateful operator.
        store: name of the store among those of the operator.
        partition: number of the partition, from 0.
        partition_count: partitions of that state.
    """

    stream_id: str
    operator_uid: str
    store: str
    partition: int
    partition_count: int

    def __post_init__(self) -> None:
        for name in ("stream_id", "operator_uid", "store"):
            if not getattr(self, name):
                raise ValueError(f"{name} of a state store is empty; give it a name")
        if not 0 <= self.partition < self.partition_count:
            raise ValueError(
                f"partition {self.partition} of store {self.store!r} must be 0 to "
                f"{self.partition_count - 1}, as it has {self.partition_count}"
            )


class VersionId(JsonRecord, frozen=True, gc=False):
    """One immutable content of a store.

    Args:
        version: the number of commits that led to it; 0 is the empty store.
        uid: the attempt that committed it, in hexadecimal; empty for version 0.
    """

    version: int
    uid: str

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ValueError(f"version {self.version} of a state store must not be negative")
        if self.uid != "" if self.version == 0 else not _UID.fullmatch(self.uid):
            raise ValueError(
                f"uid {self.uid!r} of version {self.version} must be 8 to 64 hexadecimal digits, "
                "and empty for version 0"
            )


EMPTY = VersionId(0, "")
"""The content of every store before its first commit."""


class PartitionCommit(JsonRecord, frozen=True, gc=False):
    """One partition of a store after a commit, with its number of keys.

    *file* is the changelog, None for the empty store.
    """

    partition: Count
    version_id: VersionId
    file: FileRef | None
    count: Count

    def __post_init__(self) -> None:
        is_empty = self.version_id.version == 0
        if is_empty is not (self.file is None) or (is_empty and self.count):
            raise ValueError(f"version 0 of a store, and only it, is empty without a file: {self}")

    @property
    def size_bytes(self) -> int:
        """Size of the changelog, or 0."""
        return 0 if self.file is None else self.file.size_bytes


class StoreCommit(JsonRecord, frozen=True):
    """The state of one store of an operator after a batch.

    Args:
        operator_uid: uid of the operator.
        store: name of the store among those of the operator.
        partitioner: name of the function that chose the partition of each key.
        partitions: the partitions from 0 to n-1, in order.
    """

    operator_uid: Text
    store: Text
    partitioner: str
    partitions: tuple[PartitionCommit, ...]

    def __post_init__(self) -> None:
        numbers = [stored.partition for stored in self.partitions]
        if numbers != list(range(len(numbers))):
            raise ValueError(
                f"store {self.store!r} of {self.operator_uid!r} must have each partition from 0 "
                f"on once, got {numbers}"
            )
        require_distinct(self.files())

    def files(self) -> Iterator[FileRef]:
        """Yield the changelogs."""
        return (stored.file for stored in self.partitions if stored.file is not None)

    def store_id(self, stream_id: str, partition: int) -> StoreId:
        """Return the id of the store of a partition."""
        count = len(self.partitions)
        return StoreId(stream_id, self.operator_uid, self.store, partition, count)


def require_distinct(files: Iterator[FileRef]) -> None:
    """Raise ValueError if two partitions name one file."""
    names = Counter(ref.name for ref in files)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"file {twice[0]} is named for more than one partition")


class BatchRecord(JsonRecord, frozen=True):
    """The fields of every record of a batch.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        batch_id: number of the batch, from 0.
        batch_time_ms: its time, which names the record.
        epoch: epoch of the driver that wrote it.
    """

    stream_id: Text
    batch_id: Count
    batch_time_ms: Count
    epoch: Count

    @property
    def record_id(self) -> RecordId:
        """The id of this record."""
        return RecordId(self.batch_time_ms, self.epoch)


class BeginRecord(BatchRecord, frozen=True):
    """The input of a batch.

    Args:
        inputs: by input uid, JSON that is enough to read exactly the same records again.
        watermarks: by operator or query uid, the event time in ms that this batch uses.
        facts: JSON for the driver, for example that batches before this one were skipped.
        inputs_snapshot: the newest snapshot of inputs, or None.
        graph: the newest graph snapshot, or None.
        previous: the begin record of the batch before, None for the first one.
        beginning: 64 random bits that no batch of another history of the checkpoint has; empty if
            no output needs them.
    """

    inputs: Mapping[Text, object]
    watermarks: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    inputs_snapshot: RecordId | None = None
    graph: RecordId | None = None
    previous: RecordId | None = None
    beginning: str = ""


class OperatorSnapshot(JsonRecord, frozen=True):
    """The state of one operator: a file for each partition."""

    partitioner: str
    files: Annotated[tuple[FileRef, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        require_distinct(iter(self.files))

    def partitions(
        self, stream_id: str, uid: str, batch_time_ms: int
    ) -> Iterator[tuple[FileRef, StatePartition]]:
        """Yield each file with the partition it must hold, for the state of *uid* after a batch."""
        count = len(self.files)
        for number, ref in enumerate(self.files):
            args = (stream_id, uid, batch_time_ms, number, count, self.partitioner)
            yield ref, StatePartition(*args)


class CommitRecord(BatchRecord, frozen=True):
    """The result of a batch.

    Args:
        snapshots: by operator uid, the state snapshots that this batch wrote.
        writer: facts for readers to compare, such as the Python version; never secrets.
        stores: state in stores: every store of the stream, changed or not.
        watermarks: by operator or query uid, the event time in ms that it has reached.
        failed_outputs: ids of the outputs of the batch that failed.
        without_state: uids of operators without state after this batch: they need no snapshot, and
            no batch up to this one, to resume.
        previous: the record before this one, None for the first one of a stream.
        newest_snapshots: by uid of each operator that has had a snapshot, or no state, the newest
            record that says so; this one included.
        facts: JSON for the driver, for example when a timer is due.
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
        """Return the names of all state files and changelogs of this record."""
        of_operators = (snapshot.files for snapshot in self.snapshots.values())
        of_stores = (commit.files() for commit in self.stores)
        return frozenset(ref.name for ref in chain(*of_operators, *of_stores))

    def after(
        self, last: CommitRecord | None, operators: Collection[str] | None = None
    ) -> CommitRecord:
        """Return this record linked to *last*, the one before it.

        *operators* are the uids of the stream, None for all there ever were: the snapshots of one
        that was removed are no longer named.
        """
        before = {} if last is None else last.newest_snapshots
        newest = {uid: before[uid] for uid in before if operators is None or uid in operators}
        newest.update(dict.fromkeys((*self.snapshots, *self.without_state), self.record_id))
        return replace(
            self, previous=None if last is None else last.record_id, newest_snapshots=newest
        )


Record = TypeVar("Record", bound=BatchRecord)


class RecordLog(Generic[Record]):
    """The records of one kind among *files*.

    Args:
        files: the directory of a stream.
        lease: the epoch of the driver that writes; None to read, or to write without fencing.
        lineage: the lineage as it was read before; its takeovers are not read again.
        known: records that were read before, and are not read again.
        ahead: the files to read records from, as they were listed and read before; *files* if None.
    """

    form: ClassVar[type[BatchRecord]]
    kind: ClassVar[FileKind]
    prefix: ClassVar[str]
    suffix: ClassVar[str]
    what: ClassVar[str]
    done: ClassVar[str]
    """The state of a batch with a record, for messages: ``begun``."""

    def __init__(
        self,
        files: Files,
        lease: WriterLease | None = None,
        lineage: Lineage | None = None,
        known: Mapping[RecordId, Record] | None = None,
        ahead: Files | None = None,
    ) -> None:
        self.files = files
        self._ahead = ahead or files
        self._lease = lease
        self._takeovers: dict[int, Takeover | None] = (
            {} if lineage is None else {takeover.epoch: takeover for takeover in lineage.takeovers}
        )
        self._known = dict(known or {})

    def all_ids(self) -> list[RecordId]:
        """Return the sorted ids of all records, including void ones."""
        return record_ids(self.files.list(self.prefix), self.prefix, self.suffix)

    def ids(self) -> list[RecordId]:
        """Return the ids of the records that count, one per batch, oldest first."""
        raise NotImplementedError

    def times(self) -> list[int]:
        """Return the times in ms of all batches whose records count, sorted."""
        return [record_id.time_ms for record_id in self.ids()]

    def read(self, batch_time_ms: int) -> Record:
        """Read the record of a batch that counts.

        Raises FileNotFoundError or CorruptCheckpointError.
        """
        for record_id in self.ids():
            if record_id.time_ms == batch_time_ms:
                return self.read_record(record_id)
        where = f"{self.files.url} has no {self.done} batch at {batch_time_ms} ms"
        raise FileNotFoundError(where)

    def read_record(self, record_id: RecordId) -> Record:
        """Read a record, whether it counts or not.

        Raises FileNotFoundError or CorruptCheckpointError.
        """
        known = self._known.get(record_id)
        return self._read(record_id) if known is None else known

    def _read(self, record_id: RecordId) -> Record:
        name = self._name(record_id)
        form = cast("type[Record]", self.form)
        header, record = open_record(self._ahead, name, self.kind, {}, form, self.what)
        if record.record_id != record_id:
            found = f"is the record of {record.record_id}"
            raise misplaced(location(self.files, name), found, f"that of {record_id}")
        self._require_of_this_copy(header, record_id.epoch, name)
        return record

    def _require_of_this_copy(self, header: Mapping[str, object], epoch: int, name: str) -> None:
        if epoch not in self._takeovers:
            self._takeovers[epoch] = None
            with suppress(CorruptCheckpointError, FileNotFoundError):  # then the epoch is void
                self._takeovers[epoch] = read_takeover(self.files, epoch)
        takeover, token = self._takeovers[epoch], header.get(_CLAIM)
        if takeover is not None and isinstance(token, str):
            require_written_under(takeover, token, self.files, name)

    def _create(self, record: Record) -> None:
        """Create a record durably; creating the same record again is fine.

        Raises ConcurrentWriterError or CheckpointError.
        """
        time_ms, epoch = record.batch_time_ms, record.epoch

        def taken() -> Exception:
            other = self.read_record(record.record_id)
            return ConcurrentWriterError(
                f"batch at {time_ms} ms was {self.done} by a driver of epoch {other.epoch}, with "
                f"other content than this one of epoch {epoch} has; only one driver may run on a "
                "checkpoint, stop this one",
                epoch,
                other.epoch,
            )

        header = {"stream_id": record.stream_id, "batch_time_ms": time_ms, "epoch": epoch}
        token = {} if self._lease is None else {_CLAIM: self._lease.claim.token}
        frames = record_frames(self.kind, {**header, **token}, record)
        what = f"batch at {time_ms} ms may or may not be {self.done}"
        create_once(self.files, self._name(record.record_id), frames, taken, what)

    def _name(self, record_id: RecordId) -> str:
        return f"{self.prefix}{record_id.stem}{self.suffix}"


class BatchLog(RecordLog[BeginRecord]):
    """The begin records among *files*; the first new one follows one of *begun*."""

    form, kind = BeginRecord, FileKind.BEGIN
    prefix, suffix = BEGIN_PREFIX, BEGIN_SUFFIX
    what, done = "a begin record", "begun"

    def __init__(
        self,
        files: Files,
        lease: WriterLease | None = None,
        lineage: Lineage | None = None,
        known: Mapping[RecordId, BeginRecord] | None = None,
        begun: Iterable[RecordId] = (),
    ) -> None:
        super().__init__(files, lease, lineage, known)
        self.begun = {record_id.time_ms: record_id for record_id in begun}

    def begin(self, record: BeginRecord) -> None:
        """Create *record* durably, linked to the one before it, before the batch reads anything.

        The same record again is fine. It is void if a newer driver has taken over, which is not
        checked here.

        Raises:
            ConcurrentWriterError: the batch was begun with other content and must not run.
            CheckpointError: as in :meth:`Files.create`.
            TypeError: the inputs or facts are not JSON.
        """
        time_ms = record.batch_time_ms
        earlier = [known_ms for known_ms in self.begun if known_ms < time_ms]
        previous = self.begun[max(earlier)] if earlier else None
        self._create(replace(record, previous=previous))
        if time_ms > max(self.begun, default=-1):
            # The next record follows this one; the one before is kept to begin this one again.
            self.begun = {} if previous is None else {previous.time_ms: previous}
        self.begun[time_ms] = record.record_id

    def ids(self) -> list[RecordId]:
        return list(read_lineage(self.files).begins(self.all_ids()).values())


class CommitLog(RecordLog[CommitRecord]):
    """The commit records among *files*.

    A driver with a lease knows the records that count, since only it adds any: it neither lists
    them nor reads one twice.

    Args:
        files: as in :class:`RecordLog`, and so are lease, lineage, known and ahead.
        counted: the records that count, oldest first; the next commit follows the last of them.
            None to list them each time.
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
        ahead: Files | None = None,
    ) -> None:
        super().__init__(files, lease, lineage, known, ahead)
        self.operators = operators
        self._counted = None if counted is None else list(counted)
        self.last = self.read_record(self._counted[-1]) if self._counted else None

    def commit(self, record: CommitRecord) -> CommitRecord:
        """Create *record* durably after the last one, and return it as it was written.

        The same record again is fine. It is void if a newer driver has taken over without seeing
        it, so check the fence before anything depends on the commit. After any error the stream
        must stop; a new driver finds out what is on disk.

        Raises:
            ConcurrentWriterError: the batch was committed with other content.
            StorageRefusedError: the record was not created.
            StorageUncertainError: the record cannot be read back, and may still appear.
            NotDurableError: the record is visible, and may not survive a power loss.
        """
        linked = self._linked(record)
        self._create(linked)
        if self._counted is not None:
            if linked.record_id not in self._counted[-1:]:
                self._counted.append(linked.record_id)
            self._known[linked.record_id] = linked
        self.last = linked
        return linked

    def ids(self) -> list[RecordId]:
        if self._counted is not None:
            return list(self._counted)
        return read_lineage(self.files).commits(self.all_ids())

    def records(self) -> list[CommitRecord]:
        """Read all records that count, oldest first."""
        records = in_parallel(self.files, self.read_record, self.ids())
        if self._counted is not None:
            self._known.update((record.record_id, record) for record in records)
        return records

    def latest(self) -> CommitRecord | None:
        """Read the newest record, if any. Raises CorruptCheckpointError."""
        ids = self.ids()
        return self.read_record(ids[-1]) if ids else None

    def delete(self, record_id: RecordId) -> None:
        """Delete a record if it exists, after its state files."""
        self.files.delete(commit_file(record_id))
        self._known.pop(record_id, None)
        if self._counted is not None and record_id in self._counted:
            self._counted.remove(record_id)

    def _linked(self, record: CommitRecord) -> CommitRecord:
        """Return *record* linked to the last one; the last one itself if it is the same record."""
        last = self.last
        if last is not None and last.record_id == record.record_id:
            again = replace(record, previous=last.previous, newest_snapshots=last.newest_snapshots)
            if again == last:
                return last
        return record.after(last, self.operators)


def begin_file(record_id: RecordId) -> str:
    """Return the file name of a begin record."""
    return f"{BEGIN_PREFIX}{record_id.stem}{BEGIN_SUFFIX}"


def commit_file(record_id: RecordId) -> str:
    """Return the file name of a commit record."""
    return f"{COMMIT_PREFIX}{record_id.stem}{COMMIT_SUFFIX}"
