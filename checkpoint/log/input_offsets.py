"""Inputs: the offsets that each batch reads, snapshots of them, and received blocks.

A begin record describes for each input what its batch reads, as JSON::

    "end":    the offset up to which the batch reads
    "start":  the offset after which it reads, if it is not the end of the batch before
    "files":  the files that the batch reads: each a path, or a list that begins with the path
    "blocks": the received blocks that it reads

Some inputs need to know what all earlier batches read: a file is read once. So a snapshot replaces
begin records that are deleted, and holds what existed before the stream began::

    inputs/0000000000060000-e2.inputs      what batches up to 60000 have read, written in epoch 2

A received block is durable before it is acknowledged:

1. A receiver writes a block to a file of its own and syncs it.
2. Only then is the block acknowledged to the sender, which forgets it.
3. Before a batch runs, its begin record names its blocks.
4. When no restart can read the batch again, a snapshot of the inputs is written, and the blocks are
   deleted.

So after a crash each acknowledged block is on disk, in a batch with a begin record or in the first
batch to come. A block whose write did not return may exist as well; its sender sends it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from checkpoint.errors import CheckpointError, ConcurrentWriterError, StorageUncertainError
from checkpoint.log.batch_records import INPUTS_PREFIX, begin_file
from checkpoint.log.fencing import require_newest
from checkpoint.log.record_files import (
    RecordId,
    create_once,
    misplaced,
    missing,
    read_record,
    record_frames,
    record_ids,
    require_header,
)
from checkpoint.log.recovery import OwnedStream, RecoveryPlan
from checkpoint.log.state_files import new_attempt
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location, uid_part
from checkpoint.storage.framing import FileKind, FileRef, FrameTotals, read_frames, write_frames
from checkpoint.storage.json_records import Count, JsonRecord, Text, convert

RECEIVED_PREFIX = "received/"
INPUTS_SUFFIX = ".inputs"
INPUT_START, INPUT_END = "start", "end"
INPUT_FILES = "files"
INPUT_BLOCKS = "blocks"

Facts = Mapping[str, Any]
"""JSON."""

_BLOCK = re.compile(r"(\d{16,})-e(\d+)-[A-Za-z0-9_-]{1,64}\.block")
_FEW_BATCHES, _MANY_BATCHES = 5, 100
_FACTS_A_BATCH = 100


class InputSnapshot(JsonRecord, frozen=True):
    """The input of all batches up to a time."""

    stream_id: Text
    time_ms: Count
    epoch: Count
    inputs: Mapping[Text, Facts]

    @property
    def record_id(self) -> RecordId:
        """The id of this snapshot."""
        return RecordId(self.time_ms, self.epoch)


@dataclass(frozen=True)
class InputPast:
    """The part of one input that earlier runs have read.

    Args:
        upto_ms: the time of *facts*; -1 without any.
        facts: the input in the newest snapshot, None if it is not there.
        batches: the input in each begin record that still exists, by batch time.
    """

    upto_ms: int = -1
    facts: Facts | None = None
    batches: Mapping[int, Facts] = field(default_factory=dict)


@dataclass(frozen=True)
class InputHistory:
    """The input that a stream has read, as far as it is known."""

    plan: RecoveryPlan
    counted: tuple[RecordId, ...]
    snapshot: InputSnapshot | None

    def past(self, uid: str) -> InputPast:
        """Return the past of one input."""
        said = ((time_ms, begun.inputs.get(uid)) for time_ms, begun in self.plan.begins.items())
        batches = {time_ms: facts for time_ms, facts in said if isinstance(facts, Mapping)}
        snapshot = self.snapshot
        if snapshot is None:
            return InputPast(batches=batches)
        return InputPast(snapshot.time_ms, snapshot.inputs.get(uid), batches)


def read_inputs(files: Files, plan: RecoveryPlan) -> InputHistory:
    """Read the input history of a stream. Raises CorruptCheckpointError."""
    counted = sorted(plan.lineage.snapshots(input_snapshot_ids(files)))
    named = plan.lineage.snapshots(
        begun.inputs_snapshot for begun in plan.begins.values() if begun.inputs_snapshot is not None
    )
    newest, wanted = max(counted, default=None), max(named, default=None)
    if wanted is not None and (newest is None or newest < wanted):
        file = location(files, input_snapshot_file(wanted))
        raise missing(file, "the snapshot that begin records name")
    if newest is None:
        return InputHistory(plan, (), None)
    for lost in plan.missing_begins(newest.time_ms):
        file = location(files, begin_file(lost))
        raise missing(file, "the input of its batch")
    snapshot = read_input_snapshot(files, newest)
    if plan.stream_id not in (None, snapshot.stream_id):
        file = location(files, input_snapshot_file(newest))
        raise misplaced(file, f"is of stream {snapshot.stream_id}", f"stream {plan.stream_id}")
    return InputHistory(plan, tuple(counted), snapshot)


def input_snapshot_ids(files: Files) -> list[RecordId]:
    """Return the sorted ids of the snapshots of inputs."""
    return record_ids(files.list(INPUTS_PREFIX), INPUTS_PREFIX, INPUTS_SUFFIX)


def input_snapshot_file(record_id: RecordId) -> str:
    """Return the file name of a snapshot."""
    return f"{INPUTS_PREFIX}{record_id.stem}{INPUTS_SUFFIX}"


def read_input_snapshot(files: Files, record_id: RecordId) -> InputSnapshot:
    """Read a snapshot. Raises FileNotFoundError or CorruptCheckpointError."""
    name = input_snapshot_file(record_id)
    what = "a snapshot of inputs"
    snapshot = read_record(files, name, FileKind.INPUTS, {}, InputSnapshot, what)
    if snapshot.record_id != record_id:
        raise misplaced(location(files, name), f"is of {snapshot.record_id}", f"{record_id}")
    return snapshot


class InputSnapshots:
    """The input history of a stream that this driver owns, read when an input first needs it."""

    def __init__(self, owned: OwnedStream, stream_id: str) -> None:
        self._lease = owned.lease
        self._stream_id = stream_id
        self._plan = owned.plan
        self._ahead = owned.ahead
        self._history: InputHistory | None = None
        self._there: list[RecordId] = []

    @property
    def newest(self) -> RecordId | None:
        """The newest snapshot, for the begin records of batches."""
        return self._there[-1] if self._there else None

    def past(self, uid: str) -> InputPast:
        """Return the past of an input. Raises CorruptCheckpointError."""
        if self._history is None:
            self._history = read_inputs(self._ahead, self._plan)
            self._there = [*self._history.counted]
        return self._history.past(uid)

    def begin(
        self, uids: Iterable[str], upto_ms: int, inputs: Callable[[int], Mapping[str, Facts]]
    ) -> None:
        """Write a snapshot if one of these inputs is in no snapshot yet. Raises CheckpointError."""
        if any(self.past(uid).facts is None for uid in uids):
            self.write(upto_ms, inputs(upto_ms))

    def write(self, upto_ms: int, inputs: Mapping[str, Facts]) -> None:
        """Write a snapshot of all batches up to a time durably; the same again is fine.

        Raises ConcurrentWriterError or CheckpointError.
        """
        self._lease.check()
        snapshot = InputSnapshot(self._stream_id, upto_ms, self._lease.epoch, inputs)
        name, epoch = input_snapshot_file(snapshot.record_id), snapshot.epoch
        header = {"stream_id": self._stream_id, "upto_ms": upto_ms, "epoch": epoch}

        def taken() -> Exception:
            return ConcurrentWriterError(
                f"{location(self._lease.files, name)} is another snapshot of inputs; only one "
                "driver may run on a checkpoint, stop this one",
                epoch,
                epoch,
            )

        frames = record_frames(FileKind.INPUTS, header, snapshot)
        create_once(self._lease.files, name, frames, taken, f"{name} may or may not be written")
        self._there = sorted({*self._there, snapshot.record_id})

    def retire(
        self,
        upto_ms: int,
        batches: int,
        size: int,
        inputs: Callable[[int], Mapping[str, Facts]],
    ) -> RecordId | None:
        """Return the snapshot that replaces old begin records, a new one if due.

        The larger a snapshot is, the more batches it is written for.

        Args:
            upto_ms: time up to which no restart needs begin records.
            batches: the number of these.
            size: the approximate number of entries in the snapshot.
            inputs: its content, by the time.

        Raises CheckpointError.
        """
        newest_ms = self._there[-1].time_ms if self._there else -1
        due = min(_MANY_BATCHES, _FEW_BATCHES + size // _FACTS_A_BATCH)
        if upto_ms > newest_ms and batches >= due:
            self.write(upto_ms, inputs(upto_ms))
        return max((one for one in self._there if one.time_ms <= upto_ms), default=None)


def files_in(facts: object) -> list[str]:
    """Return the paths of the input files that a begin record or a snapshot names."""
    named = facts.get(INPUT_FILES) if isinstance(facts, Mapping) else None
    return [one if isinstance(one, str) else one[0] for one in named or ()]


def blocks_in(facts: object, file: str) -> tuple[FileRef, ...]:
    """Return the received blocks that a begin record names. Raises CorruptCheckpointError."""
    named = facts.get(INPUT_BLOCKS) if isinstance(facts, Mapping) else None
    return () if named is None else convert(named, tuple[FileRef, ...], file, "received blocks")


def blocks_of(files: Files, plan: RecoveryPlan) -> Iterator[tuple[int, str, FileRef]]:
    """Yield batch time, input uid and reference of each received block in begin records."""
    for time_ms, begun in plan.begins.items():
        file = location(files, begin_file(begun.record_id))
        for uid, facts in begun.inputs.items():
            for ref in blocks_in(facts, file):
                yield time_ms, uid, ref


class ReceivedBlocks:
    """The received blocks of one input of a stream."""

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
        """Write a block durably. Raises CheckpointError or ValueError."""
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
        """Read a block. Raises CorruptCheckpointError."""
        totals, payload = self._read(ref.name)
        ref.require(totals, location(self.files, ref.name))
        return payload

    def names(self) -> list[str]:
        """Return the names of all blocks in the order in which they were received."""
        names = self.files.list(self._directory)
        return sorted((name for name in names if _identity(name)), key=_identity)

    def read_others(self, named: Collection[str]) -> list[tuple[FileRef, bytes]]:
        """Read the blocks that are not *named*, in the order in which they were received."""
        known = {_identity(name) for name in named}
        found = []
        for name in self.names():
            if _identity(name) not in known:
                known.add(_identity(name))
                totals, payload = self._read(name)
                found.append((FileRef.of(name, totals), payload))
        return found

    def delete(self, names: Iterable[str]) -> None:
        """Delete blocks that no batch will read again, if they exist.

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
            raise missing(file, "a received block") from error
        payload = b"".join(payload for payload, _ in frames.blocks)
        identity = _identity(name)
        if not identity:
            raise misplaced(file, "does not have the name of a block", "one")
        epoch, sequence = identity
        require_header(frames.header, {**self._ids, "epoch": epoch, "sequence": sequence}, file)
        return frames.totals, payload


def _identity(name: str) -> tuple[int, ...]:
    """Return epoch and sequence in the name of a block; empty for any other file."""
    match = _BLOCK.fullmatch(name.rpartition("/")[2])
    return (int(match[2]), int(match[1])) if match else ()
