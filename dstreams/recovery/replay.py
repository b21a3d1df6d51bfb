"""Going on after an earlier run: its state and its input become the history of the new engine.

State stands on the newest version that the next batch can use; what came after it is computed again
from the same input. No output of a committed batch runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint import (
    BeginRecord,
    OperatorSnapshot,
    RecordId,
    RecoveryPlan,
    StatePartition,
    StreamLog,
    begin_file,
)
from dstreams.errors import RestartError
from dstreams.faults import fault
from dstreams.graph.history import LONGEST_LINEAGE
from dstreams.graph.input import InputDStream
from dstreams.graph.lookback import is_made_of_state, lookback, lookback_of_others
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.reduced_window import ReducedWindowedDStream
from dstreams.graph.state import StateDStream
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.rdd.rdd_files import WrittenRdd, read_state
from dstreams.rdd.state_version import NO_EVENT_TIME, StateVersion
from dstreams.recovery.committed_state import Restorable, unread_inputs
from dstreams.recovery.repartitioning import repartitioned
from dstreams.recovery.skipped_batches import bridge, gaps_in
from dstreams.settings import MissedBatches
from dstreams.sources.source import ReplayableReader, is_lost_with_driver
from dstreams.streams.durability import StreamDurability
from dstreams.streams.engine import Engine

logger = logging.getLogger(__name__)

_MOST_TOGETHER = 20
"""Batches of state that one task makes up for."""


@dataclass(frozen=True)
class EarlierRun:
    """What a start goes on from.

    Args:
        stream_id: id of the stream.
        zero_ms: its zero time.
        added: uids of streams that it did not have, None where the graph is that of then.
        began: of streams that were added by starts before, after which batch, in ms, by uid.
        log: its records, as far as they were read.
    """

    stream_id: str
    zero_ms: int
    added: frozenset[str] | None = None
    began: Mapping[str, int] = field(default_factory=dict)
    log: StreamLog | None = None

    def began_after(self, last_ms: int) -> dict[str, int]:
        """Return after which batch each stream began that was not there from the first one on.

        Args:
            last_ms: the last batch.
        """
        return {**self.began, **dict.fromkeys(self.added or (), last_ms)}


def resume(
    engine: Engine, durability: StreamDurability, earlier: EarlierRun, policy: MissedBatches = "all"
) -> None:
    """Give *engine*, which has run nothing, what an earlier run left.

    Args:
        engine: the engine.
        durability: the stream in the hands of this driver.
        earlier: what it goes on from.
        policy: what becomes of the batches whose time has passed since.

    Raises:
        RestartError: something that is needed is not there.
        SourceError: input that is needed is not there.
        Exception: whatever a job raises that puts state into other partitions.
    """
    recovery = durability.owned.plan
    if recovery.last_ms is None and not recovery.in_flight:
        return
    fault("rec.load")
    past = _Past(engine, durability, earlier)
    past.feed()  # which says how much of the past can be had
    past.restore_state()
    if past.has_moved_state:
        past.commit_moved_state()
    fault("rec.replay")
    past.make_up()
    begun = batches_in_flight(recovery, engine.plan)
    engine.planner.resume(past.last_ms, recovery.begins, begun)
    if policy != "all":
        engine.planner.leave_out_missed()
    logger.info(
        "stream %s goes on after the batch at %d ms; %d batches in flight run again",
        earlier.stream_id,
        past.last_ms,
        len(begun),
    )


def last_batch_ms(recovery: RecoveryPlan, plan: Plan) -> int:
    """Return the time of the last committed batch, zero time for none.

    A record between two batches is that of the first of them.
    """
    since_ms = 0 if recovery.last_ms is None else recovery.last_ms - plan.zero_ms
    return plan.zero_ms + since_ms // plan.batch_ms * plan.batch_ms


def batches_in_flight(recovery: RecoveryPlan, plan: Plan) -> dict[int, BeginRecord]:
    """Return the batches that run again, by their times.

    A commit between two batches that was cut off is none of them.
    """
    return {
        begun.batch_time_ms: begun
        for begun in recovery.in_flight
        if (begun.batch_time_ms - plan.zero_ms) % plan.batch_ms == 0
    }


class _Past:
    """The committed batches of an earlier run."""

    def __init__(self, engine: Engine, durability: StreamDurability, earlier: EarlierRun) -> None:
        self._engine = engine
        self._plan = plan = engine.plan
        self._durability = durability
        self._recovery: RecoveryPlan = durability.owned.plan
        self.last_ms = last_batch_ms(self._recovery, plan)
        self.has_moved_state = False
        self._stream_id = earlier.stream_id
        self._is_grafted = earlier.added is not None
        began = earlier.began_after(self.last_ms)
        self._began = {
            node: began[planned.uid] for node, planned in plan.nodes.items() if planned.uid in began
        }
        self._added = {node for node, after_ms in self._began.items() if after_ms == self.last_ms}
        records = durability.commits.records()
        self._found = Restorable.of(records, plan, began)
        self._unread = unread_inputs(records)
        self._lookback = lookback(plan, self.last_ms, self._newest_known, self._began)

    def _newest_known(self, node: Node, upto_ms: int) -> int:
        if node in self._added:
            return self.last_ms
        begun_ms = self._began.get(node, self._plan.zero_ms)
        return self._found.newest(self._plan.nodes[node].uid, upto_ms, begun_ms)

    # State -----------------------------------------------------------------------------------

    def restore_state(self) -> None:
        """Give the history each snapshot and version that may be asked for."""
        for node in self._plan.nodes:
            if node in self._began:
                self._begin(node, self._began[node])
            if node in self._added:
                continue
            if isinstance(node, StateStoreDStream):
                self._restore_versions(node)
            elif node.asks_itself:
                self._restore_snapshots(node)

    def _begin(self, node: Node, after_ms: int) -> None:
        """Let a stream begin after a batch: it had nothing then, and is asked for nothing before.

        The graph of this run says so to restarts, so they can stand on that as on a snapshot.
        """
        history = self._engine.history
        history.begin(node, after_ms)
        if isinstance(node, ReducedWindowedDStream):
            history.begin(node.reduced, after_ms)
        if self._engine.snapshots is not None and node.asks_itself:
            self._engine.snapshots.mark_restorable(node, after_ms)
        if isinstance(node, StateStoreDStream):
            uid = self._plan.nodes[node].uid
            empty = history.states.empty(uid, node.partitioner)
            history.states.restore(uid, self._floor(node, after_ms), empty)

    def _restore_snapshots(self, node: Node) -> None:
        uid = self._plan.nodes[node].uid
        for time_ms, (record_ms, commit) in self._found.snapshots.get(uid, {}).items():
            if time_ms < self._lookback[node]:
                continue
            rdd = None
            if commit is not None:
                written = self._written(uid, record_ms, commit)
                files, spark = self._durability.files, self._engine.history.spark
                partitioner = node.partitioner  # type: ignore[attr-defined]  # all these have one
                rdd = read_state(spark, files, written, partitioner, node.operation)
            self._engine.history.restore(node, time_ms, rdd)
            if self._engine.snapshots is not None:
                self._engine.snapshots.mark_restorable(node, time_ms)

    def _written(self, uid: str, record_ms: int, commit: OperatorSnapshot) -> WrittenRdd:
        count = len(commit.files)
        first = StatePartition(self._stream_id, uid, record_ms, 0, count, commit.partitioner)
        return WrittenRdd(first, commit.files)

    def _restore_versions(self, node: StateStoreDStream) -> None:
        states = self._engine.history.states
        uid = self._plan.nodes[node].uid
        versions = self._found.versions.get(uid, {})
        for time_ms, (record, commit) in versions.items():
            # The rows of a batch are made again from the version before it.
            if time_ms < self._lookback[node]:
                continue
            reached_ms = record.watermarks.get(uid, NO_EVENT_TIME)
            version = StateVersion.committed(record.stream_id, commit, reached_ms)
            states.restore(uid, time_ms, version)
            if not version.is_placed_by(node.partitioner):
                # Also those before the newest: windows ask for the rows of batches after them.
                is_newest = time_ms == max(versions)
                if is_newest:
                    self._require_room(node)
                epoch = self._durability.owned.epoch
                moved = repartitioned(states, uid, node, version, epoch, time_ms)
                states.restore(uid, time_ms, moved, is_temporary=not is_newest)
                self.has_moved_state |= is_newest
            if self._engine.snapshots is not None:
                self._engine.snapshots.mark_restorable(node, time_ms)

    def commit_moved_state(self) -> None:
        """Name in a record what moved state is built on, or retention takes it for an orphan."""
        last = self._recovery.last
        if last is not None and self._engine.committer is not None:
            self._engine.committer.commit_between(last.batch_id, last.batch_time_ms + 1)

    def _require_room(self, node: Node) -> None:
        """Refuse to move state where no record fits in between the last one and the next batch."""
        last = self._recovery.last
        next_ms = self.last_ms + self._plan.batch_ms
        if last is not None and last.batch_time_ms + 1 >= next_ms:
            raise RestartError(
                f"the state of {node.operation} cannot be moved into other partitions now: a "
                "record says so, as of a millisecond of its own, and between the last record, at "
                f"{last.batch_time_ms} ms, and the next batch, at {next_ms} ms, there is none; "
                "keep the number of partitions of then, for one batch where they are further apart"
            )

    def _floor(self, node: Node, time_ms: int) -> int:
        return time_ms - (time_ms - self._plan.zero_ms) % node.slide_ms

    # Input -----------------------------------------------------------------------------------

    def feed(self) -> None:
        """Read the input of committed batches again, as far as anything may ask for it.

        What a batch could not read then is not given to the state that came after it.
        """
        for stream, reader in self._engine.readers.items():
            after_ms = self._lookback.get(stream, self.last_ms)
            times = [time_ms for time_ms in self._recovery.begins if time_ms <= self.last_ms]
            self._require_begins(stream, after_ms)
            knows_how_far = not is_lost_with_driver(stream.source, reader)
            for time_ms in times:
                recorded = self._recorded(stream, time_ms)
                # Also where nothing is read: a source may have to know how far it has come.
                is_needed = time_ms > after_ms or (knows_how_far and time_ms == times[-1])
                if not is_needed or recorded is None or not isinstance(reader, ReplayableReader):
                    continue
                planned = reader.replay(time_ms, recorded)
                was_unread = (self._plan.input_uids[stream], time_ms) in self._unread
                if time_ms > after_ms and not was_unread:
                    self._engine.history.feed(stream, time_ms, reader.rdd(planned))

    def make_up(self) -> None:
        """Say what the state of the last batch is, where it stands on that of an earlier one.

        State stands still over batches that an earlier run has left out.
        """
        history = self._engine.history
        for after_ms, time_ms in gaps_in(self._recovery.begins):
            if time_ms <= self.last_ms:
                self._make_rows(after_ms)
                self._advance_states(after_ms)
                history.leave_out(after_ms, time_ms)
                bridge(self._plan, history, after_ms, time_ms, self._lookback)
        self._make_rows(self.last_ms)
        self._advance_states(self.last_ms)

    def _make_rows(self, upto_ms: int) -> None:
        """Make the rows of restored versions that others ask for again."""
        history = self._engine.history
        for node in self._plan.in_state_store():
            known = history.states.batches(self._plan.nodes[node].uid)
            try:
                history.make_state(node, max((ms for ms in known if ms <= upto_ms), default=0))
            except Exception as error:
                logger.info("the first batch will make rows of %s: %s", node.operation, error)

    def _advance_states(self, upto_ms: int) -> None:
        """Make up for many batches in few tasks, as far as nobody asks for the states between."""
        others = lookback_of_others(self._plan, self.last_ms, self._lookback)
        for node in self._plan.nodes:
            if node in self._added or not isinstance(node, StateDStream):
                continue
            if node.preserves_partitioning:
                self._advance(node, self._floor(node, min(upto_ms, others[node])))

    def _advance(self, node: StateDStream, upto_ms: int) -> None:
        history = self._engine.history
        begun = [time_ms for time_ms in history.times(node) if time_ms <= upto_ms]
        begun_ms = max(begun, default=self._began.get(node, self._plan.zero_ms))
        times = range(begun_ms + node.slide_ms, upto_ms + 1, node.slide_ms)
        # Of more, the first batch makes files on its way. Of a state that this one is made of each
        # batch is needed, and computed inside the next one.
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

    def _recorded(self, stream: InputDStream, time_ms: int) -> Mapping[str, Any] | None:
        inputs = self._recovery.begins[time_ms].inputs
        recorded = inputs.get(self._plan.input_uids[stream])
        return recorded if isinstance(recorded, Mapping) else None

    def _require_begins(self, stream: InputDStream, after_ms: int) -> None:
        missing = next(self._missing(after_ms), None)
        if missing is not None and not self._is_grafted:
            file = f"{self._durability.files.url}/{begin_file(missing)}"
            raise RestartError(
                f"{file} is missing: what {stream.operation} has read for the batch at "
                f"{missing.time_ms} ms is needed to go on; restore it from a copy or an export, or "
                "go back to a batch before it with python -m checkpoint rewind"
            )

    def _missing(self, after_ms: int) -> Iterator[RecordId]:
        for lost in self._recovery.missing_begins(after_ms):
            if (lost.time_ms - self._plan.zero_ms) % self._plan.batch_ms == 0:
                yield lost
