"""Commit log: one record for each committed batch, the only truth about what counts.

The order that makes a batch durable:

1. every task writes its state file under a name of its own and syncs it;
2. the driver collects the references of the attempts that count;
3. the driver creates the record that names exactly those files, if there is none for that batch;
4. only then the batch is committed. What no record names does not exist.

One record covers all operators, so a batch commits whole or not at all: state that is written
anew each time (a state file for each partition) and state in stores (the content of each partition,
and the changelog that led to it).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from checkpoint.errors import (
    AlreadyExistsError,
    CheckpointError,
    ConcurrentWriterError,
    CorruptCheckpointError,
    NotDurableError,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.files import READ_CHUNK_BYTES, Files, location
from checkpoint.framing import RESTORE, FileKind, read_frames, write_frames
from checkpoint.json_fields import (
    dump_json,
    int_field,
    list_field,
    load_json,
    object_field,
    require_object,
    text_field,
)
from checkpoint.state_files import StateFileRef
from checkpoint.stored_state import StoreCommit

COMMIT_PREFIX = "commits/"

# Of the JSON of a record. One without stores is still written as 1: every release can read it.
_RECORD_FORMAT = 1
_RECORD_FORMAT_WITH_STORES = 2
_UPGRADE = "read this checkpoint with the release that wrote it, or a newer one"

_NAME = re.compile(re.escape(COMMIT_PREFIX) + r"(\d{16,})\.commit")


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
class CommitRecord:
    """What a committed batch left behind.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        batch_id: number of the batch, from 0.
        batch_time_ms: its time, which names the record.
        epoch: epoch of the driver that committed it.
        operators: state by uid of the operator; may be empty.
        writer: facts that a reader may want to compare, such as the version of Python and the name
            of the hash function; never secrets.
        stores: state in stores; every store of the stream, also if the batch did not change it.
    """

    stream_id: str
    batch_id: int
    batch_time_ms: int
    epoch: int
    operators: Mapping[str, OperatorCommit]
    writer: Mapping[str, str]
    stores: tuple[StoreCommit, ...] = ()

    def __post_init__(self) -> None:
        if not self.stream_id or "" in self.operators:
            raise ValueError("stream id and operator uids of a commit record must not be empty")
        if min(self.batch_id, self.batch_time_ms, self.epoch) < 0:
            raise ValueError(
                f"commit record of batch {self.batch_id} at {self.batch_time_ms} ms in epoch "
                f"{self.epoch} must have no negative number"
            )
        object.__setattr__(self, "operators", dict(self.operators))
        object.__setattr__(self, "writer", dict(self.writer))
        stores = sorted(self.stores, key=lambda commit: (commit.operator_uid, commit.store))
        named = {(commit.operator_uid, commit.store) for commit in stores}
        if len(named) < len(stores):
            raise ValueError(f"a store is in the record of {self.batch_time_ms} ms more than once")
        object.__setattr__(self, "stores", tuple(stores))

    def file_names(self) -> frozenset[str]:
        """Names of all state files and changelogs of this record."""
        state_files = (ref.name for commit in self.operators.values() for ref in commit.files)
        return frozenset(state_files).union(*(commit.file_names() for commit in self.stores))


class CommitLog:
    """The commit records among *files*."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def commit(self, record: CommitRecord) -> None:
        """Create *record* durably, if there is none of its batch time.

        Committing the same record again is fine. After any error the stream must stop: a new
        driver finds out what is on disk.

        Raises:
            ConcurrentWriterError: the batch was committed with other content.
            StorageRefusedError: the record was not created.
            StorageUncertainError: the record cannot be read back, and may still appear.
            NotDurableError: the record can be seen, and may not survive a power loss.
        """
        header = {"stream_id": record.stream_id, "batch_time_ms": record.batch_time_ms}
        payload = dump_json(_to_json(record))
        frames = write_frames(FileKind.COMMIT, header, [(payload, 1)])
        try:
            self.files.create(_name(record.batch_time_ms), frames)
        except (AlreadyExistsError, StorageUncertainError) as error:
            self._require_same(record, error)
            if isinstance(error, NotDurableError):
                raise

    def read(self, batch_time_ms: int) -> CommitRecord:
        """Read the record of a batch.

        Raises:
            FileNotFoundError: there is none.
            CorruptCheckpointError: it is damaged, or that of another batch.
        """
        name = _name(batch_time_ms)
        file = location(self.files, name)
        chunks = self.files.read_chunks(name, READ_CHUNK_BYTES)
        frames = read_frames(chunks, FileKind.COMMIT, file)
        payload = b"".join(payload for payload, _ in frames.blocks)
        try:
            data = load_json(payload)
            record_format = int_field(data, "format") if "format" in data else _RECORD_FORMAT
            if record_format not in (_RECORD_FORMAT, _RECORD_FORMAT_WITH_STORES):
                found = f"is a record in format {record_format}"
                expected = f"format {_RECORD_FORMAT} or {_RECORD_FORMAT_WITH_STORES}"
                raise CorruptCheckpointError(file, found, expected, _UPGRADE)
            record = _from_json(data)
        except ValueError as error:
            expected = "the JSON of a commit record"
            raise CorruptCheckpointError(file, f"says: {error}", expected, RESTORE) from error
        if record.batch_time_ms != batch_time_ms:
            found = f"is the record of {record.batch_time_ms} ms"
            raise CorruptCheckpointError(file, found, f"that of {batch_time_ms} ms", RESTORE)
        return record

    def times(self) -> list[int]:
        """Times of all committed batches in milliseconds, sorted."""
        matches = (_NAME.fullmatch(name) for name in self.files.list(COMMIT_PREFIX))
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> CommitRecord | None:
        """Read the newest record, None if there is none.

        Raises:
            CorruptCheckpointError: it is damaged; an older one is never taken for it.
        """
        times = self.times()
        return self.read(times[-1]) if times else None

    def delete(self, batch_time_ms: int) -> None:
        """Delete the record of a batch, after its state files; that there is none is fine."""
        self.files.delete(_name(batch_time_ms))

    def _require_same(self, record: CommitRecord, cause: CheckpointError) -> None:
        """Return if *record* is what can be read back after *cause*."""
        try:
            other = self.read(record.batch_time_ms)
        except (FileNotFoundError, StorageRefusedError) as error:
            raise StorageUncertainError(
                f"batch at {record.batch_time_ms} ms may be committed or not: {cause}, and reading "
                f"back: {error}; stop, and start again when the storage answers"
            ) from error
        if other != record:
            raise ConcurrentWriterError(
                f"batch at {record.batch_time_ms} ms was committed by a driver of epoch "
                f"{other.epoch}, with other content than this one of epoch {record.epoch} has; "
                "only one driver may run on a checkpoint, stop this one",
                record.epoch,
                other.epoch,
            ) from cause


