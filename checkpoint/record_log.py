"""Record log: records of batches, one file each, created once by the driver that has the stream."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from checkpoint.errors import ConcurrentWriterError, CorruptCheckpointError
from checkpoint.fencing import EpochGuard
from checkpoint.files import Files, location
from checkpoint.framing import RESTORE, FileKind
from checkpoint.json_fields import int_field, require_not_negative, text_field
from checkpoint.lineage import Base, read_base, require_written_under
from checkpoint.record_files import (
    RecordId,
    create_once,
    makes_no_sense,
    read_record,
    record_frames,
    record_ids,
)


@dataclass(frozen=True)
class BatchRecord:
    """What every record of a batch says.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        batch_id: number of the batch, from 0.
        batch_time_ms: its time, which names the record.
        epoch: epoch of the driver that wrote it.
    """

    stream_id: str
    batch_id: int
    batch_time_ms: int
    epoch: int

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
        }

    def _require_sense(self, what: str, uids: Mapping[str, object], of: str) -> None:
        """Raise ValueError if ids are empty or numbers negative."""
        if not self.stream_id or "" in uids:
            raise ValueError(f"stream id and {of} uids of {what} must not be empty")
        subject = (
            f"{what} of batch {self.batch_id} at {self.batch_time_ms} ms in epoch {self.epoch}"
        )
        require_not_negative(subject, self.batch_id, self.batch_time_ms, self.epoch)


def batch_fields(data: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of :class:`BatchRecord` in *data*.

    Raises:
        ValueError: one of them is missing, or of another type.
    """
    return {
        "stream_id": text_field(data, "stream_id"),
        "batch_id": int_field(data, "batch_id"),
        "batch_time_ms": int_field(data, "batch_time_ms"),
        "epoch": int_field(data, "epoch"),
    }


_CLAIM = "claim"  # token of the claim under which a record was written

Record = TypeVar("Record", bound=BatchRecord)


class RecordLog(Generic[Record]):
    """The records of one kind among *files*.

    Args:
        files: the directory of a stream.
        guard: the epoch of the driver that writes; None only reads, or writes without fencing.
    """

    kind: ClassVar[FileKind]
    prefix: ClassVar[str]
    suffix: ClassVar[str]
    what: ClassVar[str]
    done: ClassVar[str]
    """What a record says that was done with its batch: ``begun``."""

    def __init__(self, files: Files, guard: EpochGuard | None = None) -> None:
        self.files = files
        self._guard = guard
        self._bases: dict[int, Base | None] = {}

    def all_ids(self) -> list[RecordId]:
        """Return which records there are, also void ones, sorted."""
        return record_ids(self.files.list(self.prefix), self.prefix, self.suffix)

    def read_record(self, record_id: RecordId) -> Record:
        """Read a record, whether it counts or not.

        Raises:
            FileNotFoundError: there is none.
            CorruptCheckpointError: it is damaged, or another one.
        """
        name = self._name(record_id)
        file = location(self.files, name)
        data = read_record(self.files, name, self.kind, {}, self.what)
        try:
            record = self._parsed(data, file)
        except ValueError as error:
            raise makes_no_sense(file, error, self.what) from error
        if record.record_id != record_id:
            found = f"is the record of {record.record_id}"
            raise CorruptCheckpointError(file, found, f"that of {record_id}", RESTORE)
        self._require_of_this_copy(data, record_id.epoch, name)
        return record

    def _require_of_this_copy(self, data: Mapping[str, object], epoch: int, name: str) -> None:
        if epoch not in self._bases:
            self._bases[epoch] = None
            with suppress(CorruptCheckpointError, FileNotFoundError):  # what it builds on is void
                self._bases[epoch] = read_base(self.files, epoch)
        base, token = self._bases[epoch], data.get(_CLAIM)
        if base is not None and isinstance(token, str):
            require_written_under(base, token, self.files, name)

    def _parsed(self, data: Mapping[str, object], file: str) -> Record:
        """Make a record of its JSON."""
        raise NotImplementedError

    def _create(self, record: Record) -> None:
        """Create a record durably, unless a newer driver has taken over; the same again is fine.

        Raises:
            ConcurrentWriterError: there is another one of that batch, or a newer driver.
            CheckpointError: as in :meth:`Files.create`.
        """
        self._check()
        time_ms, epoch = record.batch_time_ms, record.epoch

        def taken() -> Exception:
            other = self.read_record(record.record_id)
            return ConcurrentWriterError(
                f"batch at {time_ms} ms was {self.done} by a driver of epoch {other.epoch}, with "
                f"other content than this one of epoch {epoch} has; only one driver may run on a "
                "checkpoint, stop this one",
                epoch,
                other.epoch,
            )

        header = {"stream_id": record.stream_id, "batch_time_ms": time_ms, "epoch": epoch}
        token = {} if self._guard is None else {_CLAIM: self._guard.claim.token}
        frames = record_frames(self.kind, header, {**record.to_json(), **token})
        what = f"batch at {time_ms} ms may be {self.done} or not"
        create_once(self.files, self._name(record.record_id), frames, taken, what)
        self._check()

    def _check(self) -> None:
        if self._guard is not None:
            self._guard.check()

    def _name(self, record_id: RecordId) -> str:
        return f"{self.prefix}{record_id.stem}{self.suffix}"
