"""The driver's clock, the only one that decides anything.

Batch times, delays and file ages are read from a :class:`Clock` that is passed in, so a test or a
notebook can drive a whole stream by hand (:class:`dstreams.testing.ManualClock`). Workers use no
clock; they receive the batch time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

_POLL_S = 0.2


class Clock(Protocol):
    """The time as the driver needs it: read it, and wait for it."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        """Wait until *time_ms*; return False if *interrupted* is set first, or already was.

        If the clock is set back while this waits, it returns True at once, before *time_ms*; the
        caller then decides again how long to wait.
        """
        ...


class SystemClock:
    """The machine's wall clock.

    Waits in sleeps of at most a second and reads the clock after each, so a clock that is set
    forward or back ends the wait instead of stretching it.
    """

    def now_ms(self) -> int:
        return int(time.time() * 1000)  # noqa: TID251

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        before_ms = self.now_ms()
        while not interrupted.is_set():
            now_ms = self.now_ms()
            if now_ms >= time_ms or now_ms < before_ms:
                return True
            before_ms = now_ms
            interrupted.wait(min((time_ms - now_ms) / 1000, 1.0))
        return False


def wait_in_steps(
    changed: threading.Condition, condition: Callable[[], bool], timeout: float | None
) -> None:
    """Wait in short steps until *condition* holds; *changed* must be held. No limit if None.

    A signal that the system delivers to another thread does not wake the main thread, which alone
    runs handlers.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while not condition():
        left = _POLL_S if until is None else until - time.monotonic()
        if left <= 0:
            return
        changed.wait(min(_POLL_S, left))
