"""Files of replicas: ownership, the current generation, the lock, and open environments.

::

    <root>/<stream>/<boot id>/<operator>/<store>/p00000-of-00004/
        lock                     held while applying, rebuilding or sweeping
        cur                      name of the current generation; replaced by rename
        g<version>-<random>-w/   a generation: data.mdb and its lock file (-w: written through map)
        tmp-<random>/            a generation that is being built

Nothing here is synced; the boot id makes that safe, because it changes after a power loss. A root
belongs to one host, and to processes that see each other (one pid namespace).

An LMDB environment for each generation stays open between tasks: opening one takes a quarter of a
millisecond, and touching a fresh mapping 15 more. The least recently used ones are closed first. A
process must open a file only once, so the table is global. A forked child must neither use nor
close what it inherits while its parent is reading: closing would free the parent's reader slot, and
pages could change under the parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import lmdb

from checkpoint.errors import StorageRefusedError
from checkpoint.log.batch_records import StoreId
from checkpoint.state_store.store_files import new_suffix
from checkpoint.storage.files import uid_part

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_GENERATION = re.compile(r"g\d+-[0-9a-f]{16}(-w)?")
_TEMP = re.compile(r"tmp-[0-9a-f]{16}")
_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05

REMEDY = (
    "the state itself is intact: free space on that file system (each partition needs 4 MiB or "
    "more), or set spark.dstreams.state.localDirectory to another directory"
)
"""The remedy in errors about the local file system."""

_own_boot_id = new_suffix()
MAX_READERS = 1024
_FIRST_MAP_BYTES = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DATABASES = (b"d", b"x", b"m")
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@functools.cache
def boot_id() -> str:
    """Return the boot id of this host.

    Without one it is a name for this process, and processes do not share replicas.
    """
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return uid_part(file.read().strip())
    except OSError:
        return f"process-{_own_boot_id}"


def require_private(root: str) -> None:
    """Create the directory of all replicas if missing, and require that it is private."""
    with refusing("make the directory of replicas", root):
        make_directories(root)
        status = os.lstat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise StorageRefusedError(
            f"{root} is not a directory, or is a link; pass the path of a directory"
        )
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise StorageRefusedError(
            f"{root} belongs to user {status.st_uid} and has mode {status.st_mode & 0o777:04o}; "
            f"replicas need a directory that only user {os.geteuid()} can write, mode 0700: "
            "remove it, or use another directory"
        )


def make_directories(path: str) -> None:
    """Create a directory and its missing parents, all with mode 0700."""
    # os.makedirs applies its mode only to the last directory.
    if not os.path.isdir(path):
        if os.path.dirname(path) != path:
            make_directories(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def stream_directory(root: str, stream_id: str) -> str:
    """Return the directory of a stream's replicas."""
    return os.path.join(root, uid_part(stream_id))


def host_directory(root: str, stream_id: str, boot: str) -> str:
    """Return the directory of a stream's replicas for one boot of the host."""
    return os.path.join(stream_directory(root, stream_id), boot)


def newest_change_s(directory: str) -> float:
    """Return the newest modification time below a directory, by the clock of its file system."""
    newest_s = 0.0
    for path, _, names in os.walk(directory):
        for name in ("", *names):
            with contextlib.suppress(OSError):
                newest_s = max(newest_s, os.lstat(os.path.join(path, name)).st_mtime)
    return newest_s


