"""A warning about what may happen often: said at once, then once a minute at most."""

from __future__ import annotations

import logging

from dstreams.common.clock import Clock

_AGAIN_MS = 60_000


class RepeatedWarning:
    """Logs how often something has happened; not safe between threads.

    Args:
        logger: where to.
        clock: the driver's clock.
        message: what has happened; its last placeholder is for how often since it was last said.
        facts: what the other placeholders stand for.
    """

    def __init__(self, logger: logging.Logger, clock: Clock, message: str, *facts: object) -> None:
        self._logger = logger
        self._clock = clock
        self._message = message
        self._facts = facts
        self._unsaid = 0
        self._said_ms: int | None = None

    def add(self, count: int) -> None:
        """Say that it has happened again; the log has it now or later."""
        self._unsaid += count
        now_ms = self._clock.now_ms()
        if self._said_ms is None or not 0 <= now_ms - self._said_ms < _AGAIN_MS:
            self._said_ms = now_ms
            self.flush()

    def flush(self) -> None:
        """Log what has not been said yet."""
        if self._unsaid:
            self._logger.warning(self._message, *self._facts, self._unsaid)
            self._unsaid = 0
