"""What sources of a query have read, by the time of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checkpoint import INPUT_END, RecoveryPlan
from dstreams.kernel.source import SnapshotReader
from dstreams.structured.batch_records import source_uid


class RetiringSource:
    """A reader that has to know what batches before have read, asked by the times of batches.

    The reader knows offsets alone; *ends* are those up to which batches read it, by their times.
    """

    def __init__(self, reader: SnapshotReader, ends: dict[int, Any]) -> None:
        self._reader = reader
        self._ends = ends

    def begun(self, time_ms: int, said: Any) -> None:
        """Take note of what the begin record of a batch says."""
        self._ends[time_ms] = said[INPUT_END]

    def snapshot_size(self) -> int | None:
        return self._reader.snapshot_size()

    def snapshot(self, upto_ms: int) -> Mapping[str, object]:
        times = self._upto(upto_ms)
        return self._reader.snapshot(self._ends[times[-1]] if times else None)

    def retire(self, upto_ms: int) -> None:
        for time_ms in self._upto(upto_ms)[:-1]:
            del self._ends[time_ms]

    def _upto(self, upto_ms: int) -> list[int]:
        # A copy: another thread may begin a batch meanwhile.
        return sorted(time_ms for time_ms in tuple(self._ends) if time_ms <= upto_ms)


def retiring_sources(readers: Sequence[object], plan: RecoveryPlan) -> dict[str, RetiringSource]:
    """Return those of the sources of a query that have to know what batches have read, by uid."""
    begins: dict[int, Mapping[str, Any]] = {
        time_ms: begun.inputs for time_ms, begun in plan.begins.items()
    }
    found = {}
    for number, reader in enumerate(readers):
        if isinstance(reader, SnapshotReader):
            uid = source_uid(number)
            ends = {time_ms: inputs[uid][INPUT_END] for time_ms, inputs in begins.items()}
            found[uid] = RetiringSource(reader, ends)
    return found
