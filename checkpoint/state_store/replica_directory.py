"""Directories of replicas: ownership, the current generation, and the lock.

::

    <root>/<stream>/<boot id>/<operator>/<store>/p00000-of-00004/
        lock                     held while applying, rebuilding or sweeping
        cur                      name of the current generation; replaced by rename
        g<version>-<random>-w/   a generation: data.mdb and its lock file (-w: written through map)
        tmp-<random>/            a generation that is being built

Nothing here is synced; the boot id makes that safe, because it changes after a power loss. A root
belongs to one host, and to processes that see each other (one pid namespace).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from checkpoint.errors import StorageRefusedError
from checkpoint.log.version_records import StoreId
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
