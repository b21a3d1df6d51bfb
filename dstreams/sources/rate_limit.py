"""How many records a source may give to a batch."""

from __future__ import annotations


def records_due(records_per_second: int, since_ms: int, until_ms: int) -> int:
    """Count the records of a steady rate that fall into (*since_ms*, *until_ms*].

    Over many intervals that follow each other nothing is rounded away: half a record a second is
    one in every second batch of a second.
    """
    return records_per_second * until_ms // 1000 - records_per_second * since_ms // 1000


class RateLimit:
    """The most that a reader may give to each batch; at first there is no limit.

    Args:
        batch_ms: batch duration in milliseconds.
    """

    def __init__(self, batch_ms: int) -> None:
        self._batch_ms = batch_ms
        self._records_per_second: int | None = None

    def update(self, records_per_second: int) -> None:
        """Set the limit, from any thread."""
        self._records_per_second = records_per_second

    def most(self, batch_time_ms: int) -> int | None:
        """How many records the batch may have at most, None for no limit."""
        rate = self._records_per_second
        if rate is None:
            return None
        return records_due(rate, batch_time_ms - self._batch_ms, batch_time_ms)
