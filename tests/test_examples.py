"""The examples, run as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[1]
WORD_COUNT = ROOT / "examples" / "stateful_network_wordcount.py"
LIMIT_S = 120


class Program:
    """An example that runs, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    def has_printed(self, *batch: str) -> bool:
        """Whether the records of some batch are these, in any order."""
        assert self.process.poll() is None, "\n".join(self.lines)
        return sorted(batch) in (sorted(records) for records in self.batches())

    def batches(self) -> list[list[str]]:
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
        self.process.send_signal(number)
        status = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return status


@contextmanager
def running(*arguments: str) -> Iterator[Program]:
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server socket on a free port, as ``nc -lk`` has one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_word_count(listener: socket.socket, tmp_path: Path, number: signal.Signals) -> None:
    """Words are counted over batches and connections, and a signal ends it with status 0."""
    port = str(listener.getsockname()[1])
    with running(str(WORD_COUNT), "127.0.0.1", port, str(tmp_path)) as program:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"to be or not\nto be\n")
            first = ("('to', 2)", "('be', 2)", "('or', 1)", "('not', 1)")
            wait_for(lambda: program.has_printed(*first), LIMIT_S)
            connection.sendall(b"to question\n")
            second = ("('to', 3)", *first[1:], "('question', 1)")
            wait_for(lambda: program.has_printed(*second), LIMIT_S)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"question\n")
            third = (*second[:-1], "('question', 2)")
            wait_for(lambda: program.has_printed(*third), LIMIT_S)
            assert program.end(number) == 0, "\n".join(program.lines)
    assert program.failures() == [], "\n".join(program.lines)


def test_word_count_usage() -> None:
    """A port that is no number is a usage error."""
    done = subprocess.run(
        [sys.executable, str(WORD_COUNT), "localhost", "http"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert "invalid int value: 'http'" in done.stderr
