"""Schemas from DDL text, such as ``"count long, last string"``, also without a JVM.

Spark parses the text if a SparkContext is active. Tests of processors have none, so the types that
state and rows use are parsed here as well, by Spark's names.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark import SparkContext
from pyspark.sql import types

from dstreams.errors import InvalidStreamError

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|[<>(),:])")
_SIMPLE: dict[str, Callable[[], types.DataType]] = {
    name: kind
    for names, kind in (
        ("boolean", types.BooleanType),
        ("tinyint byte", types.ByteType),
        ("smallint short", types.ShortType),
        ("int integer", types.IntegerType),
        ("bigint long", types.LongType),
        ("float real", types.FloatType),
        ("double", types.DoubleType),
        ("string", types.StringType),
        ("binary", types.BinaryType),
        ("date", types.DateType),
        ("timestamp timestamp_ltz", types.TimestampType),
        ("timestamp_ntz", types.TimestampNTZType),
        ("void", types.NullType),
    )
    for name in names.split()
}
_SIZED: dict[str, Callable[..., types.DataType]] = {
    "decimal": types.DecimalType,
    "dec": types.DecimalType,
    "numeric": types.DecimalType,
    "char": types.CharType,
    "character": types.CharType,
    "varchar": types.VarcharType,
}


def parse_schema(text: str) -> types.DataType:
    """Return the schema of a DDL text.

    Raises:
        InvalidStreamError: without a SparkContext, the text or a type in it is unknown.
        Exception: with a SparkContext, Spark's error.
    """
    if SparkContext._active_spark_context is not None:
        found: types.DataType = types._parse_datatype_string(text)
        return found
    return _Parser(text).schema()


class _Parser:
    """Reads the tokens of a text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def schema(self) -> types.DataType:
        is_struct = re.match(r"\s*struct\s*<", self._text, re.IGNORECASE) is not None
        found = self._type() if is_struct else self._columns()
        if self._text[self._at :].strip():
            raise self._invalid()
        return found

    def _columns(self) -> types.StructType:
        fields = [self._column()]
        while self._takes(","):
            fields.append(self._column())
        return types.StructType(fields)

    def _column(self) -> types.StructField:
        name = self._word()
        self._takes(":")
        kind = self._type()
        is_nullable = not self._takes("not")
        if not is_nullable:
            self._require("null")
        metadata = {"comment": self._next()[1:-1]} if self._takes("comment") else None
        return types.StructField(name, kind, is_nullable, metadata)

    def _type(self) -> types.DataType:
        name = self._word().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _SIZED:
            return _SIZED[name](*self._sizes())
        if name not in ("array", "map", "struct"):
            raise self._invalid(f"unknown type {name!r}")
        self._require("<")
        if name == "struct":
            found: types.DataType = self._columns() if self._peek() != ">" else types.StructType([])
        elif name == "array":
            found = types.ArrayType(self._type())
        else:
            key = self._type()
            self._require(",")
            found = types.MapType(key, self._type())
        self._require(">")
        return found

    def _sizes(self) -> list[int]:
        sizes: list[int] = []
        if self._takes("("):
            sizes.append(self._number())
            while self._takes(","):
                sizes.append(self._number())
            self._require(")")
        return sizes

    def _number(self) -> int:
        word = self._word()
        if not word.isdecimal():
            raise self._invalid()
        return int(word)

    def _word(self) -> str:
        token = self._next()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not token[:1].isalnum() and not token.startswith("_"):
            raise self._invalid()
        return token

    def _takes(self, wanted: str) -> bool:
        if self._peek().lower() != wanted:
            return False
        self._next()
        return True

    def _require(self, wanted: str) -> None:
        if not self._takes(wanted):
            raise self._invalid(f"{wanted!r} is missing")

    def _peek(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        return "" if found is None else found[1]

    def _next(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._invalid()
        self._at = found.end()
        return found[1]

    def _invalid(self, problem: str = "a column is a name and a type") -> InvalidStreamError:
        return InvalidStreamError(
            f"the schema {self._text!r} cannot be read: {problem}, at character {self._at}; write "
            "it as 'count long, last string', or give a StructType"
        )
