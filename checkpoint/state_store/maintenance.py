"""Maintenance of stores: snapshots, compaction and sweeping; off the path of the batches.

Each is a decision that is a pure function, and an action that any process of a host can take at
any time beside running batches, and that may be killed anywhere. :func:`maintain_store` is what a
host does now and then for each store that it has warm.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from dataclasses import dataclass

import lmdb

from checkpoint.errors import StorageRefusedError
from checkpoint.state_store.checksum import ChecksumMismatchError
from checkpoint.state_store.environments import (
    DamagedCopyError,
    acquire,
    copy_compact,
    release,
)
from checkpoint.state_store.lmdb_bases import APART, LmdbBases
from checkpoint.state_store.local_copy import CopyIsAheadError, LmdbBase
from checkpoint.state_store.local_directory import (
    PartitionDirectory,
    boot_id,
    delete_tree,
    newest_change_s,
    now_s,
    require_private,
    stream_directory,
)
from checkpoint.state_store.progress import Progress
from checkpoint.state_store.reference import new_suffix
from checkpoint.state_store.store_files import list_snapshots, write_snapshot
from checkpoint.stored_state import EMPTY, Reference, StoreId

ASIDE = "deleted."
"""What the name of a stream's directory begins with that is being deleted."""


@dataclass(frozen=True)
class SnapshotRule:
    """When a snapshot is due: when reading the changelogs since costs as much as a new one.

    Args:
        min_changelogs: never before that many since the last one.
        max_changelogs: always after that many.
    """

    min_changelogs: int = 10
    max_changelogs: int = 100

    def is_due(self, progress: Progress) -> bool:
        """Whether a copy that stands there should be written as a snapshot."""
        if progress.changelogs < self.min_changelogs:
            return False
        is_much = progress.changelog_bytes >= progress.snapshot_bytes
        return is_much or progress.changelogs >= self.max_changelogs


def maintain_store(
    bases: LmdbBases, store: StoreId, reference: Reference, rule: SnapshotRule | None = None
) -> int | None:
    """Do what is due for a store: a snapshot, a smaller local copy, and sweeping once a process.

    Returns:
        The size of the snapshot in bytes, None if none was written.

    Raises:
        CheckpointError: as :func:`snapshot_if_due`. A local copy that cannot be made smaller stays
            as it is, until the next time.
    """
    size_bytes = snapshot_if_due(bases, store, reference, rule)
    with contextlib.suppress(StorageRefusedError):
        compact_if_due(bases, store)
        bases.local_copy(store).directory.mark_used()
        sweep_local_once(bases)
    return size_bytes


def snapshot_if_due(
    bases: LmdbBases, store: StoreId, reference: Reference, rule: SnapshotRule | None = None
) -> int | None:
    """Write a snapshot of a content if it is time, and return its size in bytes.

    While it is written the local copy keeps the pages of that content, so its file grows by what
    batches change meanwhile.

    Returns:
        None if it was not time, there is one already, or the local copy has gone on to a later
        content: it is not taken back for a snapshot.

    Raises:
        CheckpointError: the content cannot be opened, or the snapshot not be written; nothing is
            lost by that, try again later.
    """
    if reference == EMPTY:
        return None
    copy = bases.local_copy(store)
    try:
        base = copy.open(reference)
    except CopyIsAheadError:
        return None
    with contextlib.closing(base):
        if not (rule or SnapshotRule()).is_due(base.progress):
            return None
        return take_snapshot(bases, store, base)


def take_snapshot(bases: LmdbBases, store: StoreId, base: LmdbBase) -> int | None:
    """Write an open content as a snapshot, whether it is time or not.

    Returns:
        The size of the snapshot in bytes, None if there is one already.

    Raises:
        StorageRefusedError: it could not be written, or the local copy is damaged; no snapshot is
            left, and a damaged copy is not used again.
        StorageUncertainError: it may have been written.
    """
    size_bytes: int | None = None
    if base.reference not in list_snapshots(bases.files, store):
        try:
            size_bytes = write_snapshot(
                bases.files, store, base, base.codec, bases.effective_compression
            )
        except ChecksumMismatchError as error:
            base.distrust()
            raise StorageRefusedError(
                f"the local copy of version {base.reference.version} of store {store.store!r} of "
                f"operator {store.operator_uid!r}, partition {store.partition}, is damaged: "
                f"{error}; no snapshot was written, and the next open builds a new copy. Look at "
                "memory and disk of this host"
            ) from error
    bases.local_copy(store).note_snapshot(base.progress, size_bytes or base.size_bytes())
    return size_bytes


def compaction_due(used_bytes: int, live_bytes: int, min_bytes: int = 16 << 20) -> bool:
    """Whether a local copy has so much room that was freed that it should be written anew.

    Twice the live pages and twice what a batch touches is normal, as both contents of a batch are
    there; a long read leaves more.
    """
    return used_bytes > min_bytes and used_bytes > 4 * live_bytes


def compact_if_due(bases: LmdbBases, store: StoreId, min_bytes: int = 16 << 20) -> bool:
    """Write the local copy of a store anew if it has grown, and return whether that was done.

    Raises:
        StorageRefusedError: there is no room, or another process holds the lock; the copy is as it
            was.
    """
    directory = bases.local_copy(store).directory
    if directory.current() is None:
        return False
    with directory.locked(bases.settings.lock_timeout_ms):
        generation = directory.current()
        if generation is None:
            return False
        try:
            environment = acquire(directory, generation, bases.settings.max_open)
        except DamagedCopyError:
            return False  # the next open builds a new one
        try:
            used_bytes, live_bytes = environment.used_bytes(), environment.live_bytes()
            if not compaction_due(used_bytes, live_bytes, min_bytes):
                return False
            temp = directory.new_temp()
            copy_compact(environment, temp, 2 * live_bytes)
        except lmdb.Error:
            return False
        finally:
            release(environment)
        directory.publish(temp, int(generation[1:].partition("-")[0]), environment.is_mapped)
    return True


def delete_local(bases: LmdbBases, stream_id: str) -> None:
    """Delete all that this host keeps of a stream, of which the files are given up as well.

    Processes that have some of it open keep the room until they close it.
    """
    _delete_stream(stream_directory(bases.local_directory, stream_id))


def sweep_local_once(bases: LmdbBases) -> None:
    """Delete what processes that died have left below the local directory, once in this process.

    That is: copies of earlier starts of the host, unfinished and old generations, contents that
    were opened apart, and all of streams that were not used for a long time: these build new copies
    when they go on. What is locked is left alone.

    Raises:
        StorageRefusedError: the directory is not of this user alone, or cannot be written.
    """
    _sweep_once(bases.local_directory, bases.boot or boot_id(), bases.settings.unused_ms)


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
    """Delete the directory of a stream, and return whether that was done: none of it is locked."""
    with contextlib.ExitStack() as stack:
        try:
            for lock in _locks(stream):
                stack.enter_context(PartitionDirectory(os.path.dirname(lock)).locked(0))
        except StorageRefusedError:
            return False
        # Out of the way in one step: who comes for it now makes a new one.
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
        directory = PartitionDirectory(os.path.dirname(lock))
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
