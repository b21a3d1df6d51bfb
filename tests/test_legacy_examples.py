"""Programs written for ``pyspark.streaming``, run by ``dstreams run`` as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kinesis_server import KEY, KEY_ID, REGION, KinesisServer, running_kinesis
from tests.support.programs import LIMIT_S, ROOT, Program, running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

LEGACY = ROOT / "examples" / "legacy"
RUN = ("-m", "dstreams", "run", "--master", "local[2]")
BY_SPARK = pytest.param((), marks=pytest.mark.slow, id="pyspark.streaming")
BOTH = pytest.mark.parametrize("how", [pytest.param(RUN, id="dstreams"), BY_SPARK])


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server socket on a free port, as ``nc -lk`` has one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_S)
        yield listening


@contextmanager
def example(how: tuple[str, ...], name: str, *arguments: object) -> Iterator[Program]:
    """Run an example; by Spark itself where *how* is empty."""
    with running(*how, str(LEGACY / name), *map(str, arguments)) as program:
        yield program


def ended_by_sigterm(program: Program, how: tuple[str, ...]) -> None:
    """By us the program goes on behind awaitTermination; Spark lets the signal end it there."""
    status = program.end(signal.SIGTERM)
    assert status == (0 if how else -signal.SIGTERM), "\n".join(program.lines)
    assert not how or program.failures() == [], "\n".join(program.lines)


def test_they_import_pyspark_alone() -> None:
    """The examples are programs that know nothing of dstreams."""
    for path in LEGACY.glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert "pyspark" in imported
        assert set(imported) - {"__future__"} <= {"pyspark", *sys.stdlib_module_names}


@pytest.mark.deep
@BOTH
def test_network_wordcount(server: socket.socket, how: tuple[str, ...]) -> None:
    """Each batch counts the words of its own second."""
    with example(how, "network_wordcount.py", *server.getsockname()) as program:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"to be or not to be\n")
            wait_for(
                lambda: program.has_printed("('to', 2)", "('be', 2)", "('or', 1)", "('not', 1)"),
                LIMIT_S,
            )
            connection.sendall(b"or so\n")
            wait_for(lambda: program.has_printed("('or', 1)", "('so', 1)"), LIMIT_S)
            ended_by_sigterm(program, how)


def replaced(name: str, directory: Path) -> Path:
    """An example in whose imports dstreams stands in the place of pyspark.streaming."""
    program = directory / name
    program.write_text((LEGACY / name).read_text().replace("pyspark.streaming", "dstreams"))
    return program


@pytest.mark.deep
def test_network_wordcount_with_imports_replaced(server: socket.socket, tmp_path: Path) -> None:
    """Python runs it as any program, with Spark's own settings."""
    program = replaced("network_wordcount.py", tmp_path)
    with running(str(program), *map(str, server.getsockname())) as started:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"to be or not to be\n")
            wait_for(
                lambda: started.has_printed("('to', 2)", "('be', 2)", "('or', 1)", "('not', 1)"),
                LIMIT_S,
            )
            ended_by_sigterm(started, RUN)


@pytest.mark.deep
def test_ctrl_c(server: socket.socket) -> None:
    """In a terminal it reaches all processes, and ends the program as SIGTERM does."""
    with example(RUN, "network_wordcount.py", *server.getsockname()) as program:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"to be\n")
            wait_for(lambda: program.has_printed("('to', 1)", "('be', 1)"), LIMIT_S)
            os.killpg(program.process.pid, signal.SIGINT)
            assert program.wait() == 0, "\n".join(program.lines)
    assert program.failures() == [], "\n".join(program.lines)


