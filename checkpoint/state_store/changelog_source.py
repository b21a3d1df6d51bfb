"""Where changelogs are read from: the storage, or a copy that this host has kept of its own."""

from __future__ import annotations

import contextlib
import os

from checkpoint.errors import CorruptCheckpointError, StorageRefusedError
from checkpoint.files import Files
from checkpoint.local_files import LocalFiles
from checkpoint.state_store.changelog import read_base, read_changelog
from checkpoint.state_store.reference import StoredKind, directory_of, file_name, parse_file_name
from checkpoint.state_store.stored_file import StoredFile
from checkpoint.stored_state import Reference, StoreId


class Changelogs:
    """Changelogs of one store, from copies on this host where there are some.

    Args:
        files: where all of them are.
        copies: where this host may have copies, None if it keeps none.
        store: whose they are.
    """

    def __init__(self, files: Files, copies: LocalFiles | None, store: StoreId) -> None:
        self.files = files
        self.store = store
        self._copies = copies
        self._opened: tuple[Reference, StoredFile] | None = None

    def open(self, reference: Reference) -> StoredFile:
        """Open the changes that led to *reference*. Raises as read_changelog does."""
        if self._opened is not None and self._opened[0] == reference:
            changelog = self._opened[1]
            self._opened = None
            return changelog
        if self._copies is not None:
            try:
                return read_changelog(self._copies, self.store, reference)
            except (CorruptCheckpointError, StorageRefusedError):
                self.drop_copy(reference)
        return read_changelog(self.files, self.store, reference)

    def base_of(self, reference: Reference) -> Reference:
        """Return the base of *reference*. Raises as read_base does."""
        if self._opened is None:  # the newest: mostly the only one, and applied next
            self._opened = reference, self.open(reference)
            return self._opened[1].header.base
        return read_base(self.files, self.store, reference)

    def drop_copy(self, reference: Reference) -> bool:
        """Delete the copy on this host, and return whether there was one."""
        if self._copies is None:
            return False
        try:
            os.unlink(copy_path(self._copies.root, self.store, reference))
        except OSError:
            return False
        return True

    def drop_copies(self, version: int) -> None:
        """Delete all copies on this host up to *version*, also those of attempts that lost."""
        if self._copies is None:
            return
        directory = directory_of(self.store)
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(self._copies.root, directory)):
                found = parse_file_name(directory + name)
                if found is not None and found[1].version <= version:
                    self.drop_copy(found[1])


def copy_path(root: str, store: StoreId, reference: Reference) -> str:
    """Return where a host keeps its copy of a changelog."""
    return os.path.join(root, file_name(store, reference, StoredKind.CHANGES))
