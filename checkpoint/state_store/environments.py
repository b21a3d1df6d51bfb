"""LMDB environments of this process: one for each generation, kept open between tasks.

Opening one takes a quarter of a millisecond, and touching a fresh mapping 15 more, so environments
are kept, and the least used closed first. A process may have a file open only once: the table is
that of the process.

A fork must not use what it inherits, nor close it while the parent is reading: closing would free
the parent's place in the table of readers, and pages would change under it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import lmdb

from checkpoint.errors import StorageRefusedError
from checkpoint.state_store.replica_directory import (
    ReplicaDirectory,
    is_mapped_generation,
    refusing,
)

MAX_READERS = 1024

_FIRST_MAP_BYTES = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DATABASES = (b"d", b"x", b"m")
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DamagedReplicaError(Exception):
    """A replica is not what it should be: rebuild it."""


class MapBusyError(Exception):
    """The map must grow, and versions are open in this process: go on in a new generation."""


@dataclass(eq=False)
class Environment:
    """A generation that is open in this process."""

    path: str
    is_mapped: bool
    env: lmdb.Environment
    data: Any
    index: Any
    meta: Any
    users: int = 0
    is_retired: bool = False
    pid: int = field(default_factory=os.getpid)
    reading: set[lmdb.Transaction[bytes]] = field(default_factory=set)

    @property
    def generation(self) -> str:
        """The name of the generation."""
        return os.path.basename(self.path)

    def begin(self) -> lmdb.Transaction[bytes]:
        """Begin to read the newest version; to be ended by :meth:`end`."""
        self.env.reader_check()
        try:
            txn = self.env.begin(db=self.data)
        except lmdb.MapResizedError:
            self.adopt_size()
            txn = self.env.begin(db=self.data)
        self.reading.add(txn)
        return txn

    def end(self, txn: lmdb.Transaction[bytes]) -> None:
        """End what :meth:`begin` began, unless it was begun by the process that forked this one."""
        if self.pid == os.getpid():
            self.reading.discard(txn)
            txn.abort()

    def grow(self) -> None:
        """Double the map, after a write that found it full.

        Raises MapBusyError or StorageRefusedError.
        """
        map_bytes = 2 * self.env.info()["map_size"]
        if self.is_mapped:
            reserve(self.path, map_bytes)
        self._resize(map_bytes)

    def adopt_size(self) -> None:
        """Take the size that another process gave the map. Raises MapBusyError."""
        self._resize(0)

    def used_bytes(self) -> int:
        """Return how much of the file was ever used."""
        return int(self.env.info()["last_pgno"] + 1) * int(self.env.stat()["psize"])

    def live_bytes(self) -> int:
        """Return how much of the file holds the newest version."""
        with self.env.begin() as txn:
            return sum(live_bytes(txn, database) for database in (self.data, self.index, self.meta))

    def _resize(self, map_bytes: int) -> None:
        with _table.lock:
            if self.users > 1:
                raise MapBusyError(self.path)
            with translating("map", self.path):
                self.env.set_mapsize(map_bytes)


class _Table:
    """The environments of this process, least used first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.open: OrderedDict[str, Environment] = OrderedDict()
        self.retired: list[Environment] = []

    def forget_parents(self) -> None:
        """Begin anew in a process that was forked."""
        self.lock = threading.RLock()
        for environment in (*self.open.values(), *self.retired):
            if environment.users:
                for value in (environment.env, *environment.reading):
                    _never_free(value)
            else:
                environment.env.close()
        self.open.clear()
        self.retired.clear()


_table = _Table()
os.register_at_fork(after_in_child=_table.forget_parents)


def acquire_open(directory: ReplicaDirectory, generation: str) -> Environment | None:
    """Return the environment of a generation if it is open in this process; else None.

    It is to be given back by :func:`release`.
    """
    with _table.lock:
        environment = _table.open.get(directory.path)
        if environment is None or environment.generation != generation:
            return None
        environment.users += 1
        _table.open.move_to_end(directory.path)
        return environment


def acquire(directory: ReplicaDirectory, generation: str, max_open: int) -> Environment:
    """Return the environment of a generation, opened if it is not; give it back by release.

    The lock of *directory* must be held: opening waits for who is writing, without a limit. Raises
    DamagedReplicaError or StorageRefusedError.
    """
    with _table.lock:
        environment = acquire_open(directory, generation)
        if environment is not None:
            return environment
        if directory.path in _table.open:
            _retire(_table.open.pop(directory.path))
        environment = _open(directory, generation)
        environment.users = 1
        _table.open[directory.path] = environment
        for path in [path for path, other in _table.open.items() if not other.users]:
            if len(_table.open) <= max_open:
                break
            _table.open.pop(path).env.close()
    return environment


def release(environment: Environment) -> None:
    """Give back what :func:`acquire` returned."""
    if environment.pid != os.getpid():
        return
    with _table.lock:
        environment.users -= 1
        if environment.is_retired and not environment.users:
            _table.retired.remove(environment)
            environment.env.close()


