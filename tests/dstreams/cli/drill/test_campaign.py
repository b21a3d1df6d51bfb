"""The course of a drill, with drivers that have no Spark and so live fast."""

from __future__ import annotations

import dataclasses
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from checkpoint.cli.progress_bar import Progress
from dstreams.cli.drill import campaign
from dstreams.cli.drill import driver as drill_driver
from dstreams.cli.drill.application import Application
from dstreams.cli.drill.campaign import WAYS, WORKERS, Campaign, DrillPlan, Kill, other_targets
from dstreams.cli.drill.results import DrillResult, OutputFindings
from dstreams.cli.drill.steps import KillStep, step_named
from dstreams.common.clock import SystemClock


class Counting:
    """An application that records its calls."""

    def __init__(self) -> None:
        self.fed: list[int] = []
        self.application = Application(
            setup=lambda directory: pytest.fail("setup is for drivers"),
            feed=lambda directory, number: self.fed.append(number),
            is_done=lambda directory: True,
            check=lambda directory: OutputFindings(records=len(self.fed)),
        )


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of the test's own, killed soon."""
    monkeypatch.setattr(drill_driver, "_DRIVER", (str(Path(__file__).with_name("fake_driver.py")),))
    monkeypatch.setattr(campaign, "KILL_WITHIN_S", 0.1)
    monkeypatch.setattr(campaign, "_FIRST_RECOVERY_MS", 50)


PATIENCE_S, SOON_S = 300, 10
"""For drivers that do what they should, and for those that do not, after a start in time."""


def drill(
    directory: Path,
    behaviour: str,
    kills: int = 1,
    steps: tuple[KillStep, ...] = (),
    patience_s: int = PATIENCE_S,
) -> tuple[DrillResult, Counting, list[str]]:
    (directory / "behaviour").write_text(behaviour)
    lines: list[str] = []
    counting = Counting()
    plan = DrillPlan(directory, None, kills, steps, 5, feed_s=0.05, patience_s=patience_s)
    course = Campaign(plan, counting.application, SystemClock(), lines.append)
    return course.run(), counting, lines


@pytest.mark.usefixtures("fast")
def test_all_kills_are_done_and_then_a_driver_ends(tmp_path: Path) -> None:
    """All kills happen, at random moments and at steps, with continuous input."""
    steps = (step_named("commit.start"), step_named("rec.load"))
    result, counting, lines = drill(tmp_path, "well", kills=9, steps=steps)
    assert result.is_passed, result
    assert result.kills == 11
    assert sorted(result.at_steps) == ["commit.start", "rec.load"]
    # A driver may die between a batch and the word of it.
    assert result.batches <= (tmp_path / "count").stat().st_size <= result.batches + 11
    assert len(result.recovery_ms) >= 5
    assert counting.fed == list(range(len(counting.fed)))
    assert len(counting.fed) >= 5
    assert sum("killed at the step" in line for line in lines) == 2
    assert lines[-1].endswith("stopped")
    assert sum(result.ways.values()) == sum(result.phases.values()) == 11
    assert (tmp_path / "completed").read_text().count("\n") == result.batches


@pytest.mark.usefixtures("fast")
def test_drivers_lose_their_workers_before_they_are_killed(tmp_path: Path) -> None:
    """The workers of N drivers are killed, which continue and are killed like others."""
    (tmp_path / "behaviour").write_text("well")
    plan = DrillPlan(tmp_path, None, 6, (), 5, feed_s=0.05, worker_kills=2, patience_s=PATIENCE_S)
    result = Campaign(plan, Counting().application, SystemClock(), lambda line: None).run()
    assert result.is_passed, result
    assert (result.kills, result.ways[WORKERS]) == (8, 2)


@pytest.mark.usefixtures("fast")
def test_a_driver_catches_up_before_it_is_killed_in_a_stop(tmp_path: Path) -> None:
    """A stop with many batches to run has no time left for its own steps."""
    step = step_named("before the checkpoint at the end")
    result, _, _ = drill(tmp_path, "behind", steps=(step,))
    assert result.is_passed, result
    assert result.at_steps == (step.name,)


@pytest.mark.deep
@pytest.mark.usefixtures("fast")
def test_a_driver_that_cannot_catch_up(tmp_path: Path) -> None:
    """The step was not reached, and the problem has a remedy."""
    step = step_named("before the checkpoint at the end")
    result, _, _ = drill(tmp_path, "further behind", steps=(step,), patience_s=SOON_S)
    (problem,) = result.problems
    assert re.match(r"no driver reached the step: .*; the stop started 1\d\d s behind, .*", problem)
    assert "--interval" in problem


