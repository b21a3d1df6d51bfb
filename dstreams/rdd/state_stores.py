"""Stores of state on the hosts: how they are opened, and how they are maintained."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from checkpoint import CheckpointError, Files
from checkpoint.state_store import (
    EMPTY,
    Classes,
    DataValues,
    LmdbBases,
    LocalSettings,
    PickleValues,
    Progress,
    SnapshotRule,
    StateStore,
    delete_local,
    maintain_store,
    sweep_local_once,
)
from dstreams.rdd.stored_version import StoredVersion
from dstreams.rdd.worker import settle_worker


def open_store(
    files: Files,
    epoch: int,
    values: str,
    directory: str | None,
    checksums: bool = False,
    local_retention_ms: int = LocalSettings.unused_ms,
    classes: Classes | None = None,
) -> StateStore:
    """Return the stores of a checkpoint; now and then, delete copies here that nobody uses.

    Args:
        files: the checkpoint, reachable from driver and executors.
        epoch: epoch of this driver.
        values: how values are written, ``data`` or ``pickle``.
        directory: where each host keeps its copies, None for a directory of this user below that
            for temporary files.
        checksums: carry a checksum of all records of a partition from version to version.
        local_retention_ms: how long a host keeps the copies of a stream that nobody uses.
        classes: the classes of data that the program names, None for none.
    """
    if directory is None:
        directory = os.path.join(tempfile.gettempdir(), f"dstreams-state-{os.getuid()}")
    codec = PickleValues() if values == "pickle" else DataValues(classes or Classes())
    local = LocalSettings(unused_ms=local_retention_ms)
    bases = LmdbBases(files, directory, epoch, local)
    with suppress(CheckpointError):  # then the tasks say what is wrong there
        sweep_local_once(bases)
    return StateStore(bases, codec, checksums=checksums)


def give_up_local(store: StateStore, stream_id: str) -> None:
    """Delete what this host keeps of a stream whose checkpoint was for one run alone.

    Such a checkpoint is on the driver's own host, and so is all that has its state.
    """
    if isinstance(store.bases, LmdbBases):
        delete_local(store.bases, stream_id)


class StoreUpkeep:
    """Decides on the driver when a job is worth it that maintains the stores of a state.

    When a snapshot is due follows from the changelogs since the last one, which commits tell. How
    large local copies have become only their hosts know: they are asked every *ask_every* times.
    After a restart nobody here knows how old the snapshots are, so the hosts are asked then, too.

    Args:
        rule: when a snapshot is due, None for the usual.
        ask_every: as above.
    """

    def __init__(self, rule: SnapshotRule | None = None, ask_every: int = 10) -> None:
        self._rule = rule or SnapshotRule()
        self._ask_every = ask_every
        self._progress: list[Progress | None] = []
        self._times = 0

    def made(self, version: StoredVersion) -> None:
        """A batch made *version*."""
        first = Progress(EMPTY) if version.version == 1 else None
        known = self._progress or [first] * len(version.commits)
        self._progress = [
            None
            if before is None or before.reference.version != commit.reference.version - 1
            else before.after(commit.reference, {}, commit.size_bytes, None)
            for before, commit in zip(known, version.commits, strict=True)
        ]

    def is_due(self) -> bool:
        """Whether to run :func:`maintain_stores` now; called now and then."""
        self._times += 1
        return self._times % self._ask_every == 0 or any(
            progress is None or self._rule.is_due(progress) for progress in self._progress
        )

    def done(self, told: Sequence[Progress | None]) -> None:
        """The hosts said where their copies stand."""
        self._progress = list(told)


def maintain_stores(
    store: StateStore,
    version: StoredVersion,
    warm: RDD[bytes],
    rule: SnapshotRule | None = None,
    upkeep: StoreUpkeep | None = None,
) -> int:
    """Do what is due for each partition of a version: snapshots, smaller local copies; one job.

    Args:
        store: the stores; those in memory have nothing to maintain.
        version: the version.
        warm: an RDD with a partition on each host that has a partition of the version warm.
        rule: when a snapshot is due, None for the usual.
        upkeep: told where the copies stand; None for nobody.

    Returns:
        How many snapshots were written.
    """
    if not isinstance(store.bases, LmdbBases):
        return 0
    done = PipelinedRDD(warm, _Maintain(store.bases, version, rule)).collect()
    if upkeep is not None:
        by_partition = {split: progress for split, _, progress in done}
        upkeep.done([by_partition[split] for split in sorted(by_partition)])
    return sum(count for _, count, _ in done)


@dataclass(frozen=True)
class _Maintain:
    """Task: what is due for the store of a partition.

    Yields the partition, how many snapshots it wrote, and where the local copy stands then; None
    where that is at another version, or there is none.
    """

    bases: LmdbBases
    version: StoredVersion
    rule: SnapshotRule | None

    def __call__(
        self, split: int, frames: Iterable[bytes]
    ) -> Iterator[tuple[int, int, Progress | None]]:
        settle_worker()
        for _ in frames:  # a worker whose input is left unread is not used again
            pass
        store_id = replace(self.version.store_id, partition=split)
        reference = self.version.references[split]
        count = int(maintain_store(self.bases, store_id, reference, self.rule) is not None)
        progress = self.bases.local_copy(store_id).progress()
        stands_here = progress is not None and progress.reference == reference
        yield split, count, progress if stands_here else None
