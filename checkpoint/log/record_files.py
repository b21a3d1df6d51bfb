"""Record files: one JSON object in a frame, created once, named by a batch time and an epoch.

A record is written under the epoch that its driver claimed, so two drivers never write the same
name. Which of their records count is decided by the reader (:mod:`checkpoint.log.lineage`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from checkpoint.errors import (
    RESTORE,
    UPGRADE,
    AlreadyExistsError,
    CorruptCheckpointError,
    Damage,
    NotDurableError,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location
from checkpoint.storage.framing import MAX_BLOCK_BYTES, FileKind, read_frames, write_frames
from checkpoint.storage.json_records import Count, JsonRecord, decode, encode

_STEM = re.compile(r"(\d{16,})-e(\d+)")
_FORMAT = 1  # of the JSON of records
T = TypeVar("T")


class RecordId(JsonRecord, frozen=True, order=True, array_like=True):
    """The batch time and epoch that name a record; in JSON ``[time, epoch]``."""

    time_ms: Count
    epoch: Count

    def __str__(self) -> str:
        return f"{self.time_ms} ms of epoch {self.epoch}"

    @property
    def stem(self) -> str:
        """The middle of a name, ``<time>-e<epoch>``."""
        return f"{self.time_ms:016d}-e{self.epoch}"

    @classmethod
    def parse(cls, name: str, prefix: str, suffix: str) -> RecordId | None:
        """Return the id in a file name, None for any other file."""
        if not name.startswith(prefix) or not name.endswith(suffix):
            return None
        match = _STEM.fullmatch(name[len(prefix) : -len(suffix)])
        found = cls(int(match[1]), int(match[2])) if match else None
        # A name written with other digits, such as leading zeros, is not one of ours.
        return found if found is not None and f"{prefix}{found.stem}{suffix}" == name else None


def record_ids(names: Iterable[str], prefix: str, suffix: str) -> list[RecordId]:
    """Return the sorted ids of the records among the files *names*."""
    found = (RecordId.parse(name, prefix, suffix) for name in names)
    return sorted(record_id for record_id in found if record_id is not None)


def create_once(
    files: Files,
    name: str,
    chunks: Iterable[bytes | memoryview],
    taken: Callable[[], Exception],
    what: str,
) -> None:
    """Create a file durably; creating the same content again is fine, other content raises *taken*.

    Raises StorageRefusedError, StorageUncertainError or NotDurableError.
    """
    content = list(chunks)
    try:
        files.create(name, content)
    except (AlreadyExistsError, StorageUncertainError) as error:
        try:
            found = files.read(name)
        except (FileNotFoundError, StorageRefusedError) as unreadable:
            raise StorageUncertainError(
                f"{what}: {error}, and reading back: {unreadable}; stop, and start again when the "
                "storage answers"
            ) from error
        if found != b"".join(content):
            raise taken() from error
        if isinstance(error, NotDurableError):
            raise


def record_frames(
    kind: FileKind, header: Mapping[str, object], record: JsonRecord | Mapping[str, object]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file of a record."""
    payload = encode(record)
    parts = range(0, len(payload), MAX_BLOCK_BYTES)
    blocks = ((payload[start : start + MAX_BLOCK_BYTES], int(start == 0)) for start in parts)
    return write_frames(kind, {"format": _FORMAT, **header}, blocks)


def open_record(
    files: Files, name: str, kind: FileKind, wanted: Mapping[str, object], form: type[T], what: str
) -> tuple[Mapping[str, object], T]:
    """Read the header and the record of a file, to its end.

    Raises FileNotFoundError or CorruptCheckpointError.
    """
    file = location(files, name)
    frames = read_frames(files.read_chunks(name, READ_CHUNK_BYTES), kind, file)
    record_format = frames.header.get("format")
    if record_format != _FORMAT:
        found, expected = f"is {what} in format {record_format!r}", f"format {_FORMAT}"
        raise CorruptCheckpointError(file, found, expected, UPGRADE, Damage.FORMAT)
    payload = b"".join(payload for payload, _ in frames.blocks)
    require_header(frames.header, wanted, file)
    return frames.header, decode(payload, form, file, what)


def read_record(
    files: Files, name: str, kind: FileKind, wanted: Mapping[str, object], form: type[T], what: str
) -> T:
    """Read a record. Raises FileNotFoundError or CorruptCheckpointError."""
    return open_record(files, name, kind, wanted, form, what)[1]


def require_header(header: Mapping[str, object], wanted: Mapping[str, object], file: str) -> None:
    """Raise CorruptCheckpointError unless the header of a file has the *wanted* fields."""
    for key, value in wanted.items():
        if header.get(key) != value:
            raise misplaced(file, f"is of {key} {header.get(key)!r}", f"{key} {value!r}")


def misplaced(file: str, found: str, expected: str) -> CorruptCheckpointError:
    """Return the error for a whole file that belongs to another name, batch, epoch or stream."""
    return CorruptCheckpointError(file, found, expected, RESTORE, Damage.MISPLACED)


def missing(file: str, expected: str) -> CorruptCheckpointError:
    """Return the error for a file that records name and that does not exist."""
    return CorruptCheckpointError(file, "is missing", expected, RESTORE, Damage.MISSING)
