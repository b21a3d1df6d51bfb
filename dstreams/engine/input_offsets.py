"""The offsets up to which batches have read each input."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping
from threading import Lock
from typing import Any

from checkpoint import INPUT_END, BeginRecord
from dstreams.sources.source import (
    PlannedInput,
    Source,
    SourceReader,
    loss_with_driver,
)

logger = logging.getLogger(__name__)


class InputOffsets:
    """The end offset of each batch, by input and batch time; thread-safe.

    Args:
        readers: the readers of the inputs, by uid.
        begins: the begin records of earlier runs, by batch time.
        upto_ms: time of the last batch that does not run again.
    """

    def __init__(
        self,
        readers: Mapping[str, SourceReader],
        begins: Mapping[int, BeginRecord],
        upto_ms: int,
    ) -> None:
        self._readers = readers
        self._lock = Lock()
        self._times: dict[str, list[int]] = {uid: [] for uid in readers}
        self._ends: dict[str, list[Any]] = {uid: [] for uid in readers}
        for uid in readers:
            for time_ms, planned in planned_in(begins, uid).items():
                if time_ms <= upto_ms:
                    self.begun(time_ms, {uid: planned.end})

    def begun(self, time_ms: int, ends: Mapping[str, Any]) -> None:
        """Add the end offsets of a batch; adding a batch twice is harmless."""
        with self._lock:
            for uid, end in ends.items():
                if uid in self._ends and (not self._ends[uid] or self._ends[uid][-1] != end):
                    self._times[uid].append(time_ms)
                    self._ends[uid].append(end)

    def newest(self, uid: str) -> Any:
        """Return the offset after which the next batch reads an input."""
        with self._lock:
            return self._ends[uid][-1] if self._ends[uid] else None

    def at(self, uid: str, time_ms: int) -> Any:
        """Return the end offset of the last batch up to a time, None if no batch has one."""
        with self._lock:
            count = bisect_right(self._times[uid], time_ms)
            return self._ends[uid][count - 1] if count else None

    def release(self, uid: str, upto_ms: int) -> None:
        """Let a reader release the records of batches up to a time, which no RDD uses any more."""
        end = self.at(uid, upto_ms)
        if end is not None:
            self._readers[uid].release(end)
        if not _needs_history(self._readers[uid]):
            self._forget(uid, upto_ms)

    @property
    def history_readers(self) -> dict[str, SourceReader]:
        """The readers that depend on what earlier batches have read, by uid."""
        return {uid: reader for uid, reader in self._readers.items() if _needs_history(reader)}

    def snapshot_size(self) -> int:
        """Return the approximate number of entries in a snapshot."""
        return sum(reader.snapshot_size() or 0 for reader in self.history_readers.values())

    def snapshot(self, upto_ms: int) -> dict[str, Mapping[str, Any]]:
        """Return a snapshot of what batches up to a time have read, by uid."""
        return {
            uid: reader.snapshot(self.at(uid, upto_ms))
            for uid, reader in self.history_readers.items()
        }

    def retire(self, upto_ms: int) -> None:
        """Let readers drop what batches up to a time have read: a snapshot of it is durable."""
        for uid, reader in self.history_readers.items():
            reader.retire(self.at(uid, upto_ms))
            self._forget(uid, upto_ms)

    def _forget(self, uid: str, upto_ms: int) -> None:
        with self._lock:
            old = max(0, bisect_right(self._times[uid], upto_ms) - 1)
            del self._times[uid][:old], self._ends[uid][:old]


def _needs_history(reader: SourceReader) -> bool:
    return reader.snapshot_size() is not None


def planned_before(
    source: Source, reader: SourceReader, time_ms: int, said: object
) -> PlannedInput | None:
    """Return the input that an earlier run planned for a batch, None if it lacked that input.

    *said* is the input in the begin record of the batch. Records that were lost with the earlier
    driver are skipped, with a warning.
    """
    if not isinstance(said, Mapping) or INPUT_END not in said:
        return None
    planned = PlannedInput.from_record(time_ms, said)
    loss = loss_with_driver(source, reader)
    if loss is None:
        return planned
    if planned.records:
        logger.warning(
            "%s: %d records of the batch at %d ms are lost: %s",
            source.name,
            planned.records,
            time_ms,
            loss,
        )
    return PlannedInput(time_ms, planned.end, planned.end, description="lost")


def planned_in(begins: Mapping[int, BeginRecord], uid: str) -> dict[int, PlannedInput]:
    """Return the planned input of each batch from its begin record, by time, oldest first."""
    return {
        time_ms: PlannedInput.from_record(time_ms, said)
        for time_ms, begun in sorted(begins.items())
        if isinstance(said := begun.inputs.get(uid), Mapping) and INPUT_END in said
    }
