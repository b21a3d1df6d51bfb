"""Snapshots of RDDs: the files of streams whose state is an RDD of each batch.

Such a state has a lineage instead of changelogs. A snapshot of it holds all records of one batch's
RDD, and is written at the stream's checkpoint interval: the lineage ends there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pyspark import RDD

from checkpoint import CheckpointError, Files, StatePartition, state_files_of
from dstreams.engine.transaction_log import TransactionLog
from dstreams.graph.history import LONGEST_LINEAGE, History
from dstreams.graph.lookback import lookback
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
    """Writes the snapshots of a plan's RDDs when they are due, and knows which are there.

    Attributes:
        files: the directory of the stream.
    """

    def __init__(self, plan: Plan, history: History, log: TransactionLog) -> None:
        self.files: Files = log.files
        self._plan = plan
        self._history = history
        self._epoch = log.epoch
        self._stream_id = log.stream_id
        self._overdue: set[Node] = set()
        # Times of RDDs that are read from files, and of those that a restart may stand on.
        self._in_files: dict[Node, list[int]] = {}
        self._committed: dict[Node, list[int]] = {}
        self._stateless: dict[Node, int] = {}
        self._uncommitted: list[tuple[Node, int]] = []

    def catch_up(self, node: Node, time_ms: int) -> None:
        """Make the state of earlier batches that could not be made when they ran.

        After a long failure it is made a few batches at a time, each time from files instead of
        from all that came before: neither Spark's stack nor its workers would last for hundreds.
        """
        step_ms = LONGEST_LINEAGE * node.slide_ms
        newest_ms = max(self._history.times(node), default=self._plan.zero_ms)
        for cut_ms in range(newest_ms + step_ms, time_ms, step_ms):
            rdd = self._history.at(node, cut_ms)
            if rdd is not None and rdd.getNumPartitions() > 0:
                snapshot = self.write(node, cut_ms, rdd)
                # No record names it: it serves this run alone.
                self._uncommitted.append((node, cut_ms))
                self._replace(node, cut_ms, snapshot)

    def make(self, node: Node, time_ms: int) -> RddSnapshot | None:
        """Make the RDD of *node*, and write a snapshot of it when one is due; None for none.

        One that could not be written or committed stays due in the next batch of the stream.
        """
        if not self._plan.fires(node, time_ms):
            return None
        if self._plan.checkpoint_due(node, time_ms):
            self._overdue.add(node)
        rdd = self._history.at(node, time_ms)
        if rdd is None or rdd.getNumPartitions() == 0:
            self._overdue.discard(node)
            self._stateless[node] = time_ms
        if rdd is None or node not in self._overdue:
            return None
        return self.write(node, time_ms, rdd)

    def write(self, node: Node, time_ms: int, rdd: RDD[Any]) -> RddSnapshot:
        """Compute an RDD and write its snapshot, under a time."""
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
        """Delete the files of a snapshot that no record will name, as far as they are there.

        An attempt that was given up may still write: its file counts no more than these.
        """
        try:
            for name in state_files_of(
                self.files, self._plan.nodes[node].uid, time_ms, self._epoch
            ):
                self.files.delete(name)
        except CheckpointError as error:
            logger.warning("files of a failed snapshot could not be deleted: %s", error)

    def without_state(self, time_ms: int) -> tuple[Node, ...]:
        """Streams that turned out to have no state at a time."""
        return tuple(node for node, known_ms in self._stateless.items() if known_ms == time_ms)

    def committing(
        self, time_ms: int, snapshots: Iterable[Node], versions: Mapping[str, int]
    ) -> dict[Node, int]:
        """Take note of what a batch is committed with; where that fails, no batch comes after it.

        *snapshots* are streams of which it has one; *versions* say, by uid, which batch made the
        newest version of a state in the state store. Returns what :meth:`lookback` says then.
        """
        for node in (*snapshots, *self.without_state(time_ms)):
            self.mark_restorable(node, time_ms)
        for node in self._plan.in_state_store():
            uid = self._plan.nodes[node].uid
            if uid in versions:
                self.mark_restorable(node, versions[uid])
        return self.lookback(time_ms)

    def lookback(self, time_ms: int) -> dict[Node, int]:
        """Say of each stream after which time a restart after a batch may ask for its RDDs."""
        return lookback(self._plan, time_ms, self.newest)

    def committed(self, time_ms: int, snapshots: Mapping[Node, RddSnapshot]) -> None:
        """A batch was committed: let the next one read its snapshots, so that lineage ends here."""
        for node, snapshot in snapshots.items():
            self._overdue.discard(node)
            self._replace(node, time_ms, snapshot)

    def _replace(self, node: Node, time_ms: int, snapshot: RddSnapshot) -> None:
        self._in_files.setdefault(node, []).append(time_ms)
        read = read_rdd(self._history.spark, self.files, snapshot.files, snapshot.rdd)
        self._history.replace(node, time_ms, read)

    def mark_restorable(self, node: Node, time_ms: int) -> None:
        """Take note that a restart can stand on the state of *node* at a time."""
        times = self._committed.setdefault(node, [])
        if not times or times[-1] < time_ms:
            times.append(time_ms)

    def newest(self, node: Node, upto_ms: int) -> int:
        """Return the newest time up to *upto_ms* on which a restart can stand, zero for none."""
        times = self._committed.get(node, ())
        return max((time for time in times if time <= upto_ms), default=self._plan.zero_ms)

    def is_at(self, time_ms: int) -> bool:
        """Whether there is a snapshot of that batch."""
        return any(times[-1] == time_ms for times in self._in_files.values())

    def oldest_needed_ms(self, time_ms: int, lookback: Mapping[Node, int]) -> int:
        """Return the time of the oldest state that a restart or a remembered RDD may have to read.

        *lookback* is that of the batch at *time_ms*, which has run.
        """
        for node, times in self._committed.items():
            self._committed[node] = _since(times, lookback[node])
        for node, times in self._in_files.items():
            self._in_files[node] = _since(times, time_ms - self._plan.nodes[node].remember_ms)
        remembered = (
            time_ms - self._plan.nodes[node].remember_ms - node.slide_ms
            for node in self._plan.in_state_store()
        )
        by_restart = (lookback[node] for node in self._committed)
        in_files = (times[0] for times in self._in_files.values())
        return min(chain(remembered, by_restart, in_files), default=time_ms)

    def discard_before(self, oldest_ms: int) -> None:
        """Delete files that no record names and nobody reads any more."""
        for node, time_ms in self._uncommitted:
            if time_ms < oldest_ms:
                self._discard(node, time_ms)
        self._uncommitted = [kept for kept in self._uncommitted if kept[1] >= oldest_ms]


def _since(times: Iterable[int], upto_ms: int) -> list[int]:
    """Return the newest of *times* up to a time, and those after it."""
    known = list(times)
    first = max((time for time in known if time <= upto_ms), default=known[0])
    return [time for time in known if time >= first]
