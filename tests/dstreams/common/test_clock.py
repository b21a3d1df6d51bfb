"""The machine's wall clock, as the runtime sees it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timezone

import freezegun
import pytest
from freezegun.api import FrozenDateTimeFactory

from dstreams.common.clock import SystemClock


class StepEvent(threading.Event):
    """Instead of waiting, lets the frozen wall clock go on, by more or less than was asked.

    Args:
        frozen: the wall clock.
        steps_s: by how many seconds it moves at each wait; it stands still when they are used up.
    """

    def __init__(self, frozen: FrozenDateTimeFactory, steps_s: list[float]) -> None:
        super().__init__()
        self.waited_s: list[float | None] = []
        self._frozen = frozen
        self._steps_s = steps_s

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout)
        if self._steps_s:
            self._frozen.tick(self._steps_s.pop(0))
        else:
            self.set()
        return self.is_set()


@pytest.fixture
def frozen() -> Iterator[FrozenDateTimeFactory]:
    # How long a test took goes by the real clock.
    start = datetime(2024, 1, 1, tzinfo=timezone.utc)
    with freezegun.freeze_time(start, ignore=["_pytest.timing"]) as factory:
        yield factory


def test_now(frozen: FrozenDateTimeFactory) -> None:
    """The time is milliseconds since the epoch, in no time zone, cut off."""
    assert SystemClock().now_ms() == 1_704_067_200_000
    frozen.tick(0.0019)
    assert SystemClock().now_ms() == 1_704_067_200_001


def test_wait_until_the_past(frozen: FrozenDateTimeFactory) -> None:
    """A time that has come is not waited for."""
    event = StepEvent(frozen, [])
    now_ms = SystemClock().now_ms()
    assert SystemClock().wait_until(now_ms, event)
    assert SystemClock().wait_until(now_ms - 5000, event)
    assert event.waited_s == []


def test_wait_in_steps(frozen: FrozenDateTimeFactory) -> None:
    """A long wait looks at the clock at least each second."""
    event = StepEvent(frozen, [1.0, 1.0, 0.5])
    assert SystemClock().wait_until(SystemClock().now_ms() + 2500, event)
    assert event.waited_s == [1.0, 1.0, 0.5]


def test_clock_set_forward(frozen: FrozenDateTimeFactory) -> None:
    """A clock that is set forward ends the wait at the next look."""
    event = StepEvent(frozen, [3600.0])
    assert SystemClock().wait_until(SystemClock().now_ms() + 60_000, event)
    assert event.waited_s == [1.0]


def test_clock_set_back(frozen: FrozenDateTimeFactory) -> None:
    """A clock that is set back ends the wait at the next look, for a new decision."""
    event = StepEvent(frozen, [1.0, -3600.0])
    assert SystemClock().wait_until(SystemClock().now_ms() + 5000, event)
    assert event.waited_s == [1.0, 1.0]


def test_interrupted_while_waiting(frozen: FrozenDateTimeFactory) -> None:
    """An interruption ends the wait before the time has come."""
    event = StepEvent(frozen, [1.0])
    assert not SystemClock().wait_until(SystemClock().now_ms() + 60_000, event)
    assert event.waited_s == [1.0, 1.0]


def test_interrupted_before(frozen: FrozenDateTimeFactory) -> None:
    """An interruption wins over a time that has come as well."""
    event = StepEvent(frozen, [])
    event.set()
    assert not SystemClock().wait_until(SystemClock().now_ms() - 1, event)
    assert event.waited_s == []


def test_real_event_wakes_the_waiter() -> None:
    """Setting the event from another thread wakes a wait for a time that is far away."""
    interrupted = threading.Event()
    answers: list[bool] = []
    clock = SystemClock()
    far_ms = clock.now_ms() + 3_600_000
    waiter = threading.Thread(target=lambda: answers.append(clock.wait_until(far_ms, interrupted)))
    waiter.start()
    interrupted.set()
    waiter.join(timeout=30)
    assert not waiter.is_alive()
    assert answers == [False]
