"""Files of a state store: changelogs and snapshots, their names, and the chain they form.

Both are frames (:mod:`checkpoint.storage.framing`) of blocks of changes under a header that
identifies them. A **changelog** holds the changes of one attempt and names its parent. A
**snapshot** holds a whole version. If two processes write the same snapshot, the first wins::

    empty <- v1 <- v2 <- v3 <- v4 <- v5     each changelog names its parent
                   snapshot   replica

The chain of a version is found from the headers alone. A snapshot that is not on the chain is never
used, whatever its version number.

A **block** has columns of lengths and of bytes::

    Q keys after these changes | Q checksum after them | column * 5
    column   B bytes of a length | I items | lengths | items, one after the other

The columns are keys and records of the puts, keys of the removes, and entries added to and removed
from the timeout index. A compressed block is its length and one zstandard frame that must state the
same length, so reading never takes more memory than :data:`MAX_BLOCK_BYTES`.

Columns also save time: small objects that were made long ago have left the processor's caches, and
to join them at once and slice them later is faster than to visit and free each of them.
"""

from __future__ import annotations

import enum
import platform
import re
import secrets  # noqa: TID251
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import overload

from msgspec import field

from checkpoint.errors import RESTORE, UPGRADE, AlreadyExistsError, CorruptCheckpointError, Damage
from checkpoint.log.batch_records import (
    EMPTY,
    STORE_PREFIX,
    PartitionCommit,
    StoreId,
    VersionId,
)
from checkpoint.state_store.backend import (
    Changes,
    Pairs,
    RawVersion,
    chunks,
    records_checksum,
    require_checksum,
)
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location, uid_part
from checkpoint.storage.framing import (
    MAX_BLOCK_BYTES,
    FileKind,
    FileRef,
    Frames,
    FrameTotals,
    read_frames,
    write_frames,
)
from checkpoint.storage.json_records import JsonRecord, convert

_CUT_ITEMS = 256  # held at once while iterating
MAX_KEY_BYTES = 503
MAX_INDEX_BYTES = 511
MAX_RECORD_BYTES = 32 << 20
BLOCK_BYTES = 1 << 20
BLOCK_OPERATIONS = 1 << 15
MAX_ITEMS = 1 << 16
_HEAD = struct.Struct("<QQ")
_NO_CHECKSUM = (1 << 64) - 1
_COLUMN = struct.Struct("<BI")
_LENGTH = struct.Struct("<I")
_WIDTHS = {2: "H", 4: "I"}
_ZSTD_LEVEL = 1
_FILE_NAME = re.compile(
    r"(stores/[^/]+/[^/]+/p\d{5,}/)(\d{16,})-([0-9a-f]{8,64})\.(changes|snapshot)"
)
# The uid of an attempt is the epoch of its driver, followed by 64 random bits.
_EPOCH_DIGITS = 8
_UID_DIGITS = 24
ParentOf = Callable[[VersionId], VersionId]

LAYOUT = 1
"""Version of blocks and header (:data:`checkpoint.storage.framing.FORMAT` is that of frames)."""

HEADER_CHUNK_BYTES = 4096
PART_ITEMS = 1 << 14
Tee = Callable[[Iterable["bytes | memoryview"]], Iterator["bytes | memoryview"]]


