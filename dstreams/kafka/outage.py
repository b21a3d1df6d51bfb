"""What the log says of brokers that do not answer: at once, each minute, and when they are back."""

from __future__ import annotations

import logging

from dstreams.common.clock import Clock

logger = logging.getLogger(__name__)

_AGAIN_MS = 60_000


class Outage:
    """Of one input; not safe between threads.

    Args:
        where: the input.
        clock: the driver's clock.
    """

    def __init__(self, where: str, clock: Clock) -> None:
        self._where = where
        self._clock = clock
        self._since_ms: int | None = None
        self._said_ms = 0
        self._batches = 0

    def goes_on(self, why: Exception) -> None:
        """Take note that a batch goes without records, as no broker answers."""
        now_ms = self._clock.now_ms()
        self._batches += 1
        if self._since_ms is None:
            self._since_ms = self._said_ms = now_ms
            logger.warning("%s; batches go on without its records until one does", why)
        elif not 0 <= now_ms - self._said_ms < _AGAIN_MS:
            self._said_ms = now_ms
            logger.warning(
                "%s, for %d s now; %d batches went on without its records",
                why,
                max(0, now_ms - self._since_ms) // 1000,
                self._batches,
            )

    def ends(self) -> None:
        """Take note that the brokers have answered."""
        if self._since_ms is not None:
            away_s = max(0, self._clock.now_ms() - self._since_ms) // 1000
            logger.warning(
                "%s: its brokers answer again, after %d s and %d batches without its records",
                self._where,
                away_s,
                self._batches,
            )
            self._since_ms, self._batches = None, 0
