"""When batches are due by a clock that may be set back."""

from __future__ import annotations

import logging

from dstreams.common.durations import ahead_of_clock_ms, batch_datetime

logger = logging.getLogger(__name__)


class Pace:
    """Says when a batch is due, and warns when that is before its time.

    A batch time is also a name: of the batch, of its state, of what its outputs have written. So
    times only grow, one batch duration from each to the next, whatever the clock shows. A batch is
    due at its time, but never more than a batch duration from now: where the clock was set back, or
    where batches have run before their time, as in steps or at a graceful stop, the next one is due
    at the next multiple of the batch duration, under a time that the clock has not reached::

        clock         58   59   60 | 1    2    3          (set back by a minute at 60)
        batch time    58   59   60   61   62   63

    Once the clock shows what the next batch time says, both are one again.

    Args:
        batch_ms: batch duration in milliseconds.
    """

    def __init__(self, batch_ms: int) -> None:
        self._batch_ms = batch_ms
        self._ahead_ms = 0

    def due_ms(self, time_ms: int, now_ms: int) -> int:
        """Return what the clock shows when the next batch is due.

        Args:
            time_ms: its batch time.
            now_ms: the clock.
        """
        ahead_ms = ahead_of_clock_ms(time_ms, now_ms, self._batch_ms)
        if ahead_ms > self._ahead_ms:
            logger.warning(
                "the clock shows %s, and the next batch is that at %d ms (%s): the clock was set "
                "back, or batches have run before their time. Batches go on, one every %d ms, "
                "under times that are %g s ahead of the clock until it has caught up",
                batch_datetime(now_ms),
                time_ms,
                batch_datetime(time_ms),
                self._batch_ms,
                ahead_ms / 1000,
            )
        elif self._ahead_ms and not ahead_ms:
            logger.info("the clock has caught up with the batch at %d ms", time_ms)
        self._ahead_ms = ahead_ms
        return time_ms - ahead_ms
