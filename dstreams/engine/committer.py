"""The commit of a batch: snapshots of state RDDs when due, and one record that names all state."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark import RDD

from checkpoint import (
    INPUTS_NEEDED_AFTER,
    CheckpointError,
    Files,
    OperatorSnapshot,
    StatePartition,
    state_files_of,
)
from dstreams.engine.batch import Batch
from dstreams.engine.stream_checkpoint import (
    BETWEEN_BATCHES,
    UNREAD,
    VERSIONS_MADE_AT,
    StreamCheckpoint,
)
from dstreams.graph.generated_rdds import LONGEST_LINEAGE, GeneratedRdds
from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan
from dstreams.sources.source import SourceReader, loss_with_driver
from dstreams.spark.job_labels import label_jobs
from dstreams.spark.rdd_files import NO_PARTITIONER, WrittenRdd, read_rdd, write_rdd
from dstreams.spark.state_version import NO_EVENT_TIME, StateVersion

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RddSnapshot:
    """An RDD, and the files that hold the same records."""

    rdd: RDD[Any]
    files: WrittenRdd


class RddSnapshots:
    """Writes the snapshots of a plan's RDDs when they are due, and tracks which exist."""

    def __init__(self, plan: Plan, rdds: GeneratedRdds, checkpoint: StreamCheckpoint) -> None:
        self.files: Files = checkpoint.files
        self._plan = plan
        self._rdds = rdds
        self._epoch = checkpoint.epoch
        self._stream_id = checkpoint.stream_id
        self._overdue: set[Node] = set()
        self._in_files: dict[Node, list[int]] = {}  # times of RDDs that are read from files
        self._durable: dict[Node, list[int]] = {}  # times that a restart can begin with
        self._stateless: dict[Node, int] = {}
        self._uncommitted: list[tuple[Node, int]] = []

    def catch_up(self, node: Node, time_ms: int) -> None:
        """Compute the state of earlier batches that failed.

        After a long failure a snapshot is written every few batches, because neither Spark's stack
        nor its workers could handle the lineage of hundreds.
        """
        step_ms = LONGEST_LINEAGE * node.slide_ms
        newest_ms = max(self._rdds.times(node), default=self._plan.zero_ms)
        for cut_ms in range(newest_ms + step_ms, time_ms, step_ms):
            rdd = self._rdds.at(node, cut_ms)
            if rdd is not None and rdd.getNumPartitions() > 0:
                snapshot = self.write(node, cut_ms, rdd)
                # No record names this snapshot: only this run uses it.
                self._uncommitted.append((node, cut_ms))
                self._replace(node, cut_ms, snapshot)

    def make(self, node: Node, time_ms: int) -> RddSnapshot | None:
        """Compute the RDD of *node*, and write a snapshot if one is due.

        A snapshot that could not be written or committed stays due.
        """
        if not self._plan.fires(node, time_ms):
            return None
        if self._plan.checkpoint_due(node, time_ms):
            self._overdue.add(node)
        rdd = self._rdds.at(node, time_ms)
        if rdd is None or rdd.getNumPartitions() == 0:
            self._overdue.discard(node)
            self._stateless[node] = time_ms
        if rdd is None or node not in self._overdue:
            return None
        return self.write(node, time_ms, rdd)

    def write(self, node: Node, time_ms: int, rdd: RDD[Any]) -> RddSnapshot:
        """Compute an RDD and write its snapshot, named by a time."""
        label_jobs(f"snapshot: {node.operation}")
        try:
            first = StatePartition(
                stream_id=self._stream_id,
                operator_uid=self._plan.nodes[node].uid,
                batch_time_ms=time_ms,
                partition=0,
                partition_count=rdd.getNumPartitions(),
                partitioner=getattr(rdd.partitioner, "name", NO_PARTITIONER),
            )
            return RddSnapshot(rdd, write_rdd(rdd, self.files, first, self._epoch))
        except Exception:
            self._discard(node, time_ms)
            raise

    def _discard(self, node: Node, time_ms: int) -> None:
        """Delete the files of a snapshot that no record will name."""
        try:
            for name in state_files_of(
                self.files, self._plan.nodes[node].uid, time_ms, self._epoch
            ):
                self.files.delete(name)
        except CheckpointError as error:
            logger.warning("failed to delete files of a failed snapshot: %s", error)

    def without_state(self, time_ms: int) -> tuple[Node, ...]:
        """Return the streams that had no state at a time."""
        return tuple(node for node, known_ms in self._stateless.items() if known_ms == time_ms)

    def committing(
        self, time_ms: int, snapshots: Iterable[Node], versions: Mapping[str, int]
    ) -> dict[Node, int]:
        """Mark what a batch commits as durable, and return :meth:`required_since` after it.

        *snapshots* are streams with a snapshot; *versions* has the batch that made the newest
        version of each state in the state store, by uid. If the commit fails, the stream ends.
        """
        for node in (*snapshots, *self.without_state(time_ms)):
            self.mark_durable(node, time_ms)
        for node in self._plan.in_state_store():
            uid = self._plan.nodes[node].uid
            if uid in versions:
                self.mark_durable(node, versions[uid])
        return self.required_since(time_ms)

    def required_since(self, time_ms: int) -> dict[Node, int]:
        """Return for each stream the time after which a restart after a batch may read its RDDs."""
        return self._plan.required_since(time_ms, self.newest)

    def committed(self, time_ms: int, snapshots: Mapping[Node, RddSnapshot]) -> None:
        """Replace RDDs by their committed snapshots, which cuts their lineage."""
        for node, snapshot in snapshots.items():
            self._overdue.discard(node)
            self._replace(node, time_ms, snapshot)

    def _replace(self, node: Node, time_ms: int, snapshot: RddSnapshot) -> None:
        self._in_files.setdefault(node, []).append(time_ms)
        read = read_rdd(self._rdds.spark, self.files, snapshot.files, snapshot.rdd)
        self._rdds.replace(node, time_ms, read)

    def mark_durable(self, node: Node, time_ms: int) -> None:
        """Record that a restart can begin with the state of *node* at a time."""
        times = self._durable.setdefault(node, [])
        if not times or times[-1] < time_ms:
            times.append(time_ms)

    def newest(self, node: Node, upto_ms: int) -> int:
        """Return the newest durable time up to *upto_ms*, or zero time."""
        times = self._durable.get(node, ())
        return max((time for time in times if time <= upto_ms), default=self._plan.zero_ms)

    def is_at(self, time_ms: int) -> bool:
        """Return whether there is a snapshot of a batch."""
        return any(times[-1] == time_ms for times in self._in_files.values())

    def oldest_needed_ms(
        self, time_ms: int, required_since: Mapping[Node, int], history_ms: int = 0
    ) -> int:
        """Return when the oldest state was made that a restart or a kept RDD may read.

        A restart may also begin with any batch of the last *history_ms*.
        """
        for node, times in self._in_files.items():
            self._in_files[node] = _since(times, time_ms - self._plan.nodes[node].remember_ms)
        remembered = (
            time_ms - self._plan.nodes[node].remember_ms - node.slide_ms
            for node in self._plan.in_state_store()
        )
        by_restart = (required_since[node] for node in self._durable)
        in_files = (times[0] for times in self._in_files.values())
        oldest_ms = min([time_ms - history_ms, *remembered, *by_restart, *in_files])
        for node, times in self._durable.items():
            self._durable[node] = _since(times, oldest_ms)
        return oldest_ms

    def discard_before(self, oldest_ms: int) -> None:
        """Delete files that no record names and that were used before a time."""
        for node, time_ms in self._uncommitted:
            if time_ms < oldest_ms:
                self._discard(node, time_ms)
        self._uncommitted = [kept for kept in self._uncommitted if kept[1] >= oldest_ms]


