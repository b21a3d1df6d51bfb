"""The examples, run as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.programs import LIMIT_S, ROOT, running
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.spark

WORD_COUNT = ROOT / "examples" / "stateful_network_wordcount.py"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server socket on a free port, as ``nc -lk`` has one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        yield server


@pytest.mark.deep
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


@pytest.mark.deep
def test_custom_receiver(listener: socket.socket) -> None:
    """Words are counted for each batch; the receiver connects again, and a signal ends it."""
    port = str(listener.getsockname()[1])
    program_file = str(ROOT / "examples" / "custom_receiver.py")
    with running(program_file, "127.0.0.1", port) as program:
        for word in ("first", "second"):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(f"to be or not {word} to be\n".encode())  # in one batch
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


@pytest.mark.deep
def test_structured_sessions(tmp_path: Path) -> None:
    """The plan and the rows of a batch are printed, and Ctrl-C ends it."""
    program_file = str(ROOT / "examples" / "structured_sessions.py")
    with running(program_file, str(tmp_path)) as program:
        row = re.compile(r"\| *[01]\| *\d+\| *open\|")
        wait_for(lambda: any(map(row.fullmatch, program.lines)), LIMIT_S)
        assert program.end(signal.SIGINT) == 0, "\n".join(program.lines)
    start = program.lines.index("== Physical Plan ==") + 1
    plan = program.lines[start : start + 7]
    names = [line.strip("+- ").removeprefix("*(1) ").split(" ")[0] for line in plan]
    assert names == [
        "SerializeFromObject",
        "FlatMapGroupsWithState",
        "Sort",
        "Exchange",
        "AppendColumns",
        "EventTimeWatermark",
        "StreamingRelation",
    ]
    assert "EventTimeTimeout, <unknown>, <unknown>, <unknown>" in plan[1]
    assert any(line.startswith("Batch: ") for line in program.lines)


@pytest.mark.deep
def test_kafka_sessions(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A session is in its topic once its user is quiet, also when the driver is killed before."""
    clicks, sessions = kafka.create_topic(2), kafka.create_topic(2)
    words = [str(ROOT / "examples" / "kafka_sessions.py"), kafka.bootstrap, "--gap", "4"]
    words += ["--clicks", clicks, "--sessions", sessions, "--checkpoint", str(tmp_path)]

    def click(user: str, *pages: str) -> None:
        kafka.produce(clicks, [json.dumps({"user": user, "page": page}) for page in pages], 0)

    def closed() -> dict[str, list[str]]:
        found = [json.loads(value) for value in kafka.values(sessions) if value is not None]
        assert len({session["user"] for session in found}) == len(found)
        return {session["user"]: session["pages"] for session in found}

    click("ann", "/", "/shop")
    kafka.produce(clicks, ["no click"], 1)
    with running(*words) as program:
        wait_for(lambda: closed() == {"ann": ["/", "/shop"]}, LIMIT_S)
        wait_for(lambda: any(f"{clicks}-1, offset 0: " in line for line in program.lines), LIMIT_S)
        click("bob", "/", "/help")
        wait_for(lambda: kafka_lag(kafka, tmp_path) == 0, LIMIT_S)
        program.process.kill()
    click("eve", "/")
    with running(*words) as program:
        wait_for(lambda: set(closed()) == {"ann", "bob", "eve"}, LIMIT_S)
        assert closed()["bob"] == ["/", "/help"]
        assert program.end(signal.SIGTERM) == 0, "\n".join(program.lines)
    assert program.failures() == [], "\n".join(program.lines)


def kafka_lag(kafka: KafkaCluster, checkpoint: Path) -> int | None:
    """Ask the command line how many records of a checkpoint's topics are not read."""
    command = [sys.executable, "-m", "dstreams", "kafka", str(checkpoint), "--json"]
    done = subprocess.run(
        [*command, "--bootstrap-server", kafka.bootstrap],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    (read,) = json.loads(done.stdout)["inputs"]
    lag: int | None = read["lag"]
    return lag
