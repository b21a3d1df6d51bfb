"""A clock that a test moves."""

from __future__ import annotations

import threading

from dstreams.errors import InvalidStreamError


class ManualClock:
    """A clock that moves only when you move it.

    Args:
        start_ms: initial time in milliseconds since the epoch.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms
        self._times_set_back = 0
        self._changed = threading.Condition()

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        with self._changed:
            return self._now_ms

    def advance(self, ms: int) -> None:
        """Move the clock forward.

        Raises:
            InvalidStreamError: if *ms* is negative.
        """
        if ms < 0:
            raise InvalidStreamError(f"a clock cannot advance by {ms} ms; set_back({-ms}) it")
        with self._changed:
            self._now_ms += ms
            self._changed.notify_all()

    def set_back(self, ms: int) -> None:
        """Set the clock back, as can happen to a machine's; batch times still increase.

        Raises:
            InvalidStreamError: if *ms* is not positive.
        """
        if ms <= 0:
            raise InvalidStreamError(f"a clock is set back by 1 ms or more, got {ms} ms")
        with self._changed:
            self._now_ms -= ms
            self._times_set_back += 1
            self._changed.notify_all()

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        """Wait until the clock shows *time_ms*, or is set back; False when *interrupted* is set."""
        with self._changed:
            before = self._times_set_back
            while not interrupted.is_set():
                if self._now_ms >= time_ms or self._times_set_back > before:
                    return True
                # Setting the event does not wake this condition.
                self._changed.wait(0.02)
        return False
