"""Rows with names: the results of aggregations, in queries, states and sinks."""

from __future__ import annotations

import json
import pickle
from copy import deepcopy
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row

from checkpoint.state_store.classes import Classes, Schema
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.values import DataValues
from dstreams.errors import InvalidStreamError
from dstreams.structured import (
    NamedRow,
    StreamingDataset,
    StreamSession,
    Window,
    named_rows,
    window,
)
from dstreams.structured import session_window as session_window_of
from dstreams.structured.api.aggregates import Count, Max, Sum
from dstreams.structured.named_rows import class_of_rows
from dstreams.structured.operators.stateless import NamedRowSerializer
from tests.dstreams.structured.runs import QueryRun

ODD = ("count", "index", "a.b", "from", "_id", "_fields", "__class__", "ü - <x>", "", "Row-x")
FIRST, SECOND = Window(0, 10_000), Window(10_000, 20_000)


class Sale(NamedTuple):
    """A record; its time is in milliseconds."""

    time: int
    user: str
    price: int = 1


SALES = (Sale(1000, "ann", 3), Sale(2000, "ann", 4), Sale(3000, "bob", 5), Sale(12_000, "ann", 6))


def by_window(sales: StreamingDataset[Sale], *keys: str) -> Any:
    marked = sales.withWatermark("time", "0 seconds")
    return marked.groupByKey(*keys, window("time", "10 seconds"))


def test_a_row_is_a_tuple_with_names() -> None:
    """Fields have any name, also those of tuples, of which Row of Spark shows the method."""
    row = class_of_rows(("user", "count"))(("ann", 3))
    assert row == ("ann", 3)
    assert hash(row) == hash(("ann", 3))
    user, count = row
    assert (row.user, row.count, row[1], user, count) == ("ann", 3, 3, "ann", 3)
    assert callable(Row(user="ann", count=3).count)
    assert (repr(row), row._asdict()) == ("Row(user='ann', count=3)", {"user": "ann", "count": 3})
    odd = class_of_rows(ODD)(range(len(ODD)))
    readable = [name for name in ODD if name not in ("_fields", "__class__")]
    assert [getattr(odd, name) for name in readable] == [ODD.index(name) for name in readable]
    assert (odd._fields, odd._asdict()["_fields"]) == (ODD, 5)
    with pytest.raises(AttributeError, match="price"):
        row.price  # noqa: B018


@pytest.mark.parametrize("names", [("user", "count"), ODD])
def test_rows_come_back_from_pickles_and_states(names: tuple[str, ...]) -> None:
    """Classes of rows are found by name, so that neither pickles nor states contain code."""
    rows = [class_of_rows(names)(range(len(names))) for _ in range(2)]
    for raw in (pickle.dumps(rows), cloudpickle.dumps(rows)):
        assert b"property" not in raw
        assert [type(row) for row in pickle.loads(raw)] == [type(rows[0])] * 2
    assert type(deepcopy(rows)[0]) is type(rows[0])
    codec, shapes = DataValues(Classes(modules=frozenset((named_rows.__name__,)))), Shapes()
    for value in (rows[0], (rows[0], 1), [rows[0]]):
        found = codec.decoder(shapes)(codec.encoder(shapes)(value))
        assert (found, repr(found)) == (value, repr(value))
    with pytest.raises(AttributeError, match="has no attribute 'Column'"):
        named_rows.Column  # noqa: B018


def test_batches_of_rows_are_columns() -> None:
    """Rows on their way to the driver are pickled by columns, unless their fields differ."""
    serializer, two = NamedRowSerializer(), class_of_rows(("a", "b"))
    alike = [two((number, f"text {number}")) for number in range(100)]
    raw = serializer.dumps(alike)
    assert len(raw) < len(pickle.dumps(alike))
    for rows in (alike, [two((1, 2)), class_of_rows(("c", "d"))((1, 2)), (1, 2)], [], [1], (1,)):
        found = pickle.loads(serializer.dumps(rows))
        assert (found, repr(found)) == (rows, repr(rows))


