"""The states of an earlier run, given to the history of this one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from checkpoint import OperatorSnapshot, OwnedStream, StatePartition
from checkpoint.cli import SILENT, Progress
from dstreams.engine.recovery.committed_state import CommittedState
from dstreams.engine.recovery.repartitioning import repartitioned
from dstreams.errors import RestartError
from dstreams.graph.history import History
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.reduced_window import ReducedWindowedDStream
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.spark.rdd_files import WrittenRdd, read_state
from dstreams.spark.state_version import NO_EVENT_TIME, StateVersion


@dataclass(eq=False)
class RestoredState:
    """Gives the history each snapshot and version that a batch to come may ask for.

    Attributes:
        times: streams, and the batches whose state a later restart can stand on.
        has_moved: whether a newest version was moved into other partitions. A record has to name
            it before the next batch, or retention takes what it is built on for an orphan.
    """

    plan: Plan
    history: History
    owned: OwnedStream
    committed: CommittedState
    stream_id: str
    times: list[tuple[Node, int]] = field(default_factory=list)
    has_moved: bool = False

    def restore(self, progress: Progress = SILENT) -> None:
        """Restore the state of each stream.

        Raises:
            RestartError: state is to be in other partitions, and no record fits in that says so.
            Exception: whatever a job raises that puts state into other partitions.
        """
        for node in progress.over(self.plan.nodes, "restoring state"):
            if node in self.committed.began:
                self._begin(node, self.committed.began[node])
            if self.committed.is_added(node):
                continue
            if isinstance(node, StateStoreDStream):
                self._restore_versions(node)
            elif node.is_stateful:
                self._restore_snapshots(node)

    def _begin(self, node: Node, after_ms: int) -> None:
        """Let a stream begin after a batch: it had nothing then, and is asked for nothing before.

        The graph of this run says so to restarts, so they can stand on that as on a snapshot.
        """
        history = self.history
        history.begin(node, after_ms)
        if isinstance(node, ReducedWindowedDStream):
            history.begin(node.reduced, after_ms)
        if node.is_stateful:
            self.times.append((node, after_ms))
        if isinstance(node, StateStoreDStream):
            uid = self.plan.nodes[node].uid
            empty = history.states.empty(uid, node.partitioner)
            history.states.restore(uid, self.plan.turn_upto(node, after_ms), empty)

    def _restore_snapshots(self, node: Node) -> None:
        uid = self.plan.nodes[node].uid
        for time_ms, (record_ms, commit) in self.committed.snapshots.get(uid, {}).items():
            if time_ms < self.committed.lookback[node]:
                continue
            rdd = None
            if commit is not None:
                written = self._written(uid, record_ms, commit)
                files, spark = self.owned.lease.files, self.history.spark
                placed: Any = node  # what is stateful has a partitioner, and a layout
                rdd = read_state(
                    spark, files, written, placed.partitioner, placed.layout, node.operation
                )
            self.history.restore(node, time_ms, rdd)
            self.times.append((node, time_ms))

    def _written(self, uid: str, record_ms: int, commit: OperatorSnapshot) -> WrittenRdd:
        count = len(commit.files)
        first = StatePartition(self.stream_id, uid, record_ms, 0, count, commit.partitioner)
        return WrittenRdd(first, commit.files)

    def _restore_versions(self, node: StateStoreDStream) -> None:
        states = self.history.states
        uid = self.plan.nodes[node].uid
        versions = self.committed.versions.get(uid, {})
        for time_ms, (record, commit) in versions.items():
            # The rows of a batch are made again from the version before it.
            if time_ms < self.committed.lookback[node]:
                continue
            reached_ms = record.watermarks.get(uid, NO_EVENT_TIME)
            version = StateVersion.committed(record.stream_id, commit, reached_ms)
            states.restore(uid, time_ms, version)
            if not version.is_placed_by(node.partitioner):
                # Also those before the newest: windows ask for the rows of batches after them.
                is_newest = time_ms == max(versions)
                if is_newest:
                    self._require_room(node)
                moved = repartitioned(states, uid, node, version, self.owned.epoch, time_ms)
                states.restore(uid, time_ms, moved, is_temporary=not is_newest)
                self.has_moved |= is_newest
            self.times.append((node, time_ms))

    def _require_room(self, node: Node) -> None:
        """Refuse to move state where no record fits in between the last one and the next batch."""
        last_ms = self.owned.plan.last_ms
        next_ms = self.committed.last_ms + self.plan.batch_ms
        if last_ms is not None and last_ms + 1 >= next_ms:
            raise RestartError(
                f"the state of {node.operation} cannot be moved into other partitions now: a "
                "record says so, as of a millisecond of its own, and between the last record, at "
                f"{last_ms} ms, and the next batch, at {next_ms} ms, there is none; keep the "
                "number of partitions of then, for one batch where they are further apart"
            )
