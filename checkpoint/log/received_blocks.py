"""Received blocks: what receivers took in, written before it counts as received.

1. A receiver writes a block to a file of its own and syncs it.
2. Only then the sender is told that the block was received, and forgets it.
3. Before a batch runs, its begin record names the blocks that it has
   (:mod:`checkpoint.log.inputs`).
4. When no run will read the batch again, a snapshot of the inputs says so, and blocks are deleted.

So after a crash each block that was acknowledged is on disk, and in a batch that a record names or
in the first batch to come. A block whose write did not return may be there as well; its sender
sends it again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress

from checkpoint.errors import (
    RESTORE,
    CheckpointError,
    CorruptCheckpointError,
    Damage,
    StorageUncertainError,
)
from checkpoint.log.fencing import require_newest
from checkpoint.log.record_files import require_header
from checkpoint.log.state_files import new_attempt
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location, uid_part
from checkpoint.storage.framing import FileKind, FileRef, FrameTotals, read_frames, write_frames

RECEIVED_PREFIX = "received/"

_BLOCK = re.compile(r"(\d{16,})-e(\d+)-[A-Za-z0-9_-]{1,64}\.block")


class ReceivedBlocks:
    """The received blocks of one input stream among *files*."""

    def __init__(self, files: Files, stream_id: str, input_uid: str, epoch: int) -> None:
        if not stream_id or not input_uid or epoch < 0:
            raise ValueError(
                f"received blocks need the ids of stream and input and an epoch from 0 on, got "
                f"{stream_id!r}, {input_uid!r}, {epoch}"
            )
        self.files = files
        self.epoch = epoch
        self._ids = {"stream_id": stream_id, "input_uid": input_uid}
        self._directory = f"{RECEIVED_PREFIX}{uid_part(input_uid)}/"

    def write(self, sequence: int, payload: bytes | memoryview, records: int) -> FileRef:
        """Write one block durably. Raises CheckpointError or ValueError."""
        attempt = new_attempt()
        name = f"{self._directory}{sequence:016d}-e{self.epoch}-{attempt}.block"
        header = {**self._ids, "sequence": sequence, "epoch": self.epoch, "attempt": attempt}
        totals = FrameTotals()
        frames = write_frames(FileKind.RECEIVED, header, [(payload, records)], totals)
        try:
            self.files.create(name, frames)
        except StorageUncertainError:
            with suppress(CheckpointError):
                self.files.delete(name)
            raise
        return FileRef.of(name, totals)

    def read(self, ref: FileRef) -> bytes:
        """Read one block. Raises CorruptCheckpointError."""
        totals, payload = self._read(ref.name)
        ref.require(totals, location(self.files, ref.name))
        return payload

    def names(self) -> list[str]:
        """Names of all blocks on disk, in the order in which they were received."""
        names = self.files.list(self._directory)
        return sorted((name for name in names if _identity(name)), key=_identity)

    def read_others(self, named: Collection[str]) -> list[tuple[FileRef, bytes]]:
        """Read the blocks that are not among the *named*, in the order in which they came in."""
        known = {_identity(name) for name in named}
        found = []
        for name in self.names():
            if _identity(name) not in known:
                known.add(_identity(name))
                totals, payload = self._read(name)
                found.append((FileRef.of(name, totals), payload))
        return found

    def delete(self, names: Iterable[str]) -> None:
        """Delete blocks that no batch will read again; that one is gone already is fine.

        Raises ConcurrentWriterError or StorageRefusedError.
        """
        require_newest(self.files, self.epoch)
        for name in names:
            self.files.delete(name)

    def _read(self, name: str) -> tuple[FrameTotals, bytes]:
        file = location(self.files, name)
        try:
            chunks = self.files.read_chunks(name, READ_CHUNK_BYTES)
            frames = read_frames(chunks, FileKind.RECEIVED, file)
        except FileNotFoundError as error:
            raise CorruptCheckpointError(
                file, "is missing", "a received block", RESTORE, Damage.MISSING
            ) from error
        payload = b"".join(payload for payload, _ in frames.blocks)
        identity = _identity(name)
        if not identity:
            raise CorruptCheckpointError(
                file, "is no block by its name", "one", RESTORE, Damage.MISPLACED
            )
        epoch, sequence = identity
        require_header(frames.header, {**self._ids, "epoch": epoch, "sequence": sequence}, file)
        return frames.totals, payload


def _identity(name: str) -> tuple[int, ...]:
    """Epoch and sequence of the block that a file holds; empty when it is none."""
    match = _BLOCK.fullmatch(name.rpartition("/")[2])
    return (int(match[2]), int(match[1])) if match else ()
