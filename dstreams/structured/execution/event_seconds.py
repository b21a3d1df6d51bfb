"""A warning where event times are seconds but milliseconds are meant, which their size shows."""

from __future__ import annotations

import logging
from datetime import datetime, timezone

from dstreams.spark.selectors import show
from dstreams.structured.plan.logical import EventTimeWatermark

logger = logging.getLogger(__name__)

LIKE_SECONDS = range(1_000_000_000, 5_000_000_000)
"""Event times, in milliseconds, that are seconds from 2001 to 2128 rather than days of 1970."""


class SecondsWarning:
    """Warns once for each watermark of a query whose event times look like seconds."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._warned: set[EventTimeWatermark] = set()

    def look_at(self, step: EventTimeWatermark, latest_ms: int) -> None:
        """Look at the latest event time of a batch, milliseconds since the epoch."""
        if latest_ms not in LIKE_SECONDS or step in self._warned:
            return
        self._warned.add(step)
        moment = datetime.fromtimestamp(latest_ms / 1000, timezone.utc)
        logger.warning(
            "event time %s of query %s is %d ms, which is in %s: if these are seconds, return "
            "seconds * 1000, or a datetime",
            show(step.spec),
            self._query,
            latest_ms,
            f"{moment:%B %Y}",
        )
