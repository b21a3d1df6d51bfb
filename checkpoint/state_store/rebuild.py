"""Changes into LMDB: one changelog into a copy that is in use, or everything into a new one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import lmdb

from checkpoint.errors import RESTORE, CorruptCheckpointError, StorageRefusedError
from checkpoint.files import Files, location
from checkpoint.state_store.base import Changes
from checkpoint.state_store.chain import Plan
from checkpoint.state_store.checksum import (
    ChecksumMismatchError,
    pairs_checksum,
    require_checksum,
)
from checkpoint.state_store.environments import (
    DamagedCopyError,
    Environment,
    create_environment,
    translating,
)
from checkpoint.state_store.local_directory import PartitionDirectory, delete_tree
from checkpoint.state_store.progress import Progress, read_progress, write_progress, write_store
from checkpoint.state_store.reference import StoredKind, file_name
from checkpoint.state_store.snapshot import read_snapshot
from checkpoint.state_store.stored_file import StoredFile
from checkpoint.stored_state import EMPTY, Reference, StoreId

_log = logging.getLogger("checkpoint.state_store")

_GO_BACK = (
    "its writer worked on a damaged local copy; go back to a batch before it with python -m "
    "checkpoint rewind; verify says to which"
)

OpenChangelog = Callable[[Reference], StoredFile]


def apply_changelog(environment: Environment, changelog: StoredFile) -> None:
    """Apply a changelog to a copy that holds its base, in one transaction.

    Raises:
        CorruptCheckpointError: the file is damaged; the copy is as it was.
        DamagedCopyError: the copy has not the keys that it must have then; it is as it was.
        lmdb.MapFullError: the map must grow; the copy is as it was.
    """
    header = changelog.header
    with translating("apply changes to", environment.path), environment.env.begin(write=True) as w:
        progress = read_progress(environment, w)
        if progress.reference != header.base:
            raise DamagedCopyError(
                f"{environment.path} holds version {progress.reference.version}, "
                f"not the base of version {header.reference.version}"
            )
        count, checksum = -1, None
        for part in changelog.parts:
            put_changes(environment, w, part)
            count, checksum = part.count, part.checksum
        found = w.stat(environment.data)["entries"]
        if found != count:
            raise DamagedCopyError(
                f"{environment.path} has {found} keys of {count} in version "
                f"{header.reference.version}"
            )
        after = progress.after(
            header.reference, header.codec, changelog.totals.size_bytes, checksum
        )
        write_progress(environment, w, after)


def put_changes(environment: Environment, txn: lmdb.Transaction[bytes], changes: Changes) -> None:
    """Put and remove what *changes* says."""
    if changes.puts:
        txn.cursor(environment.data).putmulti(changes.puts)
    delete, data, index = txn.delete, environment.data, environment.index
    for key in changes.removes:
        delete(key, b"", data)
    if changes.index_puts:
        entries = [(entry, b"") for entry in changes.index_puts]
        txn.cursor(index).putmulti(entries)
    for entry in changes.index_removes:
        delete(entry, b"", index)


def build_generation(
    directory: PartitionDirectory,
    store: StoreId,
    plans: Iterator[Plan],
    files: Files,
    open_changelog: OpenChangelog,
    wants_map: bool,
    map_bytes: int,
) -> None:
    """Build a new generation by the first of *plans* that works, and make it the one that counts.

    The lock of *directory* must be held.

    Raises:
        CorruptCheckpointError: there is no way that works.
        StorageRefusedError: there is no room, or the storage cannot be read.
    """
    damaged: list[CorruptCheckpointError] = []
    try:
        for plan in plans:
            try:
                _build_generation(
                    directory, store, plan, files, open_changelog, wants_map, map_bytes
                )
            except _DamagedSnapshotError as error:
                damaged.append(error.cause)
                _log.warning(
                    "snapshot fallback: %s; going on with an older one and more changelogs",
                    error.cause,
                )
            else:
                return
    except CorruptCheckpointError as error:
        if not damaged:
            raise
        snapshots = ", ".join(snapshot.file for snapshot in damaged)
        remedy = f"restore that file, or one of the damaged snapshots after it: {snapshots}"
        raise CorruptCheckpointError(error.file, error.found, error.expected, remedy) from error


def _build_generation(
    directory: PartitionDirectory,
    store: StoreId,
    plan: Plan,
    files: Files,
    open_changelog: OpenChangelog,
    wants_map: bool,
    map_bytes: int,
) -> None:
    temp = directory.new_temp()
    try:
        environment = create_environment(temp, wants_map, map_bytes)
        try:
            reference = _build(_Loader(environment), store, plan, files, open_changelog)
        finally:
            environment.env.close()
        directory.publish(temp, reference.version, environment.is_mapped)
    except lmdb.Error as error:  # nothing that is new can be damaged: it is the disk
        raise StorageRefusedError(
            f"cannot build the local copy in {temp}: {error}; the state itself is intact, look "
            "at that file system or use another directory for local copies"
        ) from error
    finally:
        delete_tree(temp)


class _DamagedSnapshotError(Exception):
    def __init__(self, cause: CorruptCheckpointError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Loader:
    """Loads into an environment that nobody else sees; its map grows as it must."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def run(self, work: Callable[[lmdb.Transaction[bytes]], None]) -> None:
        """Do *work* in a transaction, again when the map was full."""
        while True:
            try:
                with (
                    translating("build", self.environment.path),
                    self.environment.env.begin(write=True) as txn,
                ):
                    work(txn)
            except lmdb.MapFullError:
                self.environment.grow()
            else:
                return

    def load(self, parts: Iterable[Changes], file: str, put: _Put) -> int | None:
        """Load the parts of a file, require the number of keys that it says, return the checksum.

        Each part has a transaction of its own: memory stays small, and growing repeats little.
        """
        environment, count, checksum = self.environment, 0, None
        for part in parts:
            try:
                self.run(functools.partial(put, environment, changes=part))
            except ValueError as error:
                raise CorruptCheckpointError(file, str(error), "keys in order", RESTORE) from error
            count, checksum = part.count, part.checksum
        with environment.env.begin(db=environment.data) as txn:
            found = txn.stat(environment.data)["entries"]
        if found != count:
            raise CorruptCheckpointError(file, f"leads to {found} keys", f"{count} keys", RESTORE)
        return checksum

    def require_checksum(self, progress: Progress) -> None:
        """Raise ChecksumMismatchError if what was loaded is not what its history says."""
        environment = self.environment
        if progress.checksum is not None:
            with environment.env.begin(db=environment.data) as txn:
                require_checksum(progress.checksum, pairs_checksum(txn.cursor()))


