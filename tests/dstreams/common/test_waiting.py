"""Waiting that signals can interrupt; without Spark."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

from dstreams.common.waiting import wait_in_steps


def test_waiting_takes_its_time_whoever_notifies() -> None:
    """A query notifies at each look for data, every few milliseconds: no wait is shorter for it."""
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
    """The system may give it to any thread; the main thread, which waits, runs the handler."""
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
