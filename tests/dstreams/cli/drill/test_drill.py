"""Drills with real drivers: promises hold over kills, and a broken output does not pass."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dstreams.cli.drill import driver as drill_driver
from dstreams.cli.drill import job
from dstreams.cli.drill.application import load
from dstreams.cli.drill.campaign import Campaign, DrillPlan
from dstreams.cli.drill.steps import STEPS, STEPS_OF_A_QUERY, step_named
from dstreams.common.clock import SystemClock
from tests.dstreams.cli.drill import broken_driver

ROOT = Path(__file__).parents[4]


def drill(*arguments: str, limit_s: float) -> tuple[int, dict[str, Any]]:
    """Run the command, and return its exit status and JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "dstreams", "drill", "--json", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_three_kills() -> None:
    """At random moments: nothing lost, nothing twice, all state equal."""
    status, result = drill("--kills", "3", "--no-steps", "--seed", "3", limit_s=500)
    assert status == 0, result
    assert result["passed"]
    assert (result["kills"], result["lost"], result["duplicated"]) == (3, 0, 0)
    assert result["records"] > 0
    assert result["recoveries"] >= 1


@pytest.mark.deep
@pytest.mark.spark
def test_a_query_is_killed_at_named_steps(tmp_path: Path) -> None:
    """After a kill at any step, each record has one row."""
    steps = tuple(map(step_named, ("begin.done", "out.done", "rec.replay")))
    plan = DrillPlan(tmp_path, None, 0, steps, seed=1, query=True)
    result = Campaign(plan, load(None, query=True), SystemClock(), print).run()
    assert sorted(result.at_steps) == sorted(step.name for step in steps), result
    assert result.is_passed, result
    assert result.findings.records > 0


@pytest.mark.slow
def test_a_query_is_killed_at_every_step() -> None:
    """At every step, and at a few random moments in every way."""
    status, result = drill("--query", "--kills", "12", "--seed", "5", limit_s=7200)
    assert status == 0, result
    assert len(result["kills_at_steps"]) == len(STEPS_OF_A_QUERY)
    assert (result["lost"], result["duplicated"], result["state_equal"]) == (0, 0, True)


@pytest.mark.deep
@pytest.mark.spark
def test_a_broken_output_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between outputs and commit, an output that appends has records twice."""
    monkeypatch.setenv(job.BROKEN, "1")
    plan = DrillPlan(tmp_path, None, 0, (step_named("commit.start"),), seed=1)
    result = Campaign(plan, load(None), SystemClock(), lambda line: None).run()
    assert result.at_steps == ("commit.start",), result
    assert result.findings.duplicated > 0
    assert result.findings.lost == 0
    assert not result.is_passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "step", "problem"),
    [
        (
            "commits",
            "clean.start",
            r"the batch at \d+ ms was completed by driver \d+, and again by",
        ),
        ("state", "clean.done", r"totals of the batch at \d+ ms: .*'key-03'"),
        ("input", "commit.start", r"totals of the batch at \d+ ms: has \("),
    ],
)
def test_a_broken_promise_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str, step: str, problem: str
) -> None:
    """One kill is enough, and the problem names the batch."""
    monkeypatch.setattr(drill_driver, "_DRIVER", ("-m", "tests.dstreams.cli.drill.broken_driver"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(broken_driver.BREAKS, breaks)
    plan = DrillPlan(tmp_path, None, 0, (step_named(step),), seed=1)
    result = Campaign(plan, load(None), SystemClock(), print).run()
    assert result.at_steps == (step,), result
    assert not result.is_passed
    problems = [*result.problems, *result.findings.problems]
    assert any(re.match(problem, text) for text in problems), problems


@pytest.mark.slow
def test_an_application_of_a_user() -> None:
    """The example with a database is exactly once after any kill."""
    app = str(ROOT / "examples" / "exactly_once_database.py")
    status, result = drill("--kills", "1", "--seed", "4", "--app", app, limit_s=500)
    assert status == 0, result
    assert (result["kills"], result["problems"]) == (1, [])


@pytest.mark.slow
def test_a_hundred_kills_and_every_step() -> None:
    """The figures of the README."""
    options = ("--kills", "100", "--seed", "20261121", "--interval", "10")
    status, result = drill(*options, limit_s=7200)
    assert status == 0, result
    assert result["kills"] == 100 + len(STEPS)
    assert len(result["kills_at_steps"]) == len(STEPS)
    assert (result["lost"], result["duplicated"], result["state_equal"]) == (0, 0, True)
