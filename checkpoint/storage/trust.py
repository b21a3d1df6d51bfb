"""Trust: before a checkpoint is unpickled, require that others cannot have written it.

Unpickling runs code. Signed files are genuine, and files in an object store are guarded by its
access control. In a local directory, only this user and root may be able to write the files, the
directories, and every directory and link on the way to them; each file is checked again when it is
opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace

from checkpoint.errors import Damage, StorageRefusedError, UntrustedFileError
from checkpoint.storage.files import Files
from checkpoint.storage.local_files import ALLOW_VARIABLE, LocalFiles, require_own

_MOST_LINKS = 40  # as in Linux


def require_trusted(files: Files, prefix: str = "", allow_writable: bool = False) -> Files:
    """Return *files* guarded: each file is checked again when it is opened.

    Args:
        files: the directory of a stream.
        prefix: check files whose names begin with it, such as ``graph/``; all by default.
        allow_writable: skip the checks, because all users that can write there are trusted with
            running code. The environment can allow it too: :data:`ALLOW_VARIABLE`.

    Raises:
        UntrustedFileError: others can write a file, its directory, or a directory or link on the
            way there; or there is a link below the directory of the stream.
        StorageRefusedError: the owner or mode of one of them cannot be read.
    """
    if allow_writable or not _is_checked(files):
        return files
    assert isinstance(files, LocalFiles)
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
    """Return *files* guarded, if only this user can have written the file *name*.

    Raises UntrustedFileError or StorageRefusedError.
    """
    if not _is_checked(files):
        return files
    assert isinstance(files, LocalFiles)
    for path, status in _way_to(files.root):
        require_own(path, status, is_above=True)
    _require_own_file(os.path.join(files.root, name))
    return replace(files, is_guarded=True)


def _is_checked(files: Files) -> bool:
    return isinstance(files, LocalFiles) and os.environ.get(ALLOW_VARIABLE) != "1"


def _way_to(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each directory and link on the way to an absolute *path*, which comes last."""
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
                f"cannot follow {path}: it leads over more than {_MOST_LINKS} symbolic links; "
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
        return  # deleted in the meantime
    if stat.S_ISLNK(status.st_mode):
        remedy = "replace the link by its target"
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
            f"cannot read the owner and mode of {path}: {error.strerror}; nothing is unpickled "
            "before they are known, check that file system"
        ) from error
