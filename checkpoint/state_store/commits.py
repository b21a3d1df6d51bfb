"""From what tasks report to what the commit record of a batch names, and back."""

from __future__ import annotations

from checkpoint.state_store.base import CommittedChanges
from checkpoint.state_store.reference import Reference, StoreId
from checkpoint.stored_state import StoreCommit, StoredPartition


def stored_partition(committed: CommittedChanges) -> StoredPartition:
    """Return what a commit record says of the changes that a task has written."""
    return StoredPartition(
        partition=committed.store.partition,
        version=committed.reference.version,
        uid=committed.reference.uid,
        file=committed.file,
        size_bytes=committed.size_bytes,
        digest=committed.digest,
        count=committed.count,
    )


def reference_of(stored: StoredPartition) -> Reference:
    """Return the content that a commit record names for a partition."""
    return Reference(stored.version, stored.uid)


def store_id(stream_id: str, commit: StoreCommit, partition: int) -> StoreId:
    """Return which store a partition of a commit is."""
    return StoreId(stream_id, commit.operator_uid, commit.store, partition, len(commit.partitions))
