"""Snapshots of state RDDs, written at the checkpoint interval of a stream to cut its lineage."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pyspark import RDD

from checkpoint import CheckpointError, Files, StatePartition, state_files_of
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.graph.generated_rdds import LONGEST_LINEAGE, GeneratedRdds
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.spark.job_labels import label_jobs
from dstreams.spark.rdd_files import NO_PARTITIONER, WrittenRdd, read_rdd, write_rdd

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
        """Delete the files of a snapshot that no record will name.

        A late attempt may write another file, which does not count either.
        """
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

    def oldest_needed_ms(self, time_ms: int, required_since: Mapping[Node, int]) -> int:
        """Return the time of the oldest state that a restart or a kept RDD may read.

        *required_since* is that of the batch at *time_ms*, which has run.
        """
        for node, times in self._durable.items():
            self._durable[node] = _since(times, required_since[node])
        for node, times in self._in_files.items():
            self._in_files[node] = _since(times, time_ms - self._plan.nodes[node].remember_ms)
        remembered = (
            time_ms - self._plan.nodes[node].remember_ms - node.slide_ms
            for node in self._plan.in_state_store()
        )
        by_restart = (required_since[node] for node in self._durable)
        in_files = (times[0] for times in self._in_files.values())
        return min(chain(remembered, by_restart, in_files), default=time_ms)

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
