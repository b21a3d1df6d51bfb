"""Restoring a stream into an engine that has run nothing: :func:`resume`.

State continues from the newest durable version that the next batch can use, and what came after it
is computed again from the same input. No output of a committed batch runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from checkpoint import (
    BeginRecord,
    CommitRecord,
    OperatorSnapshot,
    RecoveryPlan,
    StatePartition,
    StoreCommit,
    begin_file,
)
from checkpoint.cli import SILENT, Progress
from dstreams.common.faults import fault
from dstreams.common.settings import CatchUp
from dstreams.engine.engine import Engine
from dstreams.engine.inputs import planned_before
from dstreams.engine.recovery.recover import RecoveredStream
from dstreams.engine.stream_checkpoint import UNREAD, VERSIONS_MADE_AT, gap_before
from dstreams.errors import RestartError
from dstreams.graph.generated_rdds import LONGEST_LINEAGE, carry_over_gap
from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan, depends_on_state_rdd
from dstreams.graph.state import StateDStream, StateStoreDStream
from dstreams.graph.windowed import ReducedWindowedDStream, WindowedDStream
from dstreams.spark.rdd_files import WrittenRdd, read_state
from dstreams.spark.state_version import NO_EVENT_TIME, StateVersion
from dstreams.state.state_versions import repartition

logger = logging.getLogger(__name__)

_BATCHES_PER_STAGE = 20
"""State batches that one task computes again."""


def resume(
    engine: Engine, recovered: RecoveredStream, catch_up: CatchUp, progress: Progress
) -> None:
    """Restore what earlier runs left into *engine*, and let its planner continue after that."""
    assert engine.checkpoint is not None, "only a stream with a checkpoint can be resumed"
    records, plan = engine.checkpoint.plan, engine.plan
    if records.last is None and not records.in_flight:
        return
    fault("rec.load")
    commits = engine.checkpoint.commits.records()
    state = committed_state(plan, records, commits, recovered)
    steps = ResumeSteps(engine, recovered, records, state, progress)
    steps.read_inputs()
    steps.restore_states()
    steps.commit_repartitioned()
    fault("rec.replay")
    steps.recompute_states()
    engine.rdds.mark_resumed(state.last_ms)
    in_flight = batches_in_flight(records, plan)
    engine.planner.resume(state.last_ms, records.begins, in_flight)
    if catch_up != "all":
        engine.planner.skip_missed()
    logger.info(
        "resumed stream %s after the batch at %d ms; %d batches in flight run again",
        recovered.stream_id,
        state.last_ms,
        len(in_flight),
    )


def batches_in_flight(records: RecoveryPlan, plan: Plan) -> dict[int, BeginRecord]:
    """Return the batches that run again, by time; not a cancelled commit between two batches."""
    return {
        begun.batch_time_ms: begun
        for begun in records.in_flight
        if not _is_between_batches(plan, begun.batch_time_ms)
    }


def _is_between_batches(plan: Plan, time_ms: int) -> bool:
    """Return whether a record commits only state, at a time between two batches."""
    return (time_ms - plan.zero_ms) % plan.batch_ms != 0


# The committed state -------------------------------------------------------------------------


@dataclass(frozen=True)
class CommittedState:
    """The durable state and the skipped inputs of the committed batches.

    Args:
        last_ms: time of the last committed batch.
        added: nodes that earlier graphs lacked, and the batch after which they were added.
        snapshots: by uid and batch time: the record time in the file names, and the files of a
            state RDD; None if the stream had no state.
        versions: by uid and batch time: the record that names a version in the state store.
        unread: inputs, by uid and batch time, that could not be read and were skipped.
        required_since: as :meth:`Plan.required_since` of the last batch.
        kept_since: the same for what the earlier graph read too: not for windows that are longer.
    """

    last_ms: int
    added: Mapping[Node, int]
    snapshots: Mapping[str, Mapping[int, tuple[int, OperatorSnapshot | None]]]
    versions: Mapping[str, Mapping[int, tuple[CommitRecord, StoreCommit]]]
    unread: frozenset[tuple[object, int]]
    required_since: Mapping[Node, int]
    kept_since: Mapping[Node, int]

    def is_new(self, node: Node) -> bool:
        """Return whether no earlier run had that node."""
        return self.added.get(node) == self.last_ms


def committed_state(
    plan: Plan,
    records: RecoveryPlan,
    commits: Iterable[CommitRecord],
    recovered: RecoveredStream,
) -> CommittedState:
    """Read the commit records that count, oldest first, for the graph of this run."""
    last_ms = last_batch_ms(records, plan)
    added_after = recovered.added_after(last_ms)
    snapshots: dict[str, dict[int, tuple[int, OperatorSnapshot | None]]] = {}
    versions: dict[str, dict[int, tuple[CommitRecord, StoreCommit]]] = {}
    unread: set[tuple[object, int]] = set()
    slides = {planned.uid: node.slide_ms for node, planned in plan.nodes.items()}
    for record in commits:
        # A record between two batches has the state of the first one.
        record_ms = record.batch_time_ms
        for uid in (*record.snapshots, *record.without_state):
            time_ms = record_ms - (record_ms - plan.zero_ms) % slides.get(uid, plan.batch_ms)
            snapshots.setdefault(uid, {})[time_ms] = record_ms, record.snapshots.get(uid)
        facts: Mapping[str, Any] = record.facts
        for store in record.stores:
            uid = store.operator_uid
            versions.setdefault(uid, {})[facts[VERSIONS_MADE_AT][uid]] = record, store
        unread.update((uid, record_ms) for uid in facts.get(UNREAD) or ())
    for uid, after_ms in added_after.items():  # older state belongs to another node with this uid
        for times in (snapshots.get(uid, {}), versions.get(uid, {})):
            for time_ms in [time_ms for time_ms in times if time_ms <= after_ms]:
                del times[time_ms]
    uids = {node: planned.uid for node, planned in plan.nodes.items()}
    added = {node: added_after[uid] for node, uid in uids.items() if uid in added_after}

    def newest(node: Node, upto_ms: int) -> int:
        if added.get(node) == last_ms:
            return last_ms
        times = (*snapshots.get(uids[node], ()), *versions.get(uids[node], ()))
        first_ms = added.get(node, plan.zero_ms)
        return max((time_ms for time_ms in times if time_ms <= upto_ms), default=first_ms)

    since = plan.required_since(last_ms, newest, added)
    lengths = {part["uid"]: part.get("window_ms") for part in recovered.description["operators"]}
    longer: dict[Node, int] = {
        node: last_ms
        for node, uid in uids.items()
        if isinstance(node, WindowedDStream) and node.times.window_ms > (lengths.get(uid) or 0)
    }
    kept_since = plan.required_since(last_ms, newest, {**added, **longer})
    return CommittedState(last_ms, added, snapshots, versions, frozenset(unread), since, kept_since)


def last_batch_ms(records: RecoveryPlan, plan: Plan) -> int:
    """Return the time of the last committed batch, zero time if no batch was committed."""
    return plan.zero_ms if records.last_ms is None else plan.batch_upto(records.last_ms)


# The steps -----------------------------------------------------------------------------------


@dataclass(eq=False)
class ResumeSteps:
    """The steps of :func:`resume`, in order."""

    engine: Engine
    recovered: RecoveredStream
    records: RecoveryPlan
    state: CommittedState
    progress: Progress = SILENT
    _is_repartitioned: bool = False

    def read_inputs(self) -> None:
        """Read the input of committed batches again, as far as a later batch may need it.

        Input that a batch could not read is missing in the state that followed, so it stays out.
        """
        plan, last_ms = self.engine.plan, self.state.last_ms
        needed = []
        for stream, reader in self.engine.readers.items():
            after_ms = self.state.required_since.get(stream, last_ms)
            self._require_begin_records(stream, self.state.kept_since.get(stream, last_ms))
            uid = plan.input_uids[stream]
            for time_ms, begun in self.records.begins.items():
                if after_ms < time_ms <= last_ms and (uid, time_ms) not in self.state.unread:
                    needed.append((stream, reader, time_ms, begun.inputs.get(uid)))
        for stream, reader, time_ms, recorded in self.progress.over(needed, "reading input again"):
            planned = planned_before(stream.source, reader, time_ms, recorded)
            if planned is not None:
                self.engine.rdds.put(stream, time_ms, reader.read(planned))
        logger.info("read %d inputs of committed batches again", len(needed))

    def _require_begin_records(self, stream: InputDStream, after_ms: int) -> None:
        """Raise if a begin record is missing that the earlier graph needed, too."""
        for lost in self.records.missing_begins(after_ms):
            if not _is_between_batches(self.engine.plan, lost.time_ms):
                raise RestartError(
                    f"{self.recovered.files.url}/{begin_file(lost)} is missing, which says what "
                    f"{stream.operation} has read for the batch at {lost.time_ms} ms; restore it "
                    "from a copy or an export, or go back to an earlier batch with dstreams "
                    "checkpoint rewind"
                )

    def restore_states(self) -> None:
        """Restore each snapshot and version that a later batch may need."""
        for node in self.progress.over(self.engine.plan.nodes, "restoring state"):
            if node in self.state.added:
                self._add(node, self.state.added[node])
            if self.state.is_new(node):
                continue
            if isinstance(node, StateStoreDStream):
                self._restore_versions(node)
            elif node.is_stateful:
                self._restore_snapshots(node)

    def _mark_durable(self, node: Node, time_ms: int) -> None:
        assert self.engine.committer is not None
        self.engine.committer.snapshots.mark_durable(node, time_ms)

    def _add(self, node: Node, after_ms: int) -> None:
        """Let a node begin after a batch. Its empty state counts as durable: the graph says so."""
        rdds = self.engine.rdds
        rdds.mark_added(node, after_ms)
        if isinstance(node, ReducedWindowedDStream):
            rdds.mark_added(node.reduced, after_ms)
        if node.is_stateful:
            self._mark_durable(node, after_ms)
        if isinstance(node, StateStoreDStream):
            uid = rdds.uid(node)
            time_ms = self.engine.plan.turn_upto(node, after_ms)
            rdds.states.restore(uid, time_ms, rdds.states.empty(uid, node.partitioner))

    def _restore_snapshots(self, node: Node) -> None:
        rdds, uid = self.engine.rdds, self.engine.rdds.uid(node)
        placed: Any = node  # a stateful node has a partitioner and a layout
        for time_ms, (record_ms, commit) in self.state.snapshots.get(uid, {}).items():
            if time_ms < self.state.required_since[node]:
                continue
            rdd = None
            if commit is not None:
                first = StatePartition(
                    self.recovered.stream_id,
                    uid,
                    record_ms,
                    0,
                    len(commit.files),
                    commit.partitioner,
                )
                rdd = read_state(
                    rdds.spark,
                    self.recovered.files,
                    WrittenRdd(first, commit.files),
                    placed.partitioner,
                    placed.layout,
                    node.operation,
                )
            rdds.put(node, time_ms, rdd)
            self._mark_durable(node, time_ms)

    def _restore_versions(self, node: StateStoreDStream) -> None:
        states, uid = self.engine.rdds.states, self.engine.rdds.uid(node)
        assert self.engine.checkpoint is not None
        epoch = self.engine.checkpoint.epoch
        versions = self.state.versions.get(uid, {})
        for time_ms, (record, commit) in versions.items():
            # The rows of a batch are computed again from the version before it.
            if time_ms < self.state.required_since[node]:
                continue
            watermark_ms = record.watermarks.get(uid, NO_EVENT_TIME)
            version = StateVersion.committed(record.stream_id, commit, watermark_ms)
            states.restore(uid, time_ms, version)
            if not version.is_placed_by(node.partitioner):
                # Also earlier versions: windows read the rows of the batches after them.
                is_newest = time_ms == max(versions)
                if is_newest:
                    self._require_room(node)
                moved = repartition(
                    states,
                    uid,
                    node.operation,
                    node.partitioner,
                    epoch,
                    time_ms,
                    node.function.pair_key,
                )
                assert moved is not None, "the version was restored above"
                states.restore(uid, time_ms, moved, is_temporary=not is_newest)
                self._is_repartitioned |= is_newest
            self._mark_durable(node, time_ms)

    def _require_room(self, node: StateStoreDStream) -> None:
        """Raise if no record fits between the last one and the next batch."""
        last_ms = self.records.last_ms
        next_ms = self.state.last_ms + self.engine.plan.batch_ms
        if last_ms is not None and last_ms + 1 >= next_ms:
            raise RestartError(
                f"the state of {node.operation} cannot be moved into other partitions: this needs "
                f"a record between the last one, at {last_ms} ms, and the next batch, at {next_ms} "
                "ms, and there is no millisecond left; keep the previous number of partitions, for "
                "one batch if batches are further apart"
            )

    def commit_repartitioned(self) -> None:
        """Commit repartitioned state before the next batch, or retention deletes it as orphaned."""
        if self._is_repartitioned and self.records.last is not None:
            assert self.engine.committer is not None
            last = self.records.last
            self.engine.committer.commit_between(last.batch_id, last.batch_time_ms + 1)
            logger.info("committed repartitioned state at %d ms", last.batch_time_ms + 1)

    def recompute_states(self) -> None:
        """Compute the state RDDs of the last batch from earlier snapshots.

        State is carried over batches that an earlier run skipped.
        """
        self.progress.begin("making up for batches")
        last_ms, rdds = self.state.last_ms, self.engine.rdds
        for after_ms, time_ms in gaps(self.records.begins):
            if time_ms <= last_ms:
                self._advance_states(after_ms)
                rdds.mark_gap(after_ms, time_ms)
                carry_over_gap(self.engine.plan, rdds, after_ms, time_ms, self.state.required_since)
        self._advance_states(last_ms)

    def _advance_states(self, upto_ms: int) -> None:
        """Compute many batches in few tasks, as far as no other node reads the states between."""
        plan, state = self.engine.plan, self.state
        others = plan.read_by_others_since(state.last_ms, state.required_since)
        for node in plan.nodes:
            if not isinstance(node, StateDStream) or state.is_new(node):
                continue
            if node.preserves_partitioning:
                self._advance(node, plan.turn_upto(node, min(upto_ms, others[node])))

    def _advance(self, node: StateDStream, upto_ms: int) -> None:
        rdds = self.engine.rdds
        known = [time_ms for time_ms in rdds.times(node) if time_ms <= upto_ms]
        first_ms = max(known, default=self.state.added.get(node, self.engine.plan.zero_ms))
        times = range(first_ms + node.slide_ms, upto_ms + 1, node.slide_ms)
        # The first batch computes longer ranges, and writes snapshots on the way. A state above
        # another one needs each batch of that.
        per_stage = 1 if depends_on_state_rdd(node) else _BATCHES_PER_STAGE
        if not 1 < len(times) <= per_stage * LONGEST_LINEAGE:
            return
        own = rdds.before(node, times[0])
        for first in range(0, len(times), _BATCHES_PER_STAGE):
            together = times[first : first + _BATCHES_PER_STAGE]
            try:
                batches = {time_ms: rdds.at(node.parent, time_ms) for time_ms in together}
                own = node.replay(own, batches, rdds.spark)
            except Exception as error:  # of a user's function on the driver
                logger.info("%s is left to the first batch: %s", node.operation, error)
                return
            rdds.put(node, together[-1], own)


def gaps(begins: Mapping[int, BeginRecord]) -> list[tuple[int, int]]:
    """Return the gaps in begin records, each as the times of the batches before and after it."""
    found = ((gap_before(begun), time_ms) for time_ms, begun in begins.items())
    return sorted((after_ms, time_ms) for after_ms, time_ms in found if after_ms is not None)
