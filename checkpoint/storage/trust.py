"""Trust: whether others could have written what is about to be unpickled.

Unpickling runs what the pickle says. So before anything of a checkpoint is unpickled its driver
asks here: files that are signed are genuine, files in an object store are guarded by its access
control, and of files in a directory nobody but their owner may be able to write. What leads there
counts as well, component by component and link by link, and each file again when it is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace

from checkpoint.errors import Damage, StorageRefusedError, UntrustedFileError
from checkpoint.storage.files import Files
from checkpoint.storage.local_files import LocalFiles
from checkpoint.storage.ownership import ALLOW_VARIABLE, require_own

_MOST_LINKS = 40  # as Linux follows


def require_trusted(files: Files, prefix: str = "", allow_writable: bool = False) -> Files:
    """Raise if somebody else could have written the files whose names begin with *prefix*.

    Args:
        files: the directory of a stream.
        prefix: names, such as ``graph/``; all by default.
        allow_writable: do not look; for a directory whose other writers are trusted with running
            code as this user. The environment can say that as well: :data:`ALLOW_VARIABLE`.

    Returns:
        The same files, which look again at each one that is opened.

    Raises:
        UntrustedFileError: a file, its directory, or a directory or link on the way there can be
            written by others; or there is a link below the directory of the stream.
        StorageRefusedError: one of them cannot be looked at.
    """
    allow_writable = allow_writable or os.environ.get(ALLOW_VARIABLE) == "1"
    if allow_writable or not isinstance(files, LocalFiles):
        return files
    try:
        *above, (root, status) = _way_to(files.root)
    except FileNotFoundError:
        return replace(files, is_guarded=True)
    for path, status_above in above:
        require_own(path, status_above, is_above=True)
    require_own(root, status)
    for path in _below(root, prefix):
        _require_own_file(path)
    return replace(files, is_guarded=True)


def require_trusted_file(files: Files, name: str) -> Files:
    """Return *files*, guarded from now on, if only this user can have written the file *name*.

    Raises UntrustedFileError or StorageRefusedError.
    """
    if os.environ.get(ALLOW_VARIABLE) == "1" or not isinstance(files, LocalFiles):
        return files
    for path, status in _way_to(files.root):
        require_own(path, status, is_above=True)
    _require_own_file(os.path.join(files.root, name))
    return replace(files, is_guarded=True)


def _way_to(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each directory and link on the way to an absolute *path*, itself the last."""
    yield os.sep, _status(os.sep)
    at, links = os.sep, 0
    todo = path.split(os.sep)[::-1]
    while todo:
        name = todo.pop()
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, name)
        status = _status(step)
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            at = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise StorageRefusedError(
                f"cannot look at {path}: it leads over more than {_MOST_LINKS} symbolic links; "
                "give the path they lead to"
            )
        target = os.readlink(step)
        at = os.sep if os.path.isabs(target) else at
        todo += target.split(os.sep)[::-1]


def _below(root: str, prefix: str) -> Iterator[str]:
    for directory, directories, names in os.walk(root):
        inside = os.path.relpath(directory, root).replace(os.sep, "/") + "/"
        inside = "" if inside == "./" else inside
        for name in directories:
            within = f"{inside}{name}/"
            if within.startswith(prefix) or prefix.startswith(within):
                yield os.path.join(directory, name)
        for name in names:
            if f"{inside}{name}".startswith(prefix):
                yield os.path.join(directory, name)


def _require_own_file(path: str) -> None:
    try:
        status = _status(path)
    except FileNotFoundError:
        return  # deleted a moment ago
    if stat.S_ISLNK(status.st_mode):
        remedy = "put there what it leads to"
        raise UntrustedFileError(
            path, "is a symbolic link", "a file or directory", remedy, Damage.NO_FILE
        )
    require_own(path, status)


def _status(path: str) -> os.stat_result:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageRefusedError(
            f"cannot look at {path}: {error.strerror}; nothing is read before its owner and mode "
            "are known, look at that file system"
        ) from error
