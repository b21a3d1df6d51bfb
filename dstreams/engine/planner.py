"""The planner: the time and input of the next batch, and its begin record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from checkpoint import BeginRecord, CheckpointError, new_attempt
from dstreams.common.clock import Clock
from dstreams.common.faults import fault
from dstreams.engine.batch import Batch, InputFailure
from dstreams.engine.inputs import InputOffsets, planned_before
from dstreams.engine.stream_checkpoint import AFTER, StreamCheckpoint, gap_before
from dstreams.graph.node import InputDStream
from dstreams.graph.plan import Plan
from dstreams.monitoring.events import BatchSubmitted, EventHandler, InputInfo, PlannedOutput
from dstreams.monitoring.progress import PhaseTimer
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.source import PlannedInput, SourceReader, input_info


class BatchPlanner:
    """Plans the batches of a stream, one after another, each before it runs.

    Attributes:
        begun: the batches that were planned.
        missed_until_ms: time of the last batch that was due before this driver started.
        names: the name of each input for people.
    """

    def __init__(
        self,
        plan: Plan,
        readers: Mapping[InputDStream, SourceReader],
        offsets: InputOffsets,
        checkpoint: StreamCheckpoint | None,
        clock: Clock,
        notify: EventHandler,
        stream_id: str,
    ) -> None:
        self.begun = BegunBatches(plan, stream_id)
        self.missed_until_ms = plan.zero_ms
        self.names = _names(readers)
        self.notify = notify
        self._plan = plan
        self._readers = readers
        self._offsets = offsets
        self._checkpoint = checkpoint
        self._clock = clock
        self._last_ms = plan.zero_ms
        self._in_flight: Mapping[int, BeginRecord] = {}
        self._gap: tuple[int, int] | None = None
        self._begin_failure: InputFailure | None = None

    @property
    def next_time_ms(self) -> int:
        """The time of the next batch."""
        if self._gap is not None and self._last_ms == self._gap[0]:
            return self._gap[1]
        for time_ms, begun in self._in_flight.items():  # an earlier run skipped batches, too
            if gap_before(begun) == self._last_ms:
                return time_ms
        return self._last_ms + self._plan.batch_ms

    def resume(
        self, last_ms: int, begins: Mapping[int, BeginRecord], in_flight: Mapping[int, BeginRecord]
    ) -> None:
        """Continue after the last committed batch; batches in flight run again."""
        self.begun.restore(begins)
        self._last_ms = last_ms
        self._in_flight = in_flight
        _, self.missed_until_ms = self.behind()

    def skip_missed(self) -> None:
        """Skip the batches that were missed while no driver ran.

        The first batch after those in flight is the one that is due now; it reads all their input.
        """
        due_ms = self._plan.batch_upto(self._clock.now_ms())
        last_ms = max([self._last_ms, *self._in_flight])
        if due_ms > last_ms + self._plan.batch_ms:
            self._gap = last_ms, due_ms

    def behind(self) -> tuple[int, int]:
        """Return the number of batches up to now that have not run, and the time of the last."""
        last_ms = max([self._last_ms, *self._in_flight])
        if self._gap is not None:
            return len(self._in_flight) + 1, self._gap[1]
        due_ms = max(last_ms, self._plan.batch_upto(self._clock.now_ms()))
        return len(self._in_flight) + (due_ms - last_ms) // self._plan.batch_ms, due_ms

    def plan_batch(self) -> Batch:
        """Fix the input of the next batch and write its begin record; a failed source fails it."""
        time_ms, last_ms = self.next_time_ms, self._last_ms
        self._last_ms = time_ms
        batch_id = self.begun.number(time_ms)
        fault("plan.start", batch_id)
        begun = self._in_flight.get(time_ms)
        timer = PhaseTimer()
        with timer.phase("latestOffset"):
            inputs, failure = self._plan_inputs(time_ms, begun)
        batch = Batch(
            batch_id,
            time_ms,
            inputs,
            submitted_ms=self._clock.now_ms(),
            failure=failure,
            after_ms=last_ms if time_ms > last_ms + self._plan.batch_ms else None,
            batch_token=self._batch_token(begun),
            input_infos=self._input_infos(inputs),
            outputs=self._outputs(time_ms),
        )
        with timer.phase("walCommit"):
            if begun is None:
                batch = self._begin(batch)
        batch = replace(batch, planning_ms=timer.phases_ms())
        self.begun.add(time_ms, batch.after_ms)
        self.notify(BatchSubmitted(batch.pending()))
        return batch

    def _batch_token(self, begun: BeginRecord | None) -> str:
        if self._checkpoint is None:
            return ""
        return new_attempt() if begun is None else begun.beginning

    def _plan_inputs(
        self, time_ms: int, begun: BeginRecord | None
    ) -> tuple[dict[InputDStream, PlannedInput], InputFailure | None]:
        inputs: dict[InputDStream, PlannedInput] = {}
        failure: InputFailure | None = None
        for stream, reader in self._readers.items():
            try:
                inputs[stream] = self._plan_input(stream, reader, time_ms, begun)
            except Exception as error:
                where = f"reading the input of {stream.operation}"
                failure = failure or InputFailure(where, error)
        uids = self._plan.input_uids
        self._offsets.begun(time_ms, {uids[stream]: one.end for stream, one in inputs.items()})
        return inputs, failure

    def _plan_input(
        self, stream: InputDStream, reader: SourceReader, time_ms: int, begun: BeginRecord | None
    ) -> PlannedInput:
        """Plan the input after the last offset; a batch that runs again reads the same input."""
        uid = self._plan.input_uids[stream]
        if begun is None:
            return reader.plan(self._offsets.newest(uid), time_ms)
        before = planned_before(stream.source, reader, time_ms, begun.inputs.get(uid))
        return before or self._nothing(uid, time_ms)

    def _nothing(self, uid: str, time_ms: int) -> PlannedInput:
        end = self._offsets.newest(uid)
        return PlannedInput(time_ms, end, end)

    def _begin(self, batch: Batch) -> Batch:
        """Write the begin record; if that fails, no batch may run until a restart has read it."""
        if self._checkpoint is None:
            return batch
        if self._begin_failure is not None:
            return replace(batch, failure=self._begin_failure)
        # If an input could not be planned, the batch reads nothing of it, also when it runs again.
        inputs = {
            uid: (batch.inputs.get(stream) or self._nothing(uid, batch.time_ms)).to_record()
            for stream, uid in self._plan.input_uids.items()
        }
        facts = {} if batch.after_ms is None else {AFTER: batch.after_ms}
        try:
            number, time_ms = batch.batch_id, batch.time_ms
            self._checkpoint.begin(number, time_ms, inputs, facts=facts, token=batch.batch_token)
        except CheckpointError as error:
            self._begin_failure = InputFailure("writing its begin record", error)
            return replace(batch, failure=self._begin_failure)
        return batch

    def _input_infos(self, inputs: Mapping[InputDStream, PlannedInput]) -> tuple[InputInfo, ...]:
        return tuple(
            input_info(stream.stream_id, self.names[stream], self._readers[stream], planned)
            for stream, planned in inputs.items()
        )

    def _outputs(self, time_ms: int) -> tuple[PlannedOutput, ...]:
        return tuple(
            PlannedOutput(output_id, output.operation)
            for output_id, output in enumerate(self._plan.outputs)
            if self._plan.fires(output.parent, time_ms)
        )


class BegunBatches:
    """The batches that this driver and earlier ones have begun."""

    def __init__(self, plan: Plan, stream_id: str) -> None:
        self._plan = plan
        self._stream_id = stream_id
        self._newest_ms = plan.zero_ms
        self._skipped = range(0)
        self._gaps: dict[int, range] = {}

    def number(self, time_ms: int) -> int:
        """Return the number of the batch at a time."""
        return (time_ms - self._plan.zero_ms) // self._plan.batch_ms - 1

    def restore(self, begins: Mapping[int, BeginRecord]) -> None:
        """Add the batches that earlier drivers have begun, by batch time."""
        for time_ms, begun in sorted(begins.items()):
            self.add(time_ms, gap_before(begun))

    def add(self, time_ms: int, after_ms: int | None) -> None:
        """Add a batch, with the previous one if batches between the two are skipped."""
        self._newest_ms = max(self._newest_ms, time_ms)
        if after_ms is not None:
            self._skipped = range(self.number(after_ms) + 1, self.number(time_ms))
            self._gaps[time_ms] = self._skipped

    def output_batch(self, time_ms: int, token: str) -> OutputBatch:
        """Return the batch as its outputs see it."""
        number, newest = self.number(time_ms), self.number(self._newest_ms)
        gap = self._gaps.get(time_ms, range(0))
        return OutputBatch(self._stream_id, number, time_ms, token, self._skipped, newest, gap)


def _names(streams: Iterable[InputDStream]) -> dict[InputDStream, str]:
    """Name each input by its source, and by its number if several have the same name."""
    counts = Counter(stream.source.name for stream in streams)
    return {
        stream: stream.source.name
        if counts[stream.source.name] == 1
        else f"{stream.source.name} #{stream.stream_id}"
        for stream in streams
    }
