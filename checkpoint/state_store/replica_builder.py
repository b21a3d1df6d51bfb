"""Changes into LMDB: one changelog into a replica that is in use, or everything into a new one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import lmdb

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage, StorageRefusedError
from checkpoint.log.version_records import EMPTY, VersionId
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.chain import ReplayPlan
from checkpoint.state_store.changelog_cache import Changelogs
from checkpoint.state_store.checksum import (
    ChecksumMismatchError,
    pairs_checksum,
    require_checksum,
)
from checkpoint.state_store.environments import (
    DamagedReplicaError,
    Environment,
    create_environment,
    translating,
)
from checkpoint.state_store.file_names import StoredKind, file_name
from checkpoint.state_store.replica_directory import REMEDY, ReplicaDirectory, delete_tree
from checkpoint.state_store.replica_meta import ReplicaMeta, read_meta, write_meta, write_store
from checkpoint.state_store.store_files import StoredFile, read_state_snapshot
from checkpoint.storage.files import location

_log = logging.getLogger("checkpoint.state_store")

_GO_BACK = (
    "its writer worked on a damaged replica; go back to a batch before it with python -m "
    "checkpoint rewind; verify names that batch"
)


def apply_changelog(environment: Environment, changelog: StoredFile) -> None:
    """Apply a changelog to a replica that holds its parent, in one transaction.

    Raises CorruptCheckpointError, DamagedReplicaError or lmdb.MapFullError.
    """
    header = changelog.header
    with translating("apply changes to", environment.path), environment.env.begin(write=True) as w:
        meta = read_meta(environment, w)
        if meta.version_id != header.parent:
            raise DamagedReplicaError(
                f"{environment.path} holds version {meta.version_id.version}, "
                f"not the parent of version {header.version_id.version}"
            )
        count, checksum = -1, None
        for part in changelog.parts:
            put_changes(environment, w, part)
            count, checksum = part.count, part.checksum
        found = w.stat(environment.data)["entries"]
        if found != count:
            raise DamagedReplicaError(
                f"{environment.path} has {found} keys of {count} in version "
                f"{header.version_id.version}"
            )
        after = meta.after(header.version_id, header.codec, changelog.totals.size_bytes, checksum)
        write_meta(environment, w, after)


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
    directory: ReplicaDirectory,
    changelogs: Changelogs,
    plans: Iterator[ReplayPlan],
    wants_map: bool,
    map_bytes: int,
) -> None:
    """Build a new generation by the first of *plans* that works, and make it the one that counts.

    The lock of *directory* must be held. Raises CorruptCheckpointError or StorageRefusedError.
    """
    damaged: list[CorruptCheckpointError] = []
    try:
        for plan in plans:
            try:
                _build_generation(directory, changelogs, plan, wants_map, map_bytes)
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
        raise CorruptCheckpointError(
            error.file, error.found, error.expected, remedy, error.damage
        ) from error


def _build_generation(
    directory: ReplicaDirectory,
    changelogs: Changelogs,
    plan: ReplayPlan,
    wants_map: bool,
    map_bytes: int,
) -> None:
    temp = directory.new_temp()
    try:
        environment = create_environment(temp, wants_map, map_bytes)
        try:
            version = _Builder(environment, changelogs).build(plan)
        finally:
            environment.env.close()
        directory.publish(temp, version, environment.is_mapped)
    except lmdb.Error as error:  # nothing that is new can be damaged: it is the disk
        message = f"cannot build the replica in {temp}: {error}; {REMEDY}"
        raise StorageRefusedError(message) from error
    finally:
        delete_tree(temp)


class _DamagedSnapshotError(Exception):
    def __init__(self, cause: CorruptCheckpointError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Builder:
    """Loads into an environment that nobody else sees; its map grows as it must."""

    def __init__(self, environment: Environment, changelogs: Changelogs) -> None:
        self._environment = environment
        self._changelogs = changelogs
        self._store = changelogs.store

    def build(self, plan: ReplayPlan) -> int:
        """Load what *plan* says, and return the version that it leads to."""
        meta = ReplicaMeta(plan.start)
        if plan.start != EMPTY:
            meta = self._load_snapshot(plan.start)
        for version_id in plan.changelogs:
            changelog = self._changelogs.open(version_id)
            file = self._location(version_id, StoredKind.CHANGES)
            checksum = self._load(changelog.parts, file, put_changes)
            size_bytes = changelog.totals.size_bytes
            meta = meta.after(version_id, changelog.header.codec, size_bytes, checksum)
        self._require_checksum(plan, meta)

        def finish(txn: lmdb.Transaction[bytes]) -> None:
            write_store(self._environment, txn, self._store)
            write_meta(self._environment, txn, meta)

        self._run(finish)
        return meta.version_id.version

    def _location(self, version_id: VersionId, kind: StoredKind) -> str:
        return location(self._changelogs.files, file_name(self._store, version_id, kind))

    def _load_snapshot(self, version_id: VersionId) -> ReplicaMeta:
        try:
            snapshot = read_state_snapshot(self._changelogs.files, self._store, version_id)
            file = self._location(version_id, StoredKind.SNAPSHOT)
            checksum = self._load(snapshot.parts, file, _append)
        except CorruptCheckpointError as error:
            raise _DamagedSnapshotError(error) from error
        codec, size_bytes = snapshot.header.codec, snapshot.totals.size_bytes
        return ReplicaMeta(
            version_id, codec, snapshot=version_id, snapshot_bytes=size_bytes, checksum=checksum
        )

    def _load(self, parts: Iterable[Changes], file: str, put: _Put) -> int | None:
        """Load the parts of a file, require the number of keys that it says, return the checksum.

        Each part has a transaction of its own: memory stays small, and growing repeats little.
        """
        environment, count, checksum = self._environment, 0, None
        for part in parts:
            try:
                self._run(functools.partial(put, environment, changes=part))
            except ValueError as error:
                raise CorruptCheckpointError(
                    file, str(error), "keys in order", RESTORE, Damage.WRONG_CONTENT
                ) from error
            count, checksum = part.count, part.checksum
        with environment.env.begin(db=environment.data) as txn:
            found = txn.stat(environment.data)["entries"]
        if found != count:
            raise CorruptCheckpointError(
                file, f"leads to {found} keys", f"{count} keys", RESTORE, Damage.WRONG_CONTENT
            )
        return checksum

    def _require_checksum(self, plan: ReplayPlan, meta: ReplicaMeta) -> None:
        """Raise if files that are whole lead to a version that is not what its history says."""
        if meta.checksum is None:
            return
        try:
            with self._environment.env.begin(db=self._environment.data) as txn:
                require_checksum(meta.checksum, pairs_checksum(txn.cursor()))
        except ChecksumMismatchError as error:
            kind = StoredKind.CHANGES if plan.changelogs else StoredKind.SNAPSHOT
            file = self._location(meta.version_id, kind)
            cause = CorruptCheckpointError(
                file,
                f"leads to a wrong content: {error}",
                "the content its writer had",
                _GO_BACK,
                Damage.WRONG_CONTENT,
            )
            raise (cause if plan.start == EMPTY else _DamagedSnapshotError(cause)) from error

    def _run(self, work: Callable[[lmdb.Transaction[bytes]], None]) -> None:
        """Do *work* in a transaction, again when the map was full."""
        environment = self._environment
        while True:
            try:
                with translating("build", environment.path), environment.env.begin(write=True) as w:
                    work(w)
            except lmdb.MapFullError:
                environment.grow()
            else:
                return


class _Put(Protocol):
    def __call__(
        self, environment: Environment, txn: lmdb.Transaction[bytes], changes: Changes
    ) -> None: ...


def _append(environment: Environment, txn: lmdb.Transaction[bytes], changes: Changes) -> None:
    """Put the next part of a snapshot at the end."""
    entries = [(entry, b"") for entry in changes.index_puts]
    for database, items in ((environment.data, changes.puts), (environment.index, entries)):
        if items:
            consumed, added = txn.cursor(database).putmulti(items, append=True)
            if added != consumed:
                raise ValueError(f"has {consumed - added} keys out of order")
