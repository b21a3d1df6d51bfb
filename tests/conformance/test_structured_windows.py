"""Windowed counts against Spark's own: the same input, batch by batch, in each output mode.

Spark reads files that are moved into a directory, one for each batch; ours reads the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import py4j.java_gateway
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from dstreams.structured import StreamSession, window

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


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_windowed_count(sc: SparkContext, spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """Batch by batch, the rows are those of Spark's groupBy(window).count()."""
    session = StreamSession(sc, {"spark.sql.shuffle.partitions": "2"})
    ours = our_batches(session, mode)
    assert any(ours)
    assert ours == spark_batches(spark, mode, tmp_path)
