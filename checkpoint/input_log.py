"""Input log: what an input keeps for itself, as numbered values, each written once.

An input that deals out what it finds writes down what each number stands for, before a begin record
names the number; what it has to know again, such as when it began, is a value as well::

    inputs/<input>/0000000000000005-e2.input      number 5, written in epoch 2

Of a number that several epochs have written, that of the newest epoch counts which is in the
lineage (:mod:`checkpoint.lineage`): an epoch writes a number anew only where no batch that it took
over names it. So what a driver writes after it was replaced changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint.errors import ConcurrentWriterError, CorruptCheckpointError
from checkpoint.files import Files, location
from checkpoint.framing import RESTORE, FileKind
from checkpoint.json_fields import int_field, object_field
from checkpoint.lineage import Lineage, read_lineage
from checkpoint.names import uid_part
from checkpoint.record_files import (
    RecordId,
    create_once,
    makes_no_sense,
    read_record,
    record_frames,
    record_ids,
)

INPUTS_PREFIX = "inputs/"
INPUT_SUFFIX = ".input"

_WHAT = "a value of an input"


class InputLog:
    """The values of one input among *files*.

    Args:
        files: the directory of the stream.
        stream_id: id of the stream that the input belongs to, the same over all its restarts.
        input_uid: uid of the input.
        epoch: epoch of this driver.
    """

    def __init__(self, files: Files, stream_id: str, input_uid: str, epoch: int) -> None:
        if not stream_id or not input_uid or epoch < 0:
            raise ValueError(
                f"an input log needs the ids of stream and input and an epoch from 0 on, got "
                f"{stream_id!r}, {input_uid!r}, {epoch}"
            )
        self.files = files
        self.epoch = epoch
        self._ids = {"stream_id": stream_id, "input_uid": input_uid}
        self._directory = f"{INPUTS_PREFIX}{uid_part(input_uid)}/"

    def write(self, number: int, value: Mapping[str, object]) -> None:
        """Write a value durably; writing the same again is fine.

        Raises:
            ConcurrentWriterError: this epoch has written another value.
            CheckpointError: as in :meth:`Files.create`.
        """
        record_id = RecordId(number, self.epoch)
        data = {"number": number, "epoch": self.epoch, "value": dict(value)}
        name = self._name(record_id)

        def taken() -> Exception:
            return ConcurrentWriterError(
                f"{location(self.files, name)} is another value; only one driver may run on a "
                "checkpoint, stop this one",
                self.epoch,
                self.epoch,
            )

        frames = record_frames(FileKind.INPUT, self._ids, data)
        create_once(self.files, name, frames, taken, f"{name} may be written or not")

    def read(self, upto: int, lineage: Lineage | None = None) -> dict[int, dict[str, object]]:
        """Return the values that count, by their numbers, in order.

        Args:
            upto: the last number that a batch names.
            lineage: which epochs follow from each other, if not the ones that do.

        Raises:
            CorruptCheckpointError: one of them is damaged.
        """
        lineage = read_lineage(self.files) if lineage is None else lineage
        known = lineage.epochs if lineage.is_claimed else None
        counted = {
            record_id.time_ms: record_id
            for record_id in record_ids(
                self.files.list(self._directory), self._directory, INPUT_SUFFIX
            )
            if record_id.time_ms <= upto and (known is None or record_id.epoch in known)
        }
        return {number: self._read(record_id) for number, record_id in counted.items()}

    def _read(self, record_id: RecordId) -> dict[str, object]:
        name = self._name(record_id)
        data = read_record(self.files, name, FileKind.INPUT, self._ids, _WHAT)
        file = location(self.files, name)
        try:
            found = RecordId(int_field(data, "number"), int_field(data, "epoch"))
            value = object_field(data, "value")
        except ValueError as error:
            raise makes_no_sense(file, error, _WHAT) from error
        if found != record_id:
            raise CorruptCheckpointError(file, f"is {found}", f"{record_id}", RESTORE)
        return value

    def _name(self, record_id: RecordId) -> str:
        return f"{self._directory}{record_id.stem}{INPUT_SUFFIX}"
