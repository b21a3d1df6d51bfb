"""Gates: a task that comes to a closed gate waits there until a test opens it.

A program calls :func:`pass_gate` in its functions. A test closes the gate of a phase, waits until a
task is held there, kills what it wants, and opens the gate. A gate holds only one task; others, and
the next attempt, pass.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.waiting import wait_for

DIRECTORY = "DSTREAMS_TEST_GATES"
"""Environment variable: the directory of the gates, for driver and executors."""

_HELD_S = 300


@dataclass(frozen=True)
class HeldTask:
    """A task at a gate: the process ids of its Python worker and of its executor."""

    worker: int
    executor: int


class Gates:
    """The gates below a directory.

    Args:
        directory: created if missing; all processes reach it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def close(self, name: str) -> None:
        (self.directory / f"{name}.closed").touch()

    def held(self, name: str) -> HeldTask | None:
        """Return the task that is held at a gate, if there is one."""
        held = self.directory / f"{name}.held"
        return HeldTask(**json.loads(held.read_text())) if held.exists() else None

    def open(self, name: str) -> None:
        for state in ("closed", "held"):
            (self.directory / f"{name}.{state}").unlink(missing_ok=True)


def pass_gate(name: str) -> None:
    """Wait if the gate *name* is closed and holds no other task."""
    directory = Path(os.environ[DIRECTORY])
    closed, held = directory / f"{name}.closed", directory / f"{name}.held"
    if not closed.exists():
        return
    claimed = directory / f"{name}.{os.getpid()}"
    try:
        closed.rename(claimed)
    except FileNotFoundError:  # another task has claimed it, or it was opened
        return
    daemon = psutil.Process().parent()
    assert daemon is not None
    claimed.write_text(json.dumps({"worker": os.getpid(), "executor": daemon.ppid()}))
    claimed.rename(held)
    wait_for(lambda: not held.exists(), _HELD_S)
