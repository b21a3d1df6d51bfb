"""Commit log: one record for each committed batch, the only truth about what counts.

The order that makes a batch durable:

1. every task writes its state file under a name of its own and syncs it;
2. the driver collects the references of the attempts that count;
3. the driver creates the record that names exactly those files, if it has made none for that batch
   and no newer driver has taken over;
4. only then the batch is committed. What no record names does not exist.

One record covers all operators, so a batch commits whole or not at all: state that is written
anew each time (a state file for each partition) and state in stores (the content of each partition,
and the changelog that led to it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from checkpoint.errors import CorruptCheckpointError
from checkpoint.fencing import EpochGuard
from checkpoint.files import Files
from checkpoint.framing import FileKind
from checkpoint.json_fields import (
    int_field,
    int_fields,
    list_field,
    object_field,
    require_object,
    text_field,
    text_fields,
    text_list_field,
)
from checkpoint.lineage import read_lineage
from checkpoint.record_files import RecordId, optional_id_field
from checkpoint.record_log import BatchRecord, RecordLog, batch_fields
from checkpoint.state_files import StateFileRef
from checkpoint.stored_state import StoreCommit

INPUTS_NEEDED_AFTER = "inputs_needed_after_ms"
"""The fact that says of each input, by uid, after which batch time a restart may read it again."""

COMMIT_PREFIX = "commits/"
COMMIT_SUFFIX = ".commit"

_RECORD_FORMAT = 3  # of the JSON of a record
_UPGRADE = "read this checkpoint with the release that wrote it, or a newer one"


@dataclass(frozen=True)
class OperatorCommit:
    """The state of one operator: a file for each partition.

    Args:
        partitioner: name of the function that chose the partition of each key.
        files: one reference for each of the partitions 0 to n-1, kept in that order.

    Raises:
        ValueError: a partition is missing or there twice, or two of them name one file.
    """

    partitioner: str
    files: tuple[StateFileRef, ...]

    def __post_init__(self) -> None:
        counts = Counter(ref.partition for ref in self.files)
        missing = sorted(set(range(max(counts, default=0) + 1)) - set(counts))
        twice = sorted(partition for partition, count in counts.items() if count > 1)
        if missing or twice:
            raise ValueError(
                "state files must be one for each partition from 0 on; "
                f"missing {missing}, more than once {twice}"
            )
        names = Counter(ref.name for ref in self.files)
        if len(names) < len(self.files):
            name = names.most_common(1)[0][0]
            raise ValueError(f"state file {name} is named for more than one partition")
        by_partition = sorted(self.files, key=lambda ref: ref.partition)
        object.__setattr__(self, "files", tuple(by_partition))


@dataclass(frozen=True)
class CommitRecord(BatchRecord):
    """What a committed batch left behind.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        batch_id: number of the batch, from 0.
        batch_time_ms: its time, which names the record.
        epoch: epoch of the driver that committed it.
        operators: the copies that this batch wrote of state, by uid of the operator; may be empty.
        writer: facts that a reader may want to compare, such as the version of Python and the name
            of the hash function; never secrets.
        stores: state in stores; every store of the stream, also if the batch did not change it.
        watermarks: event time that each operator or query has reached, in ms, by its uid.
        failed_outputs: ids of the outputs of the batch that failed.
        without_state: uids of operators that have no state at all after this batch: they need no
            copy, and no batch up to this one, to go on.
        previous: the record before this one, None for the first one of a stream.
        copies: for each operator of the stream that has had a copy, or no state, the newest record
            that says so; this one included.
        facts: JSON that the driver wants back; such as when a timer is due.
    """

    operators: Mapping[str, OperatorCommit]
    writer: Mapping[str, str]
    stores: tuple[StoreCommit, ...] = ()
    watermarks: Mapping[str, int] = field(default_factory=dict)
    failed_outputs: tuple[str, ...] = ()
    without_state: tuple[str, ...] = ()
    previous: RecordId | None = None
    copies: Mapping[str, RecordId] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._require_sense("commit record", self.operators, "operator")
        if self.previous is not None and self.previous.time_ms >= self.batch_time_ms:
            raise ValueError(
                f"commit record of batch {self.batch_id} at {self.batch_time_ms} ms must be later "
                f"than that of {self.previous}"
            )
        for name in ("operators", "writer", "watermarks", "copies", "facts"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        stores = sorted(self.stores, key=lambda commit: (commit.operator_uid, commit.store))
        named = {(commit.operator_uid, commit.store) for commit in stores}
        if len(named) < len(stores):
            raise ValueError(f"a store is in the record of {self.batch_time_ms} ms more than once")
        object.__setattr__(self, "stores", tuple(stores))

    def file_names(self) -> frozenset[str]:
        """Names of all state files and changelogs of this record."""
        state_files = (ref.name for commit in self.operators.values() for ref in commit.files)
        return frozenset(state_files).union(*(commit.file_names() for commit in self.stores))

    def after(
        self, last: CommitRecord | None, operators: Collection[str] | None = None
    ) -> CommitRecord:
        """Return this record linked to *last*, the one before it.

        Args:
            last: None for none.
            operators: uids of the operators of the stream; None for all that there ever were. Of
                one that is not among them, because it was removed, no copy is named any more.
        """
        before = {} if last is None else last.copies
        copies = {uid: before[uid] for uid in before if operators is None or uid in operators}
        copies.update(dict.fromkeys((*self.operators, *self.without_state), self.record_id))
        return replace(self, previous=None if last is None else last.record_id, copies=copies)

    def to_json(self) -> dict[str, object]:
        """Return these facts as a JSON object."""
        return {
            "format": _RECORD_FORMAT,
            **super().to_json(),
            "operators": {
                uid: {
                    "partitioner": commit.partitioner,
                    "files": [ref.to_json() for ref in commit.files],
                }
                for uid, commit in self.operators.items()
            },
            "writer": dict(self.writer),
            "stores": [commit.to_json() for commit in self.stores],
            "watermarks": dict(self.watermarks),
            "failed_outputs": list(self.failed_outputs),
            "without_state": list(self.without_state),
            "previous": None if self.previous is None else self.previous.to_json(),
            "copies": {uid: record_id.to_json() for uid, record_id in self.copies.items()},
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> CommitRecord:
        """Read what :meth:`to_json` returned.

        Raises:
            ValueError: a field is missing, of another type, or impossible.
        """
        operators, copies = object_field(data, "operators"), object_field(data, "copies")
        stores = (require_object(item, "store") for item in list_field(data, "stores"))
        return cls(
            **batch_fields(data),
            operators={uid: _operator(require_object(operators[uid], uid)) for uid in operators},
            writer=text_fields(data, "writer"),
            stores=tuple(map(StoreCommit.from_json, stores)),
            watermarks=int_fields(data, "watermarks"),
            failed_outputs=text_list_field(data, "failed_outputs"),
            without_state=text_list_field(data, "without_state"),
            previous=optional_id_field(data, "previous"),
            copies={uid: RecordId.from_json(copies[uid]) for uid in copies},
            facts=object_field(data, "facts") if "facts" in data else {},
        )


class CommitLog(RecordLog[CommitRecord]):
    """The commit records among *files*.

    Args:
        files: the directory of a stream.
        guard: the epoch of the driver that commits; None only reads, or writes without fencing.
        last: the record that the first one to be committed follows.
        operators: uids of the operators of the stream, as in :meth:`CommitRecord.after`.
    """

    kind = FileKind.COMMIT
    prefix, suffix = COMMIT_PREFIX, COMMIT_SUFFIX
    what, done = "a commit record", "committed"

    def __init__(
        self,
        files: Files,
        guard: EpochGuard | None = None,
        last: CommitRecord | None = None,
        operators: Collection[str] | None = None,
    ) -> None:
        super().__init__(files, guard)
        self.last = last
        self._operators = operators

    def commit(self, record: CommitRecord) -> CommitRecord:
        """Create *record* durably, as the one after the last, and return it as it was written.

        Committing the same record again is fine. After any error the stream must stop: a new
        driver finds out what is on disk.

        Raises:
            ConcurrentWriterError: the batch was committed with other content, or a newer driver has
                taken over: then it does not count, unless that driver has seen it.
            StorageRefusedError: the record was not created.
            StorageUncertainError: the record cannot be read back, and may still appear.
            NotDurableError: the record can be seen, and may not survive a power loss.
        """
        linked = self._linked(record)
        self._create(linked)
        self.last = linked
        return linked

    def ids(self) -> list[RecordId]:
        """Return which records count, oldest first, one a batch."""
        return read_lineage(self.files).commits(self.all_ids())

    def read(self, batch_time_ms: int) -> CommitRecord:
        """Read the record of a batch that counts.

        Raises:
            FileNotFoundError: there is none.
            CorruptCheckpointError: it is damaged, or that of another batch.
        """
        for record_id in self.ids():
            if record_id.time_ms == batch_time_ms:
                return self.read_record(record_id)
        raise FileNotFoundError(f"{self.files.url} has no committed batch at {batch_time_ms} ms")

    def records(self) -> list[CommitRecord]:
        """Read all records that count, oldest first."""
        return [self.read_record(record_id) for record_id in self.ids()]

    def times(self) -> list[int]:
        """Times of all committed batches in milliseconds, sorted."""
        return [record_id.time_ms for record_id in self.ids()]

    def latest(self) -> CommitRecord | None:
        """Read the newest record, None if there is none.

        Raises:
            CorruptCheckpointError: it is damaged; an older one is never taken for it.
        """
        ids = self.ids()
        return self.read_record(ids[-1]) if ids else None

    def delete(self, record_id: RecordId) -> None:
        """Delete a record, after its state files; that there is none is fine."""
        self.files.delete(commit_file(record_id))

    def _parsed(self, data: Mapping[str, object], file: str) -> CommitRecord:
        record_format = int_field(data, "format")
        if record_format != _RECORD_FORMAT:
            found = f"is a record in format {record_format}"
            raise CorruptCheckpointError(file, found, f"format {_RECORD_FORMAT}", _UPGRADE)
        return CommitRecord.from_json(data)

    def _linked(self, record: CommitRecord) -> CommitRecord:
        """Return *record* after the last one, or the last one if that is what it is."""
        last = self.last
        if last is not None and last.record_id == record.record_id:
            again = replace(record, previous=last.previous, copies=last.copies)
            if again == last:
                return last
        return record.after(last, self._operators)


def commit_file(record_id: RecordId) -> str:
    """Return the name of the file of a record."""
    return f"{COMMIT_PREFIX}{record_id.stem}{COMMIT_SUFFIX}"


def _operator(data: Mapping[str, object]) -> OperatorCommit:
    refs = (require_object(ref, "reference") for ref in list_field(data, "files"))
    return OperatorCommit(
        partitioner=text_field(data, "partitioner"),
        files=tuple(StateFileRef.from_json(ref) for ref in refs),
    )
