"""Failed streams: the process lives on if the program notices, and is ended otherwise."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dstreams.engine import signals as engine_signals
from dstreams.engine.signals import FailureWatchdog
from tests.support.waiting import wait_for


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """The SIGTERMs that this process got."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)
    engine_signals._unseen.clear()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dstreams-unseen"]


def test_a_failure_that_nobody_notices_ends_the_process(signals: list[int]) -> None:
    """By SIGTERM, which the program may handle as usual; the exit status shows the failure."""
    failure = FailureWatchdog(attention_s=0.01)
    failure.stream_failed()
    wait_for(lambda: signals == [signal.SIGTERM])
    assert failure in engine_signals._unseen


def test_a_failure_that_is_noticed_ends_nothing(signals: list[int]) -> None:
    """The process continues, and its exit status is the program's."""
    failure = FailureWatchdog(attention_s=60)
    failure.stream_failed()
    assert failure in engine_signals._unseen
    failure.seen()
    wait_for(lambda: threads() == [])
    assert signals == []
    assert failure not in engine_signals._unseen


def test_a_failure_may_be_noticed_before_it_is_told(signals: list[int]) -> None:
    """A program that stops its streams has noticed."""
    failure = FailureWatchdog(attention_s=0.01)
    failure.seen()
    failure.stream_failed()
    assert threads() == []
    assert signals == []


def test_an_interactive_session_goes_on(
    signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user reads the log there."""
    app = SimpleNamespace(initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", SimpleNamespace(IPKernelApp=app))
    FailureWatchdog(attention_s=0.01).stream_failed()
    assert threads() == []
    assert signals == []


def test_a_program_that_runs_notebooks_is_not_interactive(
    signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts notebook kernels imports parts of their package."""
    app = SimpleNamespace(initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", SimpleNamespace(IPKernelApp=app))
    FailureWatchdog(attention_s=0.01).stream_failed()
    wait_for(lambda: signals == [signal.SIGTERM])
