"""Stores of state on the hosts: how they are opened, and how they are maintained."""

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
    maintain_store,
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


def maintain_stores(
    store: StateStore, version: StoredVersion, warm: RDD[bytes], rule: SnapshotRule | None = None
) -> int:
    """Do what is due for each partition of a version: snapshots, smaller local copies; one job.

    Args:
        store: the stores; those in memory have nothing to maintain.
        version: the version.
        warm: an RDD with a partition on each host that has a partition of the version warm.
        rule: when a snapshot is due, None for the usual.

    Returns:
        How many snapshots were written.
    """
    if not isinstance(store.bases, LmdbBases):
        return 0
    return sum(PipelinedRDD(warm, _Maintain(store.bases, version, rule)).collect())


@dataclass(frozen=True)
class _Maintain:
    """Task: what is due for the store of a partition; yields how many snapshots it wrote."""

    bases: LmdbBases
    version: StoredVersion
    rule: SnapshotRule | None

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[int]:
        settle_worker()
        for _ in frames:  # a worker whose input is left unread is not used again
            pass
        store_id = replace(self.version.store_id, partition=split)
        reference = self.version.references[split]
        yield int(maintain_store(self.bases, store_id, reference, self.rule) is not None)
