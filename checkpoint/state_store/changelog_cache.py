"""Changelogs of a store, and the cache of them that a host keeps of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from checkpoint.errors import CorruptCheckpointError, StorageRefusedError
from checkpoint.log.version_records import StoreId, VersionId
from checkpoint.state_store.file_names import (
    StoredKind,
    directory_of,
    file_name,
    new_suffix,
    parse_file_name,
)
from checkpoint.state_store.replica_directory import make_directories
from checkpoint.state_store.store_files import StoredFile, Tee, read_changelog, read_parent
from checkpoint.storage.files import Files
from checkpoint.storage.local_files import LocalFiles


class Changelogs:
    """Changelogs of one store, from the cache of this host where they are in it."""

    def __init__(self, files: Files, cache: str | None, store: StoreId) -> None:
        self.files = files
        self.store = store
        self._cache = cache
        self._opened: tuple[VersionId, StoredFile] | None = None

    def open(self, version_id: VersionId) -> StoredFile:
        """Open the changes that led to *version_id*. Raises as read_changelog does."""
        if self._opened is not None and self._opened[0] == version_id:
            changelog = self._opened[1]
            self._opened = None
            return changelog
        if self._cache is not None:
            try:
                return read_changelog(LocalFiles(self._cache), self.store, version_id)
            except (CorruptCheckpointError, StorageRefusedError):
                self.drop_cached(version_id)
        return read_changelog(self.files, self.store, version_id)

    def parent_of(self, version_id: VersionId) -> VersionId:
        """Return the parent of *version_id*. Raises as read_parent does."""
        if self._opened is None:  # the newest: mostly the only one, and applied next
            self._opened = version_id, self.open(version_id)
            return self._opened[1].header.parent
        return read_parent(self.files, self.store, version_id)

    @contextlib.contextmanager
    def caching(self, version_id: VersionId) -> Iterator[Tee | None]:
        """Keep in the cache what passes the tee, if all goes well; else there is nothing of it.

        That the cache cannot be written is no failure.
        """
        if self._cache is None:
            yield None
            return
        path = self._path(version_id)
        temp = f"{path}.{new_suffix()}"
        fd = -1
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                make_directories(os.path.dirname(path))
                fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                stack.callback(_delete, temp)
                stack.callback(os.close, fd)
            is_whole = fd >= 0

            def tee(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
                nonlocal is_whole
                for piece in pieces:
                    try:
                        is_whole = is_whole and os.write(fd, piece) == memoryview(piece).nbytes
                    except OSError:
                        is_whole = False
                    yield piece

            yield tee
            if is_whole:
                with contextlib.suppress(OSError):
                    os.rename(temp, path)

    def drop_cached(self, version_id: VersionId) -> bool:
        """Delete a changelog from the cache, and return whether it was there."""
        return self._cache is not None and _delete(self._path(version_id))

    def drop_cached_up_to(self, version: int) -> None:
        """Delete all up to a version from the cache, also those of attempts that lost."""
        if self._cache is None:
            return
        directory = directory_of(self.store)
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(self._cache, directory)):
                found = parse_file_name(directory + name)
                if found is not None and found[1].version <= version:
                    self.drop_cached(found[1])

    def _path(self, version_id: VersionId) -> str:
        name = file_name(self.store, version_id, StoredKind.CHANGES)
        return os.path.join(self._cache or "", name)


def _delete(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
