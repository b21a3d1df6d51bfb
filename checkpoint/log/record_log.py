"""Record log: records of batches, one file each, created once by the driver that has the stream."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar, cast

from checkpoint.errors import RESTORE, ConcurrentWriterError, CorruptCheckpointError, Damage
from checkpoint.log.fencing import WriterLease
from checkpoint.log.lineage import Lineage, Takeover, read_takeover, require_written_under
from checkpoint.log.record_files import (
    RecordId,
    create_once,
    open_record,
    record_frames,
    record_ids,
)
from checkpoint.storage.files import Files, location
from checkpoint.storage.framing import FileKind
from checkpoint.storage.json_records import Count, JsonRecord, Text


class BatchRecord(JsonRecord, frozen=True):
    """What every record of a batch says.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        batch_id: number of the batch, from 0.
        batch_time_ms: its time, which names the record.
        epoch: epoch of the driver that wrote it.
    """

    stream_id: Text
    batch_id: Count
    batch_time_ms: Count
    epoch: Count

    @property
    def record_id(self) -> RecordId:
        """Which record this is."""
        return RecordId(self.batch_time_ms, self.epoch)


_CLAIM = "claim"  # in the header: token of the claim under which a record was written

Record = TypeVar("Record", bound=BatchRecord)


class RecordLog(Generic[Record]):
    """The records of one kind among *files*."""

    form: ClassVar[type[BatchRecord]]
    kind: ClassVar[FileKind]
    prefix: ClassVar[str]
    suffix: ClassVar[str]
    what: ClassVar[str]
    done: ClassVar[str]
    """What a record says that was done with its batch: ``begun``."""

    def __init__(
        self,
        files: Files,
        lease: WriterLease | None = None,
        lineage: Lineage | None = None,
        known: Mapping[RecordId, Record] | None = None,
    ) -> None:
        self.files = files
        self._lease = lease
        self._takeovers: dict[int, Takeover | None] = (
            {} if lineage is None else {takeover.epoch: takeover for takeover in lineage.takeovers}
        )
        self._known = dict(known or {})

    def all_ids(self) -> list[RecordId]:
        """Return which records there are, also void ones, sorted."""
        return record_ids(self.files.list(self.prefix), self.prefix, self.suffix)

    def ids(self) -> list[RecordId]:
        """Return which records count, oldest first, one a batch."""
        raise NotImplementedError

    def times(self) -> list[int]:
        """Return the times of all batches whose records count, in milliseconds, sorted."""
        return [record_id.time_ms for record_id in self.ids()]

    def read(self, batch_time_ms: int) -> Record:
        """Read the record of a batch that counts.

        Raises FileNotFoundError or CorruptCheckpointError.
        """
        for record_id in self.ids():
            if record_id.time_ms == batch_time_ms:
                return self.read_record(record_id)
        where = f"{self.files.url} has no {self.done} batch at {batch_time_ms} ms"
        raise FileNotFoundError(where)

    def read_record(self, record_id: RecordId) -> Record:
        """Read a record, whether it counts or not.

        Raises FileNotFoundError or CorruptCheckpointError.
        """
        known = self._known.get(record_id)
        return self._read(record_id) if known is None else known

    def _read(self, record_id: RecordId) -> Record:
        name = self._name(record_id)
        file = location(self.files, name)
        form = cast("type[Record]", self.form)
        found = open_record(self.files, name, self.kind, {}, form, self.what)
        record = found.record
        if record.record_id != record_id:
            is_of = f"is the record of {record.record_id}"
            raise CorruptCheckpointError(
                file, is_of, f"that of {record_id}", RESTORE, Damage.MISPLACED
            )
        self._require_of_this_copy(found.header, record_id.epoch, name)
        return record

    def _require_of_this_copy(self, header: Mapping[str, object], epoch: int, name: str) -> None:
        if epoch not in self._takeovers:
            self._takeovers[epoch] = None
            with suppress(CorruptCheckpointError, FileNotFoundError):  # what it builds on is void
                self._takeovers[epoch] = read_takeover(self.files, epoch)
        takeover, token = self._takeovers[epoch], header.get(_CLAIM)
        if takeover is not None and isinstance(token, str):
            require_written_under(takeover, token, self.files, name)

    def _create(self, record: Record) -> None:
        """Create a record durably; the same again is fine.

        Raises ConcurrentWriterError or CheckpointError.
        """
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
        token = {} if self._lease is None else {_CLAIM: self._lease.claim.token}
        frames = record_frames(self.kind, {**header, **token}, record)
        what = f"batch at {time_ms} ms may be {self.done} or not"
        create_once(self.files, self._name(record.record_id), frames, taken, what)

    def _name(self, record_id: RecordId) -> str:
        return f"{self.prefix}{record_id.stem}{self.suffix}"
