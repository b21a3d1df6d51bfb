"""Numbered rows at a steady rate: an endless input for tests, examples and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from pyspark import RDD

from dstreams.common.durations import batch_datetime
from dstreams.common.settings import COUNT
from dstreams.sources.rate_limit import RateLimit
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader

_BEGIN, _AFTER, _COUNT = "begin_ms", "after", "count"

# A smaller batch is one task: a second task costs more than it saves.
_PARTITION_ROWS = 10_000


@dataclass(frozen=True)
class RateSource(Source):
    """Rows ``(timestamp, value)``: values 0, 1, 2, ... with evenly spread times.

    A row depends only on its value, the start time of the input, the length of a step (the batch
    duration; one second in queries) and these parameters. A batch that is computed again is the
    same, also in another driver. If a rate limit holds (``spark.streaming.receiver.maxRate``,
    backpressure), a batch has the first of its rows and the rest are skipped: later values keep
    their times.

    Rows per second with a ramp::

        rows a second
            |        ____________
            |      /
            |    /
            +--+-----+------------> time
             begin  begin + ramp_up_ms

    Args:
        rows_per_second: at least 1.
        ramp_up_ms: milliseconds in which the rate grows from 0 to *rows_per_second*.
        partitions: number of partitions of each batch; None chooses by the number of rows.

    Raises:
        InvalidStreamError: a parameter is not a positive integer.

    Semantics: the rate source of Structured Streaming; in streams, times follow batch times.
    """

    rows_per_second: int
    ramp_up_ms: int = 0
    partitions: int | None = None

    def __post_init__(self) -> None:
        COUNT.require(self.rows_per_second, "rowsPerSecond of rateStream")
        if self.partitions is not None:
            COUNT.require(self.partitions, "numPartitions of rateStream")

    @property
    def name(self) -> str:
        return f"rateStream({self.rows_per_second} rows/s)"

    def rows_until(self, elapsed_ms: int) -> int:
        """Return the number of rows due until *elapsed_ms* after the start."""
        ramp_ms = self.ramp_up_ms
        if elapsed_ms < ramp_ms:
            return self.rows_per_second * elapsed_ms**2 // (2000 * ramp_ms)
        return self.rows_per_second * (2 * elapsed_ms - ramp_ms) // 2000

    def open(self, environment: SourceEnvironment) -> RateReader:
        return RateReader(self, environment, environment.batch_ms, _pair)


class RateReader(SourceReader):
    """Plans the rows of each batch; tasks create them.

    An offset counts steps of *step_ms* since the start of the input. The facts of a plan are the
    start time and, if they differ from the steps between its offsets, the offset after which its
    rows begin and their number. *row* creates a row from its time and value.
    """

    rate_limit = "receiver"

    def __init__(
        self,
        source: RateSource,
        environment: SourceEnvironment,
        step_ms: int,
        row: Callable[[datetime, int], Any],
    ) -> None:
        self._source = source
        self._spark = environment.spark
        self._step_ms, self._row = step_ms, row
        self._limit = RateLimit(environment.batch_ms)
        self._skips = environment.batch_ms > 0 and environment.settings.catch_up == "skip"
        newest = environment.newest
        self._begin_ms: int = environment.begin_ms if newest is None else newest.facts[_BEGIN]
        self._pinned_ms: int | None = None

    def update_rate(self, records_per_second: int) -> None:
        self._limit.update(records_per_second)

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._pinned_ms = now_ms

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        upto_ms = time_ms if self._pinned_ms is None else self._pinned_ms
        end = max((upto_ms - self._begin_ms) // self._step_ms, int(start or 0)) or None
        facts = {_BEGIN: self._begin_ms}
        if self._skips and end is not None:
            facts[_AFTER] = max(end - 1, int(start or 0))
        first, last = self._rows(facts.get(_AFTER, start)), self._rows(end)
        most = self._limit.most(time_ms)
        count = last - first if most is None else min(last - first, most)
        description = f"{count} rows from {first} on"
        if count < last - first:
            facts[_COUNT] = count
            description += f"; {last - first - count} over the limit were skipped"
        return PlannedInput(time_ms, start, end, facts, count, description)

    def read(self, planned: PlannedInput) -> RDD[Any]:
        after, end = planned.facts.get(_AFTER, planned.start), planned.end
        first = self._rows(after)
        count: int = planned.facts.get(_COUNT, self._rows(end) - first)
        if not count:
            return self._spark.emptyRDD()
        worth = max(1, min(self._spark.defaultParallelism, count // _PARTITION_ROWS))
        steps = [
            (planned.facts[_BEGIN] + step * self._step_ms, self._rows(step), self._rows(step + 1))
            for step in range(int(after or 0), int(end))
        ]
        # Spark creates the numbers of a range in the tasks.
        numbers = self._spark.parallelize(
            range(first, first + count), self._source.partitions or worth
        )
        return numbers.mapPartitions(partial(_stamped, self._row, steps, self._step_ms))

    def _rows(self, offset: Any) -> int:
        return self._source.rows_until(int(offset or 0) * self._step_ms)


def _pair(timestamp: datetime, value: int) -> tuple[datetime, int]:
    return timestamp, value


def _stamped(
    row: Callable[[datetime, int], Any],
    steps: list[tuple[int, int, int]],
    step_ms: int,
    values: Iterable[int],
) -> Iterator[Any]:
    """Yield a row for each value; the times of a step's rows are spread evenly over it."""
    remaining = iter(steps)
    begin_ms, first, end = next(remaining)
    for value in values:
        while value >= end:
            begin_ms, first, end = next(remaining)
        yield row(batch_datetime(begin_ms + (value - first) * step_ms // (end - first)), value)
