"""Windowed counts against Spark's own: the same input, batch by batch, in each output mode.

Spark reads files that are moved into a directory, one for each batch; ours reads the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import py4j.java_gateway
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from dstreams.structured import StreamingDataset, StreamSession, window
from dstreams.structured.api.aggregates import Sum

# Event seconds of each batch: late ones, equal ones, gaps, and none at all but for a far one.
BATCHES = (
    (10, 11, 12, 13, 14, 15),
    (25,),
    (10, 25),
    (17, 40, 41),
    (26, 39, 40),
    (70,),
    (50, 60, 69, 70),
)


@pytest.fixture(scope="module")
def spark(sc: SparkContext) -> Iterator[SparkSession]:
    known = py4j.java_gateway.get_return_value
    session = SparkSession(sc)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.conf.unset("spark.sql.shuffle.partitions")
    py4j.java_gateway.get_return_value = known  # other tests expect the errors of Py4J


def spark_batches(spark: SparkSession, mode: str, directory: Path) -> list[list[tuple[int, int]]]:
    """Return what Spark gives for each step: a batch of records, and those without that follow."""
    inputs = directory / "inputs"
    inputs.mkdir()
    found: list[list[tuple[int, int]]] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        found[-1] += [(int(row[0]), int(row[1])) for row in rows.collect()]

    events = spark.readStream.text(str(inputs)).select(
        sql.timestamp_seconds(sql.col("value").cast("long")).alias("time")
    )
    counted = (
        events.withWatermark("time", "10 seconds").groupBy(sql.window("time", "5 seconds")).count()
    )
    rows = counted.select(sql.unix_timestamp("window.start"), "count")
    found.append([])
    query = (
        rows.writeStream.outputMode(mode)
        .option("checkpointLocation", str(directory / "spark"))
        .foreachBatch(keep)
        .start()
    )
    try:
        for number, batch in enumerate(BATCHES):
            if number:
                found.append([])
            path = directory / f"{number}.txt"
            path.write_text("".join(f"{second}\n" for second in batch))
            path.rename(inputs / path.name)
            query.processAllAvailable()
    finally:
        query.stop()
    return [sorted(batch) for batch in found]


def our_batches(session: StreamSession, mode: str) -> list[list[tuple[int, int]]]:
    """Return the same of ours."""
    found: list[list[tuple[int, int]]] = [[]]

    def keep(rows: Any, batch_id: int) -> None:
        found[-1] += rows.collect()

    events = session.memoryStream()
    counted = (
        events.toDS()
        .withWatermark(_time, "10 seconds")
        .groupByKey(window(_time, "5 seconds"))
        .count()
        .map(_as_pair)
    )
    query = counted.writeStream.outputMode(mode).foreachBatch(keep).start()
    for number, batch in enumerate(BATCHES):
        if number:
            found.append([])
        events.addData(*batch)
        query.processAllAvailable()
    query.stop()
    return [sorted(batch) for batch in found]


def _time(second: int) -> int:
    return second * 1000


def _as_pair(row: Any) -> tuple[int, int]:
    return row[0].start_ms // 1000, row[1]


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_windowed_count(sc: SparkContext, spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """Batch by batch, the rows are those of Spark's groupBy(window).count()."""
    session = StreamSession(sc, {"spark.sql.shuffle.partitions": "2"})
    ours = our_batches(session, mode)
    assert any(ours)
    assert ours == spark_batches(spark, mode, tmp_path)


# Event milliseconds: the watermark becomes 9999, then the last of the next window, then its end.
EDGES = ((5000, 19_999), (29_999,), (30_000, 31_000), (75_000,))
Change = Callable[[Any], Any]


def _sums_by_spark(rows: DataFrame) -> DataFrame:
    windows = rows.groupBy(sql.window(sql.window_time("window"), "20 seconds"))
    return windows.agg(sql.sum("count").alias("count"))


def _sums(rows: StreamingDataset) -> StreamingDataset:
    return rows.groupByKey(window("window", "20 seconds")).agg(Sum("count"))


BEHIND: dict[str, tuple[Change, Change]] = {
    "larger windows": (_sums_by_spark, _sums),
    "dropDuplicates": (DataFrame.dropDuplicates, StreamingDataset.dropDuplicates),
    "dropDuplicatesWithinWatermark": (
        DataFrame.dropDuplicatesWithinWatermark,
        StreamingDataset.dropDuplicatesWithinWatermark,
    ),
}


def edges_by_spark(spark: SparkSession, behind: Change, directory: Path) -> list[list[Any]]:
    """Return what Spark has given after each step, sorted."""
    inputs = directory / "inputs"
    inputs.mkdir()
    seen: list[tuple[int, int]] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        seen.extend((int(row[0]), int(row[1])) for row in rows.collect())

    events = spark.readStream.text(str(inputs)).select(
        sql.timestamp_millis(sql.col("value").cast("long")).alias("time")
    )
    marked = events.withWatermark("time", "10 seconds")
    rows = behind(marked.groupBy(sql.window("time", "10 seconds")).count())
    writer = rows.select(sql.unix_millis("window.end"), "count").writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(directory / "spark")).start()
    found = []
    try:
        for number, times in enumerate(EDGES):
            path = directory / f"{number}.txt"
            path.write_text("".join(f"{time_ms}\n" for time_ms in times))
            path.rename(inputs / path.name)
            query.processAllAvailable()
            found.append(sorted(seen))
    finally:
        query.stop()
    return found


def edges_by_us(session: StreamSession, behind: Change) -> list[list[Any]]:
    """Return the same of ours."""
    seen: list[tuple[int, int]] = []

    def keep(rows: Any, batch_id: int) -> None:
        seen.extend((row[0].end_ms, row[1]) for row in rows.collect())

    events = session.memoryStream()
    marked = events.toDS().withWatermark(_itself, "10 seconds")
    rows = behind(marked.groupByKey(window(_itself, "10 seconds")).count())
    query = rows.writeStream.foreachBatch(keep).start()
    found = []
    for times in EDGES:
        events.addData(*times)
        query.processAllAvailable()
        found.append(sorted(seen))
    query.stop()
    return found


def _itself(time_ms: int) -> int:
    return time_ms


@pytest.mark.deep
@pytest.mark.parametrize("name", BEHIND)
def test_watermark_at_the_last_moment_of_a_window(
    sc: SparkContext, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Behind a windowed count nothing is lost, where the watermark stood just before its end."""
    by_spark, by_us = BEHIND[name]
    session = StreamSession(sc, {"spark.sql.shuffle.partitions": "2"})
    ours = edges_by_us(session, by_us)
    assert ours[-1]
    assert ours == edges_by_spark(spark, by_spark, tmp_path)