def _name(batch_time_ms: int) -> str:
    return f"{COMMIT_PREFIX}{batch_time_ms:016d}.commit"


def _to_json(record: CommitRecord) -> dict[str, object]:
    stores: dict[str, object] = {}
    if record.stores:
        stores["format"] = _RECORD_FORMAT_WITH_STORES
        stores["stores"] = [commit.to_json() for commit in record.stores]
    return {
        **stores,
        "stream_id": record.stream_id,
        "batch_id": record.batch_id,
        "batch_time_ms": record.batch_time_ms,
        "epoch": record.epoch,
        "operators": {
            uid: {
                "partitioner": commit.partitioner,
                "files": [ref.to_json() for ref in commit.files],
            }
            for uid, commit in record.operators.items()
        },
        "writer": dict(record.writer),
    }


def _from_json(data: Mapping[str, object]) -> CommitRecord:
    operators = object_field(data, "operators")
    writer = object_field(data, "writer")
    stores = list_field(data, "stores") if "stores" in data else []
    return CommitRecord(
        stream_id=text_field(data, "stream_id"),
        batch_id=int_field(data, "batch_id"),
        batch_time_ms=int_field(data, "batch_time_ms"),
        epoch=int_field(data, "epoch"),
        operators={uid: _operator(require_object(operators[uid], uid)) for uid in operators},
        writer={key: text_field(writer, key) for key in writer},
        stores=tuple(StoreCommit.from_json(require_object(item, "store")) for item in stores),
    )


def _operator(data: Mapping[str, object]) -> OperatorCommit:
    refs = (require_object(ref, "reference") for ref in list_field(data, "files"))
    return OperatorCommit(
        partitioner=text_field(data, "partitioner"),
        files=tuple(StateFileRef.from_json(ref) for ref in refs),
    )
