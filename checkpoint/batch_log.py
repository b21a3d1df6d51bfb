"""Batch log: what each batch is going to read, written before anything of it is read or run.

A batch that was begun and not committed runs again after a restart, with the same id, time, input
and watermark. Begin records lie beside commit records (:mod:`checkpoint.commit_log`) and count by
the same rule (:mod:`checkpoint.lineage`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint.errors import ConcurrentWriterError, CorruptCheckpointError
from checkpoint.fencing import EpochGuard
from checkpoint.files import Files, location
from checkpoint.framing import RESTORE, FileKind
from checkpoint.json_fields import (
    int_field,
    int_fields,
    object_field,
    require_not_negative,
    text_field,
)
from checkpoint.lineage import read_lineage
from checkpoint.record_files import (
    RecordId,
    create_once,
    makes_no_sense,
    read_record,
    record_frames,
    record_ids,
)

BEGIN_PREFIX = "batches/"
BEGIN_SUFFIX = ".begin"

_WHAT = "a begin record"


@dataclass(frozen=True)
class BeginRecord:
    """What a batch is going to read.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        batch_id: number of the batch, from 0.
        batch_time_ms: its time, which names the record.
        epoch: epoch of the driver that begins it.
        inputs: for each input, by its uid, what it says of the batch: JSON, enough to read exactly
            the same again.
        watermarks: event time that each operator or query goes by in this batch, in ms, by its uid.
        facts: JSON that the driver wants back; such as that the batch stands for several.
    """

    stream_id: str
    batch_id: int
    batch_time_ms: int
    epoch: int
    inputs: Mapping[str, object]
    watermarks: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stream_id or "" in self.inputs:
            raise ValueError("stream id and input uids of a begin record must not be empty")
        subject = f"begin record of batch {self.batch_id} at {self.batch_time_ms} ms"
        require_not_negative(subject, self.batch_id, self.batch_time_ms, self.epoch)
        for name in ("inputs", "watermarks", "facts"):
            object.__setattr__(self, name, dict(getattr(self, name)))

    @property
    def record_id(self) -> RecordId:
        """Which record this is."""
        return RecordId(self.batch_time_ms, self.epoch)

    def to_json(self) -> dict[str, object]:
        """Return these facts as a JSON object."""
        return {
            "stream_id": self.stream_id,
            "batch_id": self.batch_id,
            "batch_time_ms": self.batch_time_ms,
            "epoch": self.epoch,
            "inputs": dict(self.inputs),
            "watermarks": dict(self.watermarks),
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> BeginRecord:
        """Read what :meth:`to_json` returned.

        Raises:
            ValueError: a field is missing, of another type, or impossible.
        """
        return cls(
            stream_id=text_field(data, "stream_id"),
            batch_id=int_field(data, "batch_id"),
            batch_time_ms=int_field(data, "batch_time_ms"),
            epoch=int_field(data, "epoch"),
            inputs=object_field(data, "inputs"),
            watermarks=int_fields(data, "watermarks"),
            facts=object_field(data, "facts"),
        )


class BatchLog:
    """The begin records among *files*.

    Args:
        files: the directory of a stream.
        guard: the epoch of the driver that begins batches; None only reads, or writes without
            fencing.
    """

    def __init__(self, files: Files, guard: EpochGuard | None = None) -> None:
        self.files = files
        self._guard = guard

    def begin(self, record: BeginRecord) -> None:
        """Create *record* durably; only then may anything of the batch be read or run.

        Beginning with the same record again is fine.

        Raises:
            ConcurrentWriterError: the batch was begun with other content, or a newer driver has
                taken over; nothing of the batch may run.
            CheckpointError: as in :meth:`Files.create`.
            TypeError: the inputs or facts are no JSON.
        """
        header = {
            "stream_id": record.stream_id,
            "batch_time_ms": record.batch_time_ms,
            "epoch": record.epoch,
        }
        if self._guard is not None:
            self._guard.check()

        def taken() -> Exception:
            other = self.read_record(record.record_id)
            return ConcurrentWriterError(
                f"batch at {record.batch_time_ms} ms was begun by a driver of epoch {other.epoch}, "
                "with other input; only one driver may run on a checkpoint, stop this one",
                record.epoch,
                other.epoch,
            )

        frames = record_frames(FileKind.BEGIN, header, record.to_json())
        what = f"batch at {record.batch_time_ms} ms may be begun or not"
        create_once(self.files, begin_file(record.record_id), frames, taken, what)
        if self._guard is not None:
            self._guard.check()

    def ids(self) -> dict[int, RecordId]:
        """Return the record of each batch that counts, by its time, oldest first."""
        return read_lineage(self.files).begins(self.all_ids())

    def all_ids(self) -> list[RecordId]:
        """Return which records there are, also void ones, sorted."""
        return record_ids(self.files.list(BEGIN_PREFIX), BEGIN_PREFIX, BEGIN_SUFFIX)

    def times(self) -> list[int]:
        """Times of all batches that were begun, sorted."""
        return list(self.ids())

    def read(self, batch_time_ms: int) -> BeginRecord:
        """Read the record of a batch that counts.

        Raises:
            FileNotFoundError: there is none.
            CorruptCheckpointError: it is damaged, or another one.
        """
        record_id = self.ids().get(batch_time_ms)
        if record_id is None:
            raise FileNotFoundError(f"{self.files.url} has no begun batch at {batch_time_ms} ms")
        return self.read_record(record_id)

    def read_record(self, record_id: RecordId) -> BeginRecord:
        """Read a record, whether it counts or not.

        Raises:
            FileNotFoundError: there is none.
            CorruptCheckpointError: it is damaged, or another one.
        """
        name = begin_file(record_id)
        file = location(self.files, name)
        data = read_record(self.files, name, FileKind.BEGIN, {}, _WHAT)
        try:
            record = BeginRecord.from_json(data)
        except ValueError as error:
            raise makes_no_sense(file, error, _WHAT) from error
        if record.record_id != record_id:
            found = f"is the record of {record.record_id}"
            raise CorruptCheckpointError(file, found, f"that of {record_id}", RESTORE)
        return record


def begin_file(record_id: RecordId) -> str:
    """Return the name of the file of a record."""
    return f"{BEGIN_PREFIX}{record_id.stem}{BEGIN_SUFFIX}"
