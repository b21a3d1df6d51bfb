"""Watermarks: one for each watermark operator, and one for the query.

>>> from dstreams.structured.execution.watermarks import WatermarkRule, Watermarks
>>> rule = WatermarkRule(delays_ms=(10_000,))
>>> Watermarks.start(1).advance(rule, {0: 25_000}, now_ms=0).query_ms
15000
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from dstreams.spark.selectors import show
from dstreams.structured.plan.logical import EventTimeWatermark

logger = logging.getLogger(__name__)

LIKE_SECONDS = range(1_000_000_000, 5_000_000_000)
"""Event times that are more likely seconds, from 2001 to 2128, than milliseconds in 1970."""


@dataclass(frozen=True)
class WatermarkRule:
    """The rule that computes watermarks; *policy* is ``min`` or ``max``.

    After *idle_ms* without data an operator no longer holds the others back; None disables this.
    """

    delays_ms: tuple[int, ...]
    policy: str = "min"
    idle_ms: tuple[int | None, ...] = ()

    def is_idle(self, operator: int, active_ms: int, now_ms: int) -> bool:
        """Return whether an operator has been without data for too long."""
        after_ms = self.idle_ms[operator] if operator < len(self.idle_ms) else None
        return after_ms is not None and now_ms - active_ms > after_ms


@dataclass(frozen=True)
class Watermarks:
    """The watermarks after a batch; the watermark of the query never decreases.

    *active_ms* has the time of the last batch with data for each operator; without such a batch the
    time of the first batch, and -1 before the first batch.
    """

    query_ms: int
    operators_ms: tuple[int, ...]
    active_ms: tuple[int, ...]

    @classmethod
    def start(cls, operators: int) -> Watermarks:
        """Return the watermarks before the first batch."""
        return cls(0, (0,) * operators, (-1,) * operators)

    def advance(self, rule: WatermarkRule, latest_ms: Mapping[int, int], now_ms: int) -> Watermarks:
        """Return the watermarks after a batch; *latest_ms* has the operators that had data.

        Semantics: WatermarkTracker.updateWatermark (Spark 4.3); idle operators are ours.
        """
        operators_ms = tuple(
            max(before, latest_ms[operator] - rule.delays_ms[operator])
            if operator in latest_ms
            else before
            for operator, before in enumerate(self.operators_ms)
        )
        active_ms = tuple(
            now_ms if operator in latest_ms or before < 0 else before
            for operator, before in enumerate(self.active_ms)
        )
        awake = [
            watermark_ms
            for operator, watermark_ms in enumerate(operators_ms)
            if not rule.is_idle(operator, active_ms[operator], now_ms)
        ]
        choose = max if rule.policy == "max" else min
        chosen_ms = choose(awake, default=0)
        return Watermarks(max(self.query_ms, chosen_ms), operators_ms, active_ms)

    def fitted(self, operators: int) -> Watermarks:
        """Return the watermarks; only the query's own if the number of operators has changed."""
        if len(self.operators_ms) == operators:
            return self
        return Watermarks(self.query_ms, (0,) * operators, (-1,) * operators)


class SecondsWarning:
    """Warns once for each watermark of a query whose event times look like seconds."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._warned: set[EventTimeWatermark] = set()

    def look_at(self, step: EventTimeWatermark, latest_ms: int) -> None:
        """Check the latest event time of a batch, milliseconds since the epoch."""
        if latest_ms not in LIKE_SECONDS or step in self._warned:
            return
        self._warned.add(step)
        moment = datetime.fromtimestamp(latest_ms / 1000, timezone.utc)
        logger.warning(
            "event time %s of query %s: suspect value, got %d ms, which is in %s; if these are "
            "seconds, return seconds * 1000, or a datetime",
            show(step.spec),
            self._query,
            latest_ms,
            f"{moment:%B %Y}",
        )
