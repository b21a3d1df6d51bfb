"""A limit of records a second, as a token bucket."""

from __future__ import annotations

import math
import threading

from dstreams.common.clock import Clock


class RateLimiter:
    """Makes callers wait so that no more than a number of records a second go through.

    The bucket is empty at first, so the limit also holds in the first second. What was not used is
    saved up to one second's worth. Who takes many at once goes at once and makes the next wait.

    Args:
        max_rate: records a second, which no update exceeds. None: no limit of its own.
        clock: tells the time; with one that stands still, so does who waits.

    Semantics: RateLimiter of Spark Streaming (4.3).
    """

    def __init__(self, max_rate: float | None, clock: Clock) -> None:
        self._max_rate = max_rate
        self._rate: float | None = max_rate
        self._clock = clock
        self._tokens = 0.0
        self._filled_ms = clock.now_ms()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._released = False

    @property
    def rate(self) -> float | None:
        """Records a second now, None for no limit."""
        return self._rate

    def update(self, rate: float) -> None:
        """Set the rate, never above the maximum; zero, less, and what is no number are ignored."""
        if self._released or not (rate > 0 and math.isfinite(rate)):
            return
        self._set(rate if self._max_rate is None else min(rate, self._max_rate))

    def release(self) -> None:
        """Let all go through, now and from now on: who waits must not hold up the end."""
        self._released = True
        self._set(None)

    def acquire(self, count: int = 1) -> None:
        """Wait until *count* more records may go through."""
        while self._rate is not None:
            with self._lock:
                due_ms, changed = self._take(count), self._changed
            if due_ms is None:
                return
            self._clock.wait_until(due_ms, changed)

    def _take(self, count: int) -> int | None:
        """Take the tokens and return None, or return when to try again."""
        rate, now_ms = self._rate, self._clock.now_ms()
        if rate is None:
            return None
        self._fill(rate, now_ms)
        if self._tokens >= 0:
            self._tokens -= count
            return None
        return now_ms + max(1, math.ceil(-self._tokens / rate * 1000))

    def _fill(self, rate: float, now_ms: int) -> None:
        """Add what has flown in; a clock that was set back adds nothing."""
        passed_ms = max(0, now_ms - self._filled_ms)
        self._filled_ms = now_ms
        self._tokens = min(rate, self._tokens + passed_ms / 1000 * rate)

    def _set(self, rate: float | None) -> None:
        with self._lock:
            if self._rate is not None:
                self._fill(self._rate, self._clock.now_ms())
            else:
                self._tokens, self._filled_ms = 0.0, self._clock.now_ms()
            self._rate = rate
            self._changed.set()
            self._changed = threading.Event()
