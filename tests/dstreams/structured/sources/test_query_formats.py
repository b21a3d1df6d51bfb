"""Files whose records have a schema: CSV, Parquet, and JSON with a schema."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.file_listing import FileStamp
from dstreams.structured import StreamSession
from dstreams.structured.sources.query_formats import (
    ColumnLines,
    FileSplit,
    ParquetFiles,
    ParseColumns,
    ReadParquet,
    RecordSchema,
    format_of,
)

WORDS = StructType([StructField("word", StringType()), StructField("count", IntegerType())])
START, LATER = FileSplit("file:/in/1.csv", 0), FileSplit("hdfs://one/in/1.csv", 900)


class Word(NamedTuple):
    """A record with a class of its own."""

    word: str
    count: int | None


def parsed(lines: Iterable[str], split: FileSplit = START, **options: Any) -> list[Any]:
    """Return the records of the lines of a CSV file."""
    schema = RecordSchema.of(options.pop("schema", WORDS))
    found = format_of("csv", schema, options.pop("mode", "FAILFAST"), **options)
    assert isinstance(found, ColumnLines)
    made = (found.decoder, found.columns, found.bad_lines)
    task = ParseColumns((split,), *made, found.has_header, found.is_header_checked)
    return list(task(0, lines))


@pytest.mark.parametrize(
    ("lines", "options", "records"),
    [
        (["a,1", "", "b,2"], {}, [Row(word="a", count=1), Row(word="b", count=2)]),
        (['"",', ",7"], {}, [Row(word="", count=None), Row(word=None, count=7)]),
        (['"a ""b"", c",1'], {}, [Row(word='a "b", c', count=1)]),
        (["a\t1"], {"sep": "\t"}, [Row(word="a", count=1)]),
        (["", "x,y", "a,1"], {"has_header": True}, [Row(word="a", count=1)]),
        (["a,1"], {"has_header": True, "split": LATER}, [Row(word="a", count=1)]),
        ([], {"has_header": True}, []),
        (["word,count", "a,1"], {"has_header": True, "is_header_checked": True}, [Row("a", 1)]),
        (["a,1"], {"schema": Word}, [Word("a", 1)]),
        (["a,1", "a", "b,x", "c,3"], {"mode": "DROPMALFORMED"}, [Row("a", 1), Row("c", 3)]),
    ],
)
def test_lines_of_csv(lines: list[str], options: dict[str, Any], records: list[Any]) -> None:
    """Lines become records by the schema and the options."""
    found = parsed(lines, **options)
    assert found == records
    assert [(row.word, row["count"]) for row in found if isinstance(row, Row)] in ([], records)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["a,1", "", "b,x"], {}, "line 3 of file:/in/1.csv does not fit the schema: .*'b,x'"),
        (["h,h", "a,1,2"], {"has_header": True}, "line 2 of .*: Expected 2 columns, got 3"),
        (["a,x"], {"split": LATER}, "line 1 after byte 900 of hdfs://one/in/1.csv"),
        ([",1"], {"schema": Word}, "word is missing, but it is not nullable"),
        (
            ["count,word", "1,a"],
            {"has_header": True, "is_header_checked": True},
            "the header of file:/in/1.csv is 'count,word', but the schema has word,count;",
        ),
    ],
)
def test_lines_that_do_not_fit(lines: list[str], options: dict[str, Any], message: str) -> None:
    """The error has the file, the line, the reason and a remedy."""
    with pytest.raises(SourceError, match=message):
        parsed(lines, **options)


def read_parquet(tmp_path: Path, table: pa.Table, schema: Any, **options: Any) -> list[Any]:
    """Return the records of a table that is written to a file."""
    pq.write_table(table, tmp_path / "1.parquet", **options)
    task = ReadParquet(RecordSchema.of(schema))
    records = list(task(0, [(str(tmp_path / "1.parquet"), None)]))
    content = (tmp_path / "1.parquet").read_bytes()
    assert list(task(0, [("hdfs://one/1.parquet", content)])) == records
    return records


def test_columns_of_parquet(tmp_path: Path) -> None:
    """Columns are found by name, may be narrower than the schema, and null if they are missing."""
    table = pa.table({"count": pa.array([1, None], pa.int16()), "more": [1, 2], "word": ["a", "b"]})
    assert read_parquet(tmp_path, table, WORDS) == [Row("a", 1), Row("b", None)]
    assert read_parquet(tmp_path, table, Word) == [Word("a", 1), Word("b", None)]
    assert read_parquet(tmp_path, table.drop(["count"]), WORDS) == [Row("a", None), Row("b", None)]
    assert read_parquet(tmp_path, table.slice(0, 0), WORDS) == []


@pytest.mark.parametrize("old", [True, False])
def test_times_of_parquet(tmp_path: Path, old: bool) -> None:
    """Times of Spark are read with their zone, also in the format of its earlier releases."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc)
    table = pa.table({"time": pa.array([moment], pa.timestamp("us", "UTC"))})
    options = {"use_deprecated_int96_timestamps": old}
    assert read_parquet(tmp_path, table, "time timestamp", **options) == [Row(time=moment)]
    if not old:
        with pytest.raises(SourceError, match=r"'time' is timestamp.*but the schema has timestamp"):
            read_parquet(tmp_path, table, "time timestamp_ntz")


