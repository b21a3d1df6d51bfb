"""Stores of state on the hosts: how they are opened, and when snapshots are taken."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from checkpoint import Files
from checkpoint.state_store import (
    DataValues,
    LmdbBases,
    PickleValues,
    SnapshotRule,
    StateStore,
    snapshot_if_due,
)
from dstreams.rdd.stored_version import StoredVersion
from dstreams.rdd.worker import settle_worker


def open_store(files: Files, epoch: int, values: str, directory: str | None) -> StateStore:
    """Return the stores of a checkpoint.

    Args:
        files: the checkpoint, reachable from driver and executors.
        epoch: epoch of this driver.
        values: how values are written, ``data`` or ``pickle``.
        directory: where each host keeps its copies, None for a directory of this user below that
            for temporary files.
    """
    if directory is None:
        directory = os.path.join(tempfile.gettempdir(), f"dstreams-state-{os.getuid()}")
    codec = PickleValues() if values == "pickle" else DataValues()
    return StateStore(LmdbBases(files, directory, epoch), codec)


def take_snapshots(
    store: StateStore, version: StoredVersion, warm: RDD[bytes], rule: SnapshotRule | None = None
) -> int:
    """Write a snapshot of each partition of a version that is due for one; one job.

    Args:
        store: the stores; those in memory have no snapshots.
        version: the version.
        warm: an RDD with a partition on each host that has a partition of the version warm.
        rule: when a snapshot is due, None for the usual.

    Returns:
        How many were written.
    """
    if not isinstance(store.bases, LmdbBases):
        return 0
    return sum(PipelinedRDD(warm, _TakeSnapshot(store.bases, version, rule)).collect())


@dataclass(frozen=True)
class _TakeSnapshot:
    """Task: a snapshot of the store of a partition, if it is time; yields how many it wrote."""

    bases: LmdbBases
    version: StoredVersion
    rule: SnapshotRule | None

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[int]:
        settle_worker()
        for _ in frames:  # a worker whose input is left unread is not used again
            pass
        store_id = replace(self.version.store_id, partition=split)
        reference = self.version.references[split]
        yield int(snapshot_if_due(self.bases, store_id, reference, self.rule) is not None)
