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
    """What a driver asks of time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        """Wait for *time_ms*; True when it has come, False when *interrupted* was set first.

        *interrupted* wins: when it is already set, the answer is False without waiting. Where the
        clock is set back meanwhile, the answer is True at once, before the time has come: who waits
        decides anew for when.
        """
        ...


class SystemClock:
    """The machine's wall clock.

    Waiting measures the wall clock again after each sleep of at most a second, so a clock that is
    set forward or back moves what is waited for instead of stretching the wait.
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
