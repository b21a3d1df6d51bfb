"""State stores on the hosts: opening, maintenance between batches, and moved state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from checkpoint import CheckpointError, CommitLog, Files, require_trusted
from checkpoint.state_store import (
    EMPTY,
    STORE_PREFIX,
    Classes,
    DataValues,
    LmdbBackend,
    LocalSettings,
    PickleValues,
    ReplicaMeta,
    SnapshotRule,
    StateStore,
    ValueCodec,
    maintain_store,
    sweep_local_once,
)
from dstreams.common.settings import StateSettings
from dstreams.spark.state_version import StateVersion
from dstreams.spark.worker_gc import settle_worker

_LOCAL_RETENTION_MS = 7 * 24 * 3_600_000
"""The time for which a host keeps unused copies of stored state."""


def open_store(
    files: Files, epoch: int, settings: StateSettings, classes: Classes | None = None
) -> StateStore:
    """Return the state stores of a checkpoint; sometimes delete unused replicas first."""
    local = LocalSettings(unused_ms=_LOCAL_RETENTION_MS)
    backend = LmdbBackend(files, settings.state_local_directory, epoch, local)
    with suppress(CheckpointError):  # the tasks report the problem
        sweep_local_once(backend)
    codec = values_of(settings, classes)
    return StateStore(backend, codec, checksums=settings.state_checksums)


def values_of(settings: StateSettings, classes: Classes | None = None) -> ValueCodec:
    """Return the codec of the values of state."""
    is_pickled = settings.state_values == "pickle"
    return PickleValues() if is_pickled else DataValues(classes or Classes())


def require_trusted_values(files: Files, settings: StateSettings) -> Files:
    """Return the files of state, if their values can be trusted not to run code.

    Raises:
        UntrustedFileError: values are arbitrary pickles, and others can write the checkpoint.
    """
    return require_trusted(files, STORE_PREFIX) if settings.state_values == "pickle" else files


class StoreUpkeep:
    """Decides on the driver when to run a job that maintains the stores of an operator.

    Commits count the changelogs since the last snapshot. Only the hosts know the size of their
    local replicas, so the job also runs every *ask_every* times, and after a restart.
    """

    def __init__(self, rule: SnapshotRule | None = None, ask_every: int = 10) -> None:
        self._rule = rule or SnapshotRule()
        self._ask_every = ask_every
        self._progress: list[ReplicaMeta | None] = []
        self._times = 0

    def made(self, version: StateVersion) -> None:
        """Record a new version."""
        first = ReplicaMeta(EMPTY) if version.version == 1 else None
        known = self._progress or [first] * len(version.commits)
        self._progress = [
            None
            if before is None or before.version_id.version != commit.version_id.version - 1
            else before.after(commit.version_id, {}, commit.size_bytes, None)
            for before, commit in zip(known, version.commits, strict=True)
        ]

    def is_due(self) -> bool:
        """Return whether to run :func:`maintain_stores` now."""
        self._times += 1
        return self._times % self._ask_every == 0 or any(
            progress is None or self._rule.is_due(progress) for progress in self._progress
        )

    def done(self, progress: Sequence[ReplicaMeta | None]) -> None:
        """Record the progress of the replicas that the hosts reported."""
        self._progress = list(progress)


def maintain_stores(
    store: StateStore,
    version: StateVersion,
    partitions: RDD[bytes],
    upkeep: StoreUpkeep,
    rule: SnapshotRule | None = None,
) -> int:
    """Write snapshots and shrink replicas of a version, in one job; return the number of snapshots.

    *partitions* has each partition on the host of its replica.
    """
    if not isinstance(store.backend, LmdbBackend):
        return 0
    done = PipelinedRDD(partitions, _Maintain(store.backend, version, rule)).collect()
    by_partition = {split: progress for split, _, progress in done}
    upkeep.done([by_partition[split] for split in sorted(by_partition)])
    return sum(count for _, count, _ in done)


@dataclass(frozen=True)
class _Maintain:
    """Task: maintains the store of a partition.

    It yields the partition, the number of snapshots, and the progress of the local replica; None if
    that is missing or at another version.
    """

    backend: LmdbBackend
    version: StateVersion
    rule: SnapshotRule | None

    def __call__(
        self, split: int, frames: Iterable[bytes]
    ) -> Iterator[tuple[int, int, ReplicaMeta | None]]:
        settle_worker()
        for _ in frames:  # Spark reuses a worker only after it has read its input
            pass
        store_id = replace(self.version.store_id, partition=split)
        version_id = self.version.version_ids[split]
        count = int(maintain_store(self.backend, store_id, version_id, self.rule) is not None)
        progress = self.backend.replica(store_id).meta()
        is_current = progress is not None and progress.version_id == version_id
        yield split, count, progress if is_current else None


_FILE = re.compile(rf"{re.escape(STORE_PREFIX)}[^/]+/epoch-(?P<epoch>\d+)-\d+/")


def moved_store(epoch: int, time_ms: int) -> str:
    """Return the name of the store that a restart moves the state of a batch into.

    State moves if it gets another number of partitions or another partitioner. Each version has its
    own store: two in one would both be its version 1.
    """
    return f"epoch-{epoch}-{time_ms}"


def delete_abandoned(files: Files, epoch: int) -> int:
    """Delete the stores of moved state that earlier drivers left; return the number of files.

    A driver that is killed before the commit leaves stores that no record names, not even a void
    one, which a rewind may restore. Stores of this *epoch* are kept.

    Raises:
        CheckpointError: a file cannot be read or deleted; a later call deletes the rest.
    """
    old: dict[str, list[str]] = {}
    for name in files.list(STORE_PREFIX):
        match = _FILE.match(name)
        if match is not None and int(match["epoch"]) < epoch:
            old.setdefault(match[0], []).append(name)
    if not old:
        return 0
    log = CommitLog(files)
    for record_id in log.all_ids():
        for name in log.read_record(record_id).file_names():
            match = _FILE.match(name)
            if match is not None:
                old.pop(match[0], None)
    names = [name for group in old.values() for name in group]
    for name in names:
        files.delete(name)
    return len(names)
