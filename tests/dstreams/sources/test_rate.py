"""The rate source: which rows a batch has, and that it has them whenever it is made."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext

from dstreams import StreamingContext
from dstreams.errors import InvalidStreamError
from dstreams.sources.rate import RateSource
from dstreams.sources.source import PlannedInput
from dstreams.testing import BatchDriver
from tests.support.surroundings import Driven, Surroundings

ZERO_MS = 1_700_000_000_000


def reader_of(
    source: RateSource, spark: SparkContext | None = None, end: int | None = None, **more: Any
) -> Driven:
    environment = Surroundings().environment(spark, **more)
    return Driven(source.open(replace(environment, begin_ms=ZERO_MS)), end)


def rows_of(planned: PlannedInput) -> tuple[int, int]:
    """First value and number of rows."""
    count, _, _, first, *_ = planned.description.split()
    assert int(count) == planned.records
    return int(first), int(count)


def ranges(reader: Driven, count: int, batch_ms: int = 1000) -> list[tuple[int, int]]:
    """First value and number of rows of the first batches."""
    return [rows_of(reader.plan(ZERO_MS + batch_ms * (number + 1))) for number in range(count)]


@pytest.mark.parametrize(
    ("rate", "ramp_up_ms", "batch_ms", "counts"),
    [
        (3, 0, 1000, [3, 3, 3]),
        (3, 0, 500, [1, 2, 1, 2]),
        (1, 0, 400, [0, 0, 1, 0, 1]),
        (10, 2000, 1000, [2, 8, 10, 10]),  # 2.5 and 7.5 rows: half a row waits
        (8, 4000, 1000, [1, 3, 5, 7, 8]),
        (8, 1500, 1000, [2, 8, 8]),
    ],
)
def test_rows_of_batches(rate: int, ramp_up_ms: int, batch_ms: int, counts: list[int]) -> None:
    """As many as the rate says, from 0 on, without a gap."""
    planned = ranges(
        reader_of(RateSource(rate, ramp_up_ms), batch_ms=batch_ms), len(counts), batch_ms
    )
    assert [count for _, count in planned] == counts
    assert [first for first, _ in planned] == [
        sum(counts[:number]) for number in range(len(counts))
    ]


@given(rate=st.integers(1, 10**6), ramp_up_ms=st.integers(0, 10**6), times=st.integers(1, 10**7))
def test_the_ramp_meets_the_rate(rate: int, ramp_up_ms: int, times: int) -> None:
    """Rows never get fewer, and after the ramp come at the full rate."""
    source = RateSource(rate, ramp_up_ms)
    assert source.rows_until(0) == 0
    grown = source.rows_until(times) - source.rows_until(times - 1)
    assert 0 <= grown <= rate / 1000 + 1
    after = ramp_up_ms + times
    assert source.rows_until(after + 1000) - source.rows_until(after) == rate


def test_records_and_description() -> None:
    """The number of rows is known without a job."""
    planned = reader_of(RateSource(5), end=1).plan(ZERO_MS + 2000)
    assert (planned.records, planned.description) == (5, "5 rows from 5 on")
    assert (planned.start, planned.end, planned.facts) == (1, 2, {"begin_ms": ZERO_MS})


def test_the_limit_leaves_out_rows() -> None:
    """Values after the skipped rows keep their times."""
    reader = reader_of(RateSource(5))
    reader.update_rate(2)
    assert ranges(reader, 2) == [(0, 2), (5, 2)]
    planned = reader.plan(ZERO_MS + 3000)
    assert planned.description == "2 rows from 10 on; 3 over the limit were skipped"
    reader.update_rate(100)
    assert rows_of(reader.plan(ZERO_MS + 4000)) == (15, 5)


def test_rows_of_a_batch(sc: SparkContext) -> None:
    """Times are spread over the batch, whose first moment is the end of the batch before."""
    reader = reader_of(RateSource(4), sc, end=1)
    planned = reader.plan(ZERO_MS + 2000)
    begin = datetime.fromtimestamp(ZERO_MS / 1000 + 1)  # noqa: DTZ006 - as the batch time is
    expected = [(begin.replace(microsecond=250_000 * row), 4 + row) for row in range(4)]
    assert reader.read(planned).collect() == expected
    assert reader.read(planned).collect() == expected
    assert reader_of(RateSource(4), sc, end=1).records(ZERO_MS + 2000) == expected


def test_times_do_not_move_when_rows_are_left_out(sc: SparkContext) -> None:
    """The time of a value does not depend on the limit."""
    full, limited = reader_of(RateSource(4), sc), reader_of(RateSource(4), sc)
    limited.update_rate(2)
    rows = full.read(full.plan(ZERO_MS + 1000)).collect()
    assert limited.read(limited.plan(ZERO_MS + 1000)).collect() == rows[:2]


@pytest.mark.parametrize(
    ("rate", "asked", "partitions"),
    [(10, None, 1), (20_000, None, 2), (10, 3, 3), (2, 3, 3), (100_000, 1, 1)],
)
def test_partitions(sc: SparkContext, rate: int, asked: int | None, partitions: int) -> None:
    """One partition for small batches, one per core for large ones, or the given number."""
    reader = reader_of(RateSource(rate, partitions=asked), sc)
    rdd = reader.read(reader.plan(ZERO_MS + 1000))
    assert rdd.getNumPartitions() == partitions
    assert rdd.count() == rate


def test_a_batch_without_rows(sc: SparkContext) -> None:
    """It is an empty RDD, which costs no task."""
    reader = reader_of(RateSource(1), sc, batch_ms=100)
    rdd = reader.read(reader.plan(ZERO_MS + 100))
    assert (rdd.getNumPartitions(), rdd.collect()) == (0, [])


def test_nothing_is_held() -> None:
    """Rows that are not due were not received: a graceful stop waits for none."""
    reader = reader_of(RateSource(1))
    reader.start()
    reader.stop_receiving()
    reader.release(None)
    assert not reader.has_pending()
    reader.close()
    reader.close()


def test_rate_stream(sc: SparkContext) -> None:
    """In a program: values from 0 on, batch by batch."""
    with BatchDriver(sc, batch_duration=0.5) as driver:
        values = driver.output(driver.context.rateStream(4).map(lambda row: row[1]))
        driver.run(2)
    assert values == [[0, 1], [2, 3]]


def test_rate_stream_with_a_ramp(sc: SparkContext) -> None:
    """Seconds are seconds."""
    with BatchDriver(sc) as driver:
        rows = driver.context.rateStream(8, rampUpTime=4, numPartitions=2)
        counts = driver.output(rows.count())
        driver.run(5)
    assert counts == [[1], [3], [5], [7], [8]]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"rowsPerSecond": 0},
            "rowsPerSecond of rateStream is 0; use a whole number of at least 1",
        ),
        ({"rowsPerSecond": 1.5}, "rowsPerSecond of rateStream is 1.5; use a whole number"),
        ({"rowsPerSecond": True}, "rowsPerSecond of rateStream is True; use a whole number"),
        ({"rowsPerSecond": 1, "numPartitions": 0}, "numPartitions of rateStream is 0; use a whole"),
        ({"rowsPerSecond": 1, "rampUpTime": -1}, "rampUpTime must be a positive number of seconds"),
        ({"rowsPerSecond": 1, "rampUpTime": "1s"}, "rampUpTime must be a number of seconds"),
    ],
)
def test_bad_parameters(sc: SparkContext, parameters: dict[str, Any], message: str) -> None:
    """Refused where the stream is defined, by the name of the parameter."""
    ssc = StreamingContext(sc, 1)
    with pytest.raises(InvalidStreamError) as raised:
        ssc.rateStream(**parameters)
    assert str(raised.value).startswith(message)
