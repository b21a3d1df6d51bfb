"""One batch: what it reads, how it runs, what makes it count.

The engine has no thread. A scheduler calls it from its threads, a notebook or a test steps it by
hand, and both see the same batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from checkpoint import BeginRecord, CheckpointError
from dstreams.clock import Clock
from dstreams.events import (
    BatchSubmitted,
    InputInfo,
    PendingBatch,
    PlannedOutput,
    StateOperatorInfo,
    Tell,
    tell_nobody,
)
from dstreams.faults import fault
from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.reach import asked_after
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.kernel.janitor import Janitor
from dstreams.kernel.record_facts import AFTER, BETWEEN_BATCHES
from dstreams.rdd import jvm
from dstreams.rdd.state_version import NO_EVENT_TIME, StateVersion
from dstreams.recovery.repartitioning import delete_abandoned
from dstreams.recovery.skipped_batches import bridge, gap_of
from dstreams.sources.source import (
    PlannedInput,
    ReaderOfFiles,
    ReplayableReader,
    RetiringReader,
    SourceReader,
    close_all,
    is_lost_with_driver,
)
from dstreams.streams.batch import Batch, BatchResult, InputFailure
from dstreams.streams.batch_history import BatchHistory
from dstreams.streams.batch_inputs import BatchInputs
from dstreams.streams.batch_run import BatchRun
from dstreams.streams.durability import BatchCommit, StreamDurability
from dstreams.streams.rdd_snapshots import RddSnapshot, RddSnapshots

logger = logging.getLogger(__name__)

_MAINTENANCE_BATCHES = 10
"""How often is looked after what piles up: snapshots that are due, files that nobody needs."""


class Engine:
    """Plans and runs the batches of one frozen graph.

    Args:
        plan: the frozen graph.
        history: the RDDs made so far.
        readers: the opened source of each input stream.
        durability: where batches are made durable, None without a checkpoint directory.
        clock: the driver's clock.
        tell: told of each step of each batch.
        stream_id: identity of the stream, the same after a restart.
        stops_on_failure: whether a batch that fails ends the stream, and is left uncommitted.
    """

    def __init__(
        self,
        plan: Plan,
        history: History,
        readers: Mapping[InputDStream, SourceReader],
        durability: StreamDurability | None,
        clock: Clock,
        tell: Tell = tell_nobody,
        stream_id: str = "",
        *,
        stops_on_failure: bool = False,
    ) -> None:
        self.plan = plan
        self.batches = BatchHistory(plan, stream_id)
        self.history = history
        self.readers = readers
        self.names = _names(readers)
        self.tell = tell
        self.stops_on_failure = stops_on_failure
        self.janitor = Janitor()
        self._durability = durability
        self._clock = clock
        self.inputs = BatchInputs(history, readers)
        self.snapshots = (
            None if durability is None else RddSnapshots(plan, history, durability.owned, stream_id)
        )
        self._last_planned_ms = plan.zero_ms
        self._last_committed: Batch | None = None
        self._begun: Mapping[int, BeginRecord] = {}
        self._needed_after: Mapping[str, int] = {}
        self._gap_after_ms: int | None = None
        self._resume_at_ms: int | None = None
        self._unbridged: list[tuple[int, int]] = []
        self._is_swept = False
        self._begin_failure: InputFailure | None = None

    @property
    def snapshot_readers(self) -> dict[str, RetiringReader]:
        """The inputs that have to know what earlier batches have read, by uid."""
        return {
            self.plan.input_uids[stream]: reader
            for stream, reader in self.readers.items()
            if isinstance(reader, RetiringReader) and reader.snapshot_size() is not None
        }

    @property
    def next_time_ms(self) -> int:
        """Time of the batch after the last one that was planned."""
        if self._resume_at_ms is not None and self._last_planned_ms == self._gap_after_ms:
            return self._resume_at_ms
        for time_ms in self._begun:  # of an earlier run that left out batches, too
            if gap_of(self._begun[time_ms]) == self._last_planned_ms:
                return time_ms
        return self._last_planned_ms + self.plan.batch_ms

    @property
    def durability(self) -> StreamDurability | None:
        """Where batches are made durable, None without a checkpoint directory."""
        return self._durability

    def resume(self, last_ms: int, begun: Mapping[int, BeginRecord]) -> None:
        """Go on after a batch of an earlier run.

        Args:
            last_ms: time of the last batch that is not planned again.
            begun: what batches after it read when they were begun, by their times.
        """
        self._last_planned_ms = last_ms
        self._begun = begun

    def leave_out(self, upto_ms: int) -> None:
        """Plan no batch after those that are known from an earlier run, up to and with a time.

        The one after it has the input of all.
        """
        last_ms = max([self._last_planned_ms, *self._begun])
        if upto_ms > last_ms:
            self._gap_after_ms, self._resume_at_ms = last_ms, upto_ms + self.plan.batch_ms

    def plan_batch(self) -> Batch:
        """Fix what the next batch reads, and write it down.

        A source that fails makes a batch that fails.
        """
        time_ms, last_ms = self.next_time_ms, self._last_planned_ms
        self._last_planned_ms = time_ms
        batch_id = self.batches.number(time_ms)
        fault("plan.start", batch_id)
        inputs: dict[InputDStream, PlannedInput] = {}
        failure: InputFailure | None = None
        begun = self._begun.get(time_ms)
        for stream, reader in self.readers.items():
            try:
                inputs[stream] = self._plan_input(stream, reader, time_ms, begun)
            except Exception as error:
                where = f"reading the input of {stream.operation}"
                failure = failure or InputFailure(where, error)
        after_ms = last_ms if time_ms > last_ms + self.plan.batch_ms else None
        beginning = "" if self._durability is None else self.batches.beginning(inputs, begun)
        batch = Batch(batch_id, time_ms, inputs, self._clock.now_ms(), failure, after_ms, beginning)
        # Again where a batch that runs again reads inputs that are new: they go on after it.
        if begun is None or not begun.inputs.keys() >= set(self.plan.input_uids.values()):
            batch = self._begin(batch)
        self.batches.begun(time_ms, after_ms)
        self.tell(BatchSubmitted(self.pending(batch)))
        return batch

    def _plan_input(
        self, stream: InputDStream, reader: SourceReader, time_ms: int, begun: BeginRecord | None
    ) -> PlannedInput:
        recorded = None if begun is None else begun.inputs.get(self.plan.input_uids[stream])
        if isinstance(recorded, Mapping) and isinstance(reader, ReplayableReader):
            return reader.replay(time_ms, recorded)
        return reader.plan(time_ms)

    def _begin(self, batch: Batch) -> Batch:
        """Write down what a batch reads; one for which that fails must not run.

        Nor any after it: its input is in no batch, until a restart finds what was begun.
        """
        if self._durability is None:
            return batch
        if self._begin_failure is not None:
            return replace(batch, failure=self._begin_failure)
        fault("begin.start", batch.batch_id)
        inputs: dict[str, object] = {}
        for stream, planned in batch.inputs.items():
            reader = self.readers[stream]
            recorded: Mapping[str, object] = {"records": planned.records}
            if isinstance(reader, ReplayableReader):
                recorded = reader.recorded(planned)
            inputs[self.plan.input_uids[stream]] = recorded
        facts = {} if batch.after_ms is None else {AFTER: batch.after_ms}
        try:
            number, time_ms = batch.batch_id, batch.time_ms
            self._durability.begin(number, time_ms, inputs, facts, batch.beginning)
        except CheckpointError as error:
            self._begin_failure = InputFailure("writing down what it reads", error)
            return replace(batch, failure=self._begin_failure)
        fault("begin.done", batch.batch_id)
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
        with jvm.rewriting_outputs(self.history.spark):
            return BatchRun(self, batch, is_cancelled).run()

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

    def inputs_of(self, batch: Batch) -> tuple[InputInfo, ...]:
        """What is told of the inputs of a batch, before it ran."""
        return tuple(
            InputInfo(stream.stream_id, self.names[stream], planned.records, planned.description)
            for stream, planned in batch.inputs.items()
        )

    def ended_inputs_of(self, batch: Batch) -> tuple[InputInfo, ...]:
        """What is told of the inputs of a batch that has run."""
        return self.inputs.ended(batch.inputs, self.inputs_of(batch))

    def feed(self, batch: Batch) -> InputFailure | None:
        """Hand the batch's input RDDs to the history, all that can be made."""
        if batch.after_ms is not None:
            self.history.leave_out(batch.after_ms, batch.time_ms)
            self._unbridged.append((batch.after_ms, batch.time_ms))
        return self.inputs.feed(batch)

    def bridge(self) -> None:
        """Let state that a restart has found stand for that of the batches that it left out."""
        for after_ms, first_ms in tuple(self._unbridged):
            bridge(self.plan, self.history, after_ms, first_ms)
            self._unbridged.remove((after_ms, first_ms))

    def make_state(self, node: Node, time_ms: int) -> None:
        """Make the state of *node*, also of earlier batches that could not be made when they ran.

        Of state that is an RDD of each batch only that of earlier ones is made here.
        """
        if isinstance(node, StateStoreDStream):
            self.history.make_state(node, time_ms)
        elif self.snapshots is not None:
            self.snapshots.catch_up(node, time_ms)

    def write_snapshot(self, node: Node, time_ms: int) -> RddSnapshot | None:
        """Make the RDD of *node*, and write a snapshot of it when one is due; None for none."""
        return None if self.snapshots is None else self.snapshots.make(node, time_ms)

    def require_newest(self) -> None:
        """Refuse to go on after another driver has taken over.

        Raises:
            CheckpointError: one has, or the storage does not answer.
        """
        if self._durability is not None:
            self._durability.owned.lease.check()

    def commit(
        self, batch: Batch, snapshots: Mapping[Node, RddSnapshot], failed_outputs: Sequence[str]
    ) -> None:
        """Commit a batch and let the next one read its snapshots: lineage ends here.

        Raises:
            CheckpointError: it could not be committed; the stream must stop.
        """
        if self._durability is None or self.snapshots is None:
            return
        states = self._states(batch.time_ms)
        versions = {uid: time_ms for uid, (time_ms, _) in states.items()}
        asked = self.snapshots.committing(batch.time_ms, snapshots, versions)
        made = BatchCommit(
            batch_id=batch.batch_id,
            time_ms=batch.time_ms,
            written={node: snapshot.files for node, snapshot in snapshots.items()},
            states=states,
            without_state=self.snapshots.without_state(batch.time_ms),
            failed_outputs=failed_outputs,
            unread=sorted(self.plan.input_uids[stream] for stream in self.inputs.unread),
            inputs_needed_after=self._inputs_needed_after(batch.time_ms, asked),
        )
        self._durability.commit(made)
        self._needed_after = made.inputs_needed_after
        self._last_committed = batch
        self.snapshots.committed(batch.time_ms, snapshots)

    def _inputs_needed_after(self, time_ms: int, asked: Mapping[Node, int]) -> dict[str, int]:
        """After which time a restart reads each input of files again."""
        return {
            self.plan.input_uids[stream]: asked.get(stream, time_ms)
            for stream, reader in self.readers.items()
            if isinstance(reader, ReaderOfFiles)
        }

    def checkpoint_now(self) -> None:
        """Make the state of the last batch durable, due or not; called at the end.

        It is committed as of one millisecond after that batch, whose own record says less.

        Raises:
            Exception: it could not be made, written or committed; nothing is lost by that.
        """
        last, durability, snapshots = self._last_committed, self._durability, self.snapshots
        if last is None or durability is None or snapshots is None or self.plan.batch_ms == 1:
            return
        if not self.history.is_current(last.time_ms):
            return
        time_ms = last.time_ms + 1
        written: dict[Node, RddSnapshot] = {}
        for node in self.plan.checkpointed():
            newest_ms = last.time_ms - (last.time_ms - self.plan.zero_ms) % node.slide_ms
            rdd = self.history.before(node, newest_ms + node.slide_ms)
            if snapshots.newest(node, last.time_ms) < newest_ms and rdd is not None:
                written[node] = snapshots.write(node, time_ms, rdd)
        if written:
            self.commit_between(last.batch_id, time_ms, written)

    def commit_between(
        self, batch_id: int, time_ms: int, written: Mapping[Node, RddSnapshot] | None = None
    ) -> None:
        """Commit snapshots and the versions in the state store, between two batches.

        A version that a batch has made which was cut off afterwards is left to that batch.

        Args:
            batch_id: number of the batch before.
            time_ms: after that batch, and before the next one.
            written: the snapshots, by stream.

        Raises:
            CheckpointError: it could not be committed.
        """
        if self._durability is None:
            return
        self._durability.begin(batch_id, time_ms, {}, {BETWEEN_BATCHES: True})
        self._durability.commit(
            BatchCommit(
                batch_id=batch_id,
                time_ms=time_ms,
                written={node: snapshot.files for node, snapshot in (written or {}).items()},
                states=self._states(time_ms),
                inputs_needed_after=self._needed_after,
            )
        )

    def checkpoint_at_end(self, *, is_abandoned: bool) -> None:
        """Make the state of the last batch durable where that is worth it; never raises.

        Without it the next start computes the state of a few batches again, as far as it can read
        their input.

        Args:
            is_abandoned: after a stop at once, which has time for it only where input would lack.
        """
        try:
            if not is_abandoned or self.loses_input():
                self.checkpoint_now()
        except Exception as error:
            logger.warning("no checkpoint at the end, the next start takes longer: %s", error)

    def loses_input(self) -> bool:
        """Whether a restart would lack input of committed batches, which no source has again."""
        last = self._last_committed
        if last is None:
            return False
        asked = self._asked_after(last.time_ms)
        return any(
            asked.get(stream, last.time_ms) < last.time_ms
            and is_lost_with_driver(stream.source, reader)
            for stream, reader in self.readers.items()
        )

    def _states(self, upto_ms: int) -> dict[str, tuple[int, StateVersion]]:
        """The newest version of each state in the state store up to a batch, and whose it is."""
        return self.history.states.newest(upto_ms) if self.plan.in_state_store() else {}

    def states_of(self, batch: Batch) -> tuple[StateOperatorInfo, ...]:
        """What is told of the versions in the state store that the batch made."""
        return tuple(
            StateOperatorInfo(
                uid,
                node.operation,
                len(version.version_ids),
                version.metrics.as_dict(),
                None if version.watermark_ms == NO_EVENT_TIME else version.watermark_ms,
            )
            for node in self.plan.in_state_store()
            if (uid := self.plan.nodes[node].uid)
            and (version := self.history.states.at(uid, batch.time_ms)) is not None
            and version.metrics is not None
        )

    def forget(self, batch: Batch) -> Callable[[], None] | None:
        """Forget what no later batch needs, and return what deletes files; None for none now."""
        if self._unbridged or not self.history.is_current(batch.time_ms):
            return None  # a state that could not be made yet needs all that came since the last one
        self.history.forget(batch.time_ms)
        asked = self._asked_after(batch.time_ms)
        for stream in batch.inputs:
            remembered = self.plan.nodes.get(stream)
            kept_ms = 0 if remembered is None else remembered.remember_ms
            self.inputs.forget(stream, batch.time_ms - kept_ms)
        is_turn = (batch.batch_id + 1) % _MAINTENANCE_BATCHES == 0
        written = self.history.states.maintain() if is_turn and self.plan.in_state_store() else 0
        if self._durability is None or self.snapshots is None:
            return None
        if written:
            self._durability.retention.expect_snapshots()
        if not is_turn and not self.snapshots.is_at(batch.time_ms):
            return None
        oldest_ms = self.snapshots.oldest_needed_ms(batch.time_ms, asked)
        inputs = (asked[node] for node in self.readers if node in asked)
        oldest_input_ms = min(chain(inputs, [batch.time_ms])) + 1
        self.snapshots.discard_before(oldest_ms)
        return partial(self._clean_up, self._durability, oldest_ms, oldest_input_ms)

    def _clean_up(self, durability: StreamDurability, oldest_ms: int, oldest_input_ms: int) -> None:
        """Delete what neither a restart nor a batch to come needs; on any thread.

        Raises:
            CheckpointError: something could not be read or deleted, or a newer driver has taken
                over; nothing was deleted then.
        """
        # What a batch has read is there as long as its record: a rewind may go there.
        durability.retire(oldest_ms, oldest_input_ms, self.snapshot_readers)
        self._sweep(durability)

    def _sweep(self, durability: StreamDurability) -> None:
        """Delete, once, what a driver before this one had moved and could not make count."""
        if not self._is_swept and self.plan.in_state_store():
            durability.owned.lease.check()
            delete_abandoned(durability.files, durability.owned.epoch)
            self._is_swept = True

    def _asked_after(self, time_ms: int) -> dict[Node, int]:
        """After which time a restart may ask each stream for its RDDs."""
        if self.snapshots is None:
            return {}
        return asked_after(self.plan, time_ms, self.snapshots.newest)

    def close(self) -> None:
        """Close the sources and forget everything; says on disk that this driver has stopped."""
        self.janitor.close()
        close_all(self.readers.values())
        self.history.clear()
        if self.plan.in_state_store() and self._durability is not None:
            self.history.states.close()
        if self._durability is not None:
            try:
                self._durability.owned.lease.release()
            except CheckpointError as error:
                logger.info("the end of the stream could not be written down: %s", error)

    def due_ms(self) -> int:
        """Time of the last batch that is due now."""
        now_ms = self._clock.now_ms()
        return now_ms - (now_ms - self.plan.zero_ms) % self.plan.batch_ms

    def now_ms(self) -> int:
        """The clock."""
        return self._clock.now_ms()


def _names(streams: Iterable[InputDStream]) -> dict[InputDStream, str]:
    """Name each input stream by its source, and by its number where several have that name."""
    counts = Counter(stream.source.name for stream in streams)
    return {
        stream: stream.source.name
        if counts[stream.source.name] == 1
        else f"{stream.source.name} #{stream.stream_id}"
        for stream in streams
    }