def test_the_seed_decides_when_and_in_which_order() -> None:
    """Another drill of the same seed does the same; every way to kill is used."""
    steps = (step_named("rec.load"),)
    one, same, other = (other_targets(40, steps, random.Random(seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert len(one) == 40
    kills = [target for target in one if isinstance(target, Kill)]
    assert {kill.way for kill in kills} == set(WAYS)
    early = [target for target in one if isinstance(target, Kill) and target.moment < 0]
    assert len(early) == 9


def test_early_kills_follow_each_other() -> None:
    """A driver is killed while it recovers from one that was killed while it recovered."""
    found = other_targets(40, (), random.Random(3))
    early = [isinstance(target, Kill) and target.moment < 0 for target in found]
    assert sum(first and second for first, second in pairwise(early)) >= 4


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("name", ["feed", "is_done", "check"])
def test_a_function_of_the_application_fails(tmp_path: Path, name: str) -> None:
    """It is a problem with its line; the findings so far are reported."""
    (tmp_path / "behaviour").write_text("well")

    def fail(*_: object) -> bool:
        raise OSError("the database is not there")

    broken = dataclasses.replace(Counting().application, **{name: fail})
    plan = DrillPlan(tmp_path, None, 1, (), 5, feed_s=0.05, patience_s=PATIENCE_S)
    result = Campaign(plan, broken, SystemClock(), lambda line: None).run()
    assert not result.is_passed
    wanted = rf"{name}\(directory.*\) of the application failed: OSError: the database is not there"
    assert re.match(rf"{wanted}, at .*/test_campaign\.py:\d+$", result.problems[0]), result
    assert (result.batches > 0) == (name != "feed")


@pytest.mark.deep
@pytest.mark.usefixtures("fast")
def test_a_step_that_no_driver_comes_to(tmp_path: Path) -> None:
    """It is a problem, not a kill that was survived."""
    result, _, _ = drill(tmp_path, "well", steps=(KillStep("never"),), patience_s=SOON_S)
    assert result.problems == ("no driver reached the step: never",)
    assert result.at_steps == ()


@pytest.mark.deep
@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("ends", r"a driver ended by itself, with status 1; the end of .*driver-\d+\.log:"),
        ("slow", rf"a driver completed no batch within {SOON_S} s; the end of "),
        ("stubborn", r"the last driver did not end after SIGTERM"),
        ("failing", r"a batch failed: it was"),
        ("forgetful", r"the batch at \d+ ms was completed by driver \d+, and again by driver \d+"),
        (
            "unfenced",
            rf"driver \d+, suspended while another one took over, did not end within {SOON_S} s",
        ),
    ],
)
def test_drivers_that_go_wrong(tmp_path: Path, behaviour: str, problem: str) -> None:
    """The problem has the end of their log, and no process is left."""
    patience_s = SOON_S if behaviour in ("slow", "stubborn", "unfenced") else PATIENCE_S
    kills = 60 if behaviour == "ends" else 9
    result, _, _ = drill(tmp_path, behaviour, kills=kills, patience_s=patience_s)
    assert not result.is_passed
    found = [each for each in result.problems if re.match(problem, each)]
    assert found, result.problems
    if behaviour == "ends":
        assert "    no more\n    of this" in found[0]


@pytest.mark.usefixtures("fast")
def test_input_that_never_comes_through(tmp_path: Path) -> None:
    """A driver that does not finish its input times out after its last batch."""
    (tmp_path / "behaviour").write_text("runs dry")
    counting = Counting()
    never = dataclasses.replace(counting.application, is_done=lambda directory: False)
    plan = DrillPlan(tmp_path, None, 1, (), 5, feed_s=0.05, patience_s=SOON_S)
    result = Campaign(plan, never, SystemClock(), print).run()
    (problem,) = result.problems
    wanted = f"not all input was processed when no batch had completed for {SOON_S} s"
    assert problem == wanted


class Told(Progress):
    """Records the stages of progress, and the steps of each."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[int, int | None]] = {}

    def begin(self, stage: str, total: int | None = None) -> None:
        self.stages[stage] = 0, total

    def advance(self, count: int = 1) -> None:
        stage, (done, total) = list(self.stages.items())[-1]
        self.stages[stage] = done + count, total


@pytest.mark.usefixtures("fast")
def test_progress(tmp_path: Path) -> None:
    """Kills at moments and at steps are counted, then the rest is waited for and compared."""
    (tmp_path / "behaviour").write_text("well")
    steps = (step_named("rec.load"),)
    plan = DrillPlan(tmp_path, None, 2, steps, 5, feed_s=0.05, patience_s=PATIENCE_S)
    told = Told()
    result = Campaign(plan, Counting().application, SystemClock(), lambda line: None, told).run()
    assert result.kills == 3
    assert told.stages == {
        "killing drivers": (3, 3),
        "finishing the input": (0, None),
        "comparing": (0, None),
    }
