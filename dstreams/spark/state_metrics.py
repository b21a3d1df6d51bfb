"""What a stateful operator counts, by the names that Spark gives it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StateMetrics:
    """Counts of one operator in one batch, of a partition or of all; times are milliseconds.

    *numTotalStateRows* counts keys after the commit; *allRemovalsTimeMs*, spent on keys that timed
    out, is part of *allUpdatesTimeMs*; *stateMemory* is bytes where the state is kept;
    *numRestoredRows* is ``numOutputRows`` of an operator that restores rows within the same
    function. The latest event time and the earliest timer are -1 where there is none.

    Semantics: the metrics of StateStoreWriter (Spark 4.3).
    """

    numOutputRows: int = 0  # noqa: N815 - Spark's names, so that tools know them
    numRowsDroppedByWatermark: int = 0  # noqa: N815
    numTotalStateRows: int = 0  # noqa: N815
    numUpdatedStateRows: int = 0  # noqa: N815
    numRemovedStateRows: int = 0  # noqa: N815
    allUpdatesTimeMs: int = 0  # noqa: N815
    allRemovalsTimeMs: int = 0  # noqa: N815
    commitTimeMs: int = 0  # noqa: N815
    stateMemory: int = 0  # noqa: N815
    numStateStoreInstances: int = 0  # noqa: N815
    numDroppedDuplicateRows: int = 0  # noqa: N815
    numRestoredRows: int = 0  # noqa: N815
    eventTimeMaxMs: int = -1  # noqa: N815
    nextTimeoutMs: int = -1  # noqa: N815

    def add(self, other: StateMetrics) -> None:
        latest_ms = max(self.eventTimeMaxMs, other.eventTimeMaxMs)
        timers = [time for time in (self.nextTimeoutMs, other.nextTimeoutMs) if time >= 0]
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)
        self.eventTimeMaxMs = latest_ms
        self.nextTimeoutMs = min(timers, default=-1)

    def as_dict(self) -> dict[str, int]:
        return dict(vars(self))
