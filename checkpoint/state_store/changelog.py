"""Changelogs: what one attempt changed, in a file of its own that names the content it changed.

The base in the header makes a chain that can be walked from any reference back to the beginning,
with no listing and no knowledge of the driver.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping

from checkpoint.files import Files
from checkpoint.framing import FileRef, FrameTotals
from checkpoint.state_store.base import Changes
from checkpoint.state_store.blocks import Compression
from checkpoint.state_store.reference import StoredKind, new_suffix
from checkpoint.state_store.stored_file import (
    HEADER_CHUNK_BYTES,
    StoredFile,
    StoredHeader,
    open_stored,
    stored_frames,
    this_writer,
)
from checkpoint.stored_state import Reference, StoredPartition, StoreId


def write_changelog(
    files: Files,
    store: StoreId,
    base: Reference,
    uid: str,
    changes: Iterable[Changes],
    codec: Mapping[str, str],
    compression: Compression = Compression.NONE,
    copy_path: str | None = None,
) -> StoredPartition:
    """Write the changes of one attempt, durably, and say what was written.

    Args:
        files: where to.
        store: the store that is changed.
        base: the content that is changed.
        uid: uid of the attempt, new for ever.
        changes: parts, pulled one at a time; at least one.
        codec: how keys and records are encoded.
        compression: of the blocks.
        copy_path: path of a second file that gets the same bytes, if that works; it is not synced.

    Raises:
        ValueError: there are no changes, or a key or a record is too large.
        CheckpointError: as in :meth:`Files.create`; whatever happened, try again only under a new
            uid.
    """
    reference = Reference(base.version + 1, uid)
    header = StoredHeader(
        store, StoredKind.CHANGES, reference, base, codec, compression, this_writer()
    )
    totals = FrameTotals()
    last: list[Changes] = []
    pieces = stored_frames(header, _remembering(changes, last), totals)
    copy = _Copy(copy_path)
    try:
        files.create(header.name, copy.tee(pieces))
        copy.keep()
    finally:
        copy.drop()
    ref = FileRef.of(header.name, totals)
    return StoredPartition(store.partition, reference, ref, last[0].count)


def read_changelog(files: Files, store: StoreId, reference: Reference) -> StoredFile:
    """Open the changes that led to *reference*.

    Raises:
        CorruptCheckpointError: the file is missing, damaged, or another one; also raised while
            pulling parts.
        StorageRefusedError: the storage cannot be read.
    """
    return open_stored(files, store, reference, StoredKind.CHANGES)


def read_base(files: Files, store: StoreId, reference: Reference) -> Reference:
    """Return the content that the changes which led to *reference* were made of.

    Only the header is read. Raises as :func:`read_changelog` does.
    """
    chunk_bytes = HEADER_CHUNK_BYTES
    return open_stored(files, store, reference, StoredKind.CHANGES, chunk_bytes).header.base


def _remembering(changes: Iterable[Changes], last: list[Changes]) -> Iterator[Changes]:
    for given in changes:
        last[:] = [given]
        yield given
    if not last:
        raise ValueError("a commit must have at least one part of changes; it may be empty")


class _Copy:
    """A second file that gets the same bytes, if that works; a failure here is no failure."""

    def __init__(self, path: str | None) -> None:
        self._path = path or ""
        self._temp = f"{path}.{new_suffix()}"
        self._fd: int | None = None
        if path is not None:
            with contextlib.suppress(OSError):
                self._fd = os.open(self._temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def tee(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield *pieces*, and write them."""
        for piece in pieces:
            if self._fd is not None:
                try:
                    _write(self._fd, piece)
                except OSError:
                    self.drop()
            yield piece

    def keep(self) -> None:
        """Give the file its name."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.rename(self._temp, self._path)
        self.drop()

    def drop(self) -> None:
        """Leave nothing that was not kept."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            with contextlib.suppress(OSError):
                os.unlink(self._temp)


def _write(fd: int, piece: bytes | memoryview) -> None:
    rest = memoryview(piece).cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]
