"""Two processes run a query on one checkpoint: the newer one wins, the older one ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint.cli.main import SUCCEEDED, main
from dstreams.structured.sources.committed_files import committed_lines
from tests.support.programs import ROOT
from tests.support.waiting import wait_for

LIMIT_S = 300


def begin(directory: Path, name: str) -> subprocess.Popen[bytes]:
    """Start the query in a process of its own."""
    module = "tests.dstreams.structured.rival_program"
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(directory), name],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def wait(condition: Callable[[], bool]) -> None:
    wait_for(condition, LIMIT_S)


@pytest.mark.slow
def test_newer_process_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The older one fails at its next write and names the newer one; each line goes out once."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()

    def add(word: str) -> None:
        (tmp_path / word).write_text(f"{word}\n")
        (tmp_path / word).rename(inputs / word)

    def lines() -> list[str]:
        found = committed_lines(str(tmp_path / "output"))
        return sorted(line for lines in found.values() for line in lines)

    older = begin(tmp_path, "older")
    newer = None
    try:
        wait((tmp_path / "older.started").exists)
        add("a")
        wait(lambda: lines() == ["a"])
        newer = begin(tmp_path, "newer")
        wait((tmp_path / "newer.started").exists)
        for word in ("b", "c"):
            add(word)
        wait((tmp_path / "older.failed").exists)
        assert older.wait(LIMIT_S) == 0
        error = (tmp_path / "older.failed").read_text()
        assert f"process {newer.pid} on host" in error
        assert "has taken over" in error
        assert f"this one, process {older.pid} on host" in error
        add("d")
        (tmp_path / "newer.stop").touch()
        assert newer.wait(LIMIT_S) == 0
    finally:
        for process in (older, newer):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(LIMIT_S)
    assert lines() == ["a", "b", "c", "d"]
    assert main(["verify", str(tmp_path / "checkpoint")]) == SUCCEEDED
    assert "no problems" in capsys.readouterr().out
