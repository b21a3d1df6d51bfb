"""Maintenance of stores: snapshots, compaction and sweeping, off the critical path of batches.

Any process of a host can do this while batches run, and may be killed at any point.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from dataclasses import dataclass

import lmdb

from checkpoint.errors import StorageRefusedError
from checkpoint.log.batch_records import EMPTY, StoreId, VersionId
from checkpoint.state_store.backend import ChecksumMismatchError
from checkpoint.state_store.lmdb_backend import APART, LmdbBackend, LmdbVersion, ReplicaIsAheadError
from checkpoint.state_store.replica_builder import ReplicaMeta
from checkpoint.state_store.replica_files import (
    DamagedReplicaError,
    ReplicaDirectory,
    acquire,
    boot_id,
    copy_compact,
    delete_tree,
    newest_change_s,
    now_s,
    release,
    require_private,
    stream_directory,
)
from checkpoint.state_store.store_files import list_snapshots, new_suffix, write_state_snapshot

ASIDE = "deleted."
"""The prefix of a stream's directory while it is being deleted."""


@dataclass(frozen=True)
class SnapshotRule:
    """A snapshot is due once the changelogs since the last one cost as much to read as a new one.

    Args:
        min_changelogs: the fewest changelogs between two snapshots.
        max_changelogs: the most changelogs between two snapshots.
    """

    min_changelogs: int = 10
    max_changelogs: int = 100

    def is_due(self, meta: ReplicaMeta) -> bool:
        """Return whether a snapshot of a replica is due."""
        if meta.changelogs < self.min_changelogs:
            return False
        is_much = meta.changelog_bytes >= meta.snapshot_bytes
        return is_much or meta.changelogs >= self.max_changelogs


def maintain_store(
    backend: LmdbBackend, store: StoreId, version_id: VersionId, rule: SnapshotRule | None = None
) -> int | None:
    """Write a snapshot and compact the replica if due; sweep once per process.

    Returns:
        The size of the snapshot in bytes, None if it was not due.

    Raises CheckpointError.
    """
    size_bytes = snapshot_if_due(backend, store, version_id, rule)
    with contextlib.suppress(StorageRefusedError):
        compact_if_due(backend, store)
        backend.replica(store).directory.mark_used()
        sweep_local_once(backend)
    return size_bytes


def snapshot_if_due(
    backend: LmdbBackend, store: StoreId, version_id: VersionId, rule: SnapshotRule | None = None
) -> int | None:
    """Write a snapshot of a version if it is due, and return its size in bytes.

    Meanwhile the replica keeps the pages of that version, and its file grows with every batch.

    Returns:
        None if it is not due, exists already, or the replica holds a later version.

    Raises CheckpointError.
    """
    if version_id == EMPTY:
        return None
    replica = backend.replica(store)
    try:
        version = replica.open(version_id)
    except ReplicaIsAheadError:
        return None
    with contextlib.closing(version):
        if not (rule or SnapshotRule()).is_due(version.meta):
            return None
        return take_snapshot(backend, store, version)


def take_snapshot(backend: LmdbBackend, store: StoreId, version: LmdbVersion) -> int | None:
    """Write an open version as a snapshot, due or not.

    Returns:
        The size of the snapshot in bytes, None if it exists already.

    Raises StorageRefusedError or StorageUncertainError.
    """
    size_bytes: int | None = None
    if version.version_id not in list_snapshots(backend.files, store):
        try:
            size_bytes = write_state_snapshot(
                backend.files, store, version, version.codec, backend.effective_compression
            )
        except ChecksumMismatchError as error:
            version.distrust()
            raise StorageRefusedError(
                f"the replica of version {version.version_id.version} of store {store.store!r} of "
                f"operator {store.operator_uid!r}, partition {store.partition}, is damaged: "
                f"{error}; no snapshot was written, and the next open rebuilds the replica; check "
                "memory and disk of this host"
            ) from error
    backend.replica(store).note_snapshot(version.meta, size_bytes or version.size_bytes())
    return size_bytes


