"""One batch: what it reads, how it runs, what makes it count.

The engine has no thread. A scheduler calls it from its threads, a notebook or a test steps it by
hand, and both see the same batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from pyspark import RDD

from dstreams.clock import Clock
from dstreams.errors import BatchFailedError, DurabilityError
from dstreams.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    InputInfo,
    OutputOperationCompleted,
    OutputOperationInfo,
    OutputOperationStarted,
    PendingBatch,
    PlannedOutput,
    StateOperatorInfo,
    Tell,
    tell_nobody,
)
from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node
from dstreams.graph.output import OutputOperation
from dstreams.graph.plan import Plan
from dstreams.rdd.failures import is_storage_failure, summarize
from dstreams.rdd.stored_version import StoredVersion
from dstreams.runtime.batch import Batch, BatchResult, DurableCopy, InputFailure
from dstreams.runtime.durability import StateDurability
from dstreams.runtime.input_counts import InputCounts
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.source import DurableReader, PlannedInput, SourceReader

logger = logging.getLogger(__name__)

_LONGEST_LINEAGE = 10
"""Batches of state that one job may make up for: each takes a Python worker for each of its tasks,
all at the same time, because a state RDD is computed inside the one that is built on it."""

_MAINTENANCE_BATCHES = 10
"""How often stored state is looked after: snapshots that are due, files that nobody needs."""


class Engine:
    """Plans and runs the batches of one frozen graph.

    Args:
        plan: the frozen graph.
        history: the RDDs made so far.
        readers: the opened source of each input stream.
        durability: where state is made durable, None when the plan has no such state.
        clock: the driver's clock.
        tell: told of each step of each batch.
        stream_id: identity of the stream, the same after a restart.
    """

    def __init__(
        self,
        plan: Plan,
        history: History,
        readers: Mapping[InputDStream, SourceReader],
        durability: StateDurability | None,
        clock: Clock,
        tell: Tell = tell_nobody,
        stream_id: str = "",
    ) -> None:
        self.plan = plan
        self._stream_id = stream_id
        self.history = history
        self.readers = readers
        self.names = _names(readers)
        self.tell = tell
        self._durability = durability
        self._clock = clock
        self.counts = InputCounts()
        self._overdue: set[Node] = set()
        self._cut: dict[Node, list[int]] = {}
        self._stateless: dict[Node, int] = {}
        self._uncommitted: list[tuple[Node, int]] = []
        self._last_planned_ms = plan.zero_ms

    @property
    def next_time_ms(self) -> int:
        """Time of the batch after the last one that was planned."""
        return self._last_planned_ms + self.plan.batch_ms

    def plan_batch(self) -> Batch:
        """Fix what the next batch reads. A source that fails makes a batch that fails."""
        time_ms = self.next_time_ms
        self._last_planned_ms = time_ms
        batch_id = (time_ms - self.plan.zero_ms) // self.plan.batch_ms - 1
        inputs: dict[InputDStream, PlannedInput] = {}
        failure: InputFailure | None = None
        for stream, reader in self.readers.items():
            try:
                inputs[stream] = reader.plan(time_ms)
            except Exception as error:
                failure = failure or InputFailure(stream.operation, error)
        batch = Batch(batch_id, time_ms, inputs, self._clock.now_ms(), failure)
        self.tell(BatchSubmitted(self.pending(batch)))
        return batch

    def run_batch(
        self, batch: Batch, is_cancelled: Callable[[], bool] = lambda: False
    ) -> BatchResult:
        """Run a batch from its input to its commit; what it fails with is in the result.

        Args:
            batch: the batch.
            is_cancelled: asked before each output and before the commit; once it says True,
                nothing more is begun.
        """
        return _BatchRun(self, batch, is_cancelled).run()

    # What a run asks of the engine -----------------------------------------------------------

    def pending(self, batch: Batch, started_ms: int | None = None) -> PendingBatch:
        """What is told of a batch that has not run."""
        outputs = tuple(
            PlannedOutput(output_id, output.operation)
            for output_id, output in enumerate(self.plan.outputs)
            if self.plan.fires(output.parent, batch.time_ms)
        )
        return PendingBatch(
            batch.batch_id,
            batch.time_ms,
            self.inputs_of(batch),
            outputs,
            batch.submitted_ms,
            started_ms,
        )

    def output_batch(self, batch: Batch) -> OutputBatch:
        """What outputs are told of their batch."""
        return OutputBatch(self._stream_id, batch.batch_id, batch.time_ms)

    def inputs_of(self, batch: Batch) -> tuple[InputInfo, ...]:
        """What is told of the inputs of a batch, before it ran."""
        return tuple(
            InputInfo(stream.stream_id, self.names[stream], planned.records, planned.description)
            for stream, planned in batch.inputs.items()
        )

    def feed(self, batch: Batch) -> InputFailure | None:
        """Hand the batch's input RDDs to the history, all that can be made."""
        failure = batch.failure
        self.counts.clear()
        for stream, planned in batch.inputs.items():
            try:
                rdd = self.readers[stream].rdd(planned)
                self.history.feed(stream, batch.time_ms, self.counts.watch(stream, planned, rdd))
            except Exception as error:
                failure = failure or InputFailure(stream.operation, error)
        return failure

    def catch_up(self, time_ms: int) -> None:
        """Make the state of earlier batches that could not be made when they ran.

        After a long failure it is made a few batches at a time, each time from files instead of
        from all that came before: neither Spark's stack nor its workers would last for hundreds.
        """
        if self._durability is None:
            return
        for node in self.plan.checkpointed():
            step_ms = _LONGEST_LINEAGE * node.slide_ms
            newest_ms = max(self.history.times(node), default=self.plan.zero_ms)
            for cut_ms in range(newest_ms + step_ms, time_ms, step_ms) if node.asks_itself else ():
                rdd = self.history.at(node, cut_ms)
                if rdd is not None and rdd.getNumPartitions() > 0:
                    self._cut_lineage(node, cut_ms, rdd, self._durability)

    def _cut_lineage(
        self, node: Node, time_ms: int, rdd: RDD[Any], durability: StateDurability
    ) -> None:
        """Replace an RDD by its files. No record names them: they serve this run alone."""
        try:
            written = durability.write(node, time_ms, rdd)
        except Exception:
            durability.discard(node, time_ms)
            raise
        self._uncommitted.append((node, time_ms))
        self._cut.setdefault(node, []).append(time_ms)
        self.history.replace(node, time_ms, durability.read(written, rdd))

    def write_state(self, node: Node, time_ms: int) -> DurableCopy | None:
        """Make the RDD of *node* and, when a copy is due, compute and write it; None for no copy.

        A copy that could not be made or committed stays due in the next batch of the stream.
        """
        if not self.plan.fires(node, time_ms):
            return None
        if self.plan.checkpoint_due(node, time_ms):
            self._overdue.add(node)
        rdd = self.history.at(node, time_ms)
        if rdd is None or rdd.getNumPartitions() == 0:
            self._overdue.discard(node)
            self._stateless[node] = time_ms
        if self._durability is None or rdd is None or node not in self._overdue:
            return None
        try:
            return DurableCopy(rdd, self._durability.write(node, time_ms, rdd))
        except Exception:
            self._durability.discard(node, time_ms)
            raise

    def commit(self, batch: Batch, copies: Mapping[Node, DurableCopy]) -> None:
        """Commit the copies of a batch and let the next batch read them: lineage ends here."""
        stored = self._stored_at(batch.time_ms)
        if self._durability is None or not (copies or stored):
            return
        written = {node: copy.files for node, copy in copies.items()}
        self._durability.commit(batch.batch_id, batch.time_ms, written, stored)
        for node, copy in copies.items():
            self._overdue.discard(node)
            self._cut.setdefault(node, []).append(batch.time_ms)
            read = self._durability.read(copy.files, copy.rdd)
            self.history.replace(node, batch.time_ms, read)

    def checkpoint_now(self) -> None:
        """Make the state of the last batch durable, due or not; called at a graceful end."""

    def _stored_at(self, time_ms: int) -> dict[Node, StoredVersion]:
        """The versions to commit: those of all stored states, if this batch made one."""
        stored = self.plan.stored()
        if not any(self.history.stored().at(node, time_ms) for node in stored):
            return {}
        return self.history.stored().newest()

    def states_of(self, batch: Batch) -> tuple[StateOperatorInfo, ...]:
        """What is told of the stored states that the batch made."""
        if not self.plan.stored():
            return ()
        return self.history.stored().told(batch.time_ms)

    def clean_up(self, batch: Batch) -> None:
        """Forget and delete what no later batch needs."""
        if not self.history.is_current(batch.time_ms):
            return  # a state that could not be made yet needs all that came since the last one
        self.history.forget(batch.time_ms)
        for stream in batch.inputs:
            remembered = self.plan.nodes.get(stream)
            kept_ms = 0 if remembered is None else remembered.remember_ms
            reader = self.readers[stream]
            reader.release(batch.time_ms - kept_ms)
            if isinstance(reader, DurableReader):
                reader.retire(min(batch.time_ms - kept_ms, self._durable_upto_ms(batch.time_ms)))
        is_turn = bool(self.plan.stored()) and (batch.batch_id + 1) % _MAINTENANCE_BATCHES == 0
        if is_turn:
            self.history.stored().take_snapshots()
        if self._durability is not None and (is_turn or batch.time_ms in self._last_cut()):
            oldest_ms = self._oldest_needed_ms(batch.time_ms)
            self._durability.retire(oldest_ms)
            for node, time_ms in self._uncommitted:
                if time_ms < oldest_ms:
                    self._durability.discard(node, time_ms)
            self._uncommitted = [kept for kept in self._uncommitted if kept[1] >= oldest_ms]

    def _durable_upto_ms(self, time_ms: int) -> int:
        """Time of the last batch that no later run reads again: its records are in the state."""
        if self._durability is None:
            return time_ms
        return min(map(self._committed_ms, self.plan.checkpointed()), default=time_ms)

    def _committed_ms(self, node: Node) -> int:
        """Time of the oldest committed copy of a state, or since when it has been none at all."""
        times = (time for time in self._cut.get(node, ()) if (node, time) not in self._uncommitted)
        return next(times, self._stateless.get(node, self.plan.zero_ms))

    def _last_cut(self) -> set[int]:
        return {times[-1] for times in self._cut.values()}

    def _oldest_needed_ms(self, time_ms: int) -> int:
        """Time of the oldest state that an RDD which is remembered may still have to read."""
        stored = (
            time_ms - self.plan.nodes[node].remember_ms - node.slide_ms
            for node in self.plan.stored()
        )
        for node, times in self._cut.items():
            since = time_ms - self.plan.nodes[node].remember_ms
            first = max((time for time in times if time <= since), default=times[0])
            self._cut[node] = [time for time in times if time >= first]
        return min(chain(stored, (times[0] for times in self._cut.values())))

    def now_ms(self) -> int:
        """The clock."""
        return self._clock.now_ms()


