"""Files in a directory of this machine, or of a mounted file system with hard links."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from checkpoint.errors import (
    AlreadyExistsError,
    CorruptCheckpointError,
    Damage,
    NotDurableError,
    StorageRefusedError,
    StorageUncertainError,
    UntrustedFileError,
)
from checkpoint.storage.files import (
    Names,
    is_name,
    is_temporary,
    require_name,
    require_prefix,
    temporary_name,
)

ALLOW_VARIABLE = "CHECKPOINT_ALLOW_WRITABLE"
"""Set to 1 in the environment: all who can write a checkpoint are trusted with running code."""

KEY_FILE_VARIABLE = "CHECKPOINT_KEY_FILE"
"""In the environment: path of the file with the key that signs checkpoints."""

OTHERS_WRITE = 0o022
_PRIVATE = (0o700, 0o600)
_PUBLIC = (0o777, 0o666)
"""Modes of directories and files, before the umask."""
_TEMP_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe in the place of a file must not wait for a writer.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_LINK_REFUSALS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EMLINK,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    }
)
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_REMEDIES = {
    errno.ENOENT: "create the directory again, or restore it; it is not recreated while in use",
    errno.ENOSPC: "free space (or inodes) on that disk",
    errno.EDQUOT: "free space, or raise the quota",
    errno.EROFS: "mount that file system writable",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}

# Directories whose own entries are known to be durable: per process, since it is a fact about the
# disk; cleared when it proves wrong.
_durable_directories: set[str] = set()


def require_own(path: str, status: os.stat_result, is_above: bool = False) -> None:
    """Raise UntrustedFileError if others can write a file or directory, or it belongs to others."""
    mode = stat.S_IMODE(status.st_mode)
    is_link = stat.S_ISLNK(status.st_mode)
    is_sticky = is_above and bool(mode & stat.S_ISVTX)
    remedy = "chmod go-w"
    if status.st_uid not in (0, os.geteuid()):
        found = f"{'is a symbolic link of' if is_link else 'belongs to'} user id {status.st_uid}"
        remedy = "give the path it leads to" if is_link else f"chown {os.geteuid()}"
    elif mode & OTHERS_WRITE and not is_sticky and not is_link:
        found = f"can be written by others (mode {mode:04o})"
    else:
        return
    raise untrusted(path, found, f"user id {os.geteuid()}", remedy)


def untrusted(path: str, found: str, user: str, remedy: str) -> UntrustedFileError:
    """Return the error for a file that someone other than *user* could have written."""
    return UntrustedFileError(
        path,
        found,
        f"that only {user} can write it, as unpickling it runs code",
        f"{remedy}, or, if all users who can write there are trusted with running code, set "
        f"{ALLOW_VARIABLE}=1; a checkpoint of dstreams can be signed instead "
        f"({KEY_FILE_VARIABLE})",
        Damage.WRITABLE,
    )


@dataclass(frozen=True)
class LocalFiles:
    """Files below the directory *root*, readable and writable by their owner only.

    A file is created in these steps::

        open a hidden temporary file      O_EXCL, 0600, a unique name, in the same directory
        write, fsync                      now the bytes survive a power loss
        link to the final name            fails if the name is taken; a rename would replace
        unlink the temporary name
        fsync the directory               now the name survives a power loss

    A process that is killed on the way leaves at worst a hidden file, which is never listed;
    ``dstreams checkpoint gc`` deletes it.

    The root itself is created by :func:`checkpoint.open_files` only: if it is deleted while a
    stream runs, the next create fails instead of continuing in an empty directory.

    Args:
        root: path of the directory; made absolute at once, because workers run elsewhere.
        is_private: the owner alone may read the files; else the umask decides.
        is_guarded: refuse to read a file that another user could have written.
    """

    root: str
    is_private: bool = True
    is_guarded: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", os.path.abspath(self.root))

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    @property
    def at_once(self) -> int:
        return 1

    @property
    def _modes(self) -> tuple[int, int]:
        return _PRIVATE if self.is_private else _PUBLIC

    def make_root(self) -> None:
        """Create the root and missing directories above it, durably."""
        missing = []
        directory = self.root
        while not os.path.isdir(directory) and directory != os.path.dirname(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        with _refusing("create the directory", self.root):
            for directory in reversed(missing):
                _make_directory(directory, self._modes[0])
            os.listdir(self.root)  # fails if a file is in its place
        with _refusing("create a file in", self.root):
            if not os.access(self.root, os.W_OK | os.X_OK):
                is_read_only = os.statvfs(self.root).f_flag & os.ST_RDONLY
                number = errno.EROFS if is_read_only else errno.EACCES
                raise OSError(number, os.strerror(number))

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        path = self._path(name)
        with _refusing("create a file in", os.path.dirname(path)):
            temp, fd = self._open_temp(os.path.dirname(path))
        with _removing(temp):
            size_bytes = _write_synced(fd, chunks, path)
            is_ours = _link(temp, path)
        # Also if the file is of another writer: AlreadyExistsError promises that it is durable.
        _sync_name(path)
        if not is_ours:
            raise AlreadyExistsError(f"{path} exists already, and files are created only once")
        return size_bytes

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        path = self._path(name)
        with _refusing("replace", path):
            status = os.stat(path, follow_symlinks=False)
            temp, fd = self._open_temp(os.path.dirname(path))
        with _removing(temp):
            # The owner must be able to read it.
            owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
            _write_synced(fd, chunks, path, owner)
            try:
                os.rename(temp, path)
            except OSError as error:
                kind = StorageRefusedError if error.errno in _LINK_REFUSALS else None
                raise (kind or StorageUncertainError)(_message("replace", path, error)) from error
        _sync_name(path)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        path = self._path(name)
        fd = _open_regular(path, self.is_guarded)
        try:
            while True:
                with _refusing("read", path):
                    chunk = os.read(fd, chunk_bytes)
                if not chunk:
                    return
                yield chunk
        finally:
            os.close(fd)

    def read(self, name: str) -> bytes:
        return b"".join(self.read_chunks(name, 1 << 20))

    def exists(self, name: str) -> bool:
        path = self._path(name)
        with _refusing("look up", path):
            try:
                return stat.S_ISREG(os.lstat(path).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def list(self, prefix: str) -> Names:
        directory = require_prefix(prefix).rpartition("/")[0]
        with _refusing("list", self.root):
            os.stat(self.root)  # a missing root is an error, not an empty listing
            return sorted(name for name in self._walk(directory) if name.startswith(prefix))

    def directories(self, directory: str = "") -> Names:
        path = self._path(directory) if directory else self.root
        with _refusing("list", self.root):
            os.stat(self.root)
            try:
                entries = os.scandir(path)
            except (FileNotFoundError, NotADirectoryError):
                return []
            with entries:
                found = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(entry.name for entry in found if is_name(entry.name))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with _refusing("delete", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def temporary(self) -> Names:
        """Return the names of temporary files, of running writers and of killed ones."""
        return sorted(
            os.path.relpath(os.path.join(directory, name), self.root)
            for directory, _, names in os.walk(self.root)
            for name in names
            if is_temporary(name)
        )

    def delete_temporary(self, name: str) -> None:
        path = os.path.join(self.root, name)
        with _refusing("delete", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def _path(self, name: str) -> str:
        return os.path.join(self.root, require_name(name))

    def _walk(self, directory: str) -> Iterator[str]:
        try:
            entries = os.scandir(os.path.join(self.root, directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                name = f"{directory}/{entry.name}" if directory else entry.name
                if not is_name(name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(name)
                elif entry.is_file(follow_symlinks=False):
                    yield name

    def _open_temp(self, directory: str) -> tuple[str, int]:
        temp = os.path.join(directory, temporary_name())
        try:
            self._make_directories(directory)
            return temp, os.open(temp, _TEMP_FLAGS, self._modes[1])
        except FileNotFoundError:
            _durable_directories.clear()  # a known directory was deleted
        self._make_directories(directory)
        return temp, os.open(temp, _TEMP_FLAGS, self._modes[1])

    def _make_directories(self, directory: str) -> None:
        """Create *directory* and those above it, up to the root, and sync their entries.

        An existing one may have been created by another process and not be synced yet, so its entry
        is synced as well, once per process.
        """
        if directory == self.root or directory in _durable_directories:
            return
        self._make_directories(os.path.dirname(directory))
        _make_directory(directory, self._modes[0])
        _durable_directories.add(directory)


def _make_directory(directory: str, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, mode)
    _sync_directory(os.path.dirname(directory))


@contextlib.contextmanager
def _removing(temp: str) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temp)


def _write_synced(
    fd: int,
    chunks: Iterable[bytes | memoryview],
    path: str,
    owner: tuple[int, int] | None = None,
) -> int:
    """Write *chunks*, sync and close; an error of the iterator itself is passed on."""
    size_bytes = 0
    try:
        if owner is not None:
            with _refusing("set the owner of", path):
                os.fchown(fd, *owner)
        for chunk in chunks:
            rest = memoryview(chunk).cast("B")
            size_bytes += len(rest)
            with _refusing("write", path):
                while rest:
                    rest = rest[os.write(fd, rest) :]
        with _refusing("sync", path):
            os.fsync(fd)
    finally:
        # Everything was synced, or has failed: an error of close adds nothing.
        with contextlib.suppress(OSError):
            os.close(fd)
    return size_bytes


def _link(temp: str, path: str) -> bool:
    """Give the file *temp* its final name; False if another file has that name."""
    try:
        os.link(temp, path)
    except FileExistsError as error:
        # NFS repeats a request whose answer was lost, and then finds its own link.
        try:
            return os.stat(temp).st_nlink == 2
        except OSError:
            raise StorageUncertainError(_message("link", path, error)) from error
    except OSError as error:
        if error.errno in _LINK_REFUSALS:
            raise StorageRefusedError(_message("link", path, error)) from error
        raise StorageUncertainError(_message("link", path, error)) from error
    return True


def _sync_name(path: str) -> None:
    try:
        _sync_directory(os.path.dirname(path))
    except OSError as error:
        raise NotDurableError(_message("sync the directory of", path, error)) from error


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_regular(path: str, is_guarded: bool) -> int:
    """Open *path* for reading if it is a regular file, without blocking."""
    try:
        fd = os.open(path, _READ_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_regular(path, "is a symbolic link") from error
        raise StorageRefusedError(_message("open", path, error)) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _not_regular(path, "is a directory, pipe or device")
        if is_guarded:
            require_own(path, status)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _not_regular(path: str, found: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        path, found, "a regular file", "remove it and restore the file from a copy", Damage.NO_FILE
    )


@contextlib.contextmanager
def _refusing(action: str, path: str) -> Iterator[None]:
    """Raise an OSError as StorageRefusedError: it did not happen."""
    try:
        yield
    except OSError as error:
        raise StorageRefusedError(_message(action, path, error)) from error


def _message(action: str, path: str, error: OSError) -> str:
    return f"cannot {action} {path}: {error.strerror or error}; {_remedy(action, error)}"


def _remedy(action: str, error: OSError) -> str:
    if action == "create the directory" and error.errno == errno.ENOENT:
        return "its file system cannot hold files; give a directory on a disk"
    if action == "link" and error.errno in _NO_HARD_LINKS:
        return "the file system needs hard links, move the checkpoint to one that has them"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"give user id {os.geteuid()} the permission"
    return _REMEDIES.get(error.errno or 0, "check that disk and its mount")
