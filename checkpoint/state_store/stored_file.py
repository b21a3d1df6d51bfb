"""Files of a state store: what changelogs and snapshots have in common.

Both are frames (:mod:`checkpoint.framing`) of blocks (:mod:`checkpoint.state_store.blocks`) under a
header that says whose they are. A reader knows which store and which reference it wants, and
refuses a file that says anything else, wherever it lies.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkpoint.errors import RESTORE, UPGRADE, CorruptCheckpointError
from checkpoint.files import READ_CHUNK_BYTES, Files, location
from checkpoint.framing import FileKind, Frames, FrameTotals, read_frames, write_frames
from checkpoint.json_records import JsonRecord, convert
from checkpoint.state_store.base import Changes
from checkpoint.state_store.blocks import Compression, decode_block, encode_blocks
from checkpoint.state_store.reference import StoredKind, file_name
from checkpoint.stored_state import Reference, StoreId

LAYOUT = 1
"""Version of the blocks and of the header; :data:`checkpoint.framing.FORMAT` is that of frames."""

HEADER_CHUNK_BYTES = 4096

_KINDS = {StoredKind.CHANGES: FileKind.CHANGES, StoredKind.SNAPSHOT: FileKind.SNAPSHOT}


class StoredHeader(JsonRecord, frozen=True):
    """What a file of a store says of itself.

    Args:
        store: whose it is.
        kind: what it holds.
        reference: the content that it holds, or leads to.
        base: the content that it was made of; that of a snapshot is the reference itself.
        codec: how keys and records are encoded, as who wrote them said.
        compression: of its blocks.
        writer: facts about the process that wrote it.
        layout: version of the blocks and of this header.
    """

    store: StoreId
    kind: StoredKind
    reference: Reference
    base: Reference
    codec: Mapping[str, str]
    compression: Compression
    writer: Mapping[str, str]
    layout: int = LAYOUT

    @property
    def name(self) -> str:
        """Name of the file."""
        return file_name(self.store, self.reference, self.kind)


@dataclass(frozen=True)
class StoredFile:
    """A file that is being read.

    Args:
        header: its header, verified.
        parts: iterator of its blocks; each is verified before it is handed out, and it ends only
            if the whole file was good.
        totals: what was read so far.
    """

    header: StoredHeader
    parts: Iterator[Changes]
    totals: FrameTotals


def this_writer() -> dict[str, str]:
    """Return facts about this process that a reader may want to know."""
    return {"python": platform.python_version()}


def stored_frames(
    header: StoredHeader, parts: Iterable[Changes], totals: FrameTotals
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file, in pieces, as *parts* are pulled.

    Raises:
        ValueError: a key, an index entry or a record is larger than a store can hold.
    """
    blocks = (block for part in parts for block in encode_blocks(part, header.compression))
    return write_frames(_KINDS[header.kind], header, blocks, totals)


def open_stored(
    files: Files,
    store: StoreId,
    reference: Reference,
    kind: StoredKind,
    chunk_bytes: int = READ_CHUNK_BYTES,
) -> StoredFile:
    """Open the file that holds *reference*, or the changes that led to it.

    Raises:
        CorruptCheckpointError: it is missing, damaged, or another one; also raised while pulling
            parts.
        StorageRefusedError: the storage cannot be read.
    """
    name = file_name(store, reference, kind)
    file = location(files, name)
    try:
        frames = read_frames(files.read_chunks(name, chunk_bytes), _KINDS[kind], file)
    except FileNotFoundError as error:
        wanted = f"the {kind.value} of version {reference.version} of {_subject(store)}"
        raise CorruptCheckpointError(file, "is missing", wanted, RESTORE) from error
    header = read_header(frames.header, kind, file)
    _require_identity(header, store, reference, file)
    return StoredFile(header, _read_parts(frames, header.compression, file), frames.totals)


def read_header(data: Mapping[str, object], kind: StoredKind, file: str) -> StoredHeader:
    """Read what a file of a store says of itself.

    Raises:
        CorruptCheckpointError: it has no such header.
    """
    layout = data.get("layout")
    if layout != LAYOUT:
        found, expected = f"is written in layout {layout!r}", f"layout {LAYOUT}"
        raise CorruptCheckpointError(file, found, expected, UPGRADE)
    header = convert(data, StoredHeader, file, "the header of a file of a state store")
    if header.kind is not kind:
        found, expected = f"is {header.kind.value} by its header", kind.value
        raise CorruptCheckpointError(file, found, expected, RESTORE)
    return header


def _read_parts(frames: Frames, compression: Compression, file: str) -> Iterator[Changes]:
    for number, (payload, operations) in enumerate(frames.blocks):
        try:
            part = decode_block(payload, compression)
        except ValueError as error:
            found = f"has no block of changes as block {number}: {error}"
            raise CorruptCheckpointError(file, found, "one", RESTORE) from error
        if part.operation_count != operations:
            found = f"has {part.operation_count} changes in block {number}"
            raise CorruptCheckpointError(file, found, f"{operations}", RESTORE)
        yield part
    if not frames.totals.blocks:
        raise CorruptCheckpointError(file, "has no blocks", "one at least", RESTORE)


def _require_identity(
    header: StoredHeader, store: StoreId, reference: Reference, file: str
) -> None:
    if header.store != store:
        found = f"is of {_subject(header.store)}"
        raise CorruptCheckpointError(file, found, _subject(store), RESTORE)
    if header.reference != reference:
        found = f"is of version {header.reference.version}, attempt {header.reference.uid}"
        expected = f"version {reference.version}, attempt {reference.uid}"
        raise CorruptCheckpointError(file, found, expected, RESTORE)
    is_changes = header.kind is StoredKind.CHANGES
    if header.base.version != reference.version - is_changes:
        found = f"was made of version {header.base.version}"
        expected = f"version {reference.version - is_changes}"
        raise CorruptCheckpointError(file, found, expected, RESTORE)


def _subject(store: StoreId) -> str:
    return (
        f"partition {store.partition} of {store.partition_count} of store {store.store!r} of "
        f"operator {store.operator_uid!r} of stream {store.stream_id!r}"
    )
