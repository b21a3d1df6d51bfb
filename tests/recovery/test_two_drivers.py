"""Two drivers on one checkpoint, each a process: the newer wins, the older says who it was.

The older one halts by itself (SIGSTOP) at a step of its third batch, as a machine does that swaps
or a container that is paused; this process takes over; then the older one goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark import SparkContext

from checkpoint.cli.main import main
from dstreams import StreamingContext
from tests.recovery.application import OUTPUTS
from tests.recovery.lives import ROOT, command_of, entries, environment_of, expected

pytestmark = pytest.mark.spark

_END_S = 300


@contextmanager
def halted(directory: Path, step: str) -> Iterator[subprocess.Popen[str]]:
    """A driver that halts at a step; it is killed at the end, if it has not ended."""
    driver = subprocess.Popen(
        command_of("application", directory, "1", "6"),
        cwd=ROOT,
        env=environment_of(f"{step}:stop"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _, status = os.waitpid(driver.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        yield driver
    finally:
        driver.kill()
        driver.communicate()


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("step", "ran_twice"),
    [
        pytest.param("out.done@2", ["sums"], id="between its outputs"),
        pytest.param("out.start@2", [], id="before its outputs", marks=pytest.mark.slow),
        pytest.param("state.done@2", [], id="before all that", marks=pytest.mark.slow),
        pytest.param("plan.start@2", [], id="between two batches", marks=pytest.mark.slow),
        pytest.param("begin.start@2", [], id="before it begins", marks=pytest.mark.slow),
        pytest.param("commit.start@2", list(OUTPUTS), id="as it ends", marks=pytest.mark.slow),
        pytest.param("commit.done@2", [], id="after its commit", marks=pytest.mark.slow),
    ],
)
def test_the_newer_driver_wins(
    sc: SparkContext, tmp_path: Path, step: str, ran_twice: list[str]
) -> None:
    """The older one runs no output after that and damages nothing.

    Only outputs that it had run before it was replaced run again, in a batch of the same number and
    with the same records.
    """
    checkpoint = f"{tmp_path}/checkpoint"
    with halted(tmp_path, step) as older:
        ssc = StreamingContext.getOrCreate(checkpoint, never)
        try:
            ssc.step(2)
            before = entries(tmp_path)
            os.kill(older.pid, signal.SIGCONT)
            said = older.communicate(timeout=_END_S)[0]
            assert older.returncode not in (0, None)
            assert f"process {os.getpid()} on host" in said
            assert "has taken over" in said or "has claimed epoch" in said
            assert entries(tmp_path) == before
            ssc.step()
        finally:
            ssc.stop(stopSparkContext=False)
    assert main(["verify", checkpoint, "--json"]) == 0
    found = entries(tmp_path)
    for entry in found:
        assert entry.rows == expected(entry.output, entry.batch_id), entry
    seen = Counter((entry.output, entry.batch_id) for entry in found)
    last = max(entry.batch_id for entry in found)
    assert last == (5 if step == "commit.done@2" else 4)
    wanted = {(name, n): 1 for name in OUTPUTS for n in range(last + 1)}
    assert seen == {**wanted, **{(name, 2): 2 for name in ran_twice}}
