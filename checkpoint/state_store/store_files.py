"""Files of a state store: changelogs and snapshots, their names, and the chain they form.

Both are frames (:mod:`checkpoint.storage.framing`) of blocks of changes
(:mod:`checkpoint.state_store.change_blocks`) under a header that identifies them. A **changelog**
holds the changes of one attempt and names its parent. A **snapshot** holds a whole version. If two
processes write the same snapshot, the first wins::

    empty <- v1 <- v2 <- v3 <- v4 <- v5     each changelog names its parent
                   snapshot   replica

The chain of a version is found from the headers alone. A snapshot that is not on the chain is never
used, whatever its version number.
"""

from __future__ import annotations

import enum
import itertools
import platform
import re
import secrets  # noqa: TID251
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

from msgspec import field

from checkpoint.errors import RESTORE, UPGRADE, AlreadyExistsError, CorruptCheckpointError, Damage
from checkpoint.log.version_records import EMPTY, PartitionCommit, StoreId, VersionId
from checkpoint.state_store.backend import (
    Changes,
    Pairs,
    RawVersion,
    records_checksum,
    require_checksum,
)
from checkpoint.state_store.change_blocks import Compression, decode_changes, encode_changes
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location, uid_part
from checkpoint.storage.framing import (
    FileKind,
    FileRef,
    Frames,
    FrameTotals,
    read_frames,
    write_frames,
)
from checkpoint.storage.json_records import JsonRecord, convert

STORE_PREFIX = "stores/"

_FILE_NAME = re.compile(
    r"(stores/[^/]+/[^/]+/p\d{5,}/)(\d{16,})-([0-9a-f]{8,64})\.(changes|snapshot)"
)


# The uid of an attempt is the epoch of its driver, followed by 64 random bits.
_EPOCH_DIGITS = 8
_UID_DIGITS = 24


def new_uid(epoch: int) -> str:
    """Return the uid of a new attempt for the driver of *epoch*."""
    if not 0 <= epoch < 16**_EPOCH_DIGITS:
        raise ValueError(f"epoch must be 0 to {16**_EPOCH_DIGITS - 1}, got {epoch}")
    return f"{epoch:0{_EPOCH_DIGITS}x}{new_suffix()}"


