"""What is known of the event times of a batch, gathered by the jobs that the batch runs anyway.

>>> from dstreams.structured.operators.event_time_stats import EventTimeStats
>>> EventTimeStats.of([10_000, 20_000, 60_000])
EventTimeStats(max_ms=60, min_ms=10, avg_ms=30.0, count=3)
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark import Accumulator, AccumulatorParam, SparkContext


@dataclass(frozen=True)
class EventTimeStats:
    """Event times that one operator has seen; all times are milliseconds since the epoch.

    Semantics: EventTimeStats (Spark 4.3). A running mean, so that no sum gets large.

    Args:
        max_ms: the latest.
        min_ms: the earliest.
        avg_ms: the mean.
        count: how many.
    """

    max_ms: int
    min_ms: int
    avg_ms: float
    count: int

    @classmethod
    def of(cls, times_us: Iterable[int]) -> EventTimeStats | None:
        """Return the stats of some times in microseconds, None for none."""
        times = list(times_us)
        if not times:
            return None
        avg_ms = sum(times) / len(times) / 1000
        return cls(max(times) // 1000, min(times) // 1000, avg_ms, len(times))

    def add(self, time_ms: int) -> EventTimeStats:
        """Return the stats with one time more."""
        return self.merge(EventTimeStats(time_ms, time_ms, float(time_ms), 1))

    def merge(self, other: EventTimeStats | None) -> EventTimeStats:
        """Return the stats of both."""
        if other is None:
            return self
        count = self.count + other.count
        avg_ms = self.avg_ms + (other.avg_ms - self.avg_ms) * (other.count / count)
        return EventTimeStats(
            max(self.max_ms, other.max_ms), min(self.min_ms, other.min_ms), avg_ms, count
        )


_Found = dict[int, dict[int, EventTimeStats]]
_tokens = itertools.count()


class EventTimeObservation:
    """What the tasks of one operator in one batch have seen, so far.

    A partition that is computed again is not counted again.

    Args:
        spark: where the tasks run.
    """

    def __init__(self, spark: SparkContext) -> None:
        self.task = _task_of(spark, next(_tokens))
        live = self.task.accumulator.value
        self._found: dict[int, EventTimeStats] = {}
        live[self.task.token] = self._found
        weakref.finalize(self, live.pop, self.task.token, None)

    def stats(self) -> EventTimeStats | None:
        """Return what was seen by the tasks that are done, None for nothing."""
        total: EventTimeStats | None = None
        for _, stats in sorted(self._found.items()):
            total = stats.merge(total)
        return total


@dataclass(frozen=True)
class EventTimeReport:
    """How a task says what it has seen.

    Args:
        accumulator: the one of the context.
        token: of the observation.
    """

    accumulator: Accumulator[_Found]
    token: int

    def __call__(self, split: int, stats: EventTimeStats | None) -> None:
        """Report what was seen in a partition, after its last record."""
        if stats is not None:
            self.accumulator.add({self.token: {split: stats}})


class _Live(_Found):
    """The driver's side: observations that somebody still holds, and no other."""


class _ByPartition(AccumulatorParam[_Found]):
    """Merges what tasks say: of one partition, what has seen more."""

    def zero(self, value: _Found) -> _Found:
        return {}

    def addInPlace(self, value1: _Found, value2: _Found) -> _Found:
        for token, new in value2.items():
            known = value1.get(token) if isinstance(value1, _Live) else value1.setdefault(token, {})
            if known is None:
                continue
            for split, stats in new.items():
                if split not in known or known[split].count < stats.count:
                    known[split] = stats
        return value1


def _task_of(spark: SparkContext, token: int) -> EventTimeReport:
    """Return a report to the one accumulator of a context: PySpark keeps each for as long."""
    known = vars(spark)
    if "_dstreams_event_times" not in known:
        known["_dstreams_event_times"] = spark.accumulator(_Live(), _ByPartition())
    return EventTimeReport(known["_dstreams_event_times"], token)
