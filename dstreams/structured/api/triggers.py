"""When a query looks for data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dstreams.common.configuration import duration
from dstreams.errors import InvalidStreamError

Kind = Literal["processingTime", "once", "availableNow"]

_INTERVAL = duration(least_ms=0)


@dataclass(frozen=True)
class Trigger:
    """When batches are made.

    Args:
        kind: on a clock, one batch, or batches until what is there at the start is processed.
        interval_ms: of the clock; 0 is one batch after the other.
    """

    kind: Kind = "processingTime"
    interval_ms: int = 0

    def next_ms(self, now_ms: int) -> int:
        """Return when the batch after the one at *now_ms* begins, as the clock stands.

        Semantics: ProcessingTimeExecutor: multiples of the interval since the epoch; a batch that
        takes longer than that skips some.
        """
        if not self.interval_ms:
            return now_ms
        return now_ms // self.interval_ms * self.interval_ms + self.interval_ms

    def __str__(self) -> str:
        if self.kind == "processingTime":
            return f"ProcessingTimeTrigger({self.interval_ms})"
        return {"once": "OneTimeTrigger", "availableNow": "AvailableNowTrigger"}[self.kind]


def make_trigger(
    processing_time: str | None,
    once: bool | None,
    available_now: bool | None,
    continuous: str | None = None,
    real_time: str | None = None,
) -> Trigger:
    """Return the trigger that exactly one argument asks for; the last two are not supported."""
    for name, value in (("continuous", continuous), ("realTime", real_time)):
        if value is not None:
            raise InvalidStreamError(
                f"trigger({name}={value!r}) is not supported: queries run in batches; use "
                "processingTime='0 seconds' for one batch after the other"
            )
    given = {"processingTime": processing_time, "once": once, "availableNow": available_now}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InvalidStreamError(
            "trigger takes one of processingTime, once and availableNow, got "
            f"{' and '.join(named) if named else 'none of them'}"
        )
    for name in ("once", "availableNow"):
        if given[name] not in (None, True):
            raise InvalidStreamError(f"{name} of trigger must be True, got {given[name]!r}")
    if once:
        return Trigger("once")
    if available_now:
        return Trigger("availableNow")
    return Trigger(
        "processingTime", _INTERVAL.read(processing_time or "", "processingTime of trigger")
    )
