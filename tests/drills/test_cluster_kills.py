"""Kill -9 of Python workers and executors in the middle of batches, on a real cluster."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil
import pytest

from tests.drills.cluster_job import BATCHES, IDLE_S, records_of
from tests.support.cluster import ROOT, StandaloneCluster

pytestmark = pytest.mark.spark

KILLS = 12
EXECUTOR_KILLS = 4
SEED = int(os.environ.get("DSTREAMS_DRILL_SEED", "20261121"))
_ANSWER_S = 150
_CALM_BATCHES = 3  # they show how long one takes


class Job:
    """The driver, in a process of its own.

    Args:
        process: runs ``cluster_job``.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answers: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def answer(self, seconds: float = _ANSWER_S) -> dict[str, Any]:
        """Wait for the next answer.

        Raises:
            TimeoutError: none came.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                return self._answers.get(timeout=min(1.0, seconds))
            except Empty:
                assert self._process.poll() is None, "the driver has ended"
        raise TimeoutError(f"the driver did not answer within {seconds} s")

    def answer_within(self, seconds: float) -> dict[str, Any] | None:
        """Return the next answer if it comes in time."""
        try:
            return self._answers.get(timeout=seconds)
        except Empty:
            return None


@contextmanager
def job(cluster: StandaloneCluster, directory: Path) -> Iterator[Job]:
    log = (directory / "driver.log").open("wb")
    environment = {key: text for key, text in os.environ.items() if not key.startswith("SPARK_")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-W", "ignore", "-m", "tests.drills.cluster_job", cluster.url]
    process = subprocess.Popen(
        [*command, str(directory / "checkpoint"), str(directory / "local")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield Job(process)
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(20)
        for child in children:
            if child.is_running():
                child.kill()
        psutil.wait_procs(children, timeout=20)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        log.close()


class Oracle:
    """What the stream must say and keep, from plain dicts."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[int, int]] = {}
        self.groups: dict[str, tuple[list[int], int]] = {}

    def batch(self, second: int) -> tuple[list[Any], list[Any]]:
        """Return the sorted rows of the batch at *second*."""
        records = records_of(second)
        out: list[Any] = []
        for key, value in records:
            total = self.sums.get(key, (0, 0))[0] + value
            self.sums[key] = (total, second)
            out.append([key, value, total])
        for key, (total, touched) in list(self.sums.items()):
            if touched < second - IDLE_S:
                out.append([key, "ended", total])
                del self.sums[key]
        rows: list[Any] = []
        for key in {key for key, _ in records}:
            values = [value for each, value in records if each == key]
            calls, total = self.groups.get(key, ([0, 0], 0))[0]
            self.groups[key] = ([calls + 1, total + sum(values)], second + IDLE_S)
            rows.append([key, *self.groups[key][0]])
        for key, (_, due) in list(self.groups.items()):
            if due < second:
                rows.append([key, "ended"])
                del self.groups[key]
        return sorted(out, key=repr), sorted(rows, key=repr)

    def states(self) -> list[list[Any]]:
        return [
            sorted([key, total] for key, (total, _) in self.sums.items()),
            sorted([key, state] for key, (state, _) in self.groups.items()),
        ]


@pytest.mark.slow
def test_kills_change_nothing(tmp_path: Path) -> None:
    """Whatever is killed when: every batch has the rows of the oracle, and so does the state."""
    chance = random.Random(f"{SEED}")
    kinds = ["executor"] * EXECUTOR_KILLS + ["python"] * (KILLS - EXECUTOR_KILLS)
    chance.shuffle(kinds)
    oracle, batch = Oracle(), 0
    with StandaloneCluster(tmp_path) as cluster, job(cluster, tmp_path) as driver:
        assert driver.answer() == {"ready": True}
        usual_s = 2.0
        while batch < BATCHES and (kinds or batch < _CALM_BATCHES):
            batch += 1
            started = time.monotonic()
            driver.say("go")
            answer = None
            if batch > _CALM_BATCHES and kinds:
                answer = driver.answer_within(chance.uniform(0.05, 0.9) * usual_s)
                if answer is None and cluster.kill_any(kinds[-1], chance):
                    kinds.pop()  # it was in the middle of the batch
            answer = answer or driver.answer()
            if batch <= _CALM_BATCHES:
                usual_s = time.monotonic() - started
            sums, groups = answer["rows"]
            expected = oracle.batch(batch)
            assert (batch, sorted(sums, key=repr)) == (batch, expected[0])
            assert (batch, sorted(groups, key=repr)) == (batch, expected[1])
        assert not kinds, f"{len(kinds)} kills did not find a batch in {batch} batches"
        driver.say("end")
        assert driver.answer()["states"] == oracle.states()
