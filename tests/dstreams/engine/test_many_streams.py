"""Streams, queries and jobs of one process that do not disturb each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.dstreams.engine.many_streams import BATCHES

pytestmark = [pytest.mark.deep, pytest.mark.spark]

_PROGRAM_S = 300


def run_program(name: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.dstreams.engine.many_streams", name],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=_PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_pools_of_a_fair_scheduler() -> None:
    """Every job of a stream or query is in the pool of its start; none waits for a job before it.

    State, outputs and snapshots of the stream run while a long job in another pool occupies all
    cores: a scheduler without pools would run them after it.
    """
    [found] = run_program("pools")
    assert found["is_job_running"]
    assert {"default", "job", "queries", "streams"} <= set(found["pools"])
    seen = found["seen"]
    assert len(seen["update"]) == len(seen["map"]) == BATCHES
    counts = [sum(number % 4 == key for number in range(10 * BATCHES)) for key in range(4)]
    assert seen["update"][-1] == [[key, [counts[key], "streams"]] for key in range(4)]
    assert seen["map"][-1] == [[key, "streams"] for key in range(4)]
    assert seen["query"][-1] == [["queries", BATCHES]]


def test_contexts_one_after_another() -> None:
    """Each StreamingContext starts from nothing, and leaves neither threads nor RDDs behind.

    This includes those on a second SparkContext of the process.
    """
    for found in run_program("contexts"):
        for number, (rows, mapped) in enumerate(found["sums"]):
            numbers = range(10 * (BATCHES + number))
            assert rows == [[key, sum(each % 4 == key for each in numbers)] for key in range(4)]
            assert mapped == 10
        first, *others = found["left"]
        assert first[1:] == [None, None]  # labels of jobs
        assert others == [first] * len(others)
