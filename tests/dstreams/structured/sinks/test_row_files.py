"""Rows as files of CSV and Parquet."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession

from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import UserFunctionError
from dstreams.structured import StreamSession
from dstreams.structured.sinks.row_files import encoder_of
from dstreams.structured.sources.committed_files import committed_files
from tests.dstreams.structured.sources.test_query_formats import parsed


class Pair(NamedTuple):
    """A row with names."""

    word: Any
    count: Any


@dataclass
class Named:
    """A row that is not a tuple."""

    word: Any
    count: Any


def encoded(format: str, rows: list[Any], **options: Any) -> tuple[bytes, int]:
    """Return the content of a file of these rows, and its number of rows."""
    chunks = list(encoder_of(format, options)(rows))
    return b"".join(data for data, _ in chunks), sum(count for _, count in chunks)


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        ([("a", 1), ("b", None)], {}, "a,1\nb,\n"),
        (["a", ""], {}, 'a\n""\n'),
        ([Pair("a", 1)], {"header": True}, "word,count\na,1\n"),
        ([Named("a", 1)], {"header": True}, "word,count\na,1\n"),
        ([Row(word="a", count=1)], {"header": True}, "word,count\na,1\n"),
        ([{"word": "a", "count": 1}], {"header": True}, "word,count\na,1\n"),
        ([{"count": 1, "word": "a"}], {"schema": "word string, count int"}, "a,1\n"),
        ([Pair("a", 1)], {"schema": "count int, word string"}, "1,a\n"),
        ([Row(count=1, word="a")], {"schema": "word string, count int"}, "a,1\n"),
        ([("a", 1)], {"schema": "word string, count int", "header": True}, "word,count\na,1\n"),
        ([('a,"b"', True)], {}, '"a,""b""",true\n'),
        ([("a,b", "c;d")], {"sep": ";"}, 'a,b;"c;d"\n'),
        ([("a\nb", 1.5)], {}, '"a\nb",1.5\n'),
        ([(datetime(2026, 1, 2, tzinfo=timezone.utc),)], {}, "2026-01-02T00:00:00+00:00\n"),
        ([], {"header": True}, ""),
    ],
)
def test_csv(rows: list[Any], options: dict[str, Any], text: str) -> None:
    """Lines are those that readers of CSV expect, under the names of the rows if requested."""
    content, count = encoded("csv", rows, **options)
    assert content.decode() == text
    assert count == len(rows)
    read = list(csv.reader(io.StringIO(text), delimiter=options.get("sep", ",")))
    assert len(read) == len(rows) + bool(rows and options.get("header"))


def test_csv_is_read_back() -> None:
    """The source reads what the sink has written, null and empty text apart."""
    rows = [("a", 1), ("", None), (None, 2), ('"', 3), (",", 4), (" ", 5)]
    content, _ = encoded("csv", rows)
    assert [tuple(row) for row in parsed(content.decode().splitlines())] == rows


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([("a", 1)], {"header": True}, r"cannot write a header.* got \('a', 1\) \(tuple\)"),
        ([("a", [1])], {}, r"cannot write the row \('a', \[1\]\): a value is nested"),
        ([{"a": 1}, {"b": 1}], {}, "the schema has no column 'b'"),
        ([("a",)], {"schema": "word string, count int"}, "1 fields, but the schema has 2"),
    ],
)
def test_rows_that_csv_cannot_have(rows: list[Any], options: dict[str, Any], message: str) -> None:
    """The error has the row, the reason and a remedy."""
    with pytest.raises(UserFunctionError, match=message):
        encoded("csv", rows, **options)


