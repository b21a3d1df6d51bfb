"""Schemas from DDL text: the parser without a JVM agrees with Spark's."""

from __future__ import annotations

import pytest
from pyspark import SparkContext
from pyspark.sql.types import LongType, StringType, StructType, _parse_datatype_string

from dstreams.errors import InvalidStreamError
from dstreams.state.ddl import _Parser, parse_schema

TEXTS = [
    "n long",
    "n BIGINT, last STRING",
    "a boolean, b byte, c tinyint, d short, e smallint, f int, g integer",
    "a float, b real, c double, d binary, e date, f timestamp, g timestamp_ntz",
    "a decimal, b decimal(10), c dec(10, 2), d numeric( 12 , 3 )",
    "a char(3), b varchar(10)",
    "a array<int>, b map<string, array<long>>, c struct<x: int, y: array<string>>",
    "a struct<x int, y string>",
    "a int not null, b string comment 'the name', c long NOT NULL COMMENT \"n\"",
    "`a b` int, `c``d` string",
    "a: int, b: string",
    "struct<a: int, b: string>",
    " STRUCT < a int > ",
    "_a1 int, b_2 string",
]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_spark_reads(sc: SparkContext, text: str) -> None:
    """Names, types, nullability and comments are equal."""
    assert _Parser(text).schema() == _parse_datatype_string(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "int",
        "a int,",
        "a int b string",
        "a list<int>",
        "a array<int",
        "a map<int>",
        "a decimal(x)",
        "a int)",
        "a int; drop",
        "a int not",
        "'a' int",
    ],
)
def test_texts_that_are_refused(text: str) -> None:
    """The error has the text, the place and an example."""
    with pytest.raises(InvalidStreamError, match=r"the schema .* cannot be read: .*'count long"):
        _Parser(text).schema()


def test_with_and_without_spark(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads the text if it runs."""
    with_spark = parse_schema("n long, s string")
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    assert parse_schema("n long, s string") == with_spark
    assert with_spark == StructType().add("n", LongType()).add("s", StringType())
