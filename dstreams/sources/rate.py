"""Numbered rows at a steady rate: an endless input for trials, examples and measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pyspark import RDD

from checkpoint import INPUT_END, INPUT_START
from dstreams.configuration import COUNT
from dstreams.durations import batch_datetime
from dstreams.sources.rate_limit import RateLimit
from dstreams.sources.source import PlannedInput, SourceEnvironment

# A batch below this is one task: a second one costs more than it saves.
_PARTITION_ROWS = 10_000


@dataclass(frozen=True)
class RateSource:
    """Rows ``(timestamp, value)``: values 0, 1, 2, ... from the start on, times spread evenly.

    The row of a value and its time follow from zero time, batch duration and these parameters, so
    a batch that is made again is the same, also by another driver. Where a limit holds
    (``spark.streaming.receiver.maxRate``, backpressure), a batch has the first of its rows, and the
    others are never made: values after them keep their time.

    Rows that are due, with a ramp::

        rows a second
            |        ____________
            |      /
            |    /
            +--+-----+------------> time
              zero  zero + ramp_up_ms

    Args:
        rows_per_second: at least 1.
        ramp_up_ms: how long the rate grows, from none, until it is *rows_per_second*.
        partitions: of each batch's RDD. None: as many as are worth it.

    Raises:
        InvalidStreamError: a parameter is no such number.

    Semantics: the rate source of Structured Streaming, on batch times.
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
        """How many rows are due up to *elapsed_ms* after zero time."""
        ramp_ms = self.ramp_up_ms
        if elapsed_ms < ramp_ms:
            return self.rows_per_second * elapsed_ms**2 // (2000 * ramp_ms)
        return self.rows_per_second * (2 * elapsed_ms - ramp_ms) // 2000

    def open(self, environment: SourceEnvironment) -> RateReader:
        return RateReader(self, environment)


@dataclass(frozen=True)
class RowRange:
    """The rows of one batch: *count* from *first* on, of the *due* that share its time."""

    first: int
    count: int
    due: int


class RateReader:
    """Computes what each batch has; tasks make the rows."""

    def __init__(self, source: RateSource, environment: SourceEnvironment) -> None:
        self._source = source
        self._environment = environment
        self._limit = RateLimit(environment.batch_ms)
        self._last_ms: int | None = None

    def start(self) -> None:
        pass

    def update_rate(self, records_per_second: int) -> None:
        self._limit.update(records_per_second)

    def plan(self, batch_time_ms: int) -> PlannedInput:
        zero_ms = self._environment.zero_ms
        elapsed_ms = batch_time_ms - zero_ms
        before_ms = elapsed_ms - self._environment.batch_ms
        if self._environment.settings.missed_batches == "merge" and self._last_ms is not None:
            before_ms = min(before_ms, self._last_ms - zero_ms)
        self._last_ms = batch_time_ms
        first = self._source.rows_until(before_ms)
        due = self._source.rows_until(elapsed_ms) - first
        most = self._limit.most(batch_time_ms)
        count = due if most is None else min(due, most)
        description = f"{count} rows from {first} on"
        if count < due:
            description += f"; {due - count} over the limit were not made"
        return PlannedInput(batch_time_ms, RowRange(first, count, due), count, description)

    def recorded(self, planned: PlannedInput) -> Mapping[str, object]:
        rows: RowRange = planned.content
        return {INPUT_START: rows.first, INPUT_END: rows.first + rows.count, "due": rows.due}

    def replay(self, batch_time_ms: int, recorded: Mapping[str, Any]) -> PlannedInput:
        self._last_ms = batch_time_ms
        first, end = recorded[INPUT_START], recorded[INPUT_END]
        rows = RowRange(first, end - first, recorded["due"])
        description = f"{rows.count} rows from {rows.first} on"
        return PlannedInput(batch_time_ms, rows, rows.count, description)

    def rdd(self, planned: PlannedInput) -> RDD[tuple[datetime, int]]:
        spark = self._environment.spark
        rows: RowRange = planned.content
        if not rows.count:
            return spark.emptyRDD()
        batch_ms = self._environment.batch_ms
        begin = batch_datetime(planned.batch_time_ms - batch_ms)
        worth = max(1, min(spark.defaultParallelism, rows.count // _PARTITION_ROWS))
        values = range(rows.first, rows.first + rows.count)
        # Spark makes the numbers of a range in the tasks.
        numbers = spark.parallelize(values, self._source.partitions or worth)
        return numbers.mapPartitions(partial(_stamped, rows, begin, batch_ms))

    def release(self, batch_time_ms: int) -> None:
        pass

    def stop_receiving(self) -> None:
        pass

    def has_pending(self) -> bool:
        """False: rows that are due later were not received."""
        return False

    def close(self) -> None:
        pass


def _stamped(
    rows: RowRange, begin: datetime, batch_ms: int, values: Iterable[int]
) -> Iterator[tuple[datetime, int]]:
    for value in values:
        offset_us = (value - rows.first) * batch_ms * 1000 // rows.due
        yield begin + timedelta(microseconds=offset_us), value