def now_s(root: str) -> float:
    """Return the time, by the clock of the file system of a directory."""
    path = os.path.join(root, f"now.{new_suffix()}")
    with refusing("write", path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(fd).st_mtime
        finally:
            os.close(fd)
            os.unlink(path)


@contextlib.contextmanager
def refusing(action: str, path: str) -> Iterator[None]:
    """Turn an OSError into StorageRefusedError."""
    try:
        yield
    except OSError as error:
        raise StorageRefusedError(
            f"cannot {action} {path}: {error.strerror or error}; {REMEDY}"
        ) from error


@dataclass(frozen=True)
class ReplicaDirectory:
    """The directory of the replica of one partition."""

    path: str

    @classmethod
    def of(cls, host: str, store: StoreId) -> ReplicaDirectory:
        """Return the directory of *store* below the directory of the stream."""
        name = f"p{store.partition:05d}-of-{store.partition_count:05d}"
        parts = (uid_part(store.operator_uid), uid_part(store.store), name)
        return cls(os.path.join(host, *parts))

    def child(self, name: str) -> str:
        """Return the path of an entry."""
        return os.path.join(self.path, name)

    def current(self) -> str | None:
        """Return the name of the current generation, None if it has none."""
        with refusing("read", self.child("cur")):
            try:
                fd = os.open(self.child("cur"), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                name = os.read(fd, 100).decode("ascii", "replace")
            finally:
                os.close(fd)
        return name if _GENERATION.fullmatch(name) else None

    @contextlib.contextmanager
    def locked(self, timeout_ms: int) -> Iterator[None]:
        """Hold the lock of this directory, creating the directory if missing."""
        deadline = time.monotonic() + timeout_ms / 1000
        fd = self._lock(deadline, timeout_ms)
        try:
            yield
        finally:
            os.close(fd)

    def new_temp(self) -> str:
        """Create a directory for building a generation. The lock must be held."""
        path = self.child(f"tmp-{new_suffix()}")
        with refusing("make the directory", path):
            os.mkdir(path, 0o700)
        return path

    def publish(self, temp: str, version: int, is_mapped: bool) -> None:
        """Make a finished generation current. The lock must be held."""
        name = f"g{version}-{new_suffix()}{'-w' if is_mapped else ''}"
        with refusing("publish the generation", self.child(name)):
            os.rename(temp, self.child(name))
            self._set_current(name)
        self.sweep()

    def drop_current(self, generation: str) -> None:
        """Let the next open rebuild the replica if *generation* is still current."""
        with contextlib.suppress(OSError, StorageRefusedError):
            if self.current() == generation:
                os.unlink(self.child("cur"))

    def mark_used(self) -> None:
        """Update the modification time; not every file system does for writes through a map."""
        with contextlib.suppress(OSError):
            os.utime(self.child("lock"))

    def sweep(self) -> list[str]:
        """Delete all other generations, and return their names. The lock must be held.

        Processes that have one open keep its files until they close it.
        """
        current = self.current()
        swept = []
        with contextlib.suppress(FileNotFoundError), refusing("list", self.path):
            for name in os.listdir(self.path):
                is_old = _GENERATION.fullmatch(name) and name != current
                if is_old or _TEMP.fullmatch(name) or name.startswith("cur."):
                    delete_tree(self.child(name))
                    swept.append(name)
        return sorted(swept)

    def _set_current(self, name: str) -> None:
        temp = self.child(f"cur.{new_suffix()}")
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, name.encode("ascii"))
        finally:
            os.close(fd)
        os.rename(temp, self.child("cur"))

    def _lock(self, deadline: float, timeout_ms: int) -> int:
        path = self.child("lock")
        never = threading.Event()
        wait_s = _FIRST_WAIT_S
        while True:
            with refusing("lock", path):
                make_directories(self.path)
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                fd = os.open(path, flags, 0o600)
            if _try_lock(fd, path):
                return fd
            os.close(fd)
            if time.monotonic() > deadline:
                raise StorageRefusedError(
                    f"{path} was held by another process for {timeout_ms} ms, which may be stopped "
                    "or very slow; kill it, or raise the time limit"
                )
            never.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def delete_tree(path: str) -> None:
    """Delete a file or a directory tree; errors are ignored."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        os.unlink(path)


def is_mapped_generation(name: str) -> bool:
    """Return whether a generation is written through its map; all its users must agree."""
    return name.endswith("-w")


def _try_lock(fd: int, path: str) -> bool:
    """Lock *fd*; False if another process holds the lock, or *path* is another file now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


class DamagedReplicaError(Exception):
    """A replica is damaged and must be rebuilt."""


class MapBusyError(Exception):
    """The map must grow while versions are open in this process; a new generation is needed."""


@dataclass(eq=False)
class Environment:
    """An open generation."""

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
        """Begin a read transaction; end it with :meth:`end`."""
        self.env.reader_check()
        try:
            txn = self.env.begin(db=self.data)
        except lmdb.MapResizedError:
            self.adopt_size()
            txn = self.env.begin(db=self.data)
        self.reading.add(txn)
        return txn

    def end(self, txn: lmdb.Transaction[bytes]) -> None:
        """End a read transaction, unless the parent process began it."""
        if self.pid == os.getpid():
            self.reading.discard(txn)
            txn.abort()

    def grow(self) -> None:
        """Double the map after a write found it full.

        Raises MapBusyError or StorageRefusedError.
        """
        map_bytes = 2 * self.env.info()["map_size"]
        if self.is_mapped:
            reserve(self.path, map_bytes)
        self._resize(map_bytes)

    def adopt_size(self) -> None:
        """Adopt the map size that another process set. Raises MapBusyError."""
        self._resize(0)

    def used_bytes(self) -> int:
        """Return the size of the used part of the file."""
        return int(self.env.info()["last_pgno"] + 1) * int(self.env.stat()["psize"])

    def live_bytes(self) -> int:
        """Return the size of the newest version."""
        with self.env.begin() as txn:
            return sum(live_bytes(txn, database) for database in (self.data, self.index, self.meta))

    def _resize(self, map_bytes: int) -> None:
        with _table.lock:
            if self.users > 1:
                raise MapBusyError(self.path)
            with translating("map", self.path):
                self.env.set_mapsize(map_bytes)


class _Table:
    """The environments of this process, least recently used first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.open: OrderedDict[str, Environment] = OrderedDict()
        self.retired: list[Environment] = []

    def forget_parents(self) -> None:
        """Reset the table in a forked child."""
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
    """Return the environment of a generation if it is open, else None; :func:`release` it."""
    with _table.lock:
        environment = _table.open.get(directory.path)
        if environment is None or environment.generation != generation:
            return None
        environment.users += 1
        _table.open.move_to_end(directory.path)
        return environment


def acquire(directory: ReplicaDirectory, generation: str, max_open: int) -> Environment:
    """Return the environment of a generation, opening it if needed; :func:`release` it.

    The lock of *directory* must be held, because opening waits for a writer without limit. Raises
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
    """Release an acquired environment."""
    if environment.pid != os.getpid():
        return
    with _table.lock:
        environment.users -= 1
        if environment.is_retired and not environment.users:
            _table.retired.remove(environment)
            environment.env.close()


def close_if_unused(directory: ReplicaDirectory) -> None:
    """Close the unused environment of a directory that is about to be deleted."""
    with _table.lock:
        environment = _table.open.get(directory.path)
        if environment is not None and not environment.users:
            _table.open.pop(directory.path).env.close()


def create_environment(path: str, wants_map: bool, map_bytes: int) -> Environment:
    """Create an empty environment in the directory *path*, outside the table."""
    with translating("create", path):
        with _open_lmdb(path, _FIRST_MAP_BYTES, False, True) as env:
            for name in _DATABASES:
                env.open_db(name)
        is_mapped = wants_map and _can_reserve(path, map_bytes)
        env = _open_lmdb(path, map_bytes, is_mapped, False)
        return Environment(path, is_mapped, env, *_open_databases(env))


def copy_compact(environment: Environment, path: str, map_bytes: int) -> None:
    """Write the newest version to the directory *path*, without free pages."""
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
    """Reserve the space of a map, so that a full disk is an error now, not a signal later."""
    with refusing(f"reserve {map_bytes} bytes for the replica in", path):
        fd = os.open(os.path.join(path, "data.mdb"), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, map_bytes)
        finally:
            os.close(fd)


@contextlib.contextmanager
def translating(action: str, path: str) -> Iterator[None]:
    """Turn LMDB errors that are not damage into StorageRefusedError."""
    try:
        with refusing(f"{action} the replica in", path):
            yield
    except (lmdb.MapFullError, lmdb.MapResizedError):
        raise
    except (lmdb.DiskError, lmdb.MemoryError, lmdb.ReadersFullError) as error:
        raise StorageRefusedError(
            f"cannot {action} the replica in {path}: {error}; the state itself is intact; check "
            "free space, address space limits (ulimit -v) and processes that stopped while reading"
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
            # An unreserved file ends after its last used page: leave room to grow.
            map_bytes = size_bytes if is_mapped else 2 * size_bytes
            env = _open_lmdb(path, max(map_bytes, _FIRST_MAP_BYTES), is_mapped, False)
    except lmdb.Error as error:
        raise DamagedReplicaError(f"{path} cannot be opened: {error}") from error
    try:
        used_bytes = int(env.info()["last_pgno"] + 1) * int(env.stat()["psize"])
        if used_bytes > size_bytes:  # reading past the end of the file would raise a signal
            raise DamagedReplicaError(f"{path} has {size_bytes} bytes of {used_bytes}")
        return Environment(path, is_mapped, env, *_open_databases(env))
    except lmdb.Error as error:
        env.close()
        raise DamagedReplicaError(f"{path} cannot be read: {error}") from error
    except DamagedReplicaError:
        env.close()
        raise


def _open_databases(env: lmdb.Environment) -> tuple[Any, Any, Any]:
    # Outside a read transaction, because py-lmdb forgets databases opened in one.
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
    """Keep an inherited object alive until this process ends."""
    import ctypes  # noqa: PLC0415 (only in a process that was forked while its parent was reading)

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