def _since(times: Iterable[int], upto_ms: int) -> list[int]:
    """Return the newest of *times* up to a time, and those after it."""
    known = list(times)
    first = max((time for time in known if time <= upto_ms), default=known[0])
    return [time for time in known if time >= first]


@dataclass(eq=False)
class BatchCommitter:
    """Commits batches, and the last state when the stream stops."""

    plan: Plan
    rdds: GeneratedRdds
    readers: Mapping[InputDStream, SourceReader]
    snapshots: RddSnapshots
    checkpoint: StreamCheckpoint
    _last: Batch | None = field(default=None, init=False)
    _inputs_needed_after: Mapping[str, int] = field(default_factory=dict, init=False)

    def commit(
        self,
        batch: Batch,
        snapshots: Mapping[Node, RddSnapshot],
        failed_outputs: Sequence[str],
        unread: Iterable[InputDStream],
    ) -> str:
        """Commit a batch and replace RDDs by its snapshots, which cuts their lineage.

        *failed_outputs*, by uid, failed; *unread* inputs could not be read. Return a message about
        the failed outputs, empty if none failed. If it cannot be committed, the stream must stop.
        """
        time_ms = batch.time_ms
        made_at = {uid: made_ms for uid, (made_ms, _) in self._states(time_ms).items()}
        since = self.snapshots.committing(time_ms, snapshots, made_at)
        needed_after = {
            self.plan.input_uids[stream]: since.get(stream, time_ms)
            for stream, reader in self.readers.items()
            if reader.input_can_vanish
        }
        message = self._write(
            batch.batch_id,
            time_ms,
            snapshots,
            {
                UNREAD: sorted(self.plan.input_uids[stream] for stream in unread),
                INPUTS_NEEDED_AFTER: needed_after,
            },
            self.snapshots.without_state(time_ms),
            failed_outputs,
        )
        self._inputs_needed_after = needed_after
        self._last = batch
        self.snapshots.committed(time_ms, snapshots)
        return message

    def commit_between(
        self, batch_id: int, time_ms: int, snapshots: Mapping[Node, RddSnapshot] | None = None
    ) -> None:
        """Commit snapshots and the versions in the state store, at a time between two batches.

        Versions of a batch that was cancelled are not committed.
        """
        self.checkpoint.begin(batch_id, time_ms, {}, facts={BETWEEN_BATCHES: True}, token="")
        facts = {INPUTS_NEEDED_AFTER: self._inputs_needed_after}
        self._write(batch_id, time_ms, snapshots or {}, facts)

    def _write(
        self,
        batch_id: int,
        time_ms: int,
        snapshots: Mapping[Node, RddSnapshot],
        facts: Mapping[str, object],
        without_state: Iterable[Node] = (),
        failed_outputs: Sequence[str] = (),
    ) -> str:
        """Write a commit record, with the versions of stored state and non-empty facts."""
        states, nodes = self._states(time_ms), self.plan.nodes
        versions = {uid: version for uid, (_, version) in states.items()}
        made_at = {uid: made_ms for uid, (made_ms, _) in states.items()}
        message = self.checkpoint.commit(
            batch_id,
            time_ms,
            snapshots={
                nodes[node].uid: OperatorSnapshot(one.files.first.partitioner, one.files.files)
                for node, one in snapshots.items()
            },
            stores=[version.commit for version in versions.values() if version.commits],
            watermarks={
                uid: version.watermark_ms
                for uid, version in versions.items()
                if version.watermark_ms != NO_EVENT_TIME
            },
            without_state=[nodes[node].uid for node in without_state],
            failed_outputs=failed_outputs,
            facts={
                name: fact for name, fact in {VERSIONS_MADE_AT: made_at, **facts}.items() if fact
            },
        )
        self.checkpoint.fence.wait()
        return message

    def commit_last_state(self) -> None:
        """Write a snapshot of the last batch's state, and commit it one millisecond later."""
        if self._last is not None:
            self.commit_state_of(self._last.batch_id, self._last.time_ms)

    def commit_state_of(self, batch_id: int, batch_time_ms: int) -> None:
        """Do so for the last batch, which an earlier run may have committed."""
        if self.plan.batch_ms == 1 or not self.rdds.is_current(batch_time_ms):
            return
        time_ms = batch_time_ms + 1
        snapshots: dict[Node, RddSnapshot] = {}
        for node in self.plan.checkpointed():
            newest_ms = self.plan.turn_upto(node, batch_time_ms)
            rdd = self.rdds.before(node, newest_ms + node.slide_ms)
            if self.snapshots.newest(node, batch_time_ms) < newest_ms and rdd is not None:
                snapshots[node] = self.snapshots.write(node, time_ms, rdd)
        if snapshots:
            self.commit_between(batch_id, time_ms, snapshots)

    def loses_input(self) -> bool:
        """Return whether a restart would need input that its source cannot read again."""
        if self._last is None:
            return False
        last_ms = self._last.time_ms
        since = self.snapshots.required_since(last_ms)
        return any(
            since.get(stream, last_ms) < last_ms
            and loss_with_driver(stream.source, reader) is not None
            for stream, reader in self.readers.items()
        )

    def _states(self, upto_ms: int) -> dict[str, tuple[int, StateVersion]]:
        """Return the newest version of each stored state up to a batch, with its batch time."""
        return self.rdds.states.newest(upto_ms) if self.plan.in_state_store() else {}
