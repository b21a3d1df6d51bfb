"""What a stateful operator counts, by the names that Spark gives it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StateMetrics:
    """Counts of one operator, of one partition or of all, in one batch.

    Times are milliseconds. Semantics: the metrics of StateStoreWriter (Spark 4.3).

    Args:
        numOutputRows: rows that went out.
        numRowsDroppedByWatermark: late rows that were left out.
        numTotalStateRows: keys of the state after the commit.
        numUpdatedStateRows: states that were written.
        numRemovedStateRows: states that were removed.
        allUpdatesTimeMs: from the first row that came in to the last one that went out.
        allRemovalsTimeMs: of that, the time spent on keys that timed out.
        commitTimeMs: time of the commit.
        stateMemory: bytes that the state takes where it is kept.
        numStateStoreInstances: stores that were opened.
        numDroppedDuplicateRows: rows of a key that had one already, where duplicates are dropped.
        eventTimeMaxMs: the latest event time that was seen, milliseconds since the epoch; -1
            without one.
        nextTimeoutMs: the earliest timer of the state, milliseconds since the epoch; -1 without
            one, or where nobody looked for it.
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
    eventTimeMaxMs: int = -1  # noqa: N815
    nextTimeoutMs: int = -1  # noqa: N815

    def add(self, other: StateMetrics) -> None:
        """Add the counts of another partition."""
        latest_ms = max(self.eventTimeMaxMs, other.eventTimeMaxMs)
        timers = [time for time in (self.nextTimeoutMs, other.nextTimeoutMs) if time >= 0]
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)
        self.eventTimeMaxMs = latest_ms
        self.nextTimeoutMs = min(timers, default=-1)

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return dict(vars(self))
