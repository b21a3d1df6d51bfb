"""Trust: whether others could have written what is about to be unpickled.

Unpickling runs what the pickle says. So before anything of a checkpoint is unpickled its driver
asks here: files that are signed are genuine, files in an object store are guarded by its access
control, and of files in a directory nobody but their owner may be able to write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from checkpoint.errors import StorageRefusedError, UntrustedFileError
from checkpoint.files import Files
from checkpoint.local_files import LocalFiles
from checkpoint.signing import KEY_FILE_VARIABLE, SignedFiles

ALLOW_VARIABLE = "CHECKPOINT_ALLOW_WRITABLE"
"""Set to 1 in the environment: who else can write a checkpoint is trusted with running code."""

_OTHERS_WRITE = 0o022


def require_trusted(files: Files, prefix: str = "", allow_writable: bool = False) -> None:
    """Raise if somebody else could have written the files whose names begin with *prefix*.

    Args:
        files: the directory of a stream.
        prefix: names, such as ``graph/``; all by default.
        allow_writable: do not look; for a directory whose other writers are trusted with running
            code as this user. The environment can say that as well: :data:`ALLOW_VARIABLE`.

    Raises:
        UntrustedFileError: a file, its directory or one above can be written by others.
        StorageRefusedError: one of them cannot be looked at.
    """
    allow_writable = allow_writable or os.environ.get(ALLOW_VARIABLE) == "1"
    if allow_writable or isinstance(files, SignedFiles) or not isinstance(files, LocalFiles):
        return
    for directory in _above(files.root):
        _require_safe(directory, is_above=True)
    for path in (files.root, *_below(files.root, prefix)):
        _require_safe(path, is_above=False)


def _above(root: str) -> Iterator[str]:
    directory = os.path.dirname(os.path.realpath(root))
    while True:
        yield directory
        if directory == os.path.dirname(directory):
            return
        directory = os.path.dirname(directory)


def _below(root: str, prefix: str) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        inside = os.path.relpath(directory, root).replace(os.sep, "/") + "/"
        inside = "" if inside == "./" else inside
        if inside.startswith(prefix) or prefix.startswith(inside):
            yield directory
            yield from (
                os.path.join(directory, name)
                for name in names
                if f"{inside}{name}".startswith(prefix)
            )


def _require_safe(path: str, is_above: bool) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return  # deleted a moment ago
    except OSError as error:
        raise StorageRefusedError(
            f"cannot look at {path}: {error.strerror}; nothing is read before its owner and mode "
            "are known, look at that file system"
        ) from error
    mode = stat.S_IMODE(status.st_mode)
    # In a directory with the sticky bit only the owner of a file can replace it.
    is_sticky = is_above and bool(mode & stat.S_ISVTX)
    wrong = ""
    if status.st_uid not in (0, os.geteuid()):
        wrong = f"belongs to user id {status.st_uid}"
    elif mode & _OTHERS_WRITE and not is_sticky and not stat.S_ISLNK(status.st_mode):
        wrong = f"can be written by others (mode {mode:04o})"
    if wrong:
        raise UntrustedFileError(
            path,
            wrong,
            f"that only user id {os.geteuid()} can write it, as nothing is unpickled otherwise",
            f"chmod go-w, sign the checkpoint with a key ({KEY_FILE_VARIABLE}), or, if all who can "
            f"write there are trusted with running code, set {ALLOW_VARIABLE}=1",
        )
