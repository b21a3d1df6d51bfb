"""The machine's wall clock, as the runtime sees it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from types import FrameType

import freezegun
import pytest
from freezegun.api import FrozenDateTimeFactory

from dstreams.common.clock import SystemClock, wait_in_steps


class StepEvent(threading.Event):
    """Instead of waiting, advances the frozen wall clock by more or less than the timeout.

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
    # pytest measures durations by the real clock.
    start = datetime(2024, 1, 1, tzinfo=timezone.utc)
    with freezegun.freeze_time(start, ignore=["_pytest.timing"]) as factory:
        yield factory


def test_now(frozen: FrozenDateTimeFactory) -> None:
    """The time is in milliseconds since the epoch, without a time zone, rounded down."""
    assert SystemClock().now_ms() == 1_704_067_200_000
    frozen.tick(0.0019)
    assert SystemClock().now_ms() == 1_704_067_200_001


def test_wait_until_the_past(frozen: FrozenDateTimeFactory) -> None:
    """A time in the past is not waited for."""
    event = StepEvent(frozen, [])
    now_ms = SystemClock().now_ms()
    assert SystemClock().wait_until(now_ms, event)
    assert SystemClock().wait_until(now_ms - 5000, event)
    assert event.waited_s == []


def test_wait_in_steps(frozen: FrozenDateTimeFactory) -> None:
    """A long wait reads the clock at least each second."""
    event = StepEvent(frozen, [1.0, 1.0, 0.5])
    assert SystemClock().wait_until(SystemClock().now_ms() + 2500, event)
    assert event.waited_s == [1.0, 1.0, 0.5]


def test_clock_set_forward(frozen: FrozenDateTimeFactory) -> None:
    """A clock that is set forward ends the wait at the next reading."""
    event = StepEvent(frozen, [3600.0])
    assert SystemClock().wait_until(SystemClock().now_ms() + 60_000, event)
    assert event.waited_s == [1.0]


def test_clock_set_back(frozen: FrozenDateTimeFactory) -> None:
    """A clock that is set back ends the wait at the next reading, for a new decision."""
    event = StepEvent(frozen, [1.0, -3600.0])
    assert SystemClock().wait_until(SystemClock().now_ms() + 5000, event)
    assert event.waited_s == [1.0, 1.0]


def test_interrupted_while_waiting(frozen: FrozenDateTimeFactory) -> None:
    """An interruption ends the wait before the time has come."""
    event = StepEvent(frozen, [1.0])
    assert not SystemClock().wait_until(SystemClock().now_ms() + 60_000, event)
    assert event.waited_s == [1.0, 1.0]


def test_interrupted_before(frozen: FrozenDateTimeFactory) -> None:
    """An interruption has precedence over a time that has come."""
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


def test_waiting_takes_its_time_whoever_notifies() -> None:
    """Frequent notifications, as from a polling query, do not shorten a wait."""
    changed, done = threading.Condition(), threading.Event()

    def notify() -> None:
        while not done.wait(0.001):
            with changed:
                changed.notify_all()

    notifier = threading.Thread(target=notify)
    notifier.start()
    try:
        started = time.monotonic()
        with changed:
            wait_in_steps(changed, lambda: False, 0.5)
        assert time.monotonic() - started >= 0.5
        with changed:
            wait_in_steps(changed, lambda: True, 600)
        assert time.monotonic() - started < 300
    finally:
        done.set()
        notifier.join()


def test_a_signal_that_another_thread_receives_is_handled() -> None:
    """The system may deliver it to any thread; the waiting main thread runs the handler."""
    changed, handled = threading.Condition(), threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        handled.set()

    before = signal.signal(signal.SIGUSR1, handle)
    receiver = threading.Thread(
        target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    )
    try:
        with changed:
            receiver.start()
            wait_in_steps(changed, handled.is_set, 60)
        assert handled.is_set()
    finally:
        receiver.join()
        signal.signal(signal.SIGUSR1, before)
