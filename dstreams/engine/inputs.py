"""The inputs of batches: offsets, RDDs, record counts, and reports."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any

from checkpoint import INPUT_END, BeginRecord
from dstreams.engine.batch import Batch, InputFailure
from dstreams.errors import MissingInputError
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan
from dstreams.monitoring.events import InputInfo
from dstreams.sources.source import (
    InputDescription,
    PlannedInput,
    Source,
    SourceReader,
    loss_with_driver,
    merge_info,
    remedy_of,
)
from dstreams.spark.counting import RecordCount, counted_unless_known
from dstreams.spark.task_reports import LeavesOut, LeftOut, skipped

logger = logging.getLogger(__name__)

REJECTED = "rejected"
"""Metadata of an input: the number of records that were rejected."""


class InputOffsets:
    """The end offset of each batch, by input and batch time; thread-safe.

    *readers* are the readers of the inputs by uid, *begins* the begin records of earlier runs by
    batch time, and *upto_ms* the time of the last batch that does not run again.
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
    source: Source, reader: SourceReader, time_ms: int, recorded: object
) -> PlannedInput | None:
    """Return the input that an earlier run planned for a batch, None if it lacked that input.

    *recorded* is the input in the begin record of the batch. Records that were lost with the
    earlier driver are skipped, with a warning.
    """
    if not isinstance(recorded, Mapping) or INPUT_END not in recorded:
        return None
    planned = PlannedInput.from_record(time_ms, recorded)
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
        time_ms: PlannedInput.from_record(time_ms, recorded)
        for time_ms, begun in sorted(begins.items())
        if isinstance(recorded := begun.inputs.get(uid), Mapping) and INPUT_END in recorded
    }


class BatchInputs:
    """Reads the inputs of batches.

    An input with missing files is tried again in each later batch, as long as a state or window may
    need it: the state waits for it and loses no record.
    """

    def __init__(
        self,
        plan: Plan,
        rdds: GeneratedRdds,
        readers: Mapping[InputDStream, SourceReader],
        offsets: InputOffsets,
    ) -> None:
        self._plan = plan
        self._rdds = rdds
        self._readers = readers
        self._offsets = offsets
        self._counts: dict[int, RecordCount] = {}
        self._unread: set[InputDStream] = set()
        self._missing: dict[tuple[InputDStream, int], PlannedInput] = {}

    @property
    def unread(self) -> Iterable[InputDStream]:
        """The inputs that the last batch could not read, and which later batches skip."""
        return self._unread

    def read(self, batch: Batch) -> InputFailure | None:
        """Read every input that can be read; return why one could not be."""
        failure = batch.failure
        self._counts.clear()
        for (stream, _), planned in tuple(self._missing.items()):
            with suppress(MissingInputError):  # a node that needs it fails
                self._read(stream, planned)
        self._unread = set(self._readers)
        for stream, planned in batch.inputs.items():
            try:
                self._read(stream, planned)
            except Exception as error:
                where = f"reading the input of {stream.operation}"
                failure = failure or InputFailure(where, error)
        return failure

    def _read(self, stream: InputDStream, planned: PlannedInput) -> None:
        try:
            rdd = self._readers[stream].read(planned)
        except MissingInputError as error:
            self._rdds.mark_missing(stream, planned.time_ms, error)
            self._missing[stream, planned.time_ms] = planned
            self._unread.discard(stream)
            raise
        if rdd is not None:
            rdd, count = counted_unless_known(rdd, planned.records)
            if count is not None:
                self._counts[stream.stream_id] = count
        self._rdds.put(stream, planned.time_ms, rdd)
        self._unread.discard(stream)
        self._missing.pop((stream, planned.time_ms), None)

    def committed(self, batch: Batch) -> None:
        """Notify the sources that a batch was committed; never raises."""
        for stream, planned in batch.inputs.items():
            try:
                self._readers[stream].commit(planned.end)
            except Exception:
                logger.warning("failed to notify %s of the commit", stream.operation, exc_info=True)

    def evict(self, batch: Batch) -> None:
        """Release the inputs that no batch after *batch* needs."""
        for stream in batch.inputs:
            planned = self._plan.nodes.get(stream)
            upto_ms = batch.time_ms - (0 if planned is None else planned.remember_ms)
            self._offsets.release(self._plan.input_uids[stream], upto_ms)
            for key in tuple(self._missing):
                if key[0] is stream and key[1] <= upto_ms:
                    del self._missing[key]

    def infos(self, batch: Batch) -> tuple[InputInfo, ...]:
        """Return the inputs of a batch that ran as listeners see them."""
        rejected = self._rejected(batch.time_ms)
        infos = zip(batch.input_infos, batch.inputs.items(), strict=True)
        return tuple(
            self._info(info, stream, planned, rejected.get(stream.stream_id, []))
            for info, (stream, planned) in infos
        )

    def _info(
        self, info: InputInfo, stream: InputDStream, planned: PlannedInput, rejected: list[LeftOut]
    ) -> InputInfo:
        count = self._counts.get(stream.stream_id)
        records = None if count is None else count.records()
        known = replace(info, records=info.records if records is None else records)
        reported = merge_info(known, self._readers[stream].after_batch_info(planned))
        return with_rejected(reported, rejected)

    def _rejected(self, time_ms: int) -> dict[int, list[LeftOut]]:
        """Return the reports of skipped records, by the first input that each node is made from."""
        rejected: dict[int, list[LeftOut]] = {}
        for node in self._plan.nodes:
            for rdd in self._rdds.between(node, time_ms - 1, time_ms):
                reports = rdd.left_out.facts() if isinstance(rdd, LeavesOut) else ()
                stream = next(_inputs_of(node), None)
                if not reports or stream is None:
                    continue
                rejected.setdefault(stream.stream_id, []).extend(reports)
                log_rejected(node.operation, f"at {time_ms} ms", reports)
        return rejected

    def remedy(self, error: BaseException) -> str | None:
        """Return what to do about an error, None if no input explains it."""
        return remedy_of(error, self._readers.values())


def _inputs_of(node: Node) -> Iterator[InputDStream]:
    if isinstance(node, InputDStream):
        yield node
    for parent in node.parents:
        yield from _inputs_of(parent)


def with_rejected(info: InputInfo, reports: Sequence[LeftOut]) -> InputInfo:
    """Return the information about an input with the records of it that were skipped."""
    for problem, records in _by_problem(reports).items():
        known = info.metadata.get(REJECTED, 0)
        text = f"; {skipped(records, problem)}"
        info = merge_info(info, InputDescription(text, {REJECTED: known + records}))
    return info


def log_rejected(operation: str, batch: str, reports: Sequence[LeftOut]) -> None:
    """Log the number of records that an operation has skipped, and the first of them."""
    for problem, records in _by_problem(reports).items():
        logger.warning(
            "%s: batch %s: %s, such as %s",
            operation,
            batch,
            skipped(records, problem),
            reports[0].first,
        )


def _by_problem(reports: Sequence[LeftOut]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for report in reports:
        counts[report.problem] += report.records
    return counts
