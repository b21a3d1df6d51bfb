"""Lines of JSON, CSV and text as blocks: what is a record, and why others are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from io import BufferedReader, BytesIO
from struct import pack
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.block_decoder import BlockDecoder, Decoded  # noqa: E402 - needs pyarrow
from dstreams.arrow.decode_lines import decoder_of  # noqa: E402
from dstreams.errors import InvalidStreamError  # noqa: E402
from dstreams.spark.lines import LineBytesDeserializer  # noqa: E402

INT, REAL, TEXT = pa.int64(), pa.float64(), pa.string()
WORDS = pa.schema([("a", TEXT), ("b", INT)])
TIMES = pa.schema(
    [
        ("local", pa.timestamp("us")),
        ("zoned", pa.timestamp("ms", "Europe/Berlin")),
        ("day", pa.date32()),
        ("hour", pa.time64("us")),
    ]
)
WHOLE = pa.schema([pa.field("a", TEXT, nullable=False)])
NESTED = pa.schema(
    [
        ("n", pa.struct([pa.field("at", pa.timestamp("us"), nullable=False), ("b", INT)])),
        ("days", pa.list_(pa.date32())),
    ]
)
MAP = pa.schema([("m", pa.map_(TEXT, INT))])
MONEY = pa.schema([("d", pa.decimal128(5, 2))])


def one(kind: Any) -> Any:
    return pa.schema([("x", kind)])


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[misc,arg-type]


def decoded(format: str, schema: Any, lines: list[Any], **options: Any) -> Decoded:
    decoder: BlockDecoder = decoder_of(format, schema, "toBlocks", **options)
    return decoder.decode(lines)


RECORDS: dict[str, tuple[str, Any, list[Any], list[tuple[Any, ...]]]] = {
    "members in any order": ("json", WORDS, ['{"a":"x","b":1}', '{"b":2,"a":"y"}'],
        [("x", 1), ("y", 2)]),
    "bytes": ("json", WORDS, [b'{"a":"x"}', b'{"b":2}'], [("x", None), (None, 2)]),
    "texts and bytes": ("json", WORDS, ['{"a":"x"}', b'{"b":2}'], [("x", None), (None, 2)]),
    "missing and extra members": ("json", WORDS, ['{}', '{"c":[{"d":1}],"a":null}'],
        [(None, None), (None, None)]),
    "ends of lines and blanks": ("json", WORDS, ['{"a":"x"}\r', '', ' ', '\t{"b":1}\n'],
        [("x", None), (None, 1)]),
    "other alphabets": ("json", WORDS, ['{"a":"ключ 鍵"}', '{"a":"\\u9375\\ud83d\\ude00"}'],
        [("ключ 鍵", None), ("鍵😀", None)]),
    "a record over many lines": ("json", WORDS, ['{"a":\n"x",\r\n"b":2}', '{"b":1}'],
        [("x", 2), (None, 1)]),
    "the last of two members": ("json", WORDS, ['{"b":1,"b":2}', '{"b":3}'],
        [(None, 2), (None, 3)]),
    "a null record": ("json", WORDS, ['{"b":1}', None], [(None, 1), (None, None)]),
    "real numbers": ("json", one(REAL), ['{"x":1}', '{"x":0.1}', '{"x":-0.0}', '{"x":1e22}'],
        [(1.0,), (0.1,), (-0.0,), (1e22,)]),
    "large whole numbers": ("json", one(INT), ['{"x":9223372036854775807}', '{"x":-0}'],
        [(9223372036854775807,), (0,)]),
    "decimals": ("json", MONEY, ['{"d":1.25}', '{"d":"1.250"}', '{"d":1}', '{"d":"1e2"}'],
        [(Decimal("1.25"),), (Decimal("1.25"),), (Decimal(1),), (Decimal(100),)]),
    "times": ("json", TIMES,
        ['{"local":"2020-01-02T03:04:05.000006","zoned":"2020-01-02T03:04+02:00",'
         '"day":"2020-01-02","hour":"03:04:05"}', '{"zoned":"2020-01-02 03:04:05.678Z"}'],
        [(datetime(2020, 1, 2, 3, 4, 5, 6), utc(2020, 1, 2, 1, 4), date(2020, 1, 2), time(3, 4, 5)),  # noqa: DTZ001
         (None, utc(2020, 1, 2, 3, 4, 5, 678000), None, None)]),
    "nested": ("json", NESTED,
        ['{"n":{"at":"2020-01-02","b":1,"c":2},"days":["2020-01-02",null]}', '{"days":[]}'],
        [({"at": datetime(2020, 1, 2), "b": 1}, [date(2020, 1, 2), None]), (None, [])]),  # noqa: DTZ001
    "maps": ("json", MAP, ['{"m":{"x":1,"ü":null}}', '{"m":{}}', '{}'],
        [([("x", 1), ("ü", None)],), ([],), (None,)]),
    "values in order": ("csv", WORDS, ["x,1", b"y,2"], [("x", 1), ("y", 2)]),
    "no value and the empty text": ("csv", WORDS, [",", '"",2'], [(None, None), ("", 2)]),
    "quotation marks": ("csv", WORDS, ['"x,y",1', '"x""y",2'], [("x,y", 1), ('x"y', 2)]),
    "ends of lines of csv": ("csv", WORDS, ["x,1\r", "", "y,2\r\n"], [("x", 1), ("y", 2)]),
    "alphabets of csv": ("csv", WORDS, ["ключ,1", "鍵,2"], [("ключ", 1), ("鍵", 2)]),
    "numbers of csv": ("csv", one(REAL), ["1.5", "1e22", " 7"], [(1.5,), (1e22,), (7.0,)]),
    "decimals with many zeros": ("json", MONEY,
        ['{"d":0e-999999999}', '{"d":1.' + "0" * 60 + "}", '{"d":"' + "1" + "0" * 60 + 'e-60"}'],
        [(Decimal(0),), (Decimal(1),), (Decimal(1),)]),
    "decimals of csv with many zeros": ("csv", MONEY,
        ["1." + "0" * 60, " 0e-999999999", '" 0e-99 "'],
        [(Decimal(1),), (Decimal(0),), (Decimal(0),)]),
    "brackets in a text, and many": ("json", WORDS,
        ['{"a":"' + "[" * 500 + '"}', '{"c":[' + "[]," * 500 + "[]]}"],
        [("[" * 500, None), (None, None)]),
    "decimals of csv": ("csv", MONEY, ["1.250", "1"], [(Decimal("1.25"),), (Decimal(1),)]),
    "times of csv": ("csv", TIMES, ["2020-01-02 03:04:05,2020-01-02T03:04Z,2020-01-02,03:04:05"],
        [(datetime(2020, 1, 2, 3, 4, 5), utc(2020, 1, 2, 3, 4), date(2020, 1, 2), time(3, 4, 5))]),  # noqa: DTZ001
    "texts": ("text", one(TEXT), ["a", "", "ü\r", None], [("a",), ("",), ("ü\r",), (None,)]),
    "texts in bytes": ("text", one(TEXT), [b"a", "鍵".encode(), "ü"], [("a",), ("鍵",), ("ü",)]),
}  # fmt: skip


@pytest.mark.parametrize("case", RECORDS.values(), ids=list(RECORDS))
def test_records(case: tuple[str, Any, list[Any], list[tuple[Any, ...]]]) -> None:
    """Each line has its row, with the values that it says."""
    format, schema, lines, expected = case
    block, _, failures = decoded(format, schema, lines)
    assert not failures
    assert block.schema == schema
    assert list(zip(*(column.to_pylist() for column in block.columns), strict=True)) == expected


MALFORMED: dict[str, tuple[str, Any, Any, str]] = {
    "an open object": ("json", WORDS, '{"a":"x"', "Expecting"),
    "two objects": ("json", WORDS, '{"a":"x"}{"a":"y"}', "Extra data"),
    "no object": ("json", WORDS, "[1]", r"it is not an object: \[1\]"),
    "a byte order mark": ("json", WORDS, "\ufeff{}", "Expecting value|BOM"),
    "no text": ("json", WORDS, 5, r"it is neither text nor bytes: 5 \(int\)"),
    "a fraction": ("json", WORDS, '{"b":1.5}', "b is int64, got 1.5"),
    "a number with a point": ("json", WORDS, '{"b":1.0}', "b is int64, got 1.0"),
    "a truth as a number": ("json", WORDS, '{"b":true}', "b is int64, got True"),
    "a number as a text": ("json", WORDS, '{"a":5}', "a is string, got 5"),
    "a text as a number": ("json", WORDS, '{"b":"5"}', "b is int64, got '5'"),
    "a number too many": ("json", one(pa.int8()), '{"x":300}', "x is int8, got 300"),
    "a rounded number": ("json", one(REAL), '{"x":9007199254740993}', "it would be rounded"),
    "a rounded small one": ("json", one(pa.float32()), '{"x":16777217}', "it would be rounded"),
    "a number too large": ("json", one(REAL), '{"x":1e400}', "it is too large"),
    "a decimal too long": ("json", MONEY, '{"d":1.255}', "d is decimal.*got 1.255"),
    "a decimal too large": ("json", MONEY, '{"d":"123456.7"}', "d is decimal"),
    "a zone too many": ("json", TIMES, '{"local":"2020-01-02T03:04:05Z"}', "local is timestamp"),
    "a zone too few": ("json", TIMES, '{"zoned":"2020-01-02T03:04:05"}', "zoned is timestamp"),
    "a time too fine": ("json", TIMES, '{"zoned":"2020-01-02T03:04:05.6789Z"}', "zoned is"),
    "a day with a time": ("json", TIMES, '{"day":"2020-01-02T03:04"}', "day is date32"),
    "no time": ("json", TIMES, '{"hour":"25:00:00"}', "hour is time64"),
    "a number as a time": ("json", TIMES, '{"local":1577934245}', "local is timestamp"),
    "a null where none may be": ("json", WHOLE, '{"a":null}', "a is missing or null"),
    "a record without what must be": ("json", WHOLE, "{}", "a is missing or null"),
    "a null record": ("json", WHOLE, None, "a is missing or null"),
    "half of a letter": ("json", WHOLE, '{"a":"\\ud800"}', "a is string.*surrogates"),
    "no UTF-8": ("json", WHOLE, b'{"a":"\xff"}', "can't decode byte 0xff"),
    "a nested null": ("json", NESTED, '{"n":{"b":1}}', r"n\.at is missing or null"),
    "a nested fraction": ("json", NESTED, '{"n":{"at":"2020-01-01","b":1.5}}', r"n\.b is int64"),
    "a list's element": ("json", NESTED, '{"days":["2020-01-01",1]}', r"days\[1\] is date32"),
    "a list for an object": ("json", NESTED, '{"n":[]}', r"n is struct.*got \[\]"),
    "a value of a map": ("json", MAP, '{"m":{"k":1.5}}', r"m\.k is int64, got 1.5"),
    "too deep": ("json", WORDS, '{"c":' + "[" * 100_000, "nested deeper than 200"),
    "too deep, and closed": (
        "json",
        WORDS,
        '{"c":' + "[" * 2000 + "]" * 2000 + "}",
        "nested deeper than 200 at character 205",
    ),
    "objects too deep": ("json", WORDS, '{"c":' * 2000 + "1" + "}" * 2000, "nested deeper than"),
    "too deep for a map": ("json", MAP, '{"c":' + "[" * 250 + "]" * 250 + "}", "nested deeper"),
    "a tiny decimal": ("json", MONEY, '{"d":1e-999999999}', "d is decimal.*more than 2 decimal"),
    "a tiny decimal as a text": ("json", MONEY, '{"d":"-0.1E-0999999999"}', "more than 2 decimal"),
    "a tiny decimal in escapes": ("json", MONEY, '{"d":"1\\u0065-999999999"}', "than 2 decimal"),
    "a long fraction": ("json", MONEY, '{"d":1.' + "0" * 60 + "1}", "more than 2 decimal places"),
    "a decimal that becomes zero": ("json", MONEY, '{"d":1e-41}', "more than 2 decimal places"),
    "too few values": ("csv", WORDS, "x", "Expected 2 columns, got 1: x"),
    "too many values": ("csv", WORDS, "x,1,2", "Expected 2 columns, got 3"),
    "a fraction in csv": ("csv", WORDS, "x,1.5", "int64: invalid value '1.5'"),
    "an open quotation mark": ("csv", WORDS, '1,"x', "an unclosed quotation mark"),
    "an end of line within": ("csv", WORDS, "x,1\ry,2", "it contains a line end"),
    "a null in csv": ("csv", WHOLE, ',"', "mark"),
    "rounded in csv": ("csv", one(REAL), "9007199254740993", "it would be rounded"),
    "too large in csv": ("csv", one(REAL), "1e400", "it is too large"),
    "a decimal in csv": ("csv", MONEY, "1.255", "data loss"),
    "a tiny decimal in csv": ("csv", MONEY, "1e-999999999", "d is decimal.*more than 2 decimal"),
    "a decimal in quotation marks": ("csv", MONEY, '"1e-999999999"', "more than 2 decimal places"),
    "a decimal of words": ("csv", MONEY, "x.1e-999999999", "not a valid decimal128"),
    "a long text and a rounded number": (
        "csv",
        pa.schema([("a", TEXT), ("b", REAL)]),
        "x" * 200_000 + ",9007199254740993",
        "b is double, got 9007199254740993: it would be",
    ),
    "a zone in csv": ("csv", TIMES, "2020-01-02T03:04:05Z,,,", "expected no zone offset"),
    "no zone in csv": ("csv", TIMES, ",2020-01-02T03:04:05,,", "expected a zone offset"),
    "no UTF-8 in csv": ("csv", WORDS, b"\xff,1", "invalid UTF8"),
    "a null record of csv": ("csv", WHOLE, None, "a is missing"),
    "no UTF-8 in text": ("text", one(TEXT), b"\xff", "can't decode byte 0xff"),
    "a number in text": ("text", one(TEXT), 5, "neither text nor bytes"),
    "a null text": ("text", WHOLE, None, "a is missing"),
}
GOOD = {
    "json": lambda schema: '{"a":"x"}' if schema is WHOLE else '{"other":1}',
    "csv": lambda schema: "x" if schema is WHOLE else "," * (len(schema) - 1) + "",
    "text": lambda schema: "x",
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=list(MALFORMED))
@pytest.mark.parametrize("around", [0, 40])
def test_malformed(case: tuple[str, Any, Any, str], around: int) -> None:
    """A malformed line has no row, those around it have theirs, and it is said why."""
    format, schema, line, says = case
    good = GOOD[format](schema)
    if not good:
        good = "1"
    lines = [*[good] * around, line, *[good] * around]
    block, rows, failures = decoded(format, schema, lines)
    assert list(failures) == [around]
    assert rows == [place for place in range(len(lines)) if place != around]
    assert block.num_rows == 2 * around
    with pytest.raises(AssertionError, match=f"(?s){says}"):
        raise AssertionError(failures[around])


SPLIT_LINES: dict[str, tuple[str, list[str]]] = {
    "an object over two": ("json", ['{"a":"x","b":', "2}", '{"a":"x"}{"a":"y"}']),
    "a list over two": ("json", ['{"c":[{"d":1}', '{"d":2}]}', '{"a":"x"}{"a":"y"}']),
    "a text over two": ("csv", ['"x', 'y",1', "a,1\rb,2"]),
}


@pytest.mark.parametrize("case", SPLIT_LINES.values(), ids=list(SPLIT_LINES))
def test_no_record_goes_on_in_the_next_line(case: tuple[str, list[str]]) -> None:
    """As many rows as lines are not enough: each must be of its line."""
    format, lines = case
    block, _, failures = decoded(format, WORDS, lines)
    assert (block.num_rows, list(failures)) == (0, [0, 1, 2])


def test_what_cannot_be_declared() -> None:
    """A format, a separator, or columns that a format has no values for."""

    def refused(says: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(InvalidStreamError, match=says):
            decoder_of(*arguments, "toBlocks at app.py:3", **options)

    refused("format of toBlocks at app.py:3 is 'xml'; use one of json, csv, text", "xml", WORDS)
    refused("'x' of toBlocks at app.py:3: json has no values of binary", "json", one(pa.binary()))
    refused("json has no values of duration", "json", one(pa.list_(pa.duration("s"))))
    refused("csv has no values of list", "csv", one(pa.list_(INT)))
    refused("must be one column of text, .* got a string, b int64", "text", WORDS)
    refused("sep of toBlocks at app.py:3 must be one character, got ', '", "csv", WORDS, sep=", ")


def frames(*lines: bytes | None) -> bytes:
    """Lines as the JVM sends them to a worker, and what it sends next."""
    parts = [pack("!i", -5) if line is None else pack("!i", len(line)) + line for line in lines]
    return b"".join([*parts, pack("!i", -1), b"what follows"])


class Reluctant(BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def readinto(self, buffer: Any) -> int:
        few = memoryview(buffer)[:7]
        return super().readinto(few)


STREAMS: dict[str, Callable[[bytes], Any]] = {
    "a buffer": lambda data: BufferedReader(BytesIO(data)),  # type: ignore[type-var]
    "a small buffer": lambda data: BufferedReader(BytesIO(data), 16),  # type: ignore[type-var]
    "a slow pipe": lambda data: BufferedReader(Reluctant(data), 16),  # type: ignore[type-var]
    "without a look ahead": BytesIO,
}


@pytest.mark.parametrize("open_stream", STREAMS.values(), ids=list(STREAMS))
def test_lines_from_the_jvm(open_stream: Callable[[bytes], Any]) -> None:
    """All lines come, and what follows them is left to others."""
    lines = [b"", b"a", None, "ключ".encode(), b"x" * 100, b"y" * 13, b""]
    stream = open_stream(frames(*lines))
    read: Iterator[Any] = iter(LineBytesDeserializer().load_stream(stream))
    assert list(read) == lines
    assert stream.read() == b"what follows"
