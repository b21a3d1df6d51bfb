"""JSON of records: the same bytes for the same value, and only the fields of the struct."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from checkpoint import CorruptCheckpointError
from checkpoint.storage.json_records import Count, JsonRecord, convert, decode, encode


class Inner(JsonRecord, frozen=True, array_like=True):
    """Two numbers."""

    low: Count
    high: Count

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"{self.low} is above {self.high}")


class Outer(JsonRecord, frozen=True):
    """A record with all kinds of fields."""

    name: str
    inner: Inner | None
    facts: Mapping[str, object] = {}


VALUE = Outer("\u00fc", Inner(1, 2), {"b": [1.5, None], "a": {"x": True}})
JSON = b'{"facts":{"a":{"x":true},"b":[1.5,null]},"inner":[1,2],"name":"\\u00fc"}'


def test_equal_values_are_written_as_the_same_bytes() -> None:
    """The order of keys does not matter, and the JSON is ASCII."""
    same = Outer("\u00fc", Inner(1, 2), MappingProxyType({"a": {"x": True}, "b": (1.5, None)}))
    assert encode(VALUE) == encode(same) == JSON
    assert decode(JSON, Outer, "file", "a record") == VALUE
    assert encode({"b": 1, "a": Inner(1, 2)}) == b'{"a":[1,2],"b":1}'


@pytest.mark.parametrize("text", ["\udcff", "\U0001f600", "", "\0", "a" * 100_000])
def test_any_text_is_written_and_read(text: str) -> None:
    """File names need not be Unicode."""
    value = Outer(text, None, {text: text})
    assert decode(encode(value), Outer, "file", "a record") == value


@pytest.mark.parametrize("number", [0, -1, 1 << 62, 1 << 70, -(1 << 70)])
def test_any_integer_is_written_and_read(number: int) -> None:
    """Integers may be arbitrarily large."""
    assert decode(encode({"n": number}), dict[str, int], "file", "a record") == {"n": number}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "Expecting value"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b"{", "Expecting property name"),
        (b"\xff", "can't decode byte"),
        (b'{"facts":{"x":' + b"[" * 100_000, "recursion"),
        (JSON + b"{}", "Extra data"),
        (JSON.replace(b"[1,2]", b"[1,2.0]"), r"Expected `int`, got `float` - at `\$.inner\[1\]`"),
        (JSON.replace(b"[1,2]", b"[1,true]"), r"Expected `int`, got `bool` - at `\$.inner\[1\]`"),
        (JSON.replace(b"[1,2]", b'[1,"2"]'), r"Expected `int`, got `str` - at `\$.inner\[1\]`"),
        (JSON.replace(b"[1,2]", b"[-1,2]"), r"Expected `int` >= 0 - at `\$.inner\[0\]`"),
        (JSON.replace(b"[1,2]", b"[1]"), r"at least length 2, got 1 - at `\$.inner`"),
        (JSON.replace(b"[1,2]", b"[1,2,3]"), r"at most length 2"),
        (JSON.replace(b"[1,2]", b"[3,2]"), r"3 is above 2 - at `\$.inner`"),
        (JSON.replace(b'"name"', b'"mane"'), "unknown field `mane`"),
        (b'{"inner":null}', "missing required field `name`"),
        (b'{"name":"\\udcff","inner":[3,2]}', r"3 is above 2 - at `\$.inner`"),
    ],
)
def test_what_is_no_record_is_refused(data: bytes, said: str) -> None:
    """All damage raises one kind of error, with file, finding, expectation and remedy."""
    with pytest.raises(CorruptCheckpointError, match=said) as raised:
        decode(data, Outer, "file", "a record")
    error = raised.value
    assert (error.file, error.expected) == ("file", "the JSON of a record")
    assert error.found.startswith("says: ")
    assert error.remedy.startswith("restore the file from a copy")


def test_json_that_was_read_already_is_required_to_be_the_same() -> None:
    """Decoded JSON, such as a header, is checked in the same way."""
    assert convert({"name": "a", "inner": [1, 2]}, Outer, "file", "a header") == Outer(
        "a", Inner(1, 2)
    )
    with pytest.raises(CorruptCheckpointError, match="file says: Object contains unknown field"):
        convert({"name": "a", "inner": None, "x": 1}, Outer, "file", "a header")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"x": {1}}, TypeError),
        ({"x": b"bytes"}, TypeError),
        ({"x": datetime.date(2026, 1, 1)}, TypeError),
        ({"x": object()}, TypeError),
        ({"x": float("nan")}, ValueError),
        (Outer("a", Inner(2, 3), {"x": float("inf")}), ValueError),
        (Outer(5, None), ValueError),  # type: ignore[arg-type]
        (Outer("a", Inner(-1, 3)), ValueError),
        (Outer("a", (1, 2, 3)), ValueError),  # type: ignore[arg-type]
    ],
)
def test_what_could_not_be_read_again_is_not_written(value: Any, error: type[Exception]) -> None:
    """Values that are not JSON or do not fit the struct are rejected."""
    with pytest.raises(error):
        encode(value)
