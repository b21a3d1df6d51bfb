"""The directory of the Unix sockets over which Python workers talk to the JVM.

PySpark asks for no secret on a Unix socket, and who connects to one commands a worker. So the
sockets lie where no other user can go.
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
"""Of the path of a socket: 107 on Linux, 103 on macOS, without the zero at its end."""
_SOCKET_NAME = "/.12345678-1234-1234-1234-123456789012.sock"

_OWN_NAME = re.compile(r"ds-([1-9][0-9]{0,9})-[a-z0-9_]{8}")

_SHORT = "/tmp"  # noqa: S108  # what is made in it is private

_log = logging.getLogger(__name__)


def socket_directory() -> str | None:
    """Return a private directory that ends with this process; None where there can be none."""
    return _directory_of(os.getpid())


@functools.cache  # a fork has one of its own
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
        "workers talk over TCP, which costs about 40 ms a task, because there is no safe place "
        "for Unix sockets (%s); set TMPDIR to a directory of a short path that only this user can "
        "write",
        "; ".join(problems),
    )
    return None


def _remove_stale(parent: str) -> None:
    """Remove what drivers that were killed left: directories of ours, with sockets alone."""
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
    """Lock a directory, and return the lock; None if it cannot be locked.

    A process in another container has a number that means nothing here; its lock does.
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
    """Whether only this user can write to a directory of this host, and it has sockets alone."""
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
        return f"{directory}: the path of a socket there has more than {_LONGEST_BYTES} bytes"
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
