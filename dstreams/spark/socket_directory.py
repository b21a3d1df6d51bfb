"""A private directory for the Unix sockets between Python workers and the JVM.

PySpark does not authenticate connections to a Unix socket, and a connection controls a worker. So
no other user may enter the directory.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import logging
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress

from checkpoint import CheckpointError, LocalFiles, require_trusted

_LONGEST_BYTES = 103
"""Maximum length of the path of a socket: 107 on Linux, 103 on macOS, without the final zero."""
_SOCKET_NAME = "/.12345678-1234-1234-1234-123456789012.sock"

_OWN_NAME = re.compile(r"ds-([1-9][0-9]{0,9})-[a-z0-9_]{8}")

_SHORT = "/tmp"  # noqa: S108  # directories made in it are private

_log = logging.getLogger(__name__)


def socket_directory() -> str | None:
    """Return a private directory that is deleted when this process exits, or None."""
    return _directory_of(os.getpid())


@functools.cache  # by process id: a forked process needs its own
def _directory_of(pid: int) -> str | None:
    problems = []
    for parent in dict.fromkeys((tempfile.gettempdir(), _SHORT)):
        try:
            _remove_stale(parent)
            made = tempfile.mkdtemp(prefix=f"ds-{pid}-", dir=parent)
        except OSError as error:
            problems.append(f"{parent}: {error.strerror}")
            continue
        held = _hold(made)
        problem = _problem_of(made)
        if problem is None:
            atexit.register(_remove, made, pid, held)
            return made
        if held is not None:
            os.close(held)
        problems.append(problem)
        os.rmdir(made)
    _log.warning(
        "no private directory for Unix sockets (%s), so Python workers use TCP, which costs about "
        "40 ms per task; set TMPDIR to a directory with a short path that only this user can write",
        "; ".join(problems),
    )
    return None


def _remove_stale(parent: str) -> None:
    """Remove the directories of killed drivers, if they are private and contain only sockets."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            found = _OWN_NAME.fullmatch(entry.name)
            if found is None or not _is_dead(int(found[1])) or not _is_ours(entry):
                continue
            held = _hold(entry.path)
            if held is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(held)


def _hold(directory: str) -> int | None:
    """Lock a directory, and return the lock, or None if it is locked.

    Locks work between containers, process ids do not.
    """
    try:
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether a directory is private to this user and contains only sockets."""
    try:
        made = entry.stat(follow_symlinks=False)
        is_private = stat.S_ISDIR(made.st_mode) and stat.S_IMODE(made.st_mode) == stat.S_IRWXU
        if not is_private or made.st_uid != os.getuid():
            return False
        with os.scandir(entry.path) as within:
            return all(stat.S_ISSOCK(each.stat(follow_symlinks=False).st_mode) for each in within)
    except OSError:
        return False


def _problem_of(directory: str) -> str | None:
    if len(os.fsencode(directory + _SOCKET_NAME)) > _LONGEST_BYTES:
        return f"{directory}: the path of a socket would exceed {_LONGEST_BYTES} bytes"
    try:
        require_trusted(LocalFiles(directory))
    except CheckpointError as error:
        return str(error)
    return None


def _remove(directory: str, pid: int, held: int | None) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
        if held is not None:
            os.close(held)
