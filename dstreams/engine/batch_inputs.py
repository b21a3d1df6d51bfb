"""The inputs of a batch: their RDDs, record counts, and what is reported of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from dstreams.engine.batch import Batch, InputFailure
from dstreams.engine.input_offsets import InputOffsets
from dstreams.errors import MissingInputError
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan
from dstreams.monitoring.events import InputInfo
from dstreams.sources.source import (
    InputDescription,
    PlannedInput,
    SourceReader,
    merge_info,
    remedy_of,
)
from dstreams.spark.bad_records import LeavesOut
from dstreams.spark.counting import RecordCount, counted_unless_known

logger = logging.getLogger(__name__)

REJECTED = "rejected"
"""Metadata of an input: the number of records that were rejected."""


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
            self._info(info, stream, planned, rejected[stream.stream_id])
            for info, (stream, planned) in infos
        )

    def _info(
        self, info: InputInfo, stream: InputDStream, planned: PlannedInput, rejected: int
    ) -> InputInfo:
        count = self._counts.get(stream.stream_id)
        records = None if count is None else count.records()
        known = replace(info, records=info.records if records is None else records)
        noticed = merge_info(known, self._readers[stream].after_batch_info(planned))
        return merge_info(noticed, _description(noticed, rejected)) if rejected else noticed

    def _rejected(self, time_ms: int) -> Counter[int]:
        """Return how many records nodes rejected, by the first input that each is made from."""
        rejected: Counter[int] = Counter()
        for node in self._plan.nodes:
            for rdd in self._rdds.between(node, time_ms - 1, time_ms):
                reports = rdd.left_out.facts() if isinstance(rdd, LeavesOut) else ()
                stream = next(_inputs_of(node), None)
                if not reports or stream is None:
                    continue
                records = sum(one.records for one in reports)
                rejected[stream.stream_id] += records
                logger.warning(
                    "%s: of the records of the batch at %d ms %s, such as %s",
                    node.operation,
                    time_ms,
                    _rejected_text(records),
                    reports[0].first,
                )
        return rejected

    def remedy(self, error: BaseException) -> str | None:
        """Return what to do about an error, None if no input explains it."""
        return remedy_of(error, self._readers.values())


def _inputs_of(node: Node) -> Iterator[InputDStream]:
    if isinstance(node, InputDStream):
        yield node
    for parent in node.parents:
        yield from _inputs_of(parent)


def _description(info: InputInfo, records: int) -> InputDescription:
    known = info.metadata.get(REJECTED, 0)
    return InputDescription(f"; {_rejected_text(records)}", {REJECTED: known + records})


def _rejected_text(records: int) -> str:
    return f"{records} could not be decoded and were skipped"
