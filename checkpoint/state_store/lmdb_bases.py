"""Stores on files, with local copies in LMDB: what a task on any host opens and commits to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from checkpoint.files import Files
from checkpoint.state_store.base import Base, Changes
from checkpoint.state_store.blocks import Compression
from checkpoint.state_store.changelog_cache import Changelogs
from checkpoint.state_store.environments import close_if_unused
from checkpoint.state_store.local_copy import (
    CopyIsAheadError,
    LmdbBase,
    LocalCopy,
    LocalSettings,
)
from checkpoint.state_store.local_directory import (
    PartitionDirectory,
    boot_id,
    delete_tree,
    host_directory,
    require_private,
)
from checkpoint.state_store.reference import new_suffix, new_uid
from checkpoint.state_store.store_files import write_changelog
from checkpoint.stored_state import EMPTY, Reference, StoredPartition, StoreId

# Directories beside those of the operators; no uid_part ends like this.
APART = "apart.d"
_CACHE = "changelogs.d"


class EmptyBase:
    """The content of a store before its first commit."""

    reference = EMPTY
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
class LmdbBases:
    """Contents in *files*, read through local copies below a directory of this host.

    A value that can be pickled: the driver makes it, tasks use it. One local directory for all
    processes of a host lets each of them find the copies of the others; with several of them the
    same is only slower.

    Args:
        files: where changelogs and snapshots are, for all hosts.
        local_directory: path on each host, on a local file system, of this user alone.
        epoch: epoch of the driver that the attempts work for.
        settings: how local copies are kept.
        compression: of new files; None compresses where *files* are not on a path.
        caches_changelogs: keep what is committed here on this host until it is applied; None does
            so where *files* are not on a path.
        boot: name of the time since the host was started; None asks the kernel.
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

    def open(self, store: StoreId, reference: Reference) -> Base:
        """Open one content.

        The local copy is brought to it, but never back: a content that is older than what the copy
        holds is built apart, at the cost of a rebuild.

        Raises:
            CorruptCheckpointError: the content cannot be had: its files are damaged or missing.
            StorageRefusedError: the storage, or the local file system, did not work.
        """
        if reference == EMPTY:
            return EmptyBase()
        try:
            return self.local_copy(store).open(reference)
        except CopyIsAheadError:
            return self._open_apart(store, reference)

    def commit(
        self,
        store: StoreId,
        base: Reference,
        changes: Iterable[Changes],
        codec: Mapping[str, str],
    ) -> StoredPartition:
        """Write the changes of one attempt. Raises as :func:`write_changelog` does."""
        uid = new_uid(self.epoch)
        with self._changelogs(store).caching(Reference(base.version + 1, uid)) as tee:
            return write_changelog(
                self.files, store, base, uid, changes, codec, self.effective_compression, tee
            )

    def local_copy(self, store: StoreId) -> LocalCopy:
        """Return the local copy of *store*, which may not exist yet."""
        require_private(self.local_directory)
        directory = PartitionDirectory.of(self._host(store), store)
        return LocalCopy(directory, self._changelogs(store), self.settings)

    @contextlib.contextmanager
    def open_apart(self, store: StoreId, reference: Reference) -> Iterator[Base]:
        """Open any content in a copy of its own, which is deleted afterwards.

        For looking at old versions: :meth:`open` would take the local copy back to them, and the
        next batch would have to bring it forth again.
        """
        if reference == EMPTY:
            yield EmptyBase()
            return
        require_private(self.local_directory)
        with contextlib.closing(self._open_apart(store, reference)) as base:
            yield base

    def _open_apart(self, store: StoreId, reference: Reference) -> LmdbBase:
        directory = PartitionDirectory(os.path.join(self._host(store), APART, new_suffix()))
        copy = PartitionDirectory(directory.child("copy"))
        with contextlib.ExitStack() as stack:
            # Held until it is closed, so that nobody sweeps it.
            stack.enter_context(directory.locked(self.settings.lock_timeout_ms))
            stack.callback(delete_tree, directory.path)
            stack.callback(close_if_unused, copy)
            base = LocalCopy(copy, self._changelogs(store), self.settings).open(reference)
            base.on_close = stack.pop_all().close
        return base

    @property
    def effective_compression(self) -> Compression:
        """How new files are compressed."""
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


__all__ = ["EmptyBase", "LmdbBase", "LmdbBases"]
