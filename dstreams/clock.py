"""The driver's clock: the only clock that decides anything.

Batch times, delays and file ages are read from a :class:`Clock` that is handed in, so a test or a
notebook can drive a whole stream by hand (:class:`dstreams.testing.ManualClock`). Workers never
look at a clock; they are told the batch time.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What the runtime asks of time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        """Wait for *time_ms*; True when it has come, False when *interrupted* was set first.

        *interrupted* wins: when it is already set, the answer is False without waiting.
        """
        ...


class SystemClock:
    """The machine's wall clock.

    Waiting measures the wall clock again after each sleep of at most a second, so a clock that is
    set forward or back moves the next batch instead of stretching the wait.
    """

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        while not interrupted.is_set():
            left_ms = time_ms - self.now_ms()
            if left_ms <= 0:
                return True
            interrupted.wait(min(left_ms / 1000, 1.0))
        return False
