"""Directories of replicas: whose they are, which generation counts, and who may change it.

::

    <root>/<stream>/<boot id>/<operator>/<store>/p00000-of-00004/
        lock                     held by who applies, rebuilds or sweeps
        cur                      name of the generation that counts; replaced by rename
        g<version>-<random>-w/   a generation: data.mdb and its lock file (-w: written through map)
        tmp-<random>/            a generation that is being built

Nothing here is synced. The boot id makes that safe: after a power loss its name is another one. A
root is for one host, and for processes that see each other (one pid namespace).
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
from checkpoint.storage.names import uid_part

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_GENERATION = re.compile(r"g\d+-[0-9a-f]{16}(-w)?")
_TEMP = re.compile(r"tmp-[0-9a-f]{16}")
_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05

REMEDY = (
    "the state itself is intact: free room on that file system, or give another directory for "
    "replicas, of which each partition needs 4 MiB or more, by spark.dstreams.state.localDirectory"
)
"""What to do about a file system that refuses replicas."""

_own_boot_id = new_suffix()


@functools.cache
def boot_id() -> str:
    """Return a name for the time since the kernel of this host was started.

    Where the kernel does not tell, it is a name for this process: replicas are then not shared.
    """
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return uid_part(file.read().strip())
    except OSError:
        return f"process-{_own_boot_id}"


def require_private(root: str) -> None:
    """Make the directory of all replicas if it is missing, and require that it is ours alone."""
    with refusing("make the directory of replicas", root):
        make_directories(root)
        status = os.lstat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise StorageRefusedError(f"{root} is no directory, or a link to one; give the path of one")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise StorageRefusedError(
            f"{root} belongs to user {status.st_uid} and has mode {status.st_mode & 0o777:04o}; "
            f"replicas of state need a directory of user {os.geteuid()} that no other can "
            "write, mode 0700: have it removed, or give another one"
        )


def make_directories(path: str) -> None:
    """Make a directory and those above it where they are missing, all of them 0700."""
    # Not os.makedirs, which gives its mode to the last of them alone.
    if not os.path.isdir(path):
        if os.path.dirname(path) != path:
            make_directories(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def stream_directory(root: str, stream_id: str) -> str:
    """Return where the replicas of a stream are."""
    return os.path.join(root, uid_part(stream_id))


def host_directory(root: str, stream_id: str, boot: str) -> str:
    """Return where the replicas of a stream are, since the host was started."""
    return os.path.join(stream_directory(root, stream_id), boot)


def newest_change_s(directory: str) -> float:
    """Return when something in a directory was changed last, as its file system counts."""
    newest_s = 0.0
    for path, _, names in os.walk(directory):
        for name in ("", *names):
            with contextlib.suppress(OSError):
                newest_s = max(newest_s, os.lstat(os.path.join(path, name)).st_mtime)
    return newest_s


def now_s(root: str) -> float:
    """Return what time it is, as the file system of a directory counts."""
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
    """Turn an OSError into the error that says: this did not happen."""
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
        """Return the directory of *store* below that of the stream."""
        name = f"p{store.partition:05d}-of-{store.partition_count:05d}"
        parts = (uid_part(store.operator_uid), uid_part(store.store), name)
        return cls(os.path.join(host, *parts))

    def child(self, name: str) -> str:
        """Return the path of what is in it."""
        return os.path.join(self.path, name)

    def current(self) -> str | None:
        """Return the name of the generation that counts, None if there is none."""
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
        """Hold the lock of this directory, which is made if it is missing."""
        deadline = time.monotonic() + timeout_ms / 1000
        fd = self._lock(deadline, timeout_ms)
        try:
            yield
        finally:
            os.close(fd)

    def new_temp(self) -> str:
        """Make a directory for a generation to be built in; the lock must be held."""
        path = self.child(f"tmp-{new_suffix()}")
        with refusing("make the directory", path):
            os.mkdir(path, 0o700)
        return path

    def publish(self, temp: str, version: int, is_mapped: bool) -> None:
        """Make a finished generation the one that counts; the lock must be held."""
        name = f"g{version}-{new_suffix()}{'-w' if is_mapped else ''}"
        with refusing("publish the generation", self.child(name)):
            os.rename(temp, self.child(name))
            self._set_current(name)
        self.sweep()

    def drop_current(self, generation: str) -> None:
        """Let the next open rebuild, if *generation* still counts."""
        with contextlib.suppress(OSError, StorageRefusedError):
            if self.current() == generation:
                os.unlink(self.child("cur"))

    def mark_used(self) -> None:
        """Note the time, as writing through a map is not noted everywhere."""
        with contextlib.suppress(OSError):
            os.utime(self.child("lock"))

    def sweep(self) -> list[str]:
        """Delete all generations that do not count, and return their names; the lock must be held.

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
                    "or very slow; end it, or give a longer time limit"
                )
            never.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def delete_tree(path: str) -> None:
    """Delete a file or a directory with all that is in it, as far as that works."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        os.unlink(path)


def is_mapped_generation(name: str) -> bool:
    """Whether a generation is written through its map; all its users must do it the same way."""
    return name.endswith("-w")


def _try_lock(fd: int, path: str) -> bool:
    """Lock *fd*; False if another has it, or if it is no longer the file at *path*."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