def test_a_window_of_an_older_state() -> None:
    """Windows that were stored under their former module are read."""
    former = "dstreams.structured.operators.time_windows"
    schema = Schema("namedtuple", former, "Window", Window._fields)
    assert Classes(modules=frozenset((former,))).maker(schema).one(0, 10_000) == FIRST


def test_a_window_is_shown_by_its_times() -> None:
    """A window has datetimes in UTC, and a time that no calendar has as a number."""
    assert FIRST.end == datetime(1970, 1, 1, 0, 0, 10, tzinfo=timezone.utc)
    assert repr(FIRST) == "Window(1970-01-01T00:00:00Z, 1970-01-01T00:00:10Z)"
    assert str(FIRST) == "{1970-01-01T00:00:00Z, 1970-01-01T00:00:10Z}"
    assert str(Window(10**18, 10**18 + 1)) == f"{{{10**18} ms, {10**18 + 1} ms}}"


def test_names_of_keys_and_results(session: StreamSession) -> None:
    """Keys have the names of fields and functions, results those of Spark; each is there once."""
    groups = session.createDataset(SALES[:2]).groupByKey(
        "user", len, lambda sale: 0, lambda sale: 1, window("time", "10 seconds")
    )
    (row,) = groups.agg(Count(), Max("price"), Max("price"), Max(len), total=Sum("price")).collect()
    assert row._asdict() == {
        "window": FIRST,
        "user": "ann",
        "len": 3,
        "key": 0,
        "key_2": 1,
        "count": 2,
        "max_price": 4,
        "max_price_2": 4,
        "max_len": 3,
        "total": 7,
    }
    with pytest.raises(InvalidStreamError, match=r"'user' .* is there already.*max_price"):
        groups.agg(Max("price"), user=Count())


def totals(sales: StreamingDataset[Sale]) -> StreamingDataset[Any]:
    users = by_window(sales, "user").agg(Count(), total=Sum("price"))
    return users.groupByKey("window").agg(Sum("count"), Max("total"))


def test_fields_of_windows_in_later_operators(session: StreamSession) -> None:
    """Rows are grouped by name, by their window too, and results of that have the window."""
    run = QueryRun(session, totals, "append")
    streamed = [*run.add(*SALES), *run.add(Sale(90_000, "z"))]
    for rows in (streamed, sorted(totals(session.createDataset(SALES)).collect())):
        shown = [
            (row.window, row.window.start.second, row.sum_count, row.max_total) for row in rows
        ]
        assert shown == [(FIRST, 0, 3, 7), (SECOND, 10, 1, 6)]


def test_windows_of_windows_without_a_watermark(session: StreamSession) -> None:
    """The window of a row is an event time in batch datasets too, with and without a watermark."""
    counts = session.createDataset(SALES).groupByKey(window("time", "10 seconds")).count()
    for rows in (counts, counts.filter(bool).withWatermark("window", "1 second")):
        twice = rows.groupByKey(window("window", "20 seconds")).agg(Sum("count"))
        assert twice.collect() == [(Window(0, 20_000), 4)]
        again = twice.groupByKey(session_window_of("window", "1 second")).count()
        assert again.collect() == [(Window(19_999, 20_999), 1)]
    pairs = counts.join(SALES, "window", otherOn=window("time", "10 seconds"))
    assert sorted((row.count, sale.price) for row, sale in pairs.collect()) == [
        (1, 6),
        (3, 3),
        (3, 4),
        (3, 5),
    ]


def test_sessions(session: StreamSession) -> None:
    """The window of a session has Spark's name."""
    sales = session.createDataset(SALES)
    rows = sales.groupByKey(session_window_of("time", "1 second"), "user").count()
    assert rows.plan.fields == ("session_window", "user", "count")
    assert [row.session_window for row in rows.collect() if row.user == "bob"] == [
        Window(3000, 4000)
    ]


