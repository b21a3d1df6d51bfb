"""The processes of a driver: its JVM and its Python workers, as /proc shows them.

Where there is no /proc, a driver seems to have none of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def of_session(session: int) -> list[int]:
    """Return the ids of the living processes of a session, the newest last."""
    return sorted(pid for pid, found in _sessions() if found == session)


def jvm_of(session: int) -> int | None:
    """Return the id of the JVM of a driver that leads its session."""
    found = (pid for pid in of_session(session) if _name(pid) == "java")
    return next(found, None)


def workers_of(session: int) -> list[int]:
    """Return the ids of the Python workers of a driver, without the daemon that forks them."""
    jvm = jvm_of(session)
    pids = of_session(session)
    daemons = {pid for pid in pids if _parent(pid) == jvm}
    return [pid for pid in pids if _parent(pid) in daemons]


def send(pids: list[int], number: signal.Signals) -> int:
    """Send a signal, and return how many were there to get it."""
    count = 0
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            count += 1
    return count


def hold_input(driver: int, jvm: int) -> int | None:
    """Open the other end of a JVM's standard input, so that it does not see its driver go.

    Returns:
        A file descriptor, None when it was not found.
    """
    with suppress(OSError):
        wanted = os.readlink(_PROC / str(jvm) / "fd" / "0")
        for entry in (_PROC / str(driver) / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(entry) == wanted:
                    return os.open(entry, os.O_WRONLY | os.O_CLOEXEC)
    return None


def _sessions() -> Iterator[tuple[int, int]]:
    with suppress(FileNotFoundError):
        for entry in _PROC.iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))) and fields[0] != "Z":
                yield int(entry.name), int(fields[3])


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[str]:
    """State, parent, group, session, ... of a process; nothing when it is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _name(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return ""
