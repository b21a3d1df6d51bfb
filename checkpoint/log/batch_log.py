"""Batch log: what each batch is going to read, written before anything of it is read or run.

A batch that was begun and not committed runs again after a restart, with the same id, time, input
and watermark. A begin record names what it stands on: the begin record before it, the graph, and
the newest snapshot of the inputs (:mod:`checkpoint.log.inputs`). So a record that is lost is
missed,
and never taken for one that was never written. Begin records count by the rule of commit records
(:mod:`checkpoint.log.lineage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import field
from msgspec.structs import replace

from checkpoint.log.fencing import WriterLease
from checkpoint.log.lineage import Lineage, read_lineage
from checkpoint.log.record_files import RecordId
from checkpoint.log.record_log import BatchRecord, RecordLog
from checkpoint.storage.files import Files
from checkpoint.storage.framing import FileKind
from checkpoint.storage.json_records import Text

BEGIN_PREFIX = "batches/"
BEGIN_SUFFIX = ".begin"


class BeginRecord(BatchRecord, frozen=True):
    """What a batch is going to read, beside the fields of every :class:`BatchRecord`.

    Args:
        inputs: for each input, by its uid, what it says of the batch: JSON, enough to read exactly
            the same again.
        watermarks: event time that each operator or query goes by in this batch, in ms, by its uid.
        facts: JSON that the driver wants back; such as that the batch stands for several.
        inputs_snapshot: the newest snapshot of inputs, None for none.
        graph: the newest graph snapshot, None for none.
        previous: the begin record of the batch before, None for the first one.
        beginning: 64 random bits, which no batch of another history of the checkpoint has; empty
            where there is no output that asks for them.
    """

    inputs: Mapping[Text, object]
    watermarks: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    inputs_snapshot: RecordId | None = None
    graph: RecordId | None = None
    previous: RecordId | None = None
    beginning: str = ""


class BatchLog(RecordLog[BeginRecord]):
    """The begin records among *files*.

    Args:
        files: the directory of a stream.
        lease: the epoch of the driver that begins batches; None only reads, or writes without
            fencing.
        lineage: as in :class:`RecordLog`.
        known: as in :class:`RecordLog`.
        begun: the records that the first one to be begun may follow.
    """

    form, kind = BeginRecord, FileKind.BEGIN
    prefix, suffix = BEGIN_PREFIX, BEGIN_SUFFIX
    what, done = "a begin record", "begun"

    def __init__(
        self,
        files: Files,
        lease: WriterLease | None = None,
        lineage: Lineage | None = None,
        known: Mapping[RecordId, BeginRecord] | None = None,
        begun: Iterable[RecordId] = (),
    ) -> None:
        super().__init__(files, lease, lineage, known)
        self.begun = {record_id.time_ms: record_id for record_id in begun}

    def begin(self, record: BeginRecord) -> None:
        """Create *record* durably, linked to the one before it.

        Only then may anything of the batch be read or run. Beginning with the same record again is
        fine. After a newer driver has taken over the record is void: nobody looks for one here.
        Raises:
            ConcurrentWriterError: the batch was begun with other content; nothing of it may run.
            CheckpointError: as in :meth:`Files.create`.
            TypeError: the inputs or facts are no JSON.
        """
        time_ms = record.batch_time_ms
        earlier = [known_ms for known_ms in self.begun if known_ms < time_ms]
        previous = self.begun[max(earlier)] if earlier else None
        self._create(replace(record, previous=previous))
        if time_ms > max(self.begun, default=-1):
            # What comes next follows this one; the one before serves where this is begun again.
            self.begun = {} if previous is None else {previous.time_ms: previous}
        self.begun[time_ms] = record.record_id

    def ids(self) -> list[RecordId]:
        """Return which records count, oldest first, one a batch."""
        return list(read_lineage(self.files).begins(self.all_ids()).values())


def begin_file(record_id: RecordId) -> str:
    """Return the name of the file of a record."""
    return f"{BEGIN_PREFIX}{record_id.stem}{BEGIN_SUFFIX}"
