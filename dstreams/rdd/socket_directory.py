"""The directory of the Unix sockets over which Python workers talk to the JVM.

PySpark asks for no secret on a Unix socket, and who connects to one commands a worker. So the
sockets lie where no other user can go.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import tempfile

from checkpoint import CheckpointError, LocalFiles, require_trusted

_LONGEST_BYTES = 103
"""Of the path of a socket: 107 on Linux, 103 on macOS, without the zero at its end."""
_SOCKET_NAME = "/.12345678-1234-1234-1234-123456789012.sock"

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
            made = tempfile.mkdtemp(prefix="ds-", dir=parent)
        except OSError as error:
            problems.append(f"{parent}: {error.strerror}")
            continue
        problem = _problem_of(made)
        if problem is None:
            atexit.register(_remove, made, pid)
            return made
        problems.append(problem)
        os.rmdir(made)
    _log.warning(
        "workers talk over TCP, which costs about 40 ms a task, because there is no safe place "
        "for Unix sockets (%s); set TMPDIR to a directory of a short path that only this user can "
        "write",
        "; ".join(problems),
    )
    return None


def _problem_of(directory: str) -> str | None:
    if len(os.fsencode(directory + _SOCKET_NAME)) > _LONGEST_BYTES:
        return f"{directory}: the path of a socket there has more than {_LONGEST_BYTES} bytes"
    try:
        require_trusted(LocalFiles(directory))
    except CheckpointError as error:
        return str(error)
    return None


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
