"""StateVersion: the state of an operator after one of its batches, as the driver knows it.

The content itself is in changelogs and snapshots, and in local replicas on the hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from checkpoint import PartitionCommit, StoreCommit
from checkpoint.state_store import EMPTY, StateReader, StateStore, StoreId, VersionId
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_metrics import StateMetrics

NO_EVENT_TIME = -1
"""Stands for "no event time was seen" and "no watermark"."""


@dataclass(frozen=True)
class StateVersion:
    """The state of an operator after one of its batches.

    *version_ids* and *commits* have the content of each partition, and what a commit record says of
    it; *metrics* is None for a version that was restored. Times are milliseconds since the epoch,
    or :data:`NO_EVENT_TIME`; the watermark is that of the next batch, and never goes back.
    """

    store_id: StoreId
    partitioner: str
    version_ids: tuple[VersionId, ...]
    commits: tuple[PartitionCommit, ...] = ()
    metrics: StateMetrics | None = None
    event_time_max_ms: int = NO_EVENT_TIME
    watermark_ms: int = NO_EVENT_TIME

    @classmethod
    def empty(cls, store_id: StoreId, partitioner: StablePartitioner) -> StateVersion:
        """Return the state before the first batch."""
        return cls(store_id, partitioner.name, (EMPTY,) * partitioner.numPartitions)

    @classmethod
    def committed(
        cls,
        stream_id: str,
        commit: StoreCommit,
        watermark_ms: int = NO_EVENT_TIME,
    ) -> StateVersion:
        """Return the version that a commit record names."""
        return cls(
            StoreId(stream_id, commit.operator_uid, commit.store, 0, len(commit.partitions)),
            commit.partitioner,
            tuple(stored.version_id for stored in commit.partitions),
            commit.partitions,
            watermark_ms=watermark_ms,
        )

    def open(self, store: StateStore, split: int) -> StateReader:
        """Return a reader of what a partition holds at this version; for a task."""
        return store.reader(replace(self.store_id, partition=split), self.version_ids[split])

    def is_placed_by(self, partitioner: StablePartitioner) -> bool:
        """Whether keys are where *partitioner* places them."""
        was = (self.partitioner, len(self.version_ids))
        return was == (partitioner.name, partitioner.numPartitions)

    @property
    def commit(self) -> StoreCommit:
        store_id = self.store_id
        return StoreCommit(store_id.operator_uid, store_id.store, self.partitioner, self.commits)

    @property
    def version(self) -> int:
        """How many batches led to this version."""
        version: int = self.version_ids[0].version
        return version