def new_suffix() -> str:
    """Return 64 random bits in hexadecimal."""
    return secrets.token_hex((_UID_DIGITS - _EPOCH_DIGITS) // 2)


def epoch_of(uid: str) -> int | None:
    """Return the epoch of an attempt, None if its uid has no epoch."""
    return int(uid[:_EPOCH_DIGITS], 16) if len(uid) == _UID_DIGITS else None


class StoredKind(enum.Enum):
    """The content of a file; the value is the suffix of its name."""

    CHANGES = "changes"
    SNAPSHOT = "snapshot"


def directory_of(store: StoreId) -> str:
    """Return the directory of a store: ``stores/<operator>/<store>/p<partition>/``."""
    parts = (uid_part(store.operator_uid), uid_part(store.store), f"p{store.partition:05d}")
    return f"{STORE_PREFIX}{'/'.join(parts)}/"


def file_name(store: StoreId, version_id: VersionId, kind: StoredKind) -> str:
    """Return the name of the snapshot of *version_id*, or of the changelog that led to it."""
    return f"{directory_of(store)}{version_id.version:016d}-{version_id.uid}.{kind.value}"


def parse_file_name(name: str) -> tuple[str, VersionId, StoredKind] | None:
    """Return (directory, version, kind) for the file of a store, None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        return None
    try:
        version_id = VersionId(int(match[2]), match[3])
    except ValueError:
        return None
    return match[1], version_id, StoredKind(match[4])


ParentOf = Callable[[VersionId], VersionId]


@dataclass(frozen=True)
class ReplayPlan:
    """A version to start from, and the changelogs to apply to it."""

    start: VersionId
    changelogs: tuple[VersionId, ...]


def walk_back(version_id: VersionId, parent_of: ParentOf) -> Iterator[VersionId]:
    """Yield *version_id*, its parent, and so on, ending with the empty version."""
    while True:
        yield version_id
        if version_id == EMPTY:
            return
        version_id = parent_of(version_id)


def plan_catch_up(
    local: VersionId, version_id: VersionId, parent_of: ParentOf, max_changelogs: int
) -> ReplayPlan | None:
    """Plan how to bring a replica up to *version_id*.

    Returns:
        None if the replica is ahead, on another chain, or more than *max_changelogs* behind.
    """
    if not 0 <= version_id.version - local.version <= max_changelogs:
        return None
    changelogs: list[VersionId] = []
    for passed in walk_back(version_id, parent_of):
        if passed.version <= local.version:
            return ReplayPlan(local, tuple(reversed(changelogs))) if passed == local else None
        changelogs.append(passed)
    return None


def plan_rebuilds(
    version_id: VersionId, snapshots: Set[VersionId], parent_of: ParentOf
) -> Iterator[ReplayPlan]:
    """Yield the ways to build *version_id* from scratch, the shortest first.

    Each starts from an older snapshot than the previous one; the last starts from the empty store.
    Pull the next plan only if a snapshot is damaged.
    """
    changelogs: list[VersionId] = []
    for passed in walk_back(version_id, parent_of):
        if passed == EMPTY or passed in snapshots:
            yield ReplayPlan(passed, tuple(reversed(changelogs)))
        changelogs.append(passed)


LAYOUT = 1
"""Version of blocks and header (:data:`checkpoint.storage.framing.FORMAT` is that of frames)."""

HEADER_CHUNK_BYTES = 4096

PART_ITEMS = 1 << 14

_KINDS = {StoredKind.CHANGES: FileKind.CHANGES, StoredKind.SNAPSHOT: FileKind.SNAPSHOT}
_T = TypeVar("_T")

Tee = Callable[[Iterable["bytes | memoryview"]], Iterator["bytes | memoryview"]]


def this_writer() -> dict[str, str]:
    """Return facts about this process for the header."""
    return {"python": platform.python_version()}


class StoredHeader(JsonRecord, frozen=True):
    """The header of a file of a store.

    Args:
        store: the store it belongs to.
        kind: changelog or snapshot.
        version_id: the version that it contains or leads to.
        parent: the version that was changed; for a snapshot the version itself.
        codec: the encoding of keys and records.
        compression: the compression of its blocks.
        writer: facts about the process that wrote the file.
        layout: version of the blocks and of this header.
    """

    store: StoreId
    kind: StoredKind
    version_id: VersionId
    parent: VersionId
    codec: Mapping[str, str]
    compression: Compression
    writer: Mapping[str, str] = field(default_factory=this_writer)
    layout: int = LAYOUT

    @property
    def name(self) -> str:
        """Name of the file."""
        return file_name(self.store, self.version_id, self.kind)


@dataclass(frozen=True)
class StoredFile:
    """A file that is open for reading."""

    header: StoredHeader
    parts: Iterator[Changes]
    totals: FrameTotals


def stored_frames(
    header: StoredHeader, parts: Iterable[Changes], totals: FrameTotals
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file, in pieces, while pulling *parts*."""
    blocks = (block for part in parts for block in encode_changes(part, header.compression))
    return write_frames(_KINDS[header.kind], header, blocks, totals)


def open_stored(
    files: Files,
    store: StoreId,
    version_id: VersionId,
    kind: StoredKind,
    chunk_bytes: int = READ_CHUNK_BYTES,
) -> StoredFile:
    """Open the snapshot of *version_id*, or the changelog that led to it.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    name = file_name(store, version_id, kind)
    file = location(files, name)
    try:
        frames = read_frames(files.read_chunks(name, chunk_bytes), _KINDS[kind], file)
    except FileNotFoundError as error:
        wanted = f"the {kind.value} of version {version_id.version} of {_subject(store)}"
        raise CorruptCheckpointError(file, "is missing", wanted, RESTORE, Damage.MISSING) from error
    header = read_header(frames.header, kind, file)
    _require_identity(header, store, version_id, file)
    return StoredFile(header, _read_parts(frames, header.compression, file), frames.totals)


def read_header(data: Mapping[str, object], kind: StoredKind, file: str) -> StoredHeader:
    """Parse the header of a file of a store. Raises CorruptCheckpointError."""
    layout = data.get("layout")
    if layout != LAYOUT:
        found, expected = f"is written in layout {layout!r}", f"layout {LAYOUT}"
        raise CorruptCheckpointError(file, found, expected, UPGRADE, Damage.FORMAT)
    header = convert(data, StoredHeader, file, "the header of a file of a state store")
    if header.kind is not kind:
        found, expected = f"is {header.kind.value} by its header", kind.value
        raise CorruptCheckpointError(file, found, expected, RESTORE, Damage.MISPLACED)
    return header


def _read_parts(frames: Frames, compression: Compression, file: str) -> Iterator[Changes]:
    for number, (payload, operations) in enumerate(frames.blocks):
        try:
            part = decode_changes(payload, compression)
        except ValueError as error:
            found = f"has no block of changes as block {number}: {error}"
            raise CorruptCheckpointError(file, found, "one", RESTORE, Damage.DAMAGED) from error
        if part.operation_count != operations:
            found = f"has {part.operation_count} changes in block {number}"
            raise CorruptCheckpointError(file, found, f"{operations}", RESTORE, Damage.DAMAGED)
        yield part
    if not frames.totals.blocks:
        raise CorruptCheckpointError(file, "has no blocks", "one at least", RESTORE, Damage.DAMAGED)


def _require_identity(
    header: StoredHeader, store: StoreId, version_id: VersionId, file: str
) -> None:
    if header.store != store:
        found = f"is of {_subject(header.store)}"
        raise CorruptCheckpointError(file, found, _subject(store), RESTORE, Damage.MISPLACED)
    if header.version_id != version_id:
        found = f"is of version {header.version_id.version}, attempt {header.version_id.uid}"
        expected = f"version {version_id.version}, attempt {version_id.uid}"
        raise CorruptCheckpointError(file, found, expected, RESTORE, Damage.MISPLACED)
    is_changes = header.kind is StoredKind.CHANGES
    if header.parent.version != version_id.version - is_changes:
        found = f"was made of version {header.parent.version}"
        expected = f"version {version_id.version - is_changes}"
        raise CorruptCheckpointError(file, found, expected, RESTORE, Damage.MISPLACED)


def _subject(store: StoreId) -> str:
    return (
        f"partition {store.partition} of {store.partition_count} of store {store.store!r} of "
        f"operator {store.operator_uid!r} of stream {store.stream_id!r}"
    )


def write_changelog(
    files: Files,
    store: StoreId,
    parent: VersionId,
    uid: str,
    changes: Iterable[Changes],
    codec: Mapping[str, str],
    compression: Compression = Compression.NONE,
    tee: Tee | None = None,
) -> PartitionCommit:
    """Write the changes of one attempt, durably.

    Raises ValueError or CheckpointError.
    """
    version_id = VersionId(parent.version + 1, uid)
    header = StoredHeader(store, StoredKind.CHANGES, version_id, parent, codec, compression)
    totals = FrameTotals()
    last: list[Changes] = []
    pieces = stored_frames(header, _remembering(changes, last), totals)
    files.create(header.name, tee(pieces) if tee is not None else pieces)
    ref = FileRef.of(header.name, totals)
    return PartitionCommit(store.partition, version_id, ref, last[0].count)


def read_changelog(files: Files, store: StoreId, version_id: VersionId) -> StoredFile:
    """Open the changelog that led to *version_id*.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    return open_stored(files, store, version_id, StoredKind.CHANGES)


def read_parent(files: Files, store: StoreId, version_id: VersionId) -> VersionId:
    """Return the parent of *version_id*, from the header of its changelog.

    Raises as :func:`read_changelog` does.
    """
    kind = StoredKind.CHANGES
    return open_stored(files, store, version_id, kind, HEADER_CHUNK_BYTES).header.parent


def _remembering(changes: Iterable[Changes], last: list[Changes]) -> Iterator[Changes]:
    for given in changes:
        last[:] = [given]
        yield given
    if not last:
        raise ValueError("a commit needs at least one part of changes, which may be empty")


def write_state_snapshot(
    files: Files,
    store: StoreId,
    version: RawVersion,
    codec: Mapping[str, str],
    compression: Compression = Compression.NONE,
) -> int | None:
    """Write an open version as a snapshot, and return the size of the file in bytes.

    Returns:
        None if the snapshot exists already.

    Raises CheckpointError or ChecksumMismatchError.
    """
    version_id = version.version_id
    header = StoredHeader(store, StoredKind.SNAPSHOT, version_id, version_id, codec, compression)
    frames = stored_frames(header, _whole(version), FrameTotals())
    try:
        return files.create(header.name, frames)
    except AlreadyExistsError:
        return None


def read_state_snapshot(files: Files, store: StoreId, version_id: VersionId) -> StoredFile:
    """Open the snapshot of *version_id*; its parts contain puts and index puts in order.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    return open_stored(files, store, version_id, StoredKind.SNAPSHOT)


def list_snapshots(files: Files, store: StoreId) -> frozenset[VersionId]:
    """Return the versions of all snapshots of a store, on any chain."""
    parsed = (parse_file_name(name) for name in files.list(directory_of(store)))
    return frozenset(
        found[1] for found in parsed if found is not None and found[2] is StoredKind.SNAPSHOT
    )


def _whole(version: RawVersion) -> Iterator[Changes]:
    count, checksum, found = version.count(), version.checksum, 0
    yield Changes([], [], [], [], count, checksum)
    for pairs in _batches(version.scan()):
        puts = Pairs(*zip(*pairs, strict=True))
        if checksum is not None:
            found += records_checksum(*puts.columns())
        yield Changes(puts, [], [], [], count, checksum)
    require_checksum(checksum, found)
    for entries in _batches(version.scan_index()):
        yield Changes([], [], entries, [], count, checksum)


def _batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    items = iter(items)
    while batch := list(itertools.islice(items, PART_ITEMS)):
        yield batch
