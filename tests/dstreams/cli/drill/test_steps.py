"""Steps to kill at exist, and are reached in time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from dstreams.cli.drill.steps import STEPS, STEPS_OF_A_QUERY, KillStep, arm, step_named
from dstreams.common import faults
from dstreams.engine import stream_checkpoint
from tests.dstreams.cli.drill import broken_driver


@pytest.mark.parametrize(
    "step", dict.fromkeys((*STEPS, *STEPS_OF_A_QUERY)), ids=lambda step: step.name
)
def test_steps_are_there(step: KillStep) -> None:
    """The runtime has them, by its own names or as functions."""
    if step.function:
        module, _, function = step.function.partition(":")
        owner = importlib.import_module(module)
        for name in function.split("."):
            owner = getattr(owner, name)
        assert callable(owner)
    else:
        assert step.name in f"{faults.__doc__}{stream_checkpoint.__doc__}"
    assert step_named(step.name) is step


@pytest.mark.parametrize("promise", broken_driver.BROKEN)
def test_promises_that_are_broken_are_there(promise: str) -> None:
    """The functions that a broken driver replaces exist."""
    owner, name, _ = broken_driver.BROKEN[promise]
    assert callable(getattr(owner, name))


class Sample:
    """Something to be wrapped."""

    calls: list[str]

    def create(self, name: str) -> str:
        Sample.calls.append(name)
        return name.upper()


class EndOfProcessError(Exception):
    """Replaces the end of the process."""


def end() -> None:
    raise EndOfProcessError


@pytest.fixture
def sample() -> Iterator[Sample]:
    Sample.calls = []
    original = Sample.create
    yield Sample()
    Sample.create = original  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("when", "calls"), [("before", ["a/1", "b/1"]), ("after", ["a/1", "b/1", "a/2"])]
)
def test_a_function_ends_the_process_before_or_after_a_call(
    sample: Sample, when: str, calls: list[str]
) -> None:
    """The second call with the right file ends the process; others do not."""
    function = f"{Sample.__module__}:Sample.create"
    arm(KillStep("x", function=function, when=when, call=2, file="a/"), end)  # type: ignore[arg-type]
    assert [sample.create("a/1"), sample.create("b/1")] == ["A/1", "B/1"]
    with pytest.raises(EndOfProcessError):
        sample.create("a/2")
    assert Sample.calls == calls


def test_a_step_of_the_runtime_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is armed for the next batch."""
    asked: dict[str, faults.Fault] = {}
    monkeypatch.setattr(faults, "_faults", asked)
    arm(KillStep("commit.start"))
    assert asked == {"commit.start": faults.Fault(None, "kill9")}
