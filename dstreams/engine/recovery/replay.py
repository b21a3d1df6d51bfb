"""Going on after an earlier run: its state and its input become the history of this one.

State stands on the newest version that the next batch can use; what came after it is computed again
from the same input. No output of a committed batch runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from checkpoint import BeginRecord, OwnedStream, RecoveryPlan, begin_file
from checkpoint.cli import SILENT, Progress
from dstreams.common.faults import fault
from dstreams.engine.input_offsets import planned_before
from dstreams.engine.recovery.committed_state import CommittedState, read_committed_state
from dstreams.engine.recovery.restore_point import RestorePoint
from dstreams.engine.recovery.restored_state import RestoredState
from dstreams.engine.recovery.skipped_batches import bridge, gaps_in
from dstreams.errors import RestartError
from dstreams.graph.history import LONGEST_LINEAGE, History
from dstreams.graph.input import InputDStream
from dstreams.graph.lookback import is_made_of_state, lookback_of_others
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.state import StateDStream
from dstreams.sources.source import SourceReader

logger = logging.getLogger(__name__)

_MOST_TOGETHER = 20
"""Batches of state that one task makes up for."""


@dataclass(frozen=True)
class Resumption:
    """Where a stream goes on.

    Args:
        last_ms: time of the last committed batch.
        begins: all batches that are known to have begun, by their times.
        in_flight: those of them that run again.
        restorable: streams, and the batches whose state a later restart can stand on.
    """

    last_ms: int
    begins: Mapping[int, BeginRecord]
    in_flight: Mapping[int, BeginRecord]
    restorable: tuple[tuple[Node, int], ...]


def replay(
    point: RestorePoint,
    owned: OwnedStream,
    plan: Plan,
    history: History,
    readers: Mapping[InputDStream, SourceReader],
    commit_state: Callable[[int, int], None],
    progress: Progress = SILENT,
) -> Resumption | None:
    """Fill *history* with what an earlier run left, and say where the stream goes on.

    Where no batch has begun that is None. *commit_state* commits the restored state between
    two batches, by the number of the first one and a time in ms. *progress* is told how far it is.

    Raises:
        RestartError: something that is needed is not there.
        SourceError: input that is needed is not there.
        CheckpointError: moved state could not be committed.
        Exception: whatever a job raises that puts state into other partitions.
    """
    recovery = owned.plan
    last = recovery.last
    if last is None and not recovery.in_flight:
        return None
    fault("rec.load")
    committed = read_committed_state(plan, recovery, owned.commits.records(), point)
    again = Replay(plan, history, owned, committed, point.added is None, progress)
    again.feed(readers)  # which says how much of the past can be had
    restored = RestoredState(plan, history, owned, committed, point.stream_id)
    restored.restore(progress)
    if restored.has_moved and last is not None:
        commit_state(last.batch_id, last.batch_time_ms + 1)
    fault("rec.replay")
    again.make_up()
    history.resume(committed.last_ms)
    in_flight = batches_in_flight(recovery, plan)
    logger.info(
        "stream %s goes on after the batch at %d ms; %d batches in flight run again",
        point.stream_id,
        committed.last_ms,
        len(in_flight),
    )
    return Resumption(committed.last_ms, recovery.begins, in_flight, tuple(restored.times))


def batches_in_flight(recovery: RecoveryPlan, plan: Plan) -> dict[int, BeginRecord]:
    """Return the batches that run again, by their times.

    A commit between two batches that was cut off is none of them.
    """
    return {
        begun.batch_time_ms: begun
        for begun in recovery.in_flight
        if (begun.batch_time_ms - plan.zero_ms) % plan.batch_ms == 0
    }


@dataclass(eq=False)
class Replay:
    """Gives the history the committed batches of an earlier run, as far as they are needed."""

    plan: Plan
    history: History
    owned: OwnedStream
    committed: CommittedState
    is_same_graph: bool
    progress: Progress = SILENT

    # Input -----------------------------------------------------------------------------------

    def feed(self, readers: Mapping[InputDStream, SourceReader]) -> None:
        """Read the input of committed batches again, as far as anything may ask for it.

        What a batch could not read then is not given to the state that came after it.
        """
        last_ms = self.committed.last_ms
        needed: list[tuple[InputDStream, SourceReader, int, object]] = []
        for stream, reader in readers.items():
            after_ms = self.committed.lookback.get(stream, last_ms)
            self._require_begins(stream, after_ms)
            uid = self.plan.input_uids[stream]
            for time_ms, begun in self.owned.plan.begins.items():
                was_unread = (uid, time_ms) in self.committed.unread
                if after_ms < time_ms <= last_ms and not was_unread:
                    needed.append((stream, reader, time_ms, begun.inputs.get(uid)))
        for stream, reader, time_ms, said in self.progress.over(needed, "reading input again"):
            planned = planned_before(stream.source, reader, time_ms, said)
            if planned is not None:
                self.history.feed(stream, time_ms, reader.read(planned))

    def _require_begins(self, stream: InputDStream, after_ms: int) -> None:
        """Refuse to go on without a begin record that the same graph needs."""
        for lost in self.owned.plan.missing_begins(after_ms) if self.is_same_graph else ():
            if (lost.time_ms - self.plan.zero_ms) % self.plan.batch_ms == 0:
                file = f"{self.owned.lease.files.url}/{begin_file(lost)}"
                raise RestartError(
                    f"{file} is missing: what {stream.operation} has read for the batch at "
                    f"{lost.time_ms} ms is needed to go on; restore it from a copy or an export, "
                    "or go back to a batch before it with dstreams checkpoint rewind"
                )

    # State -----------------------------------------------------------------------------------

    def make_up(self) -> None:
        """Say what the state of the last batch is, where it stands on that of an earlier one.

        State stands still over batches that an earlier run has left out.
        """
        self.progress.begin("making up for batches")
        last_ms, lookback = self.committed.last_ms, self.committed.lookback
        for after_ms, time_ms in gaps_in(self.owned.plan.begins):
            if time_ms <= last_ms:
                self._make_rows(after_ms)
                self._advance_states(after_ms)
                self.history.leave_out(after_ms, time_ms)
                bridge(self.plan, self.history, after_ms, time_ms, lookback)
        self._make_rows(last_ms)
        self._advance_states(last_ms)

    def _make_rows(self, upto_ms: int) -> None:
        """Make the rows of restored versions that others ask for again."""
        for node in self.plan.in_state_store():
            known = self.history.states.batches(self.plan.nodes[node].uid)
            newest_ms = max((time_ms for time_ms in known if time_ms <= upto_ms), default=0)
            try:
                self.history.make_state(node, newest_ms)
            except Exception as error:
                logger.info("the first batch will make rows of %s: %s", node.operation, error)

    def _advance_states(self, upto_ms: int) -> None:
        """Make up for many batches in few tasks, as far as nobody asks for the states between."""
        last_ms, lookback = self.committed.last_ms, self.committed.lookback
        others = lookback_of_others(self.plan, last_ms, lookback)
        for node in self.plan.nodes:
            if self.committed.is_added(node) or not isinstance(node, StateDStream):
                continue
            if node.preserves_partitioning:
                self._advance(node, self.plan.turn_upto(node, min(upto_ms, others[node])))

    def _advance(self, node: StateDStream, upto_ms: int) -> None:
        history = self.history
        known = [time_ms for time_ms in history.times(node) if time_ms <= upto_ms]
        begun_ms = max(known, default=self.committed.began.get(node, self.plan.zero_ms))
        times = range(begun_ms + node.slide_ms, upto_ms + 1, node.slide_ms)
        # Where there are more batches than that, the first batch of this run makes the state up and
        # writes snapshots on its way. A state that is made of another one needs each batch of that.
        together_at_most = 1 if is_made_of_state(node) else _MOST_TOGETHER
        if not 1 < len(times) <= together_at_most * LONGEST_LINEAGE:
            return
        state = history.before(node, times[0])
        for first in range(0, len(times), _MOST_TOGETHER):
            together = times[first : first + _MOST_TOGETHER]
            try:
                state = node.replay(state, together, history)
            except Exception as error:  # of a user's function on the driver
                logger.info("the first batch will make %s up one by one: %s", node.operation, error)
                return
            history.restore(node, together[-1], state)
