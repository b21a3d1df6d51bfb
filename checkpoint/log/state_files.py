"""State files: one partition of a state snapshot, as one attempt of a task wrote it.

Attempts that were cancelled, lost a race or belong to a dead driver keep writing for seconds. So
every attempt writes under a unique name, and a file counts only if a commit record names it.
"""

from __future__ import annotations

import dataclasses
import re
import secrets  # noqa: TID251
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkpoint.log.record_files import RecordId, misplaced, missing
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location, uid_part
from checkpoint.storage.framing import (
    FileKind,
    FileRef,
    Frames,
    FrameTotals,
    read_frames,
    write_frames,
)
from checkpoint.storage.json_records import convert

STATE_PREFIX = "state/"

_STATE_FILE = re.compile(
    re.escape(STATE_PREFIX) + r"[^/]+/(\d{16,})-p\d{5,}-e(\d+)-[A-Za-z0-9_-]{1,64}\.state"
)
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_attempt() -> str:
    """Return a unique name for one attempt of a task: 64 random bits."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class StatePartition:
    """The partition in a state file, as a reader knows it before opening the file.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        operator_uid: uid of the stateful operator.
        batch_time_ms: the batch after which the state was taken.
        partition: number of the partition, from 0.
        partition_count: partitions of that state.
        partitioner: name of the function that chose the partition of each key.
    """

    stream_id: str
    operator_uid: str
    batch_time_ms: int
    partition: int
    partition_count: int
    partitioner: str

    def __post_init__(self) -> None:
        for field in ("stream_id", "operator_uid", "partitioner"):
            if not getattr(self, field):
                raise ValueError(f"{field} of a state file is empty; give it a name")
        if self.batch_time_ms < 0:
            raise ValueError(f"batch time of {self.batch_time_ms} ms must not be negative")
        if not 0 <= self.partition < self.partition_count:
            raise ValueError(
                f"partition {self.partition} of {self.operator_uid!r} must be 0 to "
                f"{self.partition_count - 1}, as it has {self.partition_count}"
            )


@dataclass(frozen=True)
class StateFileId(StatePartition):
    """The identity of a state file: its partition, the epoch of the driver, and the attempt."""

    epoch: int
    attempt: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epoch < 0:
            raise ValueError(f"epoch {self.epoch} of a state file must not be negative")
        if not _ATTEMPT.fullmatch(self.attempt):
            raise ValueError(
                f"attempt {self.attempt!r} must be 1 to 64 of A-Z a-z 0-9 _ -; use new_attempt()"
            )

    @property
    def name(self) -> str:
        """Name of the file, ``state/<operator>/<time>-p<partition>-e<epoch>-<attempt>.state``.

        Each operator has one directory; one per batch would need a sync and a deletion.
        """
        return (
            f"{STATE_PREFIX}{uid_part(self.operator_uid)}/{self.batch_time_ms:016d}"
            f"-p{self.partition:05d}-e{self.epoch}-{self.attempt}.state"
        )


def state_files_of(
    files: Files, operator_uid: str, batch_time_ms: int, epoch: int | None = None
) -> list[str]:
    """Return the names of all files of an operator's state after a batch."""
    names = files.list(f"{STATE_PREFIX}{uid_part(operator_uid)}/{batch_time_ms:016d}-")
    if epoch is None:
        return names
    wanted = RecordId(batch_time_ms, epoch)
    return [name for name in names if state_file_record(name) == wanted]


def state_file_record(name: str) -> RecordId | None:
    """Return the commit record that could name the file *name*; None if it is not a state file."""
    match = _STATE_FILE.fullmatch(name)
    return RecordId(int(match[1]), int(match[2])) if match else None


def write_state_file(
    files: Files, file_id: StateFileId, blocks: Iterable[tuple[bytes | memoryview, int]]
) -> FileRef:
    """Write one partition of a state durably, and return its reference.

    Raises CheckpointError.
    """
    totals = FrameTotals()
    frames = write_frames(FileKind.STATE, dataclasses.asdict(file_id), blocks, totals)
    files.create(file_id.name, frames)
    return FileRef.of(file_id.name, totals)


def read_state_file(files: Files, ref: FileRef, expected: StatePartition) -> Iterator[bytes]:
    """Open a state file and return an iterator of its payloads.

    The header is checked at once, each payload before it is returned, size and digest at the end:
    read to the end before making anything durable that depends on the state. Raises
    CorruptCheckpointError or StorageRefusedError.
    """
    file = location(files, ref.name)
    try:
        chunks = files.read_chunks(ref.name, READ_CHUNK_BYTES)
        frames = read_frames(chunks, FileKind.STATE, file)
    except FileNotFoundError as error:
        wanted = f"a state file of {ref.size_bytes} bytes and {ref.records} records"
        raise missing(file, wanted) from error
    _require_identity(frames.header, ref, expected, file)
    return _payloads(frames, ref, file)


def _payloads(frames: Frames, ref: FileRef, file: str) -> Iterator[bytes]:
    for payload, _ in frames.blocks:
        yield payload
    ref.require(frames.totals, file)


def _require_identity(
    header: Mapping[str, object], ref: FileRef, expected: StatePartition, file: str
) -> None:
    """Raise unless the header of the file has the expected identity."""
    for field in dataclasses.fields(StatePartition):
        found, wanted = header.get(field.name), getattr(expected, field.name)
        if found != wanted:
            raise misplaced(file, f"is of {field.name} {found!r}", f"{field.name} {wanted!r}")
    name = read_file_id(header, file).name
    if name != ref.name:
        raise misplaced(file, f"was written as {name}", ref.name)


def read_file_id(header: Mapping[str, object], file: str) -> StateFileId:
    """Return the identity in the header of a state file. Raises CorruptCheckpointError."""
    return convert(header, StateFileId, file, "the header of a state file")
