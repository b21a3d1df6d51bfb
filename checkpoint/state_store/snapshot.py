"""Snapshots: a whole content in one file, so that a chain of changelogs has an end.

A snapshot is named by the reference that it holds, so whoever finds one on its chain can use it;
nothing else refers to it. Two processes may write the same one at a time: the first wins, and both
hold the same content.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from checkpoint.errors import AlreadyExistsError
from checkpoint.files import Files
from checkpoint.framing import FrameTotals
from checkpoint.state_store.base import Base, Changes, Pairs
from checkpoint.state_store.blocks import Compression
from checkpoint.state_store.checksum import records_checksum, require_checksum
from checkpoint.state_store.reference import StoredKind, directory_of, parse_file_name
from checkpoint.state_store.stored_file import (
    StoredFile,
    StoredHeader,
    open_stored,
    stored_frames,
    this_writer,
)
from checkpoint.stored_state import Reference, StoreId

PART_ITEMS = 1 << 14

_T = TypeVar("_T")


def write_snapshot(
    files: Files,
    store: StoreId,
    base: Base,
    codec: Mapping[str, str],
    compression: Compression = Compression.NONE,
) -> int | None:
    """Write an open content as a snapshot, and return the size of the file in bytes.

    Returns:
        None if there is one already.

    Raises:
        CheckpointError: as in :meth:`Files.create`; trying again is fine.
        ChecksumMismatchError: the content is not what its history says; there is no snapshot.
    """
    reference = base.reference
    header = StoredHeader(
        store, StoredKind.SNAPSHOT, reference, reference, codec, compression, this_writer()
    )
    frames = stored_frames(header, _parts(base), FrameTotals())
    try:
        return files.create(header.name, frames)
    except AlreadyExistsError:
        return None


def read_snapshot(files: Files, store: StoreId, reference: Reference) -> StoredFile:
    """Open the snapshot of *reference*; its parts are puts and index puts in order.

    Raises:
        CorruptCheckpointError: the file is missing, damaged, or another one; also raised while
            pulling parts.
        StorageRefusedError: the storage cannot be read.
    """
    return open_stored(files, store, reference, StoredKind.SNAPSHOT)


def list_snapshots(files: Files, store: StoreId) -> frozenset[Reference]:
    """Return which snapshots of a store can be seen, of whatever chain."""
    parsed = (parse_file_name(name) for name in files.list(directory_of(store)))
    return frozenset(
        found[1] for found in parsed if found is not None and found[2] is StoredKind.SNAPSHOT
    )


def _parts(base: Base) -> Iterator[Changes]:
    count, checksum, found = base.count(), base.checksum, 0
    yield Changes([], [], [], [], count, checksum)
    for pairs in _batches(base.scan()):
        puts = Pairs(*zip(*pairs, strict=True))
        if checksum is not None:
            found += records_checksum(*puts.columns())
        yield Changes(puts, [], [], [], count, checksum)
    require_checksum(checksum, found)
    for entries in _batches(base.scan_index()):
        yield Changes([], [], entries, [], count, checksum)


def _batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    items = iter(items)
    while batch := list(itertools.islice(items, PART_ITEMS)):
        yield batch
