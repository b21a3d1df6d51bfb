"""Replicas are built and updated here: metadata, cached changelogs, and writes to LMDB."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import lmdb
from msgspec import field
from msgspec.structs import replace

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage, StorageRefusedError
from checkpoint.log.batch_records import EMPTY, StoreId, VersionId
from checkpoint.state_store.backend import (
    Changes,
    ChecksumMismatchError,
    pairs_checksum,
    require_checksum,
)
from checkpoint.state_store.replica_files import (
    REMEDY,
    DamagedReplicaError,
    Environment,
    ReplicaDirectory,
    create_environment,
    delete_tree,
    make_directories,
    translating,
)
from checkpoint.state_store.store_files import (
    ReplayPlan,
    StoredFile,
    StoredKind,
    Tee,
    directory_of,
    file_name,
    new_suffix,
    parse_file_name,
    read_changelog,
    read_parent,
    read_state_snapshot,
)
from checkpoint.storage.files import Files, location
from checkpoint.storage.json_records import JsonRecord, decode, encode
from checkpoint.storage.local_files import LocalFiles

LOCAL_LAYOUT = 1

_Put = Callable[[Environment, Changes, "lmdb.Transaction[bytes]"], None]
_SELF = b"self"
_STORE = b"store"


class ReplicaMeta(JsonRecord, frozen=True):
    """The version of a replica, and its distance from the last snapshot.

    Args:
        version_id: the version that it contains.
        codec: the encoding of keys and records, from the last changelog.
        checksum: the checksum of the version, from the last changelog; None if unknown.
        snapshot: the version of the last snapshot; the empty version if it has none.
        snapshot_bytes: the size of that snapshot.
        changelogs: the number of changelogs since that snapshot.
        changelog_bytes: the size of these changelogs.
    """

    version_id: VersionId
    codec: Mapping[str, str] = field(default_factory=dict)
    snapshot: VersionId = EMPTY
    snapshot_bytes: int = 0
    changelogs: int = 0
    changelog_bytes: int = 0
    checksum: int | None = 0

    def after(
        self,
        version_id: VersionId,
        codec: Mapping[str, str],
        size_bytes: int,
        checksum: int | None,
    ) -> ReplicaMeta:
        """Return the metadata after one more changelog."""
        return replace(
            self,
            version_id=version_id,
            codec=codec,
            changelogs=self.changelogs + 1,
            changelog_bytes=self.changelog_bytes + size_bytes,
            checksum=checksum,
        )


def write_meta(environment: Environment, txn: lmdb.Transaction[bytes], meta: ReplicaMeta) -> None:
    """Write the metadata of a replica."""
    txn.put(_SELF, encode(meta), db=environment.meta)


def read_meta(environment: Environment, txn: lmdb.Transaction[bytes]) -> ReplicaMeta:
    """Read the metadata of a replica. Raises DamagedReplicaError."""
    try:
        return _parse(txn.get(_SELF, db=environment.meta) or b"nothing", environment.path)
    except CorruptCheckpointError as error:
        raise DamagedReplicaError(f"{environment.path} has damaged metadata: {error}") from error


def write_store(environment: Environment, txn: lmdb.Transaction[bytes], store: StoreId) -> None:
    """Write the store that a replica belongs to."""
    txn.put(_STORE, _store_json(store), db=environment.meta)


def require_store(environment: Environment, txn: lmdb.Transaction[bytes], store: StoreId) -> None:
    """Raise DamagedReplicaError if a replica belongs to another store or has another layout."""
    if txn.get(_STORE, db=environment.meta) != _store_json(store):
        raise DamagedReplicaError(f"{environment.path} is not the replica of {store}")


@functools.lru_cache(maxsize=256)  # an open reads the same bytes several times
def _parse(value: bytes, path: str) -> ReplicaMeta:
    return decode(value, ReplicaMeta, path, "the metadata of a replica")


@functools.lru_cache(maxsize=256)
def _store_json(store: StoreId) -> bytes:
    return encode({"layout": LOCAL_LAYOUT, **dataclasses.asdict(store)})


class Changelogs:
    """The changelogs of one store, cached on this host if *cache* is a directory."""

    def __init__(self, files: Files, cache: str | None, store: StoreId) -> None:
        self.files = files
        self.store = store
        self._cache = cache
        self._opened: tuple[VersionId, StoredFile] | None = None

    def open(self, version_id: VersionId) -> StoredFile:
        """Open the changelog that led to *version_id*. Raises as read_changelog does."""
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
        if self._opened is None:  # the newest is usually the only one, and is applied next
            self._opened = version_id, self.open(version_id)
            return self._opened[1].header.parent
        return read_parent(self.files, self.store, version_id)

    @contextlib.contextmanager
    def caching(self, version_id: VersionId) -> Iterator[Tee | None]:
        """Yield a tee that copies a changelog to the cache, which gets all of it or nothing.

        A cache that cannot be written is not an error.
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
        """Delete a changelog from the cache, and return whether it was cached."""
        return self._cache is not None and _delete(self._path(version_id))

    def drop_cached_up_to(self, version: int) -> None:
        """Delete all changelogs up to a version from the cache, also those of lost attempts."""
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


