"""The backend for production: files on shared storage, and LMDB replicas on each host.

The replica of a partition is an LMDB file with one committed version. A task never writes its own
results there. It writes a changelog, the driver decides which one counts, and the next open applies
that. So aborts, retries, speculative attempts and attempts of a dead driver leave nothing to undo.

========================================= ========================================================
the replica contains                      open
========================================= ========================================================
the wanted version                        returns a read transaction
an earlier version of its chain           applies the missing changelogs, one transaction each
another chain, or a much earlier version  rebuilds a new generation from snapshot and changelogs
damage, nothing, another layout           likewise
a later version of its chain              leaves the replica alone; the version is built elsewhere
========================================= ========================================================
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

import lmdb
from msgspec.structs import replace

from checkpoint.errors import CorruptCheckpointError, StorageRefusedError
from checkpoint.log.batch_records import EMPTY, PartitionCommit, StoreId, VersionId
from checkpoint.state_store.backend import Changes, RawVersion
from checkpoint.state_store.replica_builder import (
    Changelogs,
    ReplicaMeta,
    apply_changelog,
    build_generation,
    read_meta,
    require_store,
    write_meta,
)
from checkpoint.state_store.replica_files import (
    DamagedReplicaError,
    Environment,
    MapBusyError,
    ReplicaDirectory,
    acquire,
    acquire_open,
    boot_id,
    close_if_unused,
    delete_tree,
    host_directory,
    is_mapped_generation,
    live_bytes,
    refusing,
    release,
    require_private,
)
from checkpoint.state_store.store_files import (
    Compression,
    list_snapshots,
    new_suffix,
    new_uid,
    plan_catch_up,
    plan_rebuilds,
    read_parent,
    write_changelog,
)
from checkpoint.storage.files import Files

_log = logging.getLogger("checkpoint.state_store")

_FIRST_AHEAD, _MOST_AHEAD = 8, 256
# Next to the directories of operators; no uid_part ends like this.
APART = "apart.d"
_CACHE = "changelogs.d"


@dataclass(frozen=True)
class LocalSettings:
    """Settings of replicas.

    Args:
        writes_through_map: reserve the space of the file and write through its mapping if the file
            system supports it: a quarter less CPU with large states. Disable it on file systems
            that promise space they do not have (btrfs, zfs, thin volumes), where running out of
            space is a signal that kills the process (not the state).
        first_map_bytes: the size of a new replica; doubled as it fills.
        lock_timeout_ms: how long to wait for another process that applies or rebuilds.
        max_open: the number of environments that a process keeps open.
        max_catch_up: the most changelogs to apply; a replica further behind is rebuilt.
        unused_ms: replicas of a stream that were not changed for that long are deleted, during the
            maintenance of any other store on that host.
    """

    writes_through_map: bool = True
    first_map_bytes: int = 4 << 20
    lock_timeout_ms: int = 120_000
    max_open: int = 64
    max_catch_up: int = 50
    unused_ms: int = 7 * 86_400_000

    def __post_init__(self) -> None:
        if self.first_map_bytes < 1 << 20 or self.first_map_bytes % 4096:
            raise ValueError(
                f"first_map_bytes must be a multiple of 4096 of at least 1 MiB, got "
                f"{self.first_map_bytes}"
            )
        if (
            min(self.lock_timeout_ms, self.max_catch_up) < 0
            or min(self.max_open, self.unused_ms) < 1
        ):
            raise ValueError(f"settings of replicas must not be negative: {self}")


class ReplicaIsAheadError(Exception):
    """The replica contains a later version of the same chain, and is not taken back.

    The caller is late (an attempt of an old batch, or a lost block that is recomputed); current
    batches need the replica as it is.
    """


class LmdbVersion:
    """One version in a replica; it does not change until it is closed."""

    def __init__(
        self,
        directory: ReplicaDirectory,
        environment: Environment,
        txn: lmdb.Transaction[bytes],
        meta: ReplicaMeta,
    ) -> None:
        self.version_id = meta.version_id
        self.meta = meta
        self._directory = directory
        self._environment = environment
        self._txn = txn
        self._get = txn.get
        self._is_open = True
        self.on_close: Callable[[], None] | None = None

    @property
    def codec(self) -> Mapping[str, str]:
        """The encoding of keys and records, from the last commit."""
        return self.meta.codec

    @property
    def checksum(self) -> int | None:
        """The checksum from the last commit."""
        return self.meta.checksum

    def distrust(self) -> None:
        """Let the next open rebuild the replica."""
        self._directory.drop_current(self._environment.generation)

    def get(self, key: bytes, /) -> bytes | None:
        try:
            return self._get(key)
        except lmdb.Error as error:
            raise self._failure(error) from error

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        try:
            return list(map(self._get, keys))
        except lmdb.Error as error:
            raise self._failure(error) from error

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        with self._reading():
            cursor = self._txn.cursor(self._environment.data)
            if not (cursor.set_range(start) if start else cursor.first()):
                return
            if stop is None:
                yield from cursor.iternext()
                return
            ahead = _FIRST_AHEAD
            items = cursor.iternext()
            while chunk := list(islice(items, ahead)):
                end = bisect_left(chunk, stop, key=itemgetter(0))
                yield from chunk[:end]
                if end < len(chunk):
                    return
                ahead = _MOST_AHEAD

    def scan_index(self, stop: bytes | None = None) -> Iterator[bytes]:
        with self._reading():
            entries = self._txn.cursor(self._environment.index).iternext(values=False)
            if stop is None:
                yield from entries
                return
            ahead = _FIRST_AHEAD
            while chunk := list(islice(entries, ahead)):
                end = bisect_left(chunk, stop)
                yield from chunk[:end]
                if end < len(chunk):
                    return
                ahead = _MOST_AHEAD

    def count(self) -> int:
        with self._reading():
            return int(self._txn.stat(self._environment.data)["entries"])

    def size_bytes(self) -> int:
        with self._reading():
            databases = (self._environment.data, self._environment.index)
            return sum(live_bytes(self._txn, database) for database in databases)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._environment.end(self._txn)
            release(self._environment)
            if self.on_close is not None and self._environment.pid == os.getpid():
                self.on_close()

    def __del__(self) -> None:
        # A failed task may leave a version open, which would pin its pages.
        with contextlib.suppress(Exception):
            self.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: lmdb.Error) -> Exception:
        """Translate an LMDB error; a replica that cannot be read is not used again."""
        if not self._is_open:
            return ValueError(f"version {self.version_id.version} of a store was closed already")
        if isinstance(error, lmdb.BadValsizeError):
            return ValueError(f"a key must be 1 to 511 bytes: {error}")
        self.distrust()
        return StorageRefusedError(
            f"the replica in {self._environment.path} cannot be read: {error}; the state itself "
            "is intact, and the next open rebuilds the replica"
        )


class Replica:
    """The replica of one store."""

    def __init__(
        self, directory: ReplicaDirectory, changelogs: Changelogs, settings: LocalSettings
    ) -> None:
        self.directory = directory
        self._changelogs = changelogs
        self._store = changelogs.store
        self._settings = settings

    def open(self, version_id: VersionId) -> LmdbVersion:
        """Open one version, updating or rebuilding the replica if needed.

        Raises ReplicaIsAheadError, CorruptCheckpointError or StorageRefusedError.
        """
        generation = self.directory.current()
        if generation is not None:
            environment = acquire_open(self.directory, generation)
            version = None if environment is None else self._read(environment, version_id)
            if version is not None:
                return version
        with self.directory.locked(self._settings.lock_timeout_ms):
            version = self._open_if_there(version_id)  # another process may have updated it
            if version is None:
                self._bring_to(version_id)
                version = self._open_if_there(version_id)
        if version is None:
            raise StorageRefusedError(
                f"the replica in {self.directory.path} was built and cannot be opened; check "
                "that file system, and whether another program deletes files there"
            )
        return version

    def meta(self) -> ReplicaMeta | None:
        """Return the metadata of the replica, None if it is missing or cannot be read."""
        if self.directory.current() is None:
            return None
        with self.directory.locked(self._settings.lock_timeout_ms):
            environment = self._acquire_current()
            if environment is None:
                return None
            txn = None
            try:
                txn = environment.begin()
                return self._meta(environment, txn)
            except (DamagedReplicaError, MapBusyError, lmdb.Error):
                return None
            finally:
                _give_back(environment, txn)

    def note_snapshot(self, held: ReplicaMeta, snapshot_bytes: int) -> None:
        """Record in the replica that a snapshot exists; on failure the next one is due early."""
        try:
            with self.directory.locked(self._settings.lock_timeout_ms):
                environment = self._acquire_current()
                if environment is None:
                    return
                try:
                    _note_snapshot(environment, held, snapshot_bytes)
                finally:
                    release(environment)
        except (DamagedReplicaError, StorageRefusedError, lmdb.Error) as error:
            _log.warning("recording a snapshot in the replica failed: %s", error)

    def _acquire_current(self) -> Environment | None:
        """Open the current generation, None if it is missing or damaged."""
        generation = self.directory.current()
        if generation is None:
            return None
        try:
            return acquire(self.directory, generation, self._settings.max_open)
        except DamagedReplicaError:
            return None

    def _open_if_there(self, version_id: VersionId) -> LmdbVersion | None:
        environment = self._acquire_current()
        return None if environment is None else self._read(environment, version_id)

    def _read(self, environment: Environment, version_id: VersionId) -> LmdbVersion | None:
        """Begin to read if the replica contains *version_id*, else release *environment*."""
        txn = None
        try:
            txn = environment.begin()
            meta = self._meta(environment, txn)
            if meta.version_id == version_id:
                return LmdbVersion(self.directory, environment, txn, meta)
        except (DamagedReplicaError, MapBusyError, lmdb.Error):
            pass  # _bring_to repairs it
        except BaseException:
            _give_back(environment, txn)
            raise
        _give_back(environment, txn)
        return None

    def _bring_to(self, version_id: VersionId) -> None:
        while (generation := self.directory.current()) is not None:
            try:
                if self._catch_up(generation, version_id):
                    return
                break
            except MapBusyError:
                self._copy_generation(generation)
            except (DamagedReplicaError, CorruptCheckpointError, lmdb.Error) as error:
                _log.warning("replica rebuilt: %s", error)
                break
        snapshots = list_snapshots(self._changelogs.files, self._store)
        build_generation(
            self.directory,
            self._changelogs,
            plan_rebuilds(version_id, snapshots, self._changelogs.parent_of),
            self._settings.writes_through_map,
            self._settings.first_map_bytes,
        )

    def _catch_up(self, generation: str, version_id: VersionId) -> bool:
        environment = acquire(self.directory, generation, self._settings.max_open)
        try:
            txn = environment.begin()
            try:
                local = self._meta(environment, txn).version_id
            finally:
                environment.end(txn)
            plan = plan_catch_up(
                local, version_id, self._changelogs.parent_of, self._settings.max_catch_up
            )
            if plan is None and self._is_ahead(local, version_id):
                raise ReplicaIsAheadError(self.directory.path)
            if plan is None:
                _log.info(
                    "rebuilding replica: version %d does not lead to version %d: %s",
                    local.version,
                    version_id.version,
                    self.directory.path,
                )
                return False
            for passed in plan.changelogs:
                self._apply(environment, passed)
            return True
        finally:
            release(environment)

    def _is_ahead(self, local: VersionId, version_id: VersionId) -> bool:
        files, store = self._changelogs.files, self._store
        try:
            plan = plan_catch_up(
                version_id,
                local,
                lambda passed: read_parent(files, store, passed),
                self._settings.max_catch_up,
            )
        except CorruptCheckpointError:
            return False  # a deleted or damaged history
        return plan is not None

    def _apply(self, environment: Environment, version_id: VersionId) -> None:
        while True:
            try:
                apply_changelog(environment, self._changelogs.open(version_id))
            except lmdb.MapFullError:
                environment.grow()
            except lmdb.MapResizedError:
                environment.adopt_size()
            except CorruptCheckpointError:
                if not self._changelogs.drop_cached(version_id):
                    raise
            else:
                self._changelogs.drop_cached_up_to(version_id.version)
                return

    def _meta(self, environment: Environment, txn: lmdb.Transaction[bytes]) -> ReplicaMeta:
        require_store(environment, txn, self._store)
        return read_meta(environment, txn)

    def _copy_generation(self, generation: str) -> None:
        """Copy the file to a new generation: open versions pin the map of this one.

        The copy is consistent, because writers need the lock.
        """
        temp = self.directory.new_temp()
        source = os.path.join(self.directory.child(generation), "data.mdb")
        with refusing("copy", source):
            shutil.copyfile(source, os.path.join(temp, "data.mdb"))
        version = int(generation[1:].partition("-")[0])
        self.directory.publish(temp, version, is_mapped_generation(generation))


def _give_back(environment: Environment, txn: lmdb.Transaction[bytes] | None) -> None:
    if txn is not None:
        environment.end(txn)
    release(environment)


def _note_snapshot(environment: Environment, held: ReplicaMeta, snapshot_bytes: int) -> None:
    with environment.env.begin(write=True) as txn:
        now = read_meta(environment, txn)
        if now.snapshot == held.snapshot and now.changelogs >= held.changelogs:
            since = replace(
                now,
                snapshot=held.version_id,
                snapshot_bytes=snapshot_bytes,
                changelogs=now.changelogs - held.changelogs,
                changelog_bytes=now.changelog_bytes - held.changelog_bytes,
            )
            write_meta(environment, txn, since)


class EmptyVersion:
    """The version of a store before its first commit."""

    version_id = EMPTY
    codec: Mapping[str, str] = {}
    checksum = 0

    def get(self, key: bytes, /) -> bytes | None:
        return None

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def scan_index(self, stop: bytes | None = None) -> Iterator[bytes]:
        return iter(())

    def count(self) -> int:
        return 0

    def size_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class LmdbBackend:
    """Versions in *files*, read through replicas below a directory of this host.

    The driver creates it and tasks unpickle it. If all processes of a host use one local directory,
    they share replicas; several directories only cost time.

    Args:
        files: the storage of changelogs and snapshots, for all hosts.
        root: path on each host, on a local file system, private to this user. None: a directory
            below that for temporary files, which each host and process may have elsewhere.
        epoch: epoch of the driver of the attempts.
        settings: settings of the replicas.
        compression: of new files; None compresses unless *files* are on a path.
        caches_changelogs: keep changelogs on this host until they are applied; None does so unless
            *files* are on a path.
        boot: boot id of the host; None reads it from the kernel.
        builds_apart: build versions that are older than the replica apart from it.
    """

    files: Files
    root: str | None
    epoch: int = 0
    settings: LocalSettings = field(default_factory=LocalSettings)
    compression: Compression | None = None
    caches_changelogs: bool | None = None
    boot: str | None = None
    builds_apart: bool = True

    def __post_init__(self) -> None:
        if self.root is not None:
            object.__setattr__(self, "root", os.path.abspath(self.root))

    @property
    def local_directory(self) -> str:
        """The directory of replicas on this host."""
        if self.root is not None:
            return self.root
        return os.path.join(tempfile.gettempdir(), f"dstreams-state-{os.getuid()}")

    def open(self, store: StoreId, version_id: VersionId) -> RawVersion:
        """Open one version.

        The replica is updated to it, but never taken back: an older version is built apart, at the
        cost of a rebuild.

        Raises:
            CorruptCheckpointError: the files of the version are damaged or missing.
            StorageRefusedError: the storage or the local file system failed.
            ReplicaIsAheadError: the version is older than the replica, without *builds_apart*.
        """
        if version_id == EMPTY:
            return EmptyVersion()
        try:
            return self.replica(store).open(version_id)
        except ReplicaIsAheadError:
            if not self.builds_apart:
                raise
            return self._open_apart(store, version_id)

    def commit(
        self,
        store: StoreId,
        parent: VersionId,
        changes: Iterable[Changes],
        codec: Mapping[str, str],
    ) -> PartitionCommit:
        """Write the changes of one attempt. Raises as :func:`write_changelog` does."""
        uid = new_uid(self.epoch)
        with self._changelogs(store).caching(VersionId(parent.version + 1, uid)) as tee:
            return write_changelog(
                self.files, store, parent, uid, changes, codec, self.effective_compression, tee
            )

    def replica(self, store: StoreId) -> Replica:
        """Return the replica of *store*, which may not exist on disk yet."""
        require_private(self.local_directory)
        directory = ReplicaDirectory.of(self._host(store), store)
        return Replica(directory, self._changelogs(store), self.settings)

    @contextlib.contextmanager
    def open_apart(self, store: StoreId, version_id: VersionId) -> Iterator[RawVersion]:
        """Open any version in a temporary replica, leaving the replica of the store alone."""
        if version_id == EMPTY:
            yield EmptyVersion()
            return
        require_private(self.local_directory)
        with contextlib.closing(self._open_apart(store, version_id)) as version:
            yield version

    def _open_apart(self, store: StoreId, version_id: VersionId) -> LmdbVersion:
        directory = ReplicaDirectory(os.path.join(self._host(store), APART, new_suffix()))
        apart = ReplicaDirectory(directory.child("replica"))
        with contextlib.ExitStack() as stack:
            # Locked until it is closed, so that it is not swept.
            stack.enter_context(directory.locked(self.settings.lock_timeout_ms))
            stack.callback(delete_tree, directory.path)
            stack.callback(close_if_unused, apart)
            version = Replica(apart, self._changelogs(store), self.settings).open(version_id)
            version.on_close = stack.pop_all().close
        return version

    @property
    def effective_compression(self) -> Compression:
        """The compression of new files."""
        if self.compression is not None:
            return self.compression
        return Compression.NONE if self._is_path else Compression.ZSTD

    @property
    def _is_path(self) -> bool:
        return self.files.url.startswith("file:")

    def _host(self, store: StoreId) -> str:
        return host_directory(self.local_directory, store.stream_id, self.boot or boot_id())

    def _changelogs(self, store: StoreId) -> Changelogs:
        caches = not self._is_path if self.caches_changelogs is None else self.caches_changelogs
        cache = os.path.join(self._host(store), _CACHE) if caches else None
        return Changelogs(self.files, cache, store)
