"""Block log: what receivers took in, written before it counts as received, and which batch has it.

The order that makes a received block durable, for each input stream:

1. whoever received it writes it to a file of its own, under a new name, and syncs it;
2. only then its sender is told that it was received, and forgets it;
3. before a batch runs, the driver creates the record that names the blocks of the batch, if there
   is none for that batch time;
4. when the batch will not be read again, first the blocks are deleted and then the record.

So after a crash each block that was acknowledged is on disk: named by a record, and part of that
batch, or named by none, and part of the first batch that is still to come. A block whose write did
not return may be there as well; it is whole, and its sender will send it again.

Where a record could not be created for certain, the next batch takes the blocks: the newest record
that names a block counts (:meth:`BlockLog.allocated`). What older drivers have recorded counts as
far as the newer one took it over (:mod:`checkpoint.lineage`); blocks of a record that does not
count are in no batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from checkpoint.errors import (
    RESTORE,
    CheckpointError,
    ConcurrentWriterError,
    CorruptCheckpointError,
    StorageUncertainError,
)
from checkpoint.fencing import require_newest
from checkpoint.files import READ_CHUNK_BYTES, Files, location
from checkpoint.framing import FileKind, FileRef, FrameTotals, read_frames, write_frames
from checkpoint.json_records import JsonRecord
from checkpoint.lineage import Lineage, read_lineage
from checkpoint.names import uid_part
from checkpoint.record_files import (
    RecordId,
    create_once,
    read_record,
    record_frames,
    record_ids,
    require_header,
)
from checkpoint.state_files import new_attempt

RECEIVED_PREFIX = "received/"

_BLOCK = re.compile(r"(\d{16,})-e(\d+)-[A-Za-z0-9_-]{1,64}\.block")


class _Allocation(JsonRecord, frozen=True):
    """Which blocks a batch has."""

    blocks: tuple[FileRef, ...]


class BlockLog:
    """The received blocks of one input stream among *files*.

    A driver that takes over from another one begins the next epoch: see :meth:`last_epoch`.

    Args:
        files: where they are.
        stream_id: id of the stream that the input belongs to, the same over all its restarts.
        input_uid: uid of the input stream.
        epoch: epoch of this driver; part of the name of each block.
    """

    def __init__(self, files: Files, stream_id: str, input_uid: str, epoch: int) -> None:
        if not stream_id or not input_uid or epoch < 0:
            raise ValueError(
                f"a block log needs the ids of stream and input and an epoch from 0 on, got "
                f"{stream_id!r}, {input_uid!r}, {epoch}"
            )
        self.files = files
        self.epoch = epoch
        self._ids = {"stream_id": stream_id, "input_uid": input_uid}
        self._directory = f"{RECEIVED_PREFIX}{uid_part(input_uid)}"

    def write(self, sequence: int, payload: bytes | memoryview, records: int) -> FileRef:
        """Write one block durably.

        Args:
            sequence: its place among the blocks of this input; each block of an epoch has its own.
            payload: what it holds, not looked at.
            records: how many records that is.

        Raises:
            CheckpointError: as in :meth:`Files.create`; the block must not be acknowledged. It
                may be there nevertheless where its absence could not be made sure of.
            ValueError: the block is larger than a file can hold.
        """
        attempt = new_attempt()
        name = f"{self._directory}/blocks/{sequence:016d}-e{self.epoch}-{attempt}.block"
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
        """Read one block.

        Raises:
            CorruptCheckpointError: the file is missing, damaged, or another one.
        """
        totals, payload = self._read_block(ref.name)
        ref.require(totals, location(self.files, ref.name))
        return payload

    def last_epoch(self) -> int:
        """The highest epoch of a block, on disk or in a record; 0 without any."""
        recorded = (ref.name for refs in self._each_batch() for ref in refs)
        names = {*self.blocks(), *recorded}
        return max((identity[0] for identity in map(_identity, names) if identity), default=0)

    def blocks(self) -> list[str]:
        """Names of all blocks on disk, in the order in which they were received."""
        names = self.files.list(f"{self._directory}/blocks/")
        return sorted((name for name in names if _identity(name)), key=_identity)

    def unallocated(self) -> list[FileRef]:
        """Blocks that no batch has, read and verified, in the order in which they were received."""
        known = {_identity(ref.name) for refs in self._each_batch() for ref in refs}
        found = []
        for name in self.blocks():
            if _identity(name) not in known:
                known.add(_identity(name))
                found.append(FileRef.of(name, self._read_block(name)[0]))
        return found

    def allocate(self, batch_time_ms: int, blocks: Sequence[FileRef]) -> None:
        """Record durably, if there is no record of that batch, that a batch has *blocks*.

        Recording the same again is fine. After an error the batch must not run.

        Raises:
            ConcurrentWriterError: the batch was recorded with other blocks.
            StorageRefusedError: the record was not created.
            StorageUncertainError: the record cannot be read back, and may still appear.
            NotDurableError: the record can be seen, and may not survive a power loss.
        """
        header = {**self._ids, "batch_time_ms": batch_time_ms, "epoch": self.epoch}
        frames = record_frames(FileKind.ALLOCATION, header, _Allocation(tuple(blocks)))
        what = f"the blocks of the batch at {batch_time_ms} ms"

        def taken() -> Exception:
            return ConcurrentWriterError(
                f"{what} are recorded already, and are others; only one driver may run on a "
                "checkpoint, stop this one",
                self.epoch,
                self.epoch,
            )

        name = self._batch_name(RecordId(batch_time_ms, self.epoch))
        create_once(self.files, name, frames, taken, f"{what} may be recorded or not")

    def times(self) -> list[int]:
        """Times of all batches that have a record that counts, in milliseconds, sorted."""
        return list(self._ids_by_time())

    def _read_batch(self, record_id: RecordId) -> tuple[FileRef, ...]:
        name = self._batch_name(record_id)
        wanted = {**self._ids, "batch_time_ms": record_id.time_ms, "epoch": record_id.epoch}
        kind, what = FileKind.ALLOCATION, "the blocks of a batch"
        return read_record(self.files, name, kind, wanted, _Allocation, what).blocks

    def _ids_by_time(self, lineage: Lineage | None = None) -> dict[int, RecordId]:
        prefix = f"{self._directory}/batches/"
        ids = record_ids(self.files.list(prefix), prefix, ".batch")
        return (lineage or read_lineage(self.files)).logged(ids)

    def allocated(self, lineage: Lineage | None = None) -> dict[int, tuple[FileRef, ...]]:
        """The blocks of each recorded batch, by time; each block once, where it was named last.

        Args:
            lineage: which epochs follow from each other, if not the ones that do.
        """
        batches: dict[int, tuple[FileRef, ...]] = {}
        later: set[str] = set()
        for time_ms, record_id in reversed(self._ids_by_time(lineage).items()):
            refs = self._read_batch(record_id)
            batches[time_ms] = tuple(ref for ref in refs if ref.name not in later)
            later.update(ref.name for ref in refs)
        return dict(sorted(batches.items()))

    def require_allocated(
        self, begun: Mapping[RecordId, object], lineage: Lineage | None = None
    ) -> None:
        """Raise if the record of the blocks of a batch is lost: they would be taken once more.

        Where the blocks are gone as well, the batch was released, or cannot be read again.

        Args:
            begun: what the begin record of each batch says of this input.
            lineage: which epochs follow from each other, if not the ones that do.

        Raises:
            CorruptCheckpointError: one is missing, or is not what it was.
        """
        if not begun:
            return
        allocated, ids = self.allocated(lineage), self._ids_by_time(lineage)
        known = {ref.name for refs in allocated.values() for ref in refs}
        left = [_identity(name) for name in self.blocks() if name not in known]
        for record_id, said in begun.items():
            time_ms = record_id.time_ms
            if not isinstance(said, Mapping) or not said.get("logged") or not said["blocks"]:
                continue
            found, wanted = len(allocated.get(time_ms, ())), said["blocks"]
            if time_ms in allocated and found != wanted:
                file = location(self.files, self._batch_name(ids[time_ms]))
                expected = f"{wanted}, as the begin record says"
                raise CorruptCheckpointError(file, f"names {found} blocks", expected, RESTORE)
            after = [refs for ms, refs in allocated.items() if ms > time_ms and refs]
            next_block = min(_identity(ref.name) for ref in after[0]) if after else None
            if not found and any(next_block is None or block < next_block for block in left):
                file = location(self.files, self._batch_name(record_id))
                expected = f"the record of the {wanted} blocks of that batch"
                raise CorruptCheckpointError(file, "is missing", expected, RESTORE)

    def _each_batch(self) -> Iterator[tuple[FileRef, ...]]:
        return map(self._read_batch, self._ids_by_time().values())

    def release(self, upto_ms: int) -> None:
        """Delete the batches up to and with that time: their blocks first, then their records.

        Doing it again, or after a crash half way, is fine.

        Raises:
            ConcurrentWriterError: a newer driver has taken over; nothing was deleted.
            StorageRefusedError: a file could not be deleted; the rest is still there.
        """
        require_newest(self.files, self.epoch)
        batches, ids = self.allocated(), self._ids_by_time()
        for time_ms in [time_ms for time_ms in batches if time_ms <= upto_ms]:
            for ref in batches[time_ms]:
                self.files.delete(ref.name)
            self.files.delete(self._batch_name(ids[time_ms]))

    def _batch_name(self, record_id: RecordId) -> str:
        return f"{self._directory}/batches/{record_id.stem}.batch"

    def _read_block(self, name: str) -> tuple[FrameTotals, bytes]:
        file = location(self.files, name)
        try:
            chunks = self.files.read_chunks(name, READ_CHUNK_BYTES)
            frames = read_frames(chunks, FileKind.RECEIVED, file)
        except FileNotFoundError as error:
            raise CorruptCheckpointError(file, "is missing", "a received block", RESTORE) from error
        payload = b"".join(payload for payload, _ in frames.blocks)
        identity = _identity(name)
        if not identity:
            raise CorruptCheckpointError(file, "is no block by its name", "one", RESTORE)
        epoch, sequence = identity
        require_header(frames.header, {**self._ids, "epoch": epoch, "sequence": sequence}, file)
        return frames.totals, payload


def _identity(name: str) -> tuple[int, ...]:
    """Epoch and sequence of the block that a file holds; empty when it is none."""
    match = _BLOCK.fullmatch(name.rpartition("/")[2])
    return (int(match[2]), int(match[1])) if match else ()
