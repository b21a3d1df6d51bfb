"""Inputs: what each batch reads of them, and a snapshot of that for batches nobody asks for.

A begin record (:mod:`checkpoint.log.batch_log`) says of each input from where to where its batch
reads, as JSON: offsets, and what lies between where they do not tell::

    "end":    the offset up to which the batch reads
    "start":  the offset after which it reads, where that is another one
    "files":  the files that the batch reads: each a path, or a list that begins with the path
    "blocks": the received blocks that it reads (:mod:`checkpoint.log.received_blocks`)

Some inputs have to know what all batches read before: a file is taken once. So a snapshot stands
for begin records that are deleted, and for what was there before the stream began::

    inputs/0000000000060000-e2.inputs      what batches up to 60000 have read, written in epoch 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint.errors import RESTORE, ConcurrentWriterError, CorruptCheckpointError, Damage
from checkpoint.log.batch_log import begin_file
from checkpoint.log.fencing import WriterLease
from checkpoint.log.record_files import (
    RecordId,
    create_once,
    read_record,
    record_frames,
    record_ids,
)
from checkpoint.log.recovery import RecoveryPlan
from checkpoint.storage.files import Files, location
from checkpoint.storage.framing import FileKind, FileRef
from checkpoint.storage.json_records import Count, JsonRecord, Text, convert

INPUTS_PREFIX = "inputs/"
INPUTS_SUFFIX = ".inputs"
INPUT_START, INPUT_END = "start", "end"
INPUT_FILES = "files"
INPUT_BLOCKS = "blocks"

Facts = Mapping[str, Any]
"""JSON."""

_WHAT = "a snapshot of inputs"
_FEW_BATCHES, _MANY_BATCHES = 5, 100
_FACTS_A_BATCH = 100


class InputSnapshot(JsonRecord, frozen=True):
    """What all batches up to a time have read."""

    stream_id: Text
    time_ms: Count
    epoch: Count
    inputs: Mapping[Text, Facts]

    @property
    def record_id(self) -> RecordId:
        """Which snapshot this is."""
        return RecordId(self.time_ms, self.epoch)


@dataclass(frozen=True)
class InputPast:
    """What earlier runs have read of one input.

    Args:
        upto_ms: the time that *facts* are of; -1 without any.
        facts: what the snapshot says of the input, None where it says nothing.
        batches: what each begin record that is there says of it, by the time of its batch.
    """

    upto_ms: int = -1
    facts: Facts | None = None
    batches: Mapping[int, Facts] = field(default_factory=dict)


@dataclass(frozen=True)
class InputHistory:
    """What a stream has read, as far as it is known."""

    plan: RecoveryPlan
    counted: tuple[RecordId, ...]
    snapshot: InputSnapshot | None

    def past(self, uid: str) -> InputPast:
        """Return what is known of one input."""
        said = ((time_ms, begun.inputs.get(uid)) for time_ms, begun in self.plan.begins.items())
        batches = {time_ms: facts for time_ms, facts in said if isinstance(facts, Mapping)}
        snapshot = self.snapshot
        if snapshot is None:
            return InputPast(batches=batches)
        return InputPast(snapshot.time_ms, snapshot.inputs.get(uid), batches)


def read_inputs(files: Files, plan: RecoveryPlan) -> InputHistory:
    """Read what a stream has read. Raises CorruptCheckpointError."""
    counted = sorted(plan.lineage.snapshots(input_snapshot_ids(files)))
    named = plan.lineage.snapshots(
        begun.inputs_snapshot for begun in plan.begins.values() if begun.inputs_snapshot is not None
    )
    newest, wanted = max(counted, default=None), max(named, default=None)
    if wanted is not None and (newest is None or newest < wanted):
        file = location(files, input_snapshot_file(wanted))
        raise CorruptCheckpointError(
            file, "is missing", "what batches were begun after", RESTORE, Damage.MISSING
        )
    if newest is None:
        return InputHistory(plan, (), None)
    for lost in plan.missing_begins(newest.time_ms):
        file = location(files, begin_file(lost))
        raise CorruptCheckpointError(
            file, "is missing", "what its batch has read", RESTORE, Damage.MISSING
        )
    snapshot = read_input_snapshot(files, newest)
    if plan.stream_id not in (None, snapshot.stream_id):
        file, found = (
            location(files, input_snapshot_file(newest)),
            f"is of stream {snapshot.stream_id}",
        )
        raise CorruptCheckpointError(
            file, found, f"stream {plan.stream_id}", RESTORE, Damage.MISPLACED
        )
    return InputHistory(plan, tuple(counted), snapshot)


def input_snapshot_ids(files: Files) -> list[RecordId]:
    """Return which snapshots of inputs there are, sorted."""
    return record_ids(files.list(INPUTS_PREFIX), INPUTS_PREFIX, INPUTS_SUFFIX)


def input_snapshot_file(record_id: RecordId) -> str:
    """Return the name of the file of a snapshot."""
    return f"{INPUTS_PREFIX}{record_id.stem}{INPUTS_SUFFIX}"


def read_input_snapshot(files: Files, record_id: RecordId) -> InputSnapshot:
    """Read a snapshot. Raises FileNotFoundError or CorruptCheckpointError."""
    name = input_snapshot_file(record_id)
    snapshot = read_record(files, name, FileKind.INPUTS, {}, InputSnapshot, _WHAT)
    if snapshot.record_id != record_id:
        found = f"is of {snapshot.record_id}"
        raise CorruptCheckpointError(
            location(files, name), found, f"{record_id}", RESTORE, Damage.MISPLACED
        )
    return snapshot


class InputSnapshots:
    """What the inputs of a stream have read, in the hands of this driver.

    It is read when it is asked for: there are streams whose inputs need not know.
    """

    def __init__(self, lease: WriterLease, stream_id: str, plan: RecoveryPlan) -> None:
        self._lease = lease
        self._stream_id = stream_id
        self._plan = plan
        self._history: InputHistory | None = None
        self._there: list[RecordId] = []

    @property
    def newest(self) -> RecordId | None:
        """The newest snapshot, for the begin records of batches."""
        return self._there[-1] if self._there else None

    def past(self, uid: str) -> InputPast:
        """Return what earlier runs have read of an input.

        Raises CorruptCheckpointError.
        """
        if self._history is None:
            self._history = read_inputs(self._lease.files, self._plan)
            self._there = [*self._history.counted]
        return self._history.past(uid)

    def begin(
        self, uids: Iterable[str], upto_ms: int, inputs: Callable[[int], Mapping[str, Facts]]
    ) -> None:
        """Write a snapshot where no earlier run has written what one of these inputs begins with.

        Raises CheckpointError.
        """
        if any(self.past(uid).facts is None for uid in uids):
            self.write(upto_ms, inputs(upto_ms))

    def write(self, upto_ms: int, inputs: Mapping[str, Facts]) -> None:
        """Say durably what all batches up to a time have read; the same again is fine.

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
        create_once(self._lease.files, name, frames, taken, f"{name} may be written or not")
        self._there = sorted({*self._there, snapshot.record_id})

    def retire(
        self,
        upto_ms: int,
        batches: int,
        size: int,
        inputs: Callable[[int], Mapping[str, Facts]],
    ) -> RecordId | None:
        """Return the snapshot that stands for begin records which may be deleted, a new one if due.

        A snapshot names all that inputs have to know, so it stands for as many batches as are worth
        that.

        Args:
            upto_ms: time up to which no restart asks for begin records.
            batches: how many of these there are.
            size: about how many things the snapshot would name.
            inputs: what it would say, by the time.

        Raises CheckpointError.
        """
        newest_ms = self._there[-1].time_ms if self._there else -1
        due = min(_MANY_BATCHES, _FEW_BATCHES + size // _FACTS_A_BATCH)
        if upto_ms > newest_ms and batches >= due:
            self.write(upto_ms, inputs(upto_ms))
        return max((one for one in self._there if one.time_ms <= upto_ms), default=None)


def files_in(facts: object) -> list[str]:
    """Return the paths of the input files that a begin record, or a snapshot, names."""
    named = facts.get(INPUT_FILES) if isinstance(facts, Mapping) else None
    return [one if isinstance(one, str) else one[0] for one in named or ()]


def blocks_in(facts: object, file: str) -> tuple[FileRef, ...]:
    """Return the received blocks that a begin record names.

    Raises CorruptCheckpointError.
    """
    named = facts.get(INPUT_BLOCKS) if isinstance(facts, Mapping) else None
    return () if named is None else convert(named, tuple[FileRef, ...], file, "received blocks")


def blocks_of(files: Files, plan: RecoveryPlan) -> Iterator[tuple[int, str, FileRef]]:
    """Yield batch time, input and reference of each received block that begin records name."""
    for time_ms, begun in plan.begins.items():
        file = location(files, begin_file(begun.record_id))
        for uid, facts in begun.inputs.items():
            for ref in blocks_in(facts, file):
                yield time_ms, uid, ref