def test_parquet() -> None:
    """Rows of any kind are the columns of the schema; without rows there is no file."""
    rows = [("a", 1), Pair("b", 2), Named("c", None), {"word": "d"}, Row(word="e", count=5)]
    content, count = encoded("parquet", rows, schema="word string, count int", compression="zstd")
    table = pq.read_table(pa.BufferReader(content))
    assert table.to_pydict() == {"word": list("abcde"), "count": [1, 2, None, None, 5]}
    assert count == 5
    assert encoded("parquet", [], schema="word string") == (b"", 0)
    with pytest.raises(UserFunctionError, match=r"cannot put the record .'x', 'y'.*'count' is int"):
        encoded("parquet", [("a", 1), ("x", "y")], schema="word string, count int")


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("parquet", {}, "the sink parquet needs a schema, because rows are Python objects"),
        ("parquet", {"schema": "a b c"}, "is not one of Spark's"),
        ("parquet", {"schema": "a int", "compression": "zip"}, "use one of none, snappy"),
        (
            "parquet",
            {"schema": "a int", "header": True},
            "parquet has no option 'header'; only csv",
        ),
        ("json", {"schema": "a int"}, "json has no option 'schema'; only csv and parquet have it"),
        ("csv", {"sep": '"'}, "use one ASCII character"),
    ],
)
def test_wrong_writers(
    session: StreamSession, tmp_path: Path, format: str, options: dict[str, Any], message: str
) -> None:
    """What a sink cannot do is refused before the query starts."""
    writer = session.memoryStream().toDS().writeStream.format(format)
    with pytest.raises(InvalidStreamError, match=message):
        writer.start(tmp_path / "out", checkpointLocation=str(tmp_path / "checkpoint"), **options)


@pytest.mark.parametrize(
    ("format", "options"),
    [("csv", {"header": True}), ("parquet", {"schema": "word string, count int"})],
)
def test_batches_that_run_again(
    session: StreamSession, tmp_path: Path, format: str, options: dict[str, Any]
) -> None:
    """A batch whose commit was lost is not written twice, and a query reads each row once."""
    output, checkpoint = str(tmp_path / "out"), tmp_path / "checkpoint"
    pairs = session.memoryStream("pairs")
    writer = pairs.toDS().writeStream.format(format).options(path=output, **options)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.start()
    for number, word in enumerate("ab"):
        pairs.addData(Pair(word, number))
        query.processAllAvailable()
    query.stop()
    sorted((checkpoint / "commits").iterdir())[-1].unlink()
    before = committed_files(output)
    query = writer.start()
    query.processAllAvailable()
    query.stop()
    assert committed_files(output) == before
    assert sorted(before) == [0, 1]
    reader = session.readStream.schema("word string, count int").format(format)
    reader = reader.options(**({"header": True} if format == "csv" else {}))
    reading = reader.load(output).writeStream.format("memory").queryName("read")
    assert reading.trigger(availableNow=True).start().awaitTermination(300)
    assert sorted(session.table("read")) == [Row("a", 0), Row("b", 1)]


@pytest.mark.deep
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_files_of_spark(
    sc: SparkContext, session: StreamSession, tmp_path: Path, format: str
) -> None:
    """Spark reads the files of the sink, and the source those of Spark, with equal values."""
    spark = SparkSession(sc)
    schema = "word string, count int, price double, day date, time timestamp"
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, timezone.utc)
    rows = [
        ("a,b", 1, 0.5, moment.date(), moment),
        ("", None, -1e300, None, None),
        (None, -7, 2.0, moment.date(), moment),
    ]
    options = {"header": "true"} if format == "csv" else {}
    theirs, ours = str(tmp_path / "spark"), str(tmp_path / "ours")
    # PySpark takes local times; a time with a zone is converted.
    spark.createDataFrame(rows, schema).write.format(format).options(**options).save(theirs)
    reader = session.readStream.schema(schema).format(format).options(**options)
    writer = reader.load(theirs).writeStream.format(format)
    writer = writer.options(path=ours, schema=schema, **options).trigger(availableNow=True)
    assert writer.start(checkpointLocation=str(tmp_path / "checkpoint")).awaitTermination(300)
    found = spark.read.schema(schema).format(format).options(**options).load(ours)
    before = spark.read.schema(schema).format(format).options(**options).load(theirs)
    assert sorted(found.collect(), key=str) == sorted(before.collect(), key=str)
    read = reader.load(ours).writeStream.format("memory").queryName("read")
    assert read.trigger(availableNow=True).start().awaitTermination(300)
    assert sorted(map(tuple, session.table("read")), key=str) == sorted(rows, key=str)
