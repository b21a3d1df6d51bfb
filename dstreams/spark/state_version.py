"""State versions: references to the state of an operator after a batch, and its metrics.

The content is in changelogs and snapshots, and in local replicas on the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from checkpoint import PartitionCommit, StoreCommit
from checkpoint.state_store import EMPTY, StateReader, StateStore, StoreId, VersionId
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.per_partition import PerPartition

NO_EVENT_TIME = -1
"""The event time before the first record, and the watermark before the first one is set."""


@dataclass(frozen=True)
class StateVersion:
    """The state of an operator after one of its batches.

    *version_ids* and *commits* have one entry per partition. *metrics* is None after a restart.
    Times are milliseconds since the epoch, or :data:`NO_EVENT_TIME`. The watermark applies to the
    next batch and never decreases. A pickled copy, for a task, lacks commits and metrics.
    """

    store_id: StoreId
    partitioner: str
    version_ids: Sequence[VersionId]
    commits: tuple[PartitionCommit, ...] = ()
    metrics: StateMetrics | None = None
    event_time_max_ms: int = NO_EVENT_TIME
    watermark_ms: int = NO_EVENT_TIME

    def __reduce__(self) -> tuple[Any, ...]:
        packed = PerPartition(VersionId, self.version_ids)
        times = self.event_time_max_ms, self.watermark_ms
        return StateVersion, (self.store_id, self.partitioner, packed, (), None, *times)

    @classmethod
    def empty(cls, store_id: StoreId, partitioner: StablePartitioner) -> StateVersion:
        """Return the state before the first batch."""
        return cls(store_id, partitioner.name, (EMPTY,) * partitioner.numPartitions)

    @classmethod
    def committed(
        cls, stream_id: str, commit: StoreCommit, watermark_ms: int = NO_EVENT_TIME
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
        """Return a reader of a partition at this version, in a task."""
        return store.reader(replace(self.store_id, partition=split), self.version_ids[split])

    def is_placed_by(self, partitioner: StablePartitioner) -> bool:
        """Return whether *partitioner* places each key in the partition that has its state."""
        was = (self.partitioner, len(self.version_ids))
        return was == (partitioner.name, partitioner.numPartitions)

    @property
    def commit(self) -> StoreCommit:
        store_id = self.store_id
        return StoreCommit(store_id.operator_uid, store_id.store, self.partitioner, self.commits)

    @property
    def version(self) -> int:
        """The number of batches that led to this version."""
        version: int = self.version_ids[0].version
        return version


@dataclass
class StateMetrics:
    """Counts of one operator in one batch, of a partition or of all; times are milliseconds.

    *numTotalStateRows* counts keys after the commit. *allRemovalsTimeMs*, spent on keys that timed
    out, is part of *allUpdatesTimeMs*. *stateMemory* is the size of the state in bytes.
    *numRestoredRows* is ``numOutputRows`` of an operator that restores rows within the same
    function. The latest event time and the earliest timer are -1 if not set.

    Semantics: the metrics of StateStoreWriter (Spark 4.3).
    """

    numOutputRows: int = 0  # noqa: N815 - Spark's names, so that tools know them
    numRowsDroppedByWatermark: int = 0  # noqa: N815
    numTotalStateRows: int = 0  # noqa: N815
    numUpdatedStateRows: int = 0  # noqa: N815
    numRemovedStateRows: int = 0  # noqa: N815
    allUpdatesTimeMs: int = 0  # noqa: N815
    allRemovalsTimeMs: int = 0  # noqa: N815
    commitTimeMs: int = 0  # noqa: N815
    stateMemory: int = 0  # noqa: N815
    numStateStoreInstances: int = 0  # noqa: N815
    numDroppedDuplicateRows: int = 0  # noqa: N815
    numRestoredRows: int = 0  # noqa: N815
    numRegisteredTimers: int = 0  # noqa: N815
    numDeletedTimers: int = 0  # noqa: N815
    numExpiredTimers: int = 0  # noqa: N815
    numValuesRemovedDueToTTLExpiry: int = 0  # noqa: N815
    eventTimeMaxMs: int = -1  # noqa: N815
    nextTimeoutMs: int = -1  # noqa: N815

    def add(self, other: StateMetrics) -> None:
        latest_ms = max(self.eventTimeMaxMs, other.eventTimeMaxMs)
        timers = [time for time in (self.nextTimeoutMs, other.nextTimeoutMs) if time >= 0]
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)
        self.eventTimeMaxMs = latest_ms
        self.nextTimeoutMs = min(timers, default=-1)

    def as_dict(self) -> dict[str, int]:
        return dict(vars(self))
