"""The same input through Spark's own operators and ours, batch by batch equal."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from py4j import java_gateway, protocol
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dstreams.arrow.aggregates.functions import (
    Average,
    CollectSet,
    Count,
    CountDistinct,
    Max,
    MaxBy,
    Min,
    MinBy,
    Several,
    Sum,
    aggregate,
)
from dstreams.common.sql_values import normalized, sort_key
from dstreams.state.group_state import OutputMode
from dstreams.structured import StreamingDataset, StreamSession
from dstreams.structured.operators.aggregation import plan_aggregation
from dstreams.structured.operators.deduplication import plan_deduplication
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.physical_operator import PhysicalOperator, RDDScanExec
from dstreams.structured.operators.stateless import EventTimeWatermarkExec
from dstreams.structured.operators.time_windows import TimeWindows
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.operators.query import SparkQuery

BATCHES = [
    [(1, "a", 4), (3, "b", 1), (7, "a", 2), (12, "a", 1)],
    [(2, "a", 9), (14, "c", 5), (25, "a", 7), (25, "a", 7)],
    [(9, "b", 3), (16, "b", 3), (24, "c", 8)],
    [(21, "a", 1), (40, "b", 2), (15, "c", 6)],
    [(41, "a", 5), (30, "c", 5), (26, "a", 5)],
]
MARKED = EventTimeWatermarkExec(RDDScanExec(None), lambda record: record[0] * 1000, 10_000)


@pytest.fixture(scope="module")
def session(sc: SparkContext) -> Iterator[SparkSession]:
    """Spark's own engine, with two partitions of state."""
    found = SparkSession(sc).newSession()
    found.conf.set("spark.sql.shuffle.partitions", "2")
    found.conf.set("spark.sql.session.timeZone", "UTC")
    yield found
    for query in found.streams.active:
        query.stop()
    # A session makes other errors of those of the JVM, for everybody in this process.
    vars(java_gateway)["get_return_value"] = protocol.get_return_value


