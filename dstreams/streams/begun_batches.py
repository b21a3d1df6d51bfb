"""Which batches this history of a checkpoint has begun: what outputs are told of their batch."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint import BeginRecord, new_attempt
from dstreams.graph.input import InputDStream
from dstreams.graph.plan import Plan
from dstreams.recovery.skipped_batches import gap_of
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.source import PlannedInput


class BegunBatches:
    """The batches that were begun, by this driver and those before it."""

    def __init__(self, plan: Plan, stream_id: str) -> None:
        self._plan = plan
        self._stream_id = stream_id
        self._newest_ms = plan.zero_ms
        self._left_out = range(0)

    def number(self, time_ms: int) -> int:
        """Return the number of the batch at a time."""
        return (time_ms - self._plan.zero_ms) // self._plan.batch_ms - 1

    def restore(self, begins: Mapping[int, BeginRecord]) -> None:
        """Add the batches that earlier drivers have begun, by their times."""
        for time_ms, begun in sorted(begins.items()):
            self.add(time_ms, gap_of(begun))

    def add(self, time_ms: int, after_ms: int | None) -> None:
        """Add a batch, and the one before it where batches between the two are left out."""
        self._newest_ms = max(self._newest_ms, time_ms)
        if after_ms is not None:
            self._left_out = range(self.number(after_ms) + 1, self.number(time_ms))

    def beginning(
        self, inputs: Mapping[InputDStream, PlannedInput], begun: BeginRecord | None
    ) -> str:
        """Return the beginning of a batch: that of before, where it reads nothing else now.

        Args:
            inputs: what the batch reads.
            begun: the record of before, where it runs again.
        """
        if begun is not None and all(
            planned.records == 0 or self._plan.input_uids[stream] in begun.inputs
            for stream, planned in inputs.items()
        ):
            return begun.beginning
        return new_attempt()

    def output_batch(self, time_ms: int, beginning: str) -> OutputBatch:
        """Return what the outputs of a batch are told."""
        number, newest = self.number(time_ms), self.number(self._newest_ms)
        return OutputBatch(self._stream_id, number, time_ms, beginning, self._left_out, newest)