def replica_compaction_due(used_bytes: int, live_bytes: int, min_bytes: int = 16 << 20) -> bool:
    """Return whether a replica has enough free pages to be worth rewriting.

    Twice the live pages, plus twice the pages of a batch, is normal; a long read leaves more.
    """
    return used_bytes > min_bytes and used_bytes > 4 * live_bytes


def compact_if_due(backend: LmdbBackend, store: StoreId, min_bytes: int = 16 << 20) -> bool:
    """Rewrite the replica of a store if it has grown, and return whether that was done."""
    directory = backend.replica(store).directory
    if directory.current() is None:
        return False
    with directory.locked(backend.settings.lock_timeout_ms):
        generation = directory.current()
        if generation is None:
            return False
        try:
            environment = acquire(directory, generation, backend.settings.max_open)
        except DamagedReplicaError:
            return False  # the next open rebuilds it
        try:
            used_bytes, live_bytes = environment.used_bytes(), environment.live_bytes()
            if not replica_compaction_due(used_bytes, live_bytes, min_bytes):
                return False
            temp = directory.new_temp()
            copy_compact(environment, temp, 2 * live_bytes)
        except lmdb.Error:
            return False
        finally:
            release(environment)
        directory.publish(temp, int(generation[1:].partition("-")[0]), environment.is_mapped)
    return True


def delete_local(backend: LmdbBackend, stream_id: str) -> None:
    """Delete the replicas that this host keeps of a stream.

    Processes that have a replica open keep its disk space until they close it.
    """
    _delete_stream(stream_directory(backend.local_directory, stream_id))


def sweep_local_once(backend: LmdbBackend) -> None:
    """Delete the leftovers of dead processes below the local directory, once per process.

    These are replicas of earlier boots of the host, unfinished and old generations, versions that
    were opened apart, and replicas of streams that were not used for a long time. Locked
    directories are skipped. Raises StorageRefusedError.
    """
    _sweep_once(backend.local_directory, backend.boot or boot_id(), backend.settings.unused_ms)


@functools.cache
def _sweep_once(local_directory: str, boot: str, unused_ms: int) -> None:
    _sweep(local_directory, boot, unused_ms)


def _sweep(local_directory: str, boot: str, unused_ms: int) -> list[str]:
    swept: list[str] = []
    streams = _directories(local_directory)
    if not streams:
        return swept
    require_private(local_directory)
    oldest_s = now_s(local_directory) - unused_ms / 1000
    for stream in streams:
        if newest_change_s(stream) < oldest_s:
            if _delete_stream(stream):
                swept.append(stream)
            continue
        for host in _directories(stream):
            if os.path.basename(host) != boot:
                delete_tree(host)
                swept.append(host)
            else:
                swept += _sweep_host(host)
    return sorted(swept)


def _delete_stream(stream: str) -> bool:
    """Delete the directory of a stream unless parts are locked; return whether it was deleted."""
    with contextlib.ExitStack() as stack:
        try:
            for lock in _locks(stream):
                stack.enter_context(ReplicaDirectory(os.path.dirname(lock)).locked(0))
        except StorageRefusedError:
            return False
        # Renamed first: a process that needs it now creates another one.
        aside = os.path.join(os.path.dirname(stream), f"{ASIDE}{new_suffix()}")
        try:
            os.rename(stream, aside)
        except OSError:
            return False
        delete_tree(aside)
    return True


def _locks(directory: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(directory), "*", "**", "lock"), recursive=True)


def _sweep_host(host: str) -> list[str]:
    swept = []
    for lock in _locks(host):
        directory = ReplicaDirectory(os.path.dirname(lock))
        with contextlib.suppress(StorageRefusedError), directory.locked(0):
            if os.path.basename(os.path.dirname(directory.path)) == APART:
                delete_tree(directory.path)
                swept.append(directory.path)
            else:
                swept += [directory.child(name) for name in directory.sweep()]
    return swept


def _directories(path: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
