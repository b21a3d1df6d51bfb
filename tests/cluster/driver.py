"""A stream under test: its drivers, the batches that they run, and what these must say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil

from tests.cluster import expected
from tests.cluster.job import Job
from tests.support.cluster import ROOT, WITH_PARENT, StandaloneCluster
from tests.support.gates import DIRECTORY, Gates, HeldTask
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.waiting import wait_for

_ANSWER_S, _DOWN_S = 600, 60
_LOG_LINES = 40

SOON_LOST = {
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "3s",
    "spark.executor.heartbeatInterval": "3s",
}
"""How long a driver waits for an executor that says nothing: by default 120 s."""


class DriverEndedError(Exception):
    """A driver has ended by itself; the text is the end of its log."""


class Driver:
    """A process that runs a batch for each line it is sent, and answers in JSON.

    Args:
        program: its module, and its arguments.
        host: its address.
        gates: of its functions.
        log: file to which its standard error is appended.
        prefix: command that starts it.
    """

    def __init__(
        self,
        program: Sequence[str],
        host: str,
        gates: Gates,
        log: Path,
        prefix: tuple[str, ...] = (),
    ) -> None:
        environment = {
            key: text for key, text in os.environ.items() if not key.startswith("SPARK_")
        }
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": host}
        environment |= {"PYTHONPATH": str(ROOT), DIRECTORY: str(gates.directory)}
        self._log = log
        self._answers: Queue[dict[str, Any]] = Queue()
        command = [sys.executable, "-W", "ignore", "-m", *program]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*WITH_PARENT, *prefix, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, batch: int) -> None:
        """Let it run a batch."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batch}\n")
        self._process.stdin.flush()

    def answer(self, seconds: float = _ANSWER_S) -> dict[str, Any]:
        """Return its next answer."""
        found: list[dict[str, Any]] = []

        def comes() -> bool:
            try:
                found.append(self._answers.get(timeout=0.1))
            except Empty:
                self._require_running()
            return bool(found)

        try:
            wait_for(comes, seconds)
        except AssertionError as error:
            raise AssertionError(
                f"no answer of the driver: {error}\n{self._last_lines()}"
            ) from None
        return found[0]

    def has_answered(self) -> bool:
        """Return whether there is an answer for :meth:`answer`; raise if it has ended by itself."""
        self._require_running()
        return not self._answers.empty()

    def ends_within(self, seconds: float) -> bool:
        """Return whether the next answer comes in time; it is left for :meth:`answer`."""
        with suppress(AssertionError):
            wait_for(self.has_answered, seconds)
        return self.has_answered()

    def kill(self) -> None:
        """Kill -9 it and all its processes at once, as when its host fails."""
        family = [psutil.Process(self._process.pid)] if self._process.poll() is None else []
        family += [child for process in family for child in process.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=_DOWN_S)
        self._process.wait(_DOWN_S)
        self._reader.join(_DOWN_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _require_running(self) -> None:
        if self._process.poll() is not None and self._answers.empty():
            raise DriverEndedError(self._last_lines())

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


class Run:
    """A stream and a query, over all their drivers.

    Args:
        job: of the first driver.
        directory: for gates and logs.
        kafka: where the topics of the job are, if it has any.
        prefix: command that starts a driver, such as at a host; the next one may have another.
    """

    def __init__(
        self,
        job: Job,
        directory: Path,
        kafka: KafkaCluster | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.gates = Gates(directory / "gates")
        self.batch, self._is_running = 0, False
        self._log, self._kafka, self.prefix = directory / "driver.log", kafka, prefix
        self.start(job)

    def start(self, job: Job) -> None:
        """Start a driver."""
        self.job = job
        program = ("tests.cluster.job", json.dumps(asdict(job)))
        self.driver = Driver(program, job.host, self.gates, self._log, self.prefix)
        assert "ready" in self.driver.answer()

    def begin(self) -> None:
        """Let the driver run the next batch."""
        assert not self._is_running, "the batch before has not ended"
        self.batch, self._is_running = self.batch + 1, True
        if self._kafka is not None:
            self._kafka.produce(self.job.topics[0], map(_sent, expected.numbers_in(self.batch)))
        self.driver.run(self.batch)

    def begin_again(self) -> None:
        """Let a new driver run the batch that the one before has begun."""
        self.driver.run(self.batch)

    def held(self, gate: str) -> HeldTask:
        """Wait until a task of the batch is held at a gate."""

        def arrives_or_ends() -> bool:
            return self.gates.held(gate) is not None or self.driver.has_answered()

        wait_for(arrives_or_ends, _ANSWER_S)
        task = self.gates.held(gate)
        assert task is not None, f"the batch has ended without a task at {gate}"
        return task

    def require_exact(self, *, is_partial: bool = False) -> None:
        """Wait for the end of the batch, and compare its rows, and all that is in the topic.

        If *is_partial*, a driver before may have committed a part of the batch, without telling.
        """
        answer = self.driver.answer()
        rows = answer["rows"].get(str(self.batch), {})
        self._is_running = False
        for program, found in rows.items():
            _require_same(program, found, expected.rows_of(program, self.batch))
        missing = {*expected.PROGRAMS} - {"kafka", *rows}
        assert is_partial or not missing, f"no rows of {missing}, batch {self.batch}: {answer}"
        if self._kafka is not None:
            lines = self._kafka.values(self.job.topics[1])
            _require_same("kafka", expected.parsed(lines), expected.lines_of(self.batch))


def _sent(number: int) -> Sent:
    return Sent(str(number), key=str(number % expected.KEYS))  # a key keeps its order


def _require_same(
    program: str, found: Iterable[Sequence[int]], wanted: Iterable[Sequence[int]]
) -> None:
    rows, counted = Counter(map(tuple, found)), Counter(map(tuple, wanted))
    assert rows == counted, f"{program}: lost {counted - rows}, too many {rows - counted}"


@contextmanager
def stream_on(
    cluster: StandaloneCluster,
    directory: Path,
    checkpoint: str,
    kafka: KafkaCluster | None = None,
    host: str = "127.0.0.1",
    prefix: tuple[str, ...] = (),
    settings: Mapping[str, str] | None = None,
) -> Iterator[Run]:
    """Start a stream and a query with a driver at *host*; kill it at the end."""
    files = directory / "files"
    files.mkdir()
    job = Job(cluster.url, host, checkpoint, str(files), settings={**SOON_LOST, **(settings or {})})
    if kafka is not None:
        topics = kafka.create_topic(3), kafka.create_topic(3)
        job = replace(job, brokers=kafka.bootstrap, topics=topics)
    run = Run(job, directory, kafka, prefix)
    try:
        yield run
    finally:
        run.driver.kill()
