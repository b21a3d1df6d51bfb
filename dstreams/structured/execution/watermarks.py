"""How far event time has come: one watermark for each operator, and one for the query.

>>> from dstreams.structured.execution.watermarks import WatermarkRule, Watermarks
>>> rule = WatermarkRule(delays_ms=(10_000,))
>>> Watermarks.start(1).advance(rule, {0: 25_000}, now_ms=0).query_ms
15000
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class WatermarkRule:
    """How the event times of batches become a watermark, by the *policy* ``min`` or ``max``.

    After *idle_ms* without data an operator holds the others back no more; None for never.
    """

    delays_ms: tuple[int, ...]
    policy: str = "min"
    idle_ms: tuple[int | None, ...] = ()

    def idle_after_ms(self, operator: int) -> int | None:
        """Return after how long without data an operator is idle."""
        return self.idle_ms[operator] if operator < len(self.idle_ms) else None


@dataclass(frozen=True)
class Watermarks:
    """The watermarks after a batch; that of the query never goes back.

    *active_ms* has, for each operator, the time of the last batch with data of it; before that the
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
            if not _is_idle(rule.idle_after_ms(operator), active_ms[operator], now_ms)
        ]
        choose = max if rule.policy == "max" else min
        chosen_ms = choose(awake, default=0)
        return Watermarks(max(self.query_ms, chosen_ms), operators_ms, active_ms)

    def fitted(self, operators: int) -> Watermarks:
        """Return these watermarks for a query with so many operators.

        If their number has changed, only the query's own watermark is known.
        """
        if len(self.operators_ms) == operators:
            return self
        return Watermarks(self.query_ms, (0,) * operators, (-1,) * operators)


def _is_idle(after_ms: int | None, active_ms: int, now_ms: int) -> bool:
    return after_ms is not None and now_ms - active_ms > after_ms