class Column(Sequence[bytes]):
    """A sequence of bytes objects, stored as one and created on access."""

    __slots__ = ("_at", "_data", "lengths", "size_bytes")

    def __init__(self, lengths: Sequence[int], data: bytes, at: int = 0) -> None:
        self.lengths = lengths
        self.size_bytes = sum(lengths)
        self._data = data
        self._at = at
        if at + self.size_bytes > len(data):
            missing = at + self.size_bytes - len(data)
            raise ValueError(f"a column of {len(lengths)} items is {missing} bytes too short")

    @classmethod
    def of(cls, items: Sequence[bytes]) -> Column:
        """Return a column of *items*."""
        return cls(list(map(len, items)), b"".join(items))

    @classmethod
    def joined(cls, columns: Sequence[Column]) -> Column:
        """Return one column with the items of all *columns*."""
        if len(columns) == 1:
            return columns[0]
        lengths: list[int] = []
        for column in columns:
            lengths += column.lengths
        return cls(lengths, b"".join([column.whole() for column in columns]))

    def whole(self) -> bytes | memoryview:
        """Return all items as one."""
        if self.size_bytes == len(self._data):
            return self._data
        return memoryview(self._data)[self._at : self._at + self.size_bytes]

    def part(self, first: int, last: int) -> Column:
        """Return the items from *first* up to before *last*."""
        return Column(self.lengths[first:last], self._data, self._at + sum(self.lengths[:first]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._cuts())

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return list(self)[at]
        place = range(len(self))[at]
        start = self._at + sum(self.lengths[:place])
        return self._data[start : start + self.lengths[place]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def _cuts(self) -> Iterator[tuple[bytes, ...]]:
        at = self._at
        for start in range(0, len(self.lengths), _CUT_ITEMS):
            lengths = self.lengths[start : start + _CUT_ITEMS]
            # struct.unpack_from would cache the format.
            cut = struct.Struct(_format(lengths))
            yield cut.unpack_from(self._data, at)
            at += cut.size


def _format(lengths: Sequence[int]) -> str:
    sizes = set(lengths)
    if len(sizes) == 1:
        return f"{sizes.pop()}s" * len(lengths)
    formats = {size: f"{size}s" for size in sizes}
    return "".join(map(formats.__getitem__, lengths))


class Compression(enum.Enum):
    """The compression of blocks."""

    NONE = "none"
    ZSTD = "zstd"


def encode_changes(changes: Changes, compression: Compression) -> Iterator[tuple[bytes, int]]:
    """Yield pairs (bytes of a block, number of changes in it), at least one."""
    puts = changes.puts
    if isinstance(puts, Pairs):
        keys, records = puts.columns()
    else:
        keys, records = [key for key, _ in puts], [record for _, record in puts]
    columns = [
        _column("key", keys, 1, MAX_KEY_BYTES),
        _column("record", records, 0, MAX_RECORD_BYTES),
        _column("key", changes.removes, 1, MAX_KEY_BYTES),
        _column("index entry", changes.index_puts, 1, MAX_INDEX_BYTES),
        _column("index entry", changes.index_removes, 1, MAX_INDEX_BYTES),
    ]
    checksum = _NO_CHECKSUM if changes.checksum is None else changes.checksum
    for block, operations in _encode(_HEAD.pack(changes.count, checksum), columns):
        yield block if compression is Compression.NONE else _compress(block), operations


def _column(what: str, items: Sequence[bytes], least: int, most: int) -> Column:
    column = items if isinstance(items, Column) else Column.of(items)
    lengths = column.lengths
    sizes = set(lengths) or {least}  # usually few
    if not least <= min(sizes) <= max(sizes) <= most:
        wrong = next(length for length in lengths if not least <= length <= most)
        raise ValueError(
            f"{what} of {wrong} bytes in a state store must be {least} to {most} bytes; "
            "store large values outside the state, or split them over several keys"
        )
    return column


def _encode(head: bytes, columns: Sequence[Column]) -> Iterator[tuple[bytes, int]]:
    operations = sum(map(len, columns)) - len(columns[0])  # a key and its record are one
    payload_bytes = sum(column.size_bytes for column in columns)
    if operations > 1 and (operations > BLOCK_OPERATIONS or payload_bytes > BLOCK_BYTES):
        for half in zip(*map(_halves, columns), strict=True):
            yield from _encode(head, half)
        return
    parts: list[bytes | memoryview] = [head]
    for column in columns:
        lengths = column.lengths
        width = 2 if max(set(lengths), default=0) < 1 << 16 else 4
        parts.append(_COLUMN.pack(width, len(lengths)))
        parts.append(struct.pack(f"<{len(lengths)}{_WIDTHS[width]}", *lengths))
        parts.append(column.whole())
    yield b"".join(parts), operations


def _halves(column: Column) -> tuple[Column, Column]:
    middle = (len(column) + 1) // 2
    return column.part(0, middle), column.part(middle, len(column))


def decode_changes(payload: bytes, compression: Compression) -> Changes:
    """Decode a block of :func:`encode_changes`. Raises ValueError."""
    block = payload if compression is Compression.NONE else _decompress(payload)
    try:
        count, checksum = _HEAD.unpack_from(block)
        keys, at = _read_column(block, _HEAD.size)
        records, at = _read_column(block, at)
        removes, at = _read_column(block, at)
        index_puts, at = _read_column(block, at)
        index_removes, at = _read_column(block, at)
    except struct.error as error:
        raise ValueError(f"a column is too short: {error}") from error
    if at != len(block) or len(keys) != len(records):
        raise ValueError(f"{len(block) - at} bytes are left, {len(keys)} keys, {len(records)} puts")
    checksum = None if checksum == _NO_CHECKSUM else checksum
    return Changes(Pairs(keys, records), removes, index_puts, index_removes, count, checksum)


def _read_column(block: bytes, at: int) -> tuple[Column, int]:
    width, items = _COLUMN.unpack_from(block, at)
    at += _COLUMN.size
    if width not in _WIDTHS or items > MAX_ITEMS:
        raise ValueError(f"a column has {items} items with lengths of {width} bytes")
    lengths = struct.unpack_from(f"<{items}{_WIDTHS[width]}", block, at)
    at += width * items
    column = Column(lengths, block, at)
    return column, at + column.size_bytes


def _compress(block: bytes) -> bytes:
    # Imported here, because it takes 9 ms.
    import zstandard  # noqa: PLC0415

    return _LENGTH.pack(len(block)) + zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(block)


def _decompress(payload: bytes) -> bytes:
    import zstandard  # noqa: PLC0415

    frame = payload[_LENGTH.size :]
    try:
        (block_bytes,) = _LENGTH.unpack_from(payload)
        stated = zstandard.get_frame_parameters(frame).content_size
        if stated != block_bytes or block_bytes > MAX_BLOCK_BYTES:
            raise ValueError(f"a block of {block_bytes} bytes states a size of {stated}")
        block = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except (struct.error, zstandard.ZstdError) as error:
        raise ValueError(f"a block cannot be decompressed: {error}") from error
    if len(block) != block_bytes:
        raise ValueError(f"a block has {len(block)} bytes, not {block_bytes}")
    return block


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


_KINDS = {StoredKind.CHANGES: FileKind.CHANGES, StoredKind.SNAPSHOT: FileKind.SNAPSHOT}


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
    """Open the snapshot of *version_id*, or the changelog that led to it."""
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
    """Write the changes of one attempt, durably. Raises ValueError or CheckpointError."""
    version_id = VersionId(parent.version + 1, uid)
    header = StoredHeader(store, StoredKind.CHANGES, version_id, parent, codec, compression)
    totals = FrameTotals()
    last: list[Changes] = []
    pieces = stored_frames(header, _remembering(changes, last), totals)
    files.create(header.name, tee(pieces) if tee is not None else pieces)
    ref = FileRef.of(header.name, totals)
    return PartitionCommit(store.partition, version_id, ref, last[0].count)


def read_changelog(files: Files, store: StoreId, version_id: VersionId) -> StoredFile:
    """Open the changelog that led to *version_id*."""
    return open_stored(files, store, version_id, StoredKind.CHANGES)


def read_parent(files: Files, store: StoreId, version_id: VersionId) -> VersionId:
    """Return the parent of *version_id*, from the header of its changelog."""
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
    """Open the snapshot of *version_id*; its parts contain puts and index puts in order."""
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
    for pairs in chunks(version.scan(), PART_ITEMS):
        puts = Pairs(*zip(*pairs, strict=True))
        if checksum is not None:
            found += records_checksum(*puts.columns())
        yield Changes(puts, [], [], [], count, checksum)
    require_checksum(checksum, found)
    for entries in chunks(version.scan_index(), PART_ITEMS):
        yield Changes([], [], entries, [], count, checksum)
