"""Processes that are killed at a step of a batch, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dstreams.structured.committed_files import committed_lines
from tests.dstreams.structured.killed_program import STEPS
from tests.support.programs import ROOT

FILES = ("10\n11\n16\n", "25\n26\n", "31\n", "60\n")
EXPECTED = ["10:2", "15:1", "25:2", "30:1"]
LIMIT_S = 240


def start(directory: Path, step: str = "none", batch: int = 0) -> int:
    """Run the program to its end, and return its status."""
    module = "tests.dstreams.structured.killed_program"
    done = subprocess.run(
        [sys.executable, "-m", module, str(directory), step, str(batch)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode


def run_killed(directory: Path, kills: list[tuple[str, int]]) -> list[str]:
    """Run the query with kills; return the lines that count."""
    inputs = directory / "inputs"
    inputs.mkdir()
    for number, text in enumerate(FILES):
        (inputs / f"{number}.txt").write_text(text)
        os.utime(inputs / f"{number}.txt", (number, number))
    for step, batch in kills:
        assert start(directory, step, batch) == -signal.SIGKILL, step
    assert start(directory) == 0
    found = committed_lines(str(directory / "output"))
    return sorted(line for lines in found.values() for line in lines)


def test_killed(tmp_path: Path) -> None:
    """Killed after its output was written and before that was committed, it writes nothing twice.

    Killed again while it makes the state, it loses nothing.
    """
    kills = [("after the sink", 1), ("after the state", 2)]
    assert run_killed(tmp_path, kills) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(tmp_path: Path, step: str, batch: int) -> None:
    """Wherever the process is killed, the files are those of a run that was not disturbed."""
    assert run_killed(tmp_path, [(step, batch)]) == EXPECTED
