"""Programs that run as child processes, and what they have printed so far."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 300


class Program:
    """A program that runs.

    Args:
        process: prints errors among its output.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def has_printed(self, *batch: str) -> bool:
        """Whether the records of some batch are these, in any order."""
        return sorted(batch) in (sorted(records) for records in self.batches())

    def batches(self) -> list[list[str]]:
        """Return what ``pprint`` has printed, for each batch; fail if the program has ended."""
        assert self.process.poll() is None, "\n".join(self.lines)
        text = "\n".join(self.lines)
        blocks = re.split(r"-{43}\nTime: .*\n-{43}\n", text)[1:]
        return [block.strip().splitlines() for block in blocks]

    def failures(self) -> list[str]:
        """Lines of tracebacks, other than PySpark's daemon may print of workers at the end."""
        return [
            line
            for line in self.lines
            if line.startswith('  File "') and "pyspark/daemon.py" not in line
        ]

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Return the exit status when the program has ended."""
        status = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return status


@contextmanager
def running(*arguments: str, prefix: tuple[str, ...] = ()) -> Iterator[Program]:
    """Run Python with *arguments* in a session of its own; end it with the block.

    *prefix* is a command that runs it.
    """
    with subprocess.Popen(
        [*prefix, sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    ) as process:
        program = Program(process)
        try:
            yield program
        finally:
            process.kill()
            program.wait()  # before its output is closed, which a thread reads
