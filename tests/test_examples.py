"""The examples, run as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import LIMIT_S, ROOT, running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

WORD_COUNT = ROOT / "examples" / "stateful_network_wordcount.py"


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


def test_custom_receiver(listener: socket.socket) -> None:
    """Words are counted for each batch; the receiver connects again, and a signal ends it."""
    port = str(listener.getsockname()[1])
    program_file = str(ROOT / "examples" / "custom_receiver.py")
    with running(program_file, "127.0.0.1", port) as program:
        for word in ("first", "second"):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(f"to be or not\n{word} to be\n".encode())
                counts = ("('to', 2)", "('be', 2)", "('or', 1)", "('not', 1)", f"('{word}', 1)")
                wait_for(lambda counts=counts: program.has_printed(*counts), LIMIT_S)  # type: ignore[misc]
        assert program.end(signal.SIGTERM) == 0, "\n".join(program.lines)
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


def test_structured_sessions(tmp_path: Path) -> None:
    """The plan and the rows of a batch are printed, and Ctrl-C ends it."""
    program_file = str(ROOT / "examples" / "structured_sessions.py")
    with running(program_file, str(tmp_path)) as program:
        row = re.compile(r"\| *[01]\| *\d+\| *open\|")
        wait_for(lambda: any(map(row.fullmatch, program.lines)), LIMIT_S)
        assert program.end(signal.SIGINT) == 0, "\n".join(program.lines)
    start = program.lines.index("== Physical Plan ==") + 1
    plan = program.lines[start : start + 6]
    assert [line.strip("+- ").split(" ")[0] for line in plan] == [
        "SerializeFromObject",
        "FlatMapGroupsWithState",
        "ShuffleExchange",
        "AppendColumns",
        "EventTimeWatermark",
        "StreamingRelation",
    ]
    assert "EventTimeTimeout, <unknown>, <unknown>, <unknown>" in plan[1]
    assert any(line.startswith("Batch: ") for line in program.lines)