def test_names_are_checked_when_a_query_is_defined(session: StreamSession) -> None:
    """A later operator that uses a field which rows lack is refused, and the others are listed."""
    counts = session.createDataset(SALES).groupByKey("user").count()
    for wrong in (
        lambda: counts.groupByKey("key"),
        lambda: counts.groupByKey("user").agg(Sum("total")),
        lambda: counts.orderBy("total"),
        lambda: counts.join(counts, "name"),
    ):
        with pytest.raises(
            InvalidStreamError, match=r"unknown field.*the records have user, count"
        ):
            wrong()
    top = counts.orderBy("count", ascending=False).limit(1).collect()
    assert [(row.user, row.count) for row in top] == [("ann", 3)]


@pytest.mark.deep
def test_rows_in_the_state_of_a_join(session: StreamSession, tmp_path: Path) -> None:
    """Rows that wait in the state have their names after a restart."""

    def build(sales: Any, others: Any) -> Any:
        marked = others.withWatermark("time", "0 seconds")
        counts = by_window(sales, "user").count()
        pairs = counts.join(marked, "user", within=("0 seconds", "1 minute"))
        return pairs.map(lambda pair: (pair[0].window, pair[0].user, pair[0].count, pair[1].price))

    run = QueryRun(session, build, "append", tmp_path, inputs=2)
    run.add_to(0, *SALES, Sale(30_000, "z"))
    assert run.add_to(1, Sale(20_000, "z")) == []
    run.restart()
    found = run.add_to(1, Sale(21_000, "ann", 7))
    assert found == [(FIRST, "ann", 2, 7), (SECOND, "ann", 1, 7)]


def test_files(session: StreamSession, tmp_path: Path) -> None:
    """Files have the names, and the times of windows."""
    rows = session.memoryStream()
    counts = by_window(rows.toDS(), "user").count()
    schema = "user string, window struct<start timestamp, end timestamp>, count bigint"
    writers = {
        "json": (counts, {}),
        "parquet": (counts, {"schema": schema}),
    }
    queries = [
        dataset.writeStream.format(name)
        .options(**options)
        .option("checkpointLocation", str(tmp_path / f"checkpoint of {name}"))
        .start(str(tmp_path / name))
        for name, (dataset, options) in writers.items()
    ]
    for sales in (SALES[:1], [Sale(50_000, "z")], [Sale(51_000, "z")]):
        rows.addAll(sales)
        for query in queries:
            query.processAllAvailable()
    for query in queries:
        query.stop()
    files = (tmp_path / "json").glob("**/*.json")
    (line,) = (line for file in files for line in file.read_text().splitlines())
    times = {"start": "1970-01-01 00:00:00+00:00", "end": "1970-01-01 00:00:10+00:00"}
    assert json.loads(line) == {"window": times, "user": "ann", "count": 1}
    read = session.read.schema(schema).parquet(tmp_path / "parquet").collect()
    assert [tuple(row) for row in read] == [("ann", {"start": FIRST.start, "end": FIRST.end}, 1)]


def test_tables_and_data_frames(session: StreamSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables have a column for each field, and DataFrames have timestamps."""
    counts = session.createDataset(SALES[:1]).groupByKey(window("time", "10 seconds")).count()
    counts.show(truncate=False)
    shown = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in shown[1].split("|")] == ["", "window", "count", ""]
    assert str(FIRST) in shown[3]
    frames: list[Any] = []
    rows = session.memoryStream()
    query = (
        rows.toDS()
        .groupByKey(window("time", "10 seconds"))
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(lambda frame, _: frames.append(frame.collect()), asDataFrame=True)
        .start()
    )
    rows.addData(SALES[0])
    query.processAllAvailable()
    query.stop()
    ((row,),) = frames
    assert row["window"]["end"].timestamp() == 10
    assert isinstance(counts.first(), NamedRow)
