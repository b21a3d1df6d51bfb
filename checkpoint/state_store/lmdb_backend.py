"""The backend for production: files on shared storage, and a replica in LMDB on each host."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from checkpoint.log.version_records import EMPTY, PartitionCommit, StoreId, VersionId
from checkpoint.state_store.backend import Changes, RawVersion
from checkpoint.state_store.change_blocks import Compression
from checkpoint.state_store.environments import close_if_unused
from checkpoint.state_store.replica import (
    LmdbVersion,
    LocalSettings,
    Replica,
    ReplicaIsAheadError,
)
from checkpoint.state_store.replica_builder import Changelogs
from checkpoint.state_store.replica_directory import (
    ReplicaDirectory,
    boot_id,
    delete_tree,
    host_directory,
    require_private,
)
from checkpoint.state_store.store_files import new_suffix, new_uid, write_changelog
from checkpoint.storage.files import Files

# Next to the directories of operators; no uid_part ends like this.
APART = "apart.d"
_CACHE = "changelogs.d"


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
        local_directory: path on each host, on a local file system, private to this user.
        epoch: epoch of the driver of the attempts.
        settings: settings of the replicas.
        compression: of new files; None compresses unless *files* are on a path.
        caches_changelogs: keep changelogs on this host until they are applied; None does so unless
            *files* are on a path.
        boot: boot id of the host; None reads it from the kernel.
    """

    files: Files
    local_directory: str
    epoch: int = 0
    settings: LocalSettings = field(default_factory=LocalSettings)
    compression: Compression | None = None
    caches_changelogs: bool | None = None
    boot: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "local_directory", os.path.abspath(self.local_directory))

    def open(self, store: StoreId, version_id: VersionId) -> RawVersion:
        """Open one version.

        The replica is updated to it, but never taken back: an older version is built apart, at the
        cost of a rebuild.

        Raises:
            CorruptCheckpointError: the files of the version are damaged or missing.
            StorageRefusedError: the storage or the local file system failed.
        """
        if version_id == EMPTY:
            return EmptyVersion()
        try:
            return self.replica(store).open(version_id)
        except ReplicaIsAheadError:
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


__all__ = ["EmptyVersion", "LmdbBackend", "LmdbVersion"]
