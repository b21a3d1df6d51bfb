"""Phases of a driver, from its reported steps."""

from __future__ import annotations

import pytest

from dstreams.cli.drill.steps import PHASES, STEPS, Whereabouts
from dstreams.common import faults


@pytest.mark.parametrize(
    ("steps", "phase"),
    [
        ("", "start of Python"),
        ("driver.started", "start of the JVM"),
        ("driver.started driver.opened rec.fence rec.load", "recovery"),
        ("driver.opened driver.runs", "between batches"),
        ("driver.opened job.submit driver.runs", "input"),
        ("driver.runs plan.start begin.start", "begin record"),
        ("driver.opened driver.runs begin.start begin.done", "between batches"),
        ("job.submit begin.start state.start", "begin record"),
        ("job.submit begin.start state.start begin.done", "state"),
        ("state.start state.done out.start out.done", "outputs"),
        ("out.done commit.start", "commit"),
        ("commit.start commit.done clean.start", "retention"),
        ("clean.start clean.done", "between batches"),
    ],
)
def test_phases(steps: str, phase: str) -> None:
    """The last step of each thread decides; a begin record has precedence."""
    where = Whereabouts()
    for step in steps.split():
        where.note(step)
    assert where.phase == phase
    assert phase in PHASES


def test_steps_are_told_before_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that dies at a step has reported it, unless it is no longer watched."""
    told: list[str] = []
    monkeypatch.setattr(faults, "_watchers", [])
    asked = {"out.start": faults.Fault(None, "raise")}
    end = faults.watch(told.append)
    with pytest.raises(faults.FaultError):
        faults.fault("out.start", 3, asked)
    end()
    faults.fault("out.done", 3, {})
    assert told == ["out.start"]


def test_each_step_has_a_phase() -> None:
    """A step of the runtime before which nothing is known is one of recovery or of planning."""
    unknown = set()
    for step in STEPS:
        where = Whereabouts()
        where.note(step.name)
        if not step.function and where.phase == PHASES[0]:
            unknown.add(step.name.partition(".")[0])
    assert unknown == {"plan", "begin", "rec"}
