"""Counts of a run from its start on: they only grow, as monitoring systems want them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dstreams.monitoring.events import BatchInfo, InputInfo

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of a histogram, in seconds; the last bucket has none."""

_REJECTED = "rejected"
_REMOVED, _LATE, _COMMIT = "numRemovedStateRows", "numRowsDroppedByWatermark", "commitTimeMs"
_N = TypeVar("_N", int, float)


@dataclass(frozen=True)
class Histogram:
    """How some times are spread.

    Args:
        counts: how many are in each bucket of :data:`BUCKETS_S`, and beyond the last bound.
        sum_s: all of them together, in seconds.
    """

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum_s: float = 0.0

    def with_time(self, seconds: float) -> Histogram:
        """Return the histogram with one more time; a bound belongs to the bucket below it."""
        at = bisect_left(BUCKETS_S, seconds)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(counts, self.sum_s + seconds)


@dataclass(frozen=True)
class Totals:
    """What all batches of a run have come to.

    Args:
        batches: how many ended, by outcome.
        records: how many were read, by name of the source; those that nobody counted are missing.
        rejected: how many of them could not be decoded and were left out, likewise.
        output_failures: how many times each output failed, by its name.
        processing: how long batches ran.
        scheduling_delay: how long batches waited.
        keys_removed: states that were removed, by uid of the operator: timed out, or by the user.
        late_records: records behind the watermark that were left out, by uid.
        state_commit_s: seconds of making state durable, all partitions together, by uid.
    """

    batches: Mapping[str, int] = field(default_factory=dict)
    records: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    output_failures: Mapping[str, int] = field(default_factory=dict)
    processing: Histogram = Histogram()
    scheduling_delay: Histogram = Histogram()
    keys_removed: Mapping[str, int] = field(default_factory=dict)
    late_records: Mapping[str, int] = field(default_factory=dict)
    state_commit_s: Mapping[str, float] = field(default_factory=dict)

    def with_batch(self, batch: BatchInfo) -> Totals:
        """Return the totals with one more batch."""
        commit_s = {uid: ms / 1000 for uid, ms in _of_states(batch, _COMMIT).items()}
        failed = {info.name: 1 for info in batch.outputs if info.failure is not None}
        return Totals(
            _sum(self.batches, {batch.outcome: 1}),
            _sum(self.records, _of_inputs(batch, lambda given: given.records or 0)),
            _sum(self.rejected, _of_inputs(batch, lambda given: given.metadata.get(_REJECTED, 0))),
            _sum(self.output_failures, failed),
            self.processing.with_time(batch.processing_delay_ms / 1000),
            self.scheduling_delay.with_time(batch.scheduling_delay_ms / 1000),
            _sum(self.keys_removed, _of_states(batch, _REMOVED)),
            _sum(self.late_records, _of_states(batch, _LATE)),
            _sum(self.state_commit_s, commit_s),
        )


def _of_inputs(batch: BatchInfo, count: Callable[[InputInfo], int]) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for given in batch.inputs:
        counts[given.name] += count(given)
    return counts


def _of_states(batch: BatchInfo, metric: str) -> Mapping[str, int]:
    return {state.uid: state.metrics.get(metric, 0) for state in batch.states}


def _sum(before: Mapping[str, _N], more: Mapping[str, _N]) -> Mapping[str, _N]:
    return {**before, **{name: before.get(name, 0) + count for name, count in more.items()}}
