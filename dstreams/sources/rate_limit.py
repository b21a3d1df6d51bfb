"""Limits of rates: records of a batch, records per second on a thread, warnings per minute."""

from __future__ import annotations

import logging
import math
import threading

from dstreams.common.clock import Clock

_WARNING_INTERVAL_MS = 60_000


def records_due(records_per_second: int, since_ms: int, until_ms: int) -> int:
    """Return the number of records due in (*since_ms*, *until_ms*] at a steady rate.

    Rounding loses nothing over adjacent intervals: 0.5 records a second are one record in every
    second batch of a second.
    """
    return records_per_second * until_ms // 1000 - records_per_second * since_ms // 1000


class RateLimit:
    """A limit of the records of a batch of *batch_ms* milliseconds; unlimited until updated."""

    def __init__(self, batch_ms: int) -> None:
        self._batch_ms = batch_ms
        self._records_per_second: int | None = None

    def update(self, records_per_second: int) -> None:
        """Set the limit; may be called on any thread."""
        self._records_per_second = records_per_second

    def most(self, batch_time_ms: int) -> int | None:
        """Return the largest number of records for a batch, None if unlimited."""
        rate = self._records_per_second
        if rate is None:
            return None
        return records_due(rate, batch_time_ms - self._batch_ms, batch_time_ms)


class RateLimiter:
    """A token bucket that makes callers wait for a limit of records per second.

    The bucket is empty at first, so the limit also holds in the first second. It holds the tokens
    of one second. A caller that acquires many at once passes at once, and the next caller waits.

    Args:
        max_rate: records per second that no update exceeds; None if unlimited.
        clock: the driver's clock.

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
        """The current limit in records per second, None if unlimited."""
        return self._rate

    def update(self, rate: float) -> None:
        """Set the rate, at most the maximum; ignore values that are not positive and finite."""
        if self._released or not (rate > 0 and math.isfinite(rate)):
            return
        self._set(rate if self._max_rate is None else min(rate, self._max_rate))

    def release(self) -> None:
        """Remove the limit for good, so that waiting callers do not delay the shutdown."""
        self._released = True
        self._set(None)

    def acquire(self, count: int = 1) -> None:
        """Wait until *count* more records may pass."""
        while self._rate is not None:
            with self._lock:
                due_ms, changed = self._take(count), self._changed
            if due_ms is None:
                return
            self._clock.wait_until(due_ms, changed)

    def _take(self, count: int) -> int | None:
        """Take the tokens and return None, or return the time to try again."""
        rate, now_ms = self._rate, self._clock.now_ms()
        if rate is None:
            return None
        self._fill(rate, now_ms)
        if self._tokens >= 0:
            self._tokens -= count
            return None
        return now_ms + max(1, math.ceil(-self._tokens / rate * 1000))

    def _fill(self, rate: float, now_ms: int) -> None:
        """Add the tokens since the last call; none if the clock was set back."""
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


class RepeatedWarning:
    """Counts an event and logs a warning about it; not safe between threads.

    The last placeholder of *message* is the count since the last warning; *args* are the others.
    """

    def __init__(self, logger: logging.Logger, clock: Clock, message: str, *args: object) -> None:
        self._logger = logger
        self._clock = clock
        self._message = message
        self._args = args
        self._unlogged = 0
        self._logged_ms: int | None = None

    def add(self, count: int) -> None:
        """Count *count* events; log the warning if it is due."""
        self._unlogged += count
        now_ms = self._clock.now_ms()
        if self._logged_ms is None or not 0 <= now_ms - self._logged_ms < _WARNING_INTERVAL_MS:
            self._logged_ms = now_ms
            self.flush()

    def flush(self) -> None:
        """Log the events since the last warning."""
        if self._unlogged:
            self._logger.warning(self._message, *self._args, self._unlogged)
            self._unlogged = 0
