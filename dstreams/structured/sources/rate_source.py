"""Numbered rows at a steady rate, second by second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from pyspark import RDD

from dstreams.durations import batch_datetime
from dstreams.sources.rate import RateSource
from dstreams.structured.sources.micro_batch_reader import ReaderEnvironment

_START = "start_ms"  # fact: when it began
_PARTITION_ROWS = 10_000


class RateRow(NamedTuple):
    """A row of the rate source.

    Args:
        timestamp: when it was due, local time without zone.
        value: its number, from 0.
    """

    timestamp: datetime
    value: int


@dataclass(frozen=True)
class RateStreamSource:
    """Rows :class:`RateRow`, the same after a restart: the checkpoint keeps when the first was due.

    Semantics: the source ``rate`` of Spark: offsets are whole seconds since the query began.

    Args:
        rate: how many rows.
    """

    rate: RateSource

    @property
    def name(self) -> str:
        ramp = f", rampUpTimeMs={self.rate.ramp_up_ms}" if self.rate.ramp_up_ms else ""
        return f"rate[rowsPerSecond={self.rate.rows_per_second}{ramp}]"

    @property
    def fields(self) -> tuple[str, ...]:
        return RateRow._fields

    def open(self, environment: ReaderEnvironment) -> RateReader:
        return RateReader(self.rate, environment)


class RateReader:
    """Computes what each batch has; tasks make the rows."""

    def __init__(self, rate: RateSource, environment: ReaderEnvironment) -> None:
        self._rate = rate
        self._environment = environment
        self._start_ms: int = environment.facts.get(_START, environment.clock.now_ms())
        self._pinned_ms: int | None = None

    def latest(self, start: Any, now_ms: int) -> Any:
        if self._pinned_ms is not None:
            now_ms = self._pinned_ms
        return max((now_ms - self._start_ms) // 1000, int(start or 0)) or None

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._pinned_ms = now_ms

    def facts(self, start: Any, end: Any) -> Mapping[str, Any]:
        return {_START: self._start_ms}

    def rdd(self, start: Any, end: Any) -> RDD[RateRow]:
        spark = self._environment.spark
        first, last = self._rows_until(start), self._rows_until(end)
        if first == last:
            return spark.emptyRDD()
        worth = max(1, min(spark.defaultParallelism, (last - first) // _PARTITION_ROWS))
        seconds = [
            (
                second,
                self._rate.rows_until(second * 1000),
                self._rate.rows_until(second * 1000 + 1000),
            )
            for second in range(int(start or 0), int(end))
        ]
        numbers = spark.parallelize(range(first, last), self._rate.partitions or worth)
        return numbers.mapPartitions(partial(_stamped, seconds, self._start_ms))

    def rows(self, start: Any, end: Any) -> int:
        return self._rows_until(end) - self._rows_until(start)

    def commit(self, end: Any) -> None:
        pass

    def stop(self) -> None:
        pass

    def _rows_until(self, offset: Any) -> int:
        return self._rate.rows_until(int(offset or 0) * 1000)


def _stamped(
    seconds: list[tuple[int, int, int]], start_ms: int, values: Iterable[int]
) -> Iterator[RateRow]:
    """Give each value its time: those of a second are spread evenly over it."""
    remaining = iter(seconds)
    second, first, end = next(remaining)
    for value in values:
        while value >= end:
            second, first, end = next(remaining)
        offset_ms = second * 1000 + (value - first) * 1000 // (end - first)
        yield RateRow(batch_datetime(start_ms + offset_ms), value)