def by_spark(
    session: SparkSession, directory: Path, mode: OutputMode, result: Callable[..., DataFrame]
) -> list[Any]:
    """Return the rows that each batch adds, the batch without data after it included."""
    incoming, staging = directory / "in", directory / "staging"
    incoming.mkdir(parents=True)
    staging.mkdir()
    rows = session.readStream.schema("t long, user string, value long").json(str(incoming))
    events = rows.select(f.timestamp_seconds("t").alias("time"), "user", "value")
    query = (
        result(events.withWatermark("time", "10 seconds"))
        .writeStream.format("memory")
        .queryName(f"q_{mode.value}_{result.__name__}")
        .outputMode(mode.value)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    found: list[Any] = []
    before: Counter[Any] = Counter()
    for number, batch in enumerate(BATCHES):
        written = staging / f"{number}.json"
        lines = [json.dumps({"t": t, "user": user, "value": value}) for t, user, value in batch]
        written.write_text("\n".join(lines), encoding="utf-8")
        shutil.move(written, incoming / written.name)
        query.processAllAvailable()
        table = Counter(map(tuple, session.table(str(query.name)).collect()))
        found.append(table if mode is OutputMode.Complete else table - before)
        before = table
    query.stop()
    return found


def counts_by_spark(events: DataFrame) -> DataFrame:
    window = f.window("time", "10 seconds", "5 seconds")
    counted = events.groupBy(window, "user").agg(f.count("*").alias("n"), f.avg("value").alias("m"))
    return counted.select(f.unix_millis("window.start"), "user", "n", "m")


def distinct_by_spark(events: DataFrame) -> DataFrame:
    return events.dropDuplicatesWithinWatermark(["user", "value"]).select(
        f.unix_millis("time"), "user", "value"
    )


JOIN_BATCHES = [
    [("l", "a", 1), ("l", "b", 3), ("r", "a", 7)],
    [("r", "b", 4), ("l", "a", 25), ("r", "c", 25)],
    [("l", "c", 26), ("r", "a", 29), ("l", "b", 2), ("r", "b", 2), ("l", "a", 29)],
    [("l", "d", 60), ("r", "d", 61)],
    [("r", "a", 30), ("l", "c", 30), ("l", "d", 62)],
    [("l", "e", 90), ("r", "e", 90)],
]
JOINS: dict[str, Any] = {
    "inner, left watermark": ("inner", "l", (0, 10)),
    "inner, right watermark": ("inner", "r", (0, 10)),
    "inner, no watermark": ("inner", "", (0, 10)),
    "inner, no maximum": ("inner", "l", (5, None)),
    "left outer": ("left_outer", "lr", (0, 10)),
    "right outer": ("right_outer", "lr", (0, 10)),
    "full outer": ("full_outer", "lr", (0, 10)),
    "left semi": ("left_semi", "lr", (0, 10)),
    "inner, event time in the key": ("inner", "l", None),
    "left outer, event time in the key": ("left_outer", "r", None),
    "full outer, event time in the key": ("full_outer", "lr", None),
    "full outer, no maximum": ("full_outer", "lr", (5, None)),
    "full outer, no minimum": ("full_outer", "lr", (None, 10)),
    "full outer, event time in the key, left watermark": ("full_outer", "l", None),
    "full outer, event time in the key, right watermark": ("full_outer", "r", None),
    "left outer, event time in the key, left watermark": ("left_outer", "l", None),
    "right outer, event time in the key, right watermark": ("right_outer", "r", None),
    "left semi, event time in the key, left watermark": ("left_semi", "l", None),
    "left semi in update mode": ("left_semi", "lr", (0, 10), "update"),
}


def join_batches(marked: str, limits: Any) -> list[Any]:
    """Return the batches; with one watermark without late rows, which Spark drops a batch later."""
    if len(marked) != 1 or limits is None:
        return JOIN_BATCHES
    return [[row for row in batch if row[2] not in (2, 30)] for batch in JOIN_BATCHES]


def joined_by_spark(
    session: SparkSession,
    directory: Path,
    how: str,
    marked: str,
    limits: Any,
    mode: str = "append",
) -> list[Counter[Any]]:
    """Return the rows that each batch of a join adds, the batch without data included."""
    incoming, staging = directory / "in", directory / "staging"
    incoming.mkdir(parents=True)
    staging.mkdir()

    def side(name: str) -> DataFrame:
        rows = session.readStream.schema("s string, k string, t long").json(str(incoming))
        times = rows.where(f.col("s") == name).select(
            f.col("k").alias(f"{name}k"), f.timestamp_seconds("t").alias(f"{name}t")
        )
        return times.withWatermark(f"{name}t", "10 seconds") if name in marked else times

    condition = f.expr("lk = rk and lt = rt")
    if limits is not None:
        condition = f.expr("lk = rk")
        for limit, comparison in zip(limits, (">=", "<="), strict=True):
            if limit is not None:
                condition &= f.expr(f"rt {comparison} lt + interval {limit} seconds")
    columns = [f.col("lk"), f.unix_seconds("lt")]
    if how != "left_semi":
        columns += [f.col("rk"), f.unix_seconds("rt")]
    query = (
        side("l")
        .join(side("r"), condition, how)
        .select(*columns)
        .writeStream.format("memory")
        .queryName(f"j_{abs(hash(directory))}")
        .outputMode(mode)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    found: list[Counter[Any]] = []
    before: Counter[Any] = Counter()
    for number, batch in enumerate(join_batches(marked, limits)):
        written = staging / f"{number}.json"
        lines = [json.dumps({"s": s, "k": k, "t": t}) for s, k, t in batch]
        written.write_text("\n".join(lines), encoding="utf-8")
        shutil.move(written, incoming / written.name)
        query.processAllAvailable()
        table = Counter(map(tuple, session.table(str(query.name)).collect()))
        found.append(table - before)
        before = table
    query.stop()
    return found


def joined_by_us(
    session: StreamSession, how: str, marked: str, limits: Any, mode: str = "append"
) -> list[Counter[Any]]:
    """Return the same rows of our join."""
    source = session.memoryStream("events")

    def side(name: str) -> StreamingDataset:
        rows = source.toDS().filter(lambda row: row[0] == name)
        return rows.withWatermark(_ms, "10 seconds") if name in marked else rows

    times: dict[str, Any] = {}
    if limits is not None:
        times["within"] = tuple(one if one is None else f"{one} seconds" for one in limits)
        times |= {"eventTime": None if "l" in marked else _ms}
        times |= {"otherEventTime": None if "r" in marked else _ms}
    on = [_user] if limits is not None else [_user, _ms]
    joined = side("l").join(side("r"), on, how, **times)
    query = joined.writeStream.format("memory").queryName("joined").outputMode(mode).start()
    found: list[Counter[Any]] = []
    seen = -1
    for batch in join_batches(marked, limits):
        source.addAll(batch)
        query.processAllAvailable()
        batches = session.tableBatches("joined")
        new = [row for number, rows in batches.items() if number > seen for row in rows]
        seen = max([seen, *batches])
        found.append(Counter(map(_columns_of_pair if how != "left_semi" else _columns, new)))
    query.stop()
    return found


def _user(row: Any) -> Any:
    return row[1]


def _ms(row: Any) -> int:
    return row[2] * 1000  # type: ignore[no-any-return]


def _columns(row: Any) -> Any:
    return (None, None) if row is None else (row[1], row[2])


def _columns_of_pair(pair: Any) -> Any:
    return *_columns(pair[0]), *_columns(pair[1])


MOST_TELLING = (
    "inner, left watermark",
    "full outer",
    "left semi",
    "left outer, event time in the key",
)


@pytest.mark.deep
@pytest.mark.parametrize(
    "name",
    [
        name if name in MOST_TELLING else pytest.param(name, marks=pytest.mark.slow)
        for name in JOINS
    ],
)
def test_joins(make_session: MakeSession, session: SparkSession, tmp_path: Path, name: str) -> None:
    """Joins with watermarks on both sides, on one or none, by a range or by equal event times."""
    ours = joined_by_us(make_session(), *JOINS[name])
    assert ours == joined_by_spark(session, tmp_path / "spark", *JOINS[name])


def by_us(sc: SparkContext, directory: Path, plan: PhysicalOperator) -> list[list[Any]]:
    query = SparkQuery(sc, plan, directory)
    return [query.add(batch) for batch in BATCHES]


@pytest.mark.deep
@pytest.mark.parametrize("mode", list(OutputMode))
def test_sliding_windows(
    sc: SparkContext, session: SparkSession, tmp_path: Path, mode: OutputMode
) -> None:
    """Counts and means by window and user, in each output mode."""
    grouping = Grouping(key=lambda record: record[1], windows=TimeWindows(10_000, 5_000))
    function = Several((Count(), Average(lambda record: record[2])))
    plan = plan_aggregation(MARKED, grouping, function, numPartitions=2, outputMode=mode)
    ours = [
        Counter((window.start_ms, user, n, mean) for (window, user), (n, mean) in rows)
        for rows in by_us(sc, tmp_path / "ours", plan)
    ]
    assert ours == by_spark(session, tmp_path / "spark", mode, counts_by_spark)


@pytest.mark.deep
def test_distinct_within_the_watermark(
    sc: SparkContext, session: SparkSession, tmp_path: Path
) -> None:
    """Keys that are remembered for a time, forgotten in the same batch."""
    plan = plan_deduplication(MARKED, lambda record: record[1:], numPartitions=2, withinMs=10_000)
    ours = [
        Counter((time_us // 1000, user, value) for time_us, (_, user, value) in rows)
        for rows in by_us(sc, tmp_path / "ours", plan)
    ]
    assert ours == by_spark(session, tmp_path / "spark", OutputMode.Append, distinct_by_spark)


NUMBERS = [None, float("nan"), -0.0, float("inf"), -2.0, 0.25, 1.5]
OF_NUMBERS = Several(
    (
        Max(itemgetter(0)),
        Min(itemgetter(0)),
        Max(),
        Min(),
        MaxBy(itemgetter(0), by=itemgetter(1)),
        MinBy(itemgetter(0), by=itemgetter(1)),
        Count(itemgetter(0)),
        CountDistinct(itemgetter(0)),
        CountDistinct(),
        CollectSet(itemgetter(0)),
        Sum(itemgetter(0)),
        Average(itemgetter(0)),
    )
)


def shown(value: Any) -> Any:
    """Return a value to compare: NaN and -0.0 as text, a set or list in order."""
    if isinstance(value, (set, list)):
        return sorted(map(shown, value))
    return repr(normalized(tuple(value) if isinstance(value, tuple) else value))


@pytest.mark.deep
def test_none_and_nan(session: SparkSession) -> None:
    """Random rows with None, NaN and -0.0 come to what Spark makes of them, in Spark's order."""
    random = Random(1)
    groups = [
        # Spark leaves open which of several rows with the greatest order max_by returns.
        [(random.choice([*NUMBERS, 0.0]), y) for y in random.sample(NUMBERS, random.randint(1, 6))]
        for _ in range(60)
    ]
    rows = [(number, *row) for number, group in enumerate(groups) for row in group]
    frame = session.createDataFrame(rows, "k int, x double, y double").coalesce(1).cache()
    pair = f.struct("x", "y")
    theirs = (
        frame.groupBy("k")
        .agg(
            *(f.max("x"), f.min("x"), f.max(pair), f.min(pair)),
            *(f.max_by("x", "y"), f.min_by("x", "y"), f.count("x")),
            *(f.countDistinct("x"), f.countDistinct(pair), f.collect_set("x")),
            *(f.sum("x"), f.avg("x")),
        )
        .orderBy("k")
        .collect()
    )
    for group, row in zip(groups, theirs, strict=True):
        assert list(map(shown, aggregate(OF_NUMBERS, group))) == list(map(shown, row[1:])), group
    for is_descending in (False, True):
        order = [f.desc("x"), f.desc("y")] if is_descending else ["x", "y"]
        ordered = sorted((row[1:] for row in rows), key=sort_key, reverse=is_descending)
        found = frame.orderBy(*order).select("x", "y").collect()
        assert list(map(shown, ordered)) == list(map(shown, found))