class _Put(Protocol):
    def __call__(
        self, environment: Environment, txn: lmdb.Transaction[bytes], changes: Changes
    ) -> None: ...


def _build(
    loader: _Loader, store: StoreId, plan: Plan, files: Files, open_changelog: OpenChangelog
) -> Reference:
    progress = Progress(plan.start)
    if plan.start != EMPTY:
        progress = _load_snapshot(loader, store, plan.start, files)
    for reference in plan.changelogs:
        changelog = open_changelog(reference)
        file = location(files, file_name(store, reference, StoredKind.CHANGES))
        checksum = loader.load(changelog.parts, file, put_changes)
        size_bytes = changelog.totals.size_bytes
        progress = progress.after(reference, changelog.header.codec, size_bytes, checksum)

    try:
        loader.require_checksum(progress)
    except ChecksumMismatchError as error:
        raise _mismatch(store, plan, files, error) from error

    def finish(txn: lmdb.Transaction[bytes]) -> None:
        write_store(loader.environment, txn, store)
        write_progress(loader.environment, txn, progress)

    loader.run(finish)
    return progress.reference


def _load_snapshot(loader: _Loader, store: StoreId, reference: Reference, files: Files) -> Progress:
    file = location(files, file_name(store, reference, StoredKind.SNAPSHOT))
    try:
        snapshot = read_snapshot(files, store, reference)
        checksum = loader.load(snapshot.parts, file, _append)
    except CorruptCheckpointError as error:
        raise _DamagedSnapshotError(error) from error
    codec, size_bytes = snapshot.header.codec, snapshot.totals.size_bytes
    return Progress(
        reference, codec, snapshot=reference, snapshot_bytes=size_bytes, checksum=checksum
    )


def _mismatch(
    store: StoreId, plan: Plan, files: Files, error: ChecksumMismatchError
) -> CorruptCheckpointError | _DamagedSnapshotError:
    """Return what to raise when files that are whole lead to a content that is not."""
    reference = (plan.start, *plan.changelogs)[-1]
    kind = StoredKind.CHANGES if plan.changelogs else StoredKind.SNAPSHOT
    file = location(files, file_name(store, reference, kind))
    cause = CorruptCheckpointError(
        file, f"leads to a wrong content: {error}", "the content its writer had", _GO_BACK
    )
    return cause if plan.start == EMPTY else _DamagedSnapshotError(cause)


def _append(environment: Environment, txn: lmdb.Transaction[bytes], changes: Changes) -> None:
    """Put the next part of a snapshot at the end."""
    entries = [(entry, b"") for entry in changes.index_puts]
    for database, items in ((environment.data, changes.puts), (environment.index, entries)):
        if items:
            consumed, added = txn.cursor(database).putmulti(items, append=True)
            if added != consumed:
                raise ValueError(f"has {consumed - added} keys out of order")