_log = logging.getLogger("checkpoint.state_store")

_GO_BACK = (
    "its writer used a damaged replica; go back to an earlier batch with python -m checkpoint "
    "rewind; verify finds the batch"
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
            put_changes(environment, part, w)
            count, checksum = part.count, part.checksum
        found = w.stat(environment.data)["entries"]
        if found != count:
            raise DamagedReplicaError(
                f"{environment.path} has {found} keys of {count} in version "
                f"{header.version_id.version}"
            )
        after = meta.after(header.version_id, header.codec, changelog.totals.size_bytes, checksum)
        write_meta(environment, w, after)


def put_changes(environment: Environment, changes: Changes, txn: lmdb.Transaction[bytes]) -> None:
    """Apply changes in a transaction."""
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
    """Build a new generation with the first of *plans* that works, and make it current.

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
                    "snapshot fallback: %s; using an older snapshot and more changelogs",
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
    except lmdb.Error as error:  # a new environment cannot be damaged, so this is the disk
        message = f"cannot build the replica in {temp}: {error}; {REMEDY}"
        raise StorageRefusedError(message) from error
    finally:
        delete_tree(temp)


class _DamagedSnapshotError(Exception):
    def __init__(self, cause: CorruptCheckpointError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Builder:
    """Loads files into a private environment, whose map grows as needed."""

    def __init__(self, environment: Environment, changelogs: Changelogs) -> None:
        self._environment = environment
        self._changelogs = changelogs
        self._store = changelogs.store

    def build(self, plan: ReplayPlan) -> int:
        """Load the files of *plan*, and return the version that they lead to."""
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
        """Load the parts of a file, check their number of keys, and return the checksum.

        A transaction per part limits memory, and the work to repeat after growing.
        """
        environment, count, checksum = self._environment, 0, None
        for part in parts:
            try:
                self._run(functools.partial(put, environment, part))
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
        """Raise if intact files lead to a version with another checksum."""
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
                f"leads to wrong content: {error}",
                "the content that its writer had",
                _GO_BACK,
                Damage.WRONG_CONTENT,
            )
            raise (cause if plan.start == EMPTY else _DamagedSnapshotError(cause)) from error

    def _run(self, work: Callable[[lmdb.Transaction[bytes]], None]) -> None:
        """Run *work* in a transaction, again after growing if the map was full."""
        environment = self._environment
        while True:
            try:
                with translating("build", environment.path), environment.env.begin(write=True) as w:
                    work(w)
            except lmdb.MapFullError:
                environment.grow()
            else:
                return


def _append(environment: Environment, changes: Changes, txn: lmdb.Transaction[bytes]) -> None:
    """Append the next part of a snapshot."""
    entries = [(entry, b"") for entry in changes.index_puts]
    for database, items in ((environment.data, changes.puts), (environment.index, entries)):
        if items:
            consumed, added = txn.cursor(database).putmulti(items, append=True)
            if added != consumed:
                raise ValueError(f"has {consumed - added} keys out of order")
