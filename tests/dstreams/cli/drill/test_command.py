"""The command: its options, its exit status, and what it leaves behind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dstreams.cli.drill import command, kafka_job
from dstreams.cli.drill.application import KAFKA
from dstreams.cli.drill.campaign import Campaign, DrillPlan
from dstreams.cli.drill.results import DrillResult, OutputFindings
from dstreams.cli.drill.steps import RUNTIME_STEPS, STEPS, STEPS_OF_A_QUERY, STEPS_WITH_KAFKA
from dstreams.cli.main import main
from dstreams.errors import EnvironmentNotReadyError

pytestmark = pytest.mark.spark

Plans = list[DrillPlan]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[OutputFindings], Plans]:
    """Let a drill find something without running; returns the plans it would have run."""

    def find(findings: OutputFindings) -> Plans:
        seen: Plans = []

        def run(campaign: Campaign) -> DrillResult:
            seen.append(campaign._plan)
            (campaign._plan.directory / "left").touch()
            return DrillResult(campaign._plan.seed, 1, (), 1, (), findings)

        monkeypatch.setattr(Campaign, "run", run)
        monkeypatch.setattr(command, "mkdtemp", lambda prefix: made(tmp_path / f"{prefix}x"))
        return seen

    def made(path: Path) -> str:
        path.mkdir()
        return str(path)

    return find


def test_a_drill_that_passes_leaves_nothing(
    plans: Callable[[OutputFindings], Plans], capsys: pytest.CaptureFixture[str]
) -> None:
    """The drill's own job is killed at each step as well, and its directory is deleted."""
    seen = plans(OutputFindings())
    assert main(["drill", "--kills", "5", "--seed", "8"]) == 0
    (plan,) = seen
    assert (plan.kills, plan.seed, plan.app) == (5, 8, None)
    assert list(plan.steps) == list(STEPS)
    assert not plan.directory.exists()
    out = capsys.readouterr().out
    assert out.startswith(f"{5 + len(STEPS)} kills, seed 8, in {plan.directory}\n")
    assert out.endswith("all promises held\n")


def test_a_quiet_drill(
    plans: Callable[[OutputFindings], Plans], capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the result is printed, and the directory that was kept."""
    seen = plans(OutputFindings(lost=1))
    assert main(["drill", "--kills", "5", "--seed", "8", "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["", "kills                           1, of them 0 at steps of a batch"]
    assert lines[-2] == "PROMISES WERE BROKEN"
    assert lines[-1] == f"the directory of the drill is kept: {seen[0].directory}"


def test_a_drill_of_kafka(
    plans: Callable[[OutputFindings], Plans], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers inherit the brokers, steps of files are skipped, and the topics are deleted."""
    monkeypatch.setenv(KAFKA, "restored afterwards")
    cleaned: list[str] = []
    monkeypatch.setattr(kafka_job, "clean", cleaned.append)
    seen = plans(OutputFindings())
    words = ["--kills", "5", "--bootstrap-server", "one:9092", "--worker-kills", "2"]
    assert main(["drill", *words]) == 0
    (plan,) = seen
    assert os.environ[KAFKA] == "one:9092"
    assert list(plan.steps) == list(STEPS_WITH_KAFKA)
    assert (plan.app, plan.worker_kills) == (None, 2)
    assert cleaned == [str(plan.directory)]


def test_a_drill_that_fails_keeps_its_directory(
    plans: Callable[[OutputFindings], Plans], capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory of a failed drill is kept, and named."""
    seen = plans(OutputFindings(lost=1))
    assert main(["drill", "--kills", "1", "--no-steps"]) == 1
    (plan,) = seen
    assert list(plan.steps) == []
    assert (plan.directory / "left").exists()
    assert capsys.readouterr().out.endswith(f"the drill is kept: {plan.directory}\n")


@pytest.mark.parametrize(("lost", "status"), [(0, 0), (1, 1)])
def test_the_exit_status(
    plans: Callable[[OutputFindings], Plans],
    capsys: pytest.CaptureFixture[str],
    lost: int,
    status: int,
) -> None:
    """Zero only when all promises held; the options arrive."""
    seen = plans(OutputFindings(records=1, lost=lost))
    assert main(["drill", "--kills", "7", "--seed", "3", "--no-steps"]) == status
    assert [(plan.kills, plan.seed, list(plan.steps)) for plan in seen] == [(7, 3, [])]
    assert re.search(r"records lost +\d", capsys.readouterr().out)


def test_a_drill_of_the_query(plans: Callable[[OutputFindings], Plans]) -> None:
    """It has its own steps, and excludes an application."""
    seen = plans(OutputFindings())
    assert main(["drill", "--kills", "2", "--query"]) == 0
    assert [(plan.query, list(plan.steps)) for plan in seen] == [(True, list(STEPS_OF_A_QUERY))]
    with pytest.raises(SystemExit):
        main(["drill", "--query", "--app", __file__])


def test_a_drill_at_one_step(plans: Callable[[OutputFindings], Plans], tmp_path: Path) -> None:
    """It is killed there and nowhere else, an application of a user as well."""
    seen = plans(OutputFindings())
    assert main(["drill", "--step", "commit.start"]) == 0
    assert main(["drill", "--step", "out.done", "--step", "rec.load", "--kills", "2"]) == 0
    app = str(Path(__file__).parents[4] / "examples" / "exactly_once_database.py")
    assert main(["drill", "--app", app, "--step", "rec.load"]) == 0
    planned = [(plan.kills, [step.name for step in plan.steps]) for plan in seen]
    assert planned == [(0, ["commit.start"]), (2, ["out.done", "rec.load"]), (1, ["rec.load"])]
    assert seen[2].app == Path(app)


def test_steps_of_the_help() -> None:
    """The help names all that every stream comes to, in their order."""
    text = " ".join(command._STATUS.split())
    text = text.partition("Between")[0]
    found = re.findall(r"\b(?:plan|begin|job|state|out|commit|clean|rec)\.[a-z]+", text)
    assert tuple(found) == RUNTIME_STEPS


@pytest.mark.parametrize(
    "wrong",
    [
        ["--step", "commit"],
        ["--kills", "0"],
        ["--kills", "x"],
        ["--seed", "-1"],
        ["--app", "/no/such/file"],
    ],
)
def test_options_that_are_wrong(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error with the allowed values."""
    with pytest.raises(SystemExit) as end:
        main(["drill", *wrong])
    assert end.value.code == 2
    assert repr(wrong[1]) in capsys.readouterr().err


def test_a_file_that_is_no_application(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before anything is started."""
    monkeypatch.syspath_prepend("/nowhere")
    (tmp_path / "drilled_nothing.py").write_text("x = 1\n")
    assert main(["drill", "--app", str(tmp_path / "drilled_nothing.py")]) == 2
    assert "no function setup(directory)" in capsys.readouterr().err


def test_without_java(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Said once, and not by each driver."""

    def refuse() -> None:
        raise EnvironmentNotReadyError("no Java here")

    monkeypatch.setattr(command, "require_java", refuse)
    assert main(["drill"]) == 3
    assert capsys.readouterr().err == "dstreams drill: no Java here\n"