@pytest.mark.parametrize(
    ("column", "schema", "message"),
    [
        (pa.array(["1"]), "count int", "column 'count' is string, but the schema has int32"),
        (pa.array([1 << 40]), "count int", "cannot be read as Parquet .*not in range"),
        (pa.array([1.5]), "count int", "column 'count' is double, but the schema has int32"),
        (pa.array([1]), "count string", "column 'count' is int64, but the schema has string"),
        (pa.array([None], pa.int32()), {"count": int}, "'count' has null, but it is not nullable"),
        (pa.array([1]), {"word": str}, "it has no column 'word', which is not nullable"),
    ],
)
def test_parquet_that_does_not_fit(
    tmp_path: Path, column: pa.Array, schema: Any, message: str
) -> None:
    """A value is never changed to fit the schema; the error has the file and the column."""
    with pytest.raises(SourceError, match=message) as caught:
        read_parquet(tmp_path, pa.table({"count": column}), schema)
    assert "1.parquet cannot be read as Parquet" in str(caught.value)


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    """The error has its name."""
    (tmp_path / "1.parquet").write_text("a,1\n")
    with pytest.raises(SourceError, match=r"1\.parquet cannot be read as Parquet"):
        list(ReadParquet(RecordSchema.of(WORDS))(0, [(str(tmp_path / "1.parquet"), None)]))


def test_parquet_through_the_jvm(sc: SparkContext, tmp_path: Path) -> None:
    """Local files are opened by the workers, others are read by the JVM."""
    paths = [tmp_path / f"{name}.parquet" for name in ("a", "b, c")]
    for path in paths:
        pq.write_table(pa.table({"word": [path.stem], "count": [1]}), path)
    found = ParquetFiles(RecordSchema.of(WORDS))
    for scheme in ("file://", ""):
        files = [FileStamp(f"{scheme}{path}", 0, path.stat().st_size) for path in paths]
        rows = found.rdd(sc, files).collect()
        assert sorted(rows) == [Row("a", 1), Row("b, c", 1)]


def run(session: StreamSession, reader: Any) -> list[Any]:
    writer = reader.writeStream.format("memory").queryName("rows").trigger(availableNow=True)
    query = writer.start()
    assert query.awaitTermination(60)
    return sorted(session.table("rows"))


def test_queries_over_files_with_a_schema(session: StreamSession, tmp_path: Path) -> None:
    """Fields are known by name when the query is written; header lines are not rows."""
    (tmp_path / "1.csv").write_text("word;count\na;1\nb;2\n")
    (tmp_path / "2.json").write_text('{"count": 3, "word": "c"}\n{"word": "d"}\n')
    reader = session.readStream.schema("word string, count int")
    csv = reader.option("pathGlobFilter", "*.csv").csv(tmp_path, header=True, sep=";")
    assert run(session, csv) == [Row("a", 1), Row("b", 2)]
    with pytest.raises(InvalidStreamError, match="unknown field 'words'; the records have word, c"):
        csv.groupByKey("words")
    json = reader.option("pathGlobFilter", "*.json").json(tmp_path)
    assert run(session, json) == [Row("c", 3), Row("d", None)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda reader: reader.csv("in"), "the source csv needs a schema; call schema before it"),
        (lambda reader: reader.parquet("in"), "the source parquet needs a schema"),
        (lambda reader: reader.schema("a int").text("in"), "the source text has no schema"),
        (lambda reader: reader.schema("a int").format("rate").load(), "rate has no schema"),
        (lambda reader: reader.schema("a b c"), "is not one of Spark's"),
        (lambda reader: reader.schema("a int").csv("in", sep="ab"), "use one ASCII character"),
        (lambda reader: reader.schema("a int").csv("in", header="yes"), "use one of true, false"),
        (lambda reader: reader.schema("a int").csv("in", mode="permissive"), "FAILFAST, DROPMAL"),
        (lambda reader: reader.schema("a array<int>").csv("in"), "csv has no values of list"),
        (lambda reader: reader.schema("a int").parquet("in", header=True), "no option 'header'"),
    ],
)
def test_wrong_readers(session: StreamSession, make: Any, message: str) -> None:
    """What a source cannot do is refused before it starts."""
    with pytest.raises(InvalidStreamError, match=message):
        make(session.readStream)
