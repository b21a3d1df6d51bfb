"""StoredVersion: one version of the state of an operator, as the driver knows it.

It says which content of the store each partition has, and what a commit record says of it; the
content itself stays on the hosts and in files.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint import StoreCommit, StoredPartition
from checkpoint.state_store import EMPTY, Reference, StoreId
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.state_metrics import StateMetrics

NO_EVENT_TIME = -1
"""Stands for "no event time was seen" and "no watermark"."""


@dataclass(frozen=True)
class StoredVersion:
    """One version of the state of an operator.

    Args:
        store_id: the store of partition 0.
        partitioner: name of the function that chose the partition of each key.
        references: the content of each partition.
        commits: what a commit record says of each partition; empty for the empty state.
        metrics: counts of the operator in the batch that made it; None for one that was restored.
        event_time_max_ms: the latest event time of all batches, milliseconds since the epoch; -1
            without one.
        watermark_ms: the watermark of the batch after it, milliseconds since the epoch; -1 without
            one. It never goes back.
    """

    store_id: StoreId
    partitioner: str
    references: tuple[Reference, ...]
    commits: tuple[StoredPartition, ...] = ()
    metrics: StateMetrics | None = None
    event_time_max_ms: int = NO_EVENT_TIME
    watermark_ms: int = NO_EVENT_TIME

    @classmethod
    def empty(cls, store_id: StoreId, partitioner: StablePartitioner) -> StoredVersion:
        """Return the state before the first batch."""
        return cls(store_id, partitioner.name, (EMPTY,) * partitioner.numPartitions)

    @classmethod
    def committed(
        cls,
        stream_id: str,
        commit: StoreCommit,
        watermark_ms: int = NO_EVENT_TIME,
    ) -> StoredVersion:
        """Return the version that a commit record names.

        Args:
            stream_id: id of the stream, as the record has it.
            commit: what the record says of the store.
            watermark_ms: as above; the record has it beside.
        """
        return cls(
            StoreId(stream_id, commit.operator_uid, commit.store, 0, len(commit.partitions)),
            commit.partitioner,
            tuple(stored.reference for stored in commit.partitions),
            commit.partitions,
            watermark_ms=watermark_ms,
        )

    @property
    def commit(self) -> StoreCommit:
        """What a commit record says of it."""
        store_id = self.store_id
        return StoreCommit(store_id.operator_uid, store_id.store, self.partitioner, self.commits)

    @property
    def version(self) -> int:
        """Batches that led to it."""
        version: int = self.references[0].version
        return version