def counts_in(output: Path) -> list[str]:
    """The counts of each batch that the program has written, without the times."""
    if not output.exists():
        return []
    lines = output.read_text().splitlines()
    return [re.sub(r"Counts at time \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in lines]


@pytest.mark.deep
@BOTH
def test_recoverable_network_wordcount(
    server: socket.socket, tmp_path: Path, how: tuple[str, ...]
) -> None:
    """A factory, a broadcast, a class of the program as state, and words counted over batches."""
    output, checkpoint = tmp_path / "counts.txt", tmp_path / "checkpoint"
    arguments = ("recoverable_network_wordcount.py", *server.getsockname(), checkpoint, output)
    graceful = ("--conf", "spark.streaming.stopGracefullyOnShutdown=true") if how else ()
    with example((*how, *graceful), *arguments) as program:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"The cat and the dog and\n")
            wait_for(
                lambda: "[('and', 2, 1), ('cat', 1, 1), ('dog', 1, 1)]" in counts_in(output),
                LIMIT_S,
            )
            connection.sendall(b"a dog\nDOG\n")
            # In one batch or in two.
            dogs = re.compile(r"\('dog', 3, [23]\), \('and', 2, 1\)")
            wait_for(lambda: any(map(dogs.search, counts_in(output))), LIMIT_S)
            if how:
                wait_for(lambda: list(checkpoint.glob("stream-*/commits/*.commit")), LIMIT_S)
            ended_by_sigterm(program, how)
    assert "Creating new context" in program.lines
    if how:
        assert program.lines[-1] == "The streaming context has been stopped"
        restarted_with_its_state(server, arguments, output)


def restarted_with_its_state(
    server: socket.socket, arguments: tuple[object, ...], output: Path
) -> None:
    """A second run goes on with the words of the first, and does not call the factory."""
    with example(RUN, *map(str, arguments)) as again:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"cat\n")
            wait_for(lambda: any("('cat', 2, 2)" in line for line in counts_in(output)), LIMIT_S)
            assert "('dog', 3, " in counts_in(output)[-1]
            ended_by_sigterm(again, RUN)
    assert "Creating new context" not in again.lines


@pytest.mark.deep
@BOTH
def test_windowed_hashtags(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Tags of files that were moved in enter the window, and leave it again, sorted by count."""
    watched = tmp_path / "watched"
    watched.mkdir()
    with example(how, "windowed_hashtags.py", watched, 6) as program:
        wait_for(program.batches, LIMIT_S)  # it runs: what comes now is new
        move_in(watched, "one", "I like #Spark and #python", "#spark again", "#a")
        top = ["('#spark', 2)", "('#a', 1)", "('#python', 1)"]
        wait_for(lambda: top in program.batches(), LIMIT_S)
        move_in(watched, "two", "#a", "#a")
        first = (["('#a', 3)"], ["('#a', 2)"])
        wait_for(lambda: any(batch[:1] in first for batch in program.batches()[:-1]), LIMIT_S)
        wait_for(lambda: latest(program) == [], LIMIT_S)
        ended_by_sigterm(program, how)


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with running_kinesis() as server:
        yield server


@pytest.mark.deep
def test_kinesis_wordcount(kinesis: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of records, from the oldest one on; the keys are those of the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    stream = kinesis.create(shards=2)
    kinesis.put(stream, ["to be or not to be"])
    with example(RUN, "kinesis_wordcount.py", "app", stream, kinesis.url, REGION) as program:
        wait_for(
            lambda: program.has_printed("('to', 2)", "('be', 2)", "('or', 1)", "('not', 1)"),
            LIMIT_S,
        )
        kinesis.split(stream, kinesis.shards(stream)[0])
        kinesis.put(stream, ["or so"])
        wait_for(lambda: program.has_printed("('or', 1)", "('so', 1)"), LIMIT_S)
        ended_by_sigterm(program, RUN)


def move_in(directory: Path, name: str, *lines: str) -> None:
    """Move a file in, complete, as files have to come."""
    hidden = directory / f".{name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(directory / f"{name}.txt")


def latest(program: Program) -> list[str]:
    """Return the last batch of which all was printed: another one has begun behind it."""
    return program.batches()[-2] if len(program.batches()) > 1 else ["not yet"]


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(path.name for path in LEGACY.glob("*.py")))
def test_usage(name: str) -> None:
    """Without arguments they print their usage; the exit status is the program's."""
    with example(RUN, name) as program:
        assert program.wait() == 2
    assert program.lines[0].startswith(f"Usage: {name} <")