def close_if_unused(directory: ReplicaDirectory) -> None:
    """Close the environment of a directory that nobody will open again."""
    with _table.lock:
        environment = _table.open.get(directory.path)
        if environment is not None and not environment.users:
            _table.open.pop(directory.path).env.close()


def create_environment(path: str, wants_map: bool, map_bytes: int) -> Environment:
    """Make an empty environment in the directory *path*, which is in no table."""
    with translating("create", path):
        with _open_lmdb(path, _FIRST_MAP_BYTES, False, True) as env:
            for name in _DATABASES:
                env.open_db(name)
        is_mapped = wants_map and _can_reserve(path, map_bytes)
        env = _open_lmdb(path, map_bytes, is_mapped, False)
        return Environment(path, is_mapped, env, *_open_databases(env))


def copy_compact(environment: Environment, path: str, map_bytes: int) -> None:
    """Write the newest version into the directory *path*, without the room that was freed."""
    with translating("copy", environment.path):
        environment.env.copy(path, compact=True)
    if environment.is_mapped:
        size_bytes = os.stat(os.path.join(path, "data.mdb")).st_size
        reserve(path, -(-max(map_bytes, size_bytes) // _PAGE_BYTES) * _PAGE_BYTES)


def live_bytes(txn: lmdb.Transaction[bytes], database: Any) -> int:
    """Return the size of the pages of a database."""
    stat = txn.stat(database)
    pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return int(pages * stat["psize"])


def reserve(path: str, map_bytes: int) -> None:
    """Reserve the room of a map: a full disk must be found now, not by a signal while writing."""
    with refusing(f"reserve {map_bytes} bytes for the replica in", path):
        fd = os.open(os.path.join(path, "data.mdb"), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, map_bytes)
        finally:
            os.close(fd)


@contextlib.contextmanager
def translating(action: str, path: str) -> Iterator[None]:
    """Turn errors of LMDB that are no damage into the error that says: this did not happen."""
    try:
        with refusing(f"{action} the replica in", path):
            yield
    except (lmdb.MapFullError, lmdb.MapResizedError):
        raise
    except (lmdb.DiskError, lmdb.MemoryError, lmdb.ReadersFullError) as error:
        raise StorageRefusedError(
            f"cannot {action} the replica in {path}: {error}; the state itself is intact; look "
            "at free space, limits of address space (ulimit -v) and processes that stopped reading"
        ) from error


def _open(directory: ReplicaDirectory, generation: str) -> Environment:
    path = directory.child(generation)
    try:
        size_bytes = os.stat(os.path.join(path, "data.mdb")).st_size
    except OSError as error:
        raise DamagedReplicaError(f"{path} has no data: {error}") from error
    if size_bytes < 2 * _PAGE_BYTES:
        raise DamagedReplicaError(f"{path} has {size_bytes} bytes of data")
    is_mapped = is_mapped_generation(generation)
    try:
        with translating("open", path):
            # A file that is not reserved is as large as what was used of it: leave it room.
            map_bytes = size_bytes if is_mapped else 2 * size_bytes
            env = _open_lmdb(path, max(map_bytes, _FIRST_MAP_BYTES), is_mapped, False)
    except lmdb.Error as error:
        raise DamagedReplicaError(f"{path} cannot be opened: {error}") from error
    try:
        used_bytes = int(env.info()["last_pgno"] + 1) * int(env.stat()["psize"])
        if used_bytes > size_bytes:  # reading past the end of the file would be a signal
            raise DamagedReplicaError(f"{path} has {size_bytes} bytes of {used_bytes}")
        return Environment(path, is_mapped, env, *_open_databases(env))
    except lmdb.Error as error:
        env.close()
        raise DamagedReplicaError(f"{path} cannot be read: {error}") from error
    except DamagedReplicaError:
        env.close()
        raise


def _open_databases(env: lmdb.Environment) -> tuple[Any, Any, Any]:
    # Each in a write transaction, as py-lmdb forgets what a read transaction opened.
    try:
        data, index, meta = (env.open_db(name, create=False) for name in _DATABASES)
    except lmdb.MapResizedError:
        env.set_mapsize(0)
        data, index, meta = (env.open_db(name, create=False) for name in _DATABASES)
    return data, index, meta


def _open_lmdb(path: str, map_bytes: int, is_mapped: bool, create: bool) -> lmdb.Environment:
    return lmdb.open(
        path,
        map_size=map_bytes,
        metasync=False,
        sync=False,
        mode=0o600,
        create=create,
        readahead=False,
        writemap=is_mapped,
        meminit=False,
        max_readers=MAX_READERS,
        max_dbs=3,
    )


def _can_reserve(path: str, map_bytes: int) -> bool:
    if not hasattr(os, "posix_fallocate"):  # macOS
        return False
    try:
        reserve(path, map_bytes)
    except StorageRefusedError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _NO_FALLOCATE:
            return False
        raise
    return True


def _retire(environment: Environment) -> None:
    if environment.users:
        environment.is_retired = True
        _table.retired.append(environment)
    else:
        environment.env.close()


def _never_free(value: object) -> None:
    """Keep an object that was inherited, even when this process ends."""
    import ctypes  # noqa: PLC0415 (only in a process that was forked while its parent was reading)

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