class _BatchRun:
    """The course of one batch."""

    def __init__(self, engine: Engine, batch: Batch, is_cancelled: Callable[[], bool]) -> None:
        self._engine = engine
        self._batch = batch
        self._is_cancelled = is_cancelled
        self._outputs: list[OutputOperationInfo] = []
        self._error: BatchFailedError | None = None

    def run(self) -> BatchResult:
        started_ms = self._engine.now_ms()
        self._engine.tell(BatchStarted(self._engine.pending(self._batch, started_ms)))
        self._feed()
        self._catch_up()
        self._make_stored()
        jobs = self._generate()
        copies = self._persist_state()
        for output_id, (output, rdd) in jobs.items():
            if not self._must_end():
                self._run_output(output_id, output, rdd)
        if not self._must_end():
            # A failed output does not undo the state: the next batch builds on it, and what the
            # record says is the state, not that every output saw it.
            self._commit(copies)
            self._clean_up()
        info = self._info(started_ms, len(jobs))
        if self._error is not None:
            self._error.batch_infos = (info,)
        self._engine.tell(BatchCompleted(info))
        return BatchResult(info, self._error)

    def _must_end(self) -> bool:
        return isinstance(self._error, DurabilityError) or self._is_cancelled()

    def _feed(self) -> None:
        # When one source failed, what was taken from the others must still reach the state.
        failure = self._engine.feed(self._batch)
        if failure is not None:
            # An OSError is the source's own, such as a refused connection.
            error = failure.error
            is_lost = is_storage_failure(error) and not isinstance(error, OSError)
            kind = DurabilityError if is_lost else BatchFailedError
            self._fail(f"reading the input of {failure.operation}", error, kind)

    def _catch_up(self) -> None:
        try:
            self._engine.catch_up(self._batch.time_ms)
        except Exception as error:
            kind = DurabilityError if is_storage_failure(error) else BatchFailedError
            self._fail("making the state of earlier batches", error, kind)

    def _make_stored(self) -> None:
        """Make every version of stored state, before any output: once, also when that fails."""
        for node in self._engine.plan.stored():
            try:
                self._engine.history.at(node, self._batch.time_ms)
            except Exception as error:
                kind = DurabilityError if is_storage_failure(error) else BatchFailedError
                self._fail(f"making the state of {node.operation}", error, kind)

    def _generate(self) -> dict[int, tuple[OutputOperation, RDD[Any]]]:
        """Make the RDD of each output; when one cannot be made, no output of the batch runs."""
        jobs: dict[int, tuple[OutputOperation, RDD[Any]]] = {}
        if self._error is not None:
            return {}
        for output_id, output in enumerate(self._engine.plan.outputs):
            try:
                rdd = self._engine.history.at(output.parent, self._batch.time_ms)
            except Exception as error:
                self._fail(f"making the RDD for {output.operation}", error)
                return {}
            if rdd is not None:
                jobs[output_id] = (output, rdd)
        return jobs

    def _persist_state(self) -> dict[Node, DurableCopy]:
        """Make every state RDD, also when no output runs, and write those that are due."""
        copies: dict[Node, DurableCopy] = {}
        for node in self._engine.plan.checkpointed():
            try:
                copy = self._engine.write_state(node, self._batch.time_ms)
            except Exception as error:
                kind = DurabilityError if is_storage_failure(error) else BatchFailedError
                self._fail(f"writing the state of {node.operation}", error, kind)
            else:
                if copy is not None:
                    copies[node] = copy
        return copies

    def _run_output(self, output_id: int, output: OutputOperation, rdd: RDD[Any]) -> None:
        started_ms = self._engine.now_ms()
        planned = PlannedOutput(output_id, output.operation)
        self._engine.tell(OutputOperationStarted(self._batch.time_ms, planned, started_ms))
        failure: str | None = None
        try:
            output.func(self._engine.output_batch(self._batch), rdd)
        except Exception as error:
            failure = summarize(error)
            # An OSError of the user's own, such as a refused connection, is none of the storage.
            is_lost = is_storage_failure(error) and not isinstance(error, OSError)
            self._fail(output.operation, error, DurabilityError if is_lost else BatchFailedError)
        info = OutputOperationInfo(
            output_id, output.operation, started_ms, self._engine.now_ms(), failure
        )
        self._outputs.append(info)
        self._engine.tell(OutputOperationCompleted(self._batch.time_ms, info))

    def _commit(self, copies: dict[Node, DurableCopy]) -> None:
        try:
            self._engine.commit(self._batch, copies)
        except Exception as error:
            self._fail("committing its state", error, DurabilityError)

    def _clean_up(self) -> None:
        try:
            self._engine.clean_up(self._batch)
        except Exception:
            logger.warning(
                "cleaning up after the batch at %d ms failed", self._batch.time_ms, exc_info=True
            )

    def _fail(
        self, where: str, error: Exception, kind: type[BatchFailedError] = BatchFailedError
    ) -> None:
        """Keep the first error of the batch, but let nothing hide that the storage failed."""
        if self._error is None or kind is DurabilityError:
            time_ms = self._batch.time_ms
            message = f"batch at {time_ms} ms failed in {where}: {summarize(error)}"
            self._error = kind(message, time_ms)
            self._error.__cause__ = error

    def _info(self, started_ms: int, jobs: int) -> BatchInfo:
        failed = self._error is not None
        inputs = self._engine.counts.complete(self._engine.inputs_of(self._batch))
        return BatchInfo(
            batch_id=self._batch.batch_id,
            batch_time_ms=self._batch.time_ms,
            records={info.name: info.records for info in inputs},
            submitted_ms=self._batch.submitted_ms,
            started_ms=started_ms,
            completed_ms=self._engine.now_ms(),
            outputs=tuple(self._outputs),
            outcome="failed" if failed else "succeeded" if jobs else "empty",
            failure=str(self._error) if failed else None,
            inputs=inputs,
            states=self._engine.states_of(self._batch),
        )


def _names(streams: Iterable[InputDStream]) -> dict[InputDStream, str]:
    """Name each input stream by its source, and by its number where several have that name."""
    counts = Counter(stream.source.name for stream in streams)
    return {
        stream: stream.source.name
        if counts[stream.source.name] == 1
        else f"{stream.source.name} #{stream.stream_id}"
        for stream in streams
    }
