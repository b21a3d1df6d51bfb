"""Record files: one JSON object in a frame, created once, named by a batch time and an epoch.

A record is written by one driver, under the epoch that it has claimed. So two drivers never write
the same name, and which of their records count is decided by who reads them
(:mod:`checkpoint.lineage`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkpoint.errors import (
    AlreadyExistsError,
    CorruptCheckpointError,
    NotDurableError,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.files import READ_CHUNK_BYTES, Files, location
from checkpoint.framing import MAX_BLOCK_BYTES, RESTORE, FileKind, read_frames, write_frames
from checkpoint.json_fields import dump_json, int_field, list_field, load_json, object_field

_STEM = re.compile(r"(\d{16,})-e(\d+)")
_ID_FIELDS = 2
_FORMAT = 1  # of the JSON of records that do not say it themselves
_UPGRADE = "read this checkpoint with the release that wrote it, or a newer one"


@dataclass(frozen=True, order=True)
class RecordId:
    """Which record: of which batch time, written in which epoch.

    Args:
        time_ms: time of the batch.
        epoch: epoch of the driver that wrote it.
    """

    time_ms: int
    epoch: int

    def __post_init__(self) -> None:
        if min(self.time_ms, self.epoch) < 0:
            raise ValueError(f"a record must have a time and an epoch from 0 on, got {self}")

    def __str__(self) -> str:
        return f"{self.time_ms} ms of epoch {self.epoch}"

    @property
    def stem(self) -> str:
        """The middle of a name, ``<time>-e<epoch>``."""
        return f"{self.time_ms:016d}-e{self.epoch}"

    def to_json(self) -> list[int]:
        """Return ``[time, epoch]``."""
        return [self.time_ms, self.epoch]

    @classmethod
    def from_json(cls, value: object) -> RecordId:
        """Read what :meth:`to_json` returned.

        Raises:
            ValueError: it is something else.
        """
        if not isinstance(value, list) or len(value) != _ID_FIELDS:
            raise ValueError(f"a record must be named by [time, epoch], got {value!r}")
        fields = dict(zip(("time", "epoch"), value, strict=True))
        return cls(int_field(fields, "time"), int_field(fields, "epoch"))

    @classmethod
    def parse(cls, name: str, prefix: str, suffix: str) -> RecordId | None:
        """Return which record the file *name* is; None for any other file."""
        if not name.startswith(prefix) or not name.endswith(suffix):
            return None
        match = _STEM.fullmatch(name[len(prefix) : -len(suffix)])
        found = cls(int(match[1]), int(match[2])) if match else None
        # A name that was written with other digits is not one of ours.
        return found if found is not None and f"{prefix}{found.stem}{suffix}" == name else None


def record_ids(names: Iterable[str], prefix: str, suffix: str) -> list[RecordId]:
    """Return the records among the files *names*, sorted."""
    found = (RecordId.parse(name, prefix, suffix) for name in names)
    return sorted(record_id for record_id in found if record_id is not None)


def id_list_field(data: Mapping[str, object], key: str) -> tuple[RecordId, ...]:
    """Return the list of records under *key*, empty where there is none."""
    return tuple(map(RecordId.from_json, list_field(data, key) if key in data else []))


def id_fields(data: Mapping[str, object], key: str) -> dict[str, RecordId]:
    """Return the object of records under *key*, empty where there is none."""
    found = object_field(data, key) if key in data else {}
    return {name: RecordId.from_json(found[name]) for name in found}


def optional_id_field(data: Mapping[str, object], key: str) -> RecordId | None:
    """Return the record under *key*, None for null and where there is none."""
    return None if data.get(key) is None else RecordId.from_json(data[key])


def create_once(
    files: Files,
    name: str,
    chunks: Iterable[bytes | memoryview],
    taken: Callable[[], Exception],
    what: str,
) -> None:
    """Create a file durably if there is none of that name; creating the same again is fine.

    Args:
        files: where.
        name: its name.
        chunks: its content, the same bytes whenever it means the same.
        taken: what to raise when the file is there with other content; may raise itself.
        what: what the file says, for messages: ``"batch at 2000 ms may be committed or not"``.

    Raises:
        StorageRefusedError: the file was not created.
        StorageUncertainError: it cannot be read back, and may still appear.
        NotDurableError: it can be seen, and may not survive a power loss.
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
    kind: FileKind, header: Mapping[str, object], data: Mapping[str, object]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a record."""
    payload = dump_json(data)
    parts = range(0, len(payload), MAX_BLOCK_BYTES)
    blocks = ((payload[start : start + MAX_BLOCK_BYTES], int(start == 0)) for start in parts)
    return write_frames(kind, {"format": _FORMAT, **header}, blocks)


def read_record(
    files: Files, name: str, kind: FileKind, wanted: Mapping[str, object], what: str
) -> dict[str, object]:
    """Read the JSON object of a record.

    Args:
        files: where.
        name: name of the file.
        kind: what it must be.
        wanted: what its header must say, from its name and place.
        what: what the JSON is that of, for messages: ``"a commit record"``.

    Raises:
        FileNotFoundError: there is none.
        CorruptCheckpointError: it is damaged, or another one.
    """
    file = location(files, name)
    frames = read_frames(files.read_chunks(name, READ_CHUNK_BYTES), kind, file)
    record_format = frames.header.get("format", _FORMAT)
    if record_format != _FORMAT:
        found, expected = f"is {what} in format {record_format!r}", f"format {_FORMAT}"
        raise CorruptCheckpointError(file, found, expected, _UPGRADE)
    payload = b"".join(payload for payload, _ in frames.blocks)
    require_header(frames.header, wanted, file)
    try:
        return load_json(payload)
    except ValueError as error:
        raise makes_no_sense(file, error, what) from error


def require_header(header: Mapping[str, object], wanted: Mapping[str, object], file: str) -> None:
    """Raise unless the header of a file says what its name says.

    Raises:
        CorruptCheckpointError: the file is another one.
    """
    for key, value in wanted.items():
        if header.get(key) != value:
            found = f"is of {key} {header.get(key)!r}"
            raise CorruptCheckpointError(file, found, f"{key} {value!r}", RESTORE)


def makes_no_sense(file: str, error: ValueError, what: str) -> CorruptCheckpointError:
    """Return the error for JSON that no release could have written."""
    return CorruptCheckpointError(file, f"says: {error}", f"the JSON of {what}", RESTORE)
