"""Pickles shown without running anything."""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import fractions
import json
import math
import os
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.cli import plain
from checkpoint.cli.plain import Shower, printed, shown
from checkpoint.cli.unpickling import ShownClasses, ShownData, plain_loads
from checkpoint.state_store import Classes, DataValues, Shapes
from checkpoint.state_store.key_decoding import decode_key
from checkpoint.state_store.keys import encode_key
from checkpoint.state_store.values import UndecodableValueError


class Money:
    """Says itself how it is made again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Money, (1,))


class Items(list[int]):
    pass


class Slotted:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1


WHERE = Money.__module__
FRACTION = [1, 2] if sys.version_info >= (3, 11) else ["1/2"]  # as Python itself pickles it


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ((1, [2.5, None], {"a": True}), [1, [2.5, None], {"a": True}]),
        (math.inf, {"float": "inf"}),
        (b"\x00x", {"bytes": "0078"}),
        ({1: 2}, {"pairs": [[1, 2]]}),
        ({3, 1}, {"set": [1, 3]}),
        (datetime.date(2026, 1, 2), {"date": "2026-01-02"}),
        (decimal.Decimal("1.50"), {"Decimal": "1.50"}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (fractions.Fraction(1, 2), {"class": "fractions.Fraction", "arguments": FRACTION}),
        (Money(), {"class": f"{WHERE}.Money", "arguments": [1]}),
        (Items([1, 2]), {"class": f"{WHERE}.Items", "items": [1, 2]}),
        (Slotted(), {"class": f"{WHERE}.Slotted", "state": [None, {"a": 1}]}),
        (os.system, {"name": "posix.system"}),
    ],
)
def test_values_are_shown(value: Any, wanted: Any) -> None:
    """Plain data as JSON, the rest by class and parts."""
    found = shown(plain_loads(pickle.dumps(value, 5)))
    assert found == wanted
    json.dumps(found)


def _named(module: str, name: str) -> bytes:
    parts = (module.encode(), name.encode())
    return b"".join(b"\x8c" + bytes([len(part)]) + part for part in parts) + b"\x93"


START, COUNTER = b"\x80\x05", _named("collections", "Counter")
TUPLES = b")\x94" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(40))
LISTS = b"]\x94" + b"".join(b"]\x94h" + bytes([n]) + b"ah" + bytes([n]) + b"a" for n in range(40))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (START + b"Nr\xff\xff\xff\x7f.", "object 2147483647, more than it has room for"),
        (START + b"Np2147483647\n.", "more than it has room for"),
        (START + b"\x96" + b"\xff" * 5 + b"\0\0\0.", "only 1 remain"),
        (START + b"}" + TUPLES + b"K\x01s.", "too many parts"),
        (START + b"}(" + TUPLES + b"K\x01u.", "too many parts"),
        (START + b"(" + TUPLES + b"K\x01d.", "too many parts"),
        (START + b"\x8f(" + TUPLES + b"\x90.", "too many parts"),
        (START + b"(" + TUPLES + b"\x91.", "too many parts"),
        (START + COUNTER + b"](" + TUPLES + b"e\x85R.", "too many parts"),
        (START + COUNTER + b"](" + TUPLES + b"e\x85\x81.", "too many parts"),
        (START + COUNTER + b"N}\x8c\x08__init__" + COUNTER + b"s\x86b.", "it changes a class"),
        (START + LISTS + b".", "too many parts"),
        (START + b"\x82\x01.", "by the number 1"),
    ],
)
def test_few_bytes_take_neither_all_memory_nor_all_time(data: bytes, said: str) -> None:
    """Nor do they change what others use: they are refused, before any of it happens."""
    with pytest.raises(ValueError, match=said):
        plain_loads(data)
    with pytest.raises(UndecodableValueError, match=said):
        ShownData().decoder(Shapes())(data)
    assert collections.Counter("aab") == {"a": 2, "b": 1}


def test_what_has_too_many_parts_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor printed; and after many such values, each takes less time. Others are as ever."""
    monkeypatch.setattr(plain, "_MOST_PARTS", 100_000)
    value: list[Any] = []
    for _ in range(40):
        value = [value, value]
    shower = Shower()
    reason = {"not shown": "it has too many parts, most of them repeated"}
    assert [shower.shown(value) for _ in range(20)] == [reason] * 20
    assert shower.shown(list(range(900))) == list(range(900))
    assert printed(value) == f"<not shown: {reason['not shown']}>"
    assert shown(["x" * 10_000_000]) == reason
    assert printed([1, "a"]) == "[1, 'a']"


def test_shared_parts_are_shown() -> None:
    """Data that a program has pickled may share parts, also in a circle."""
    shared = [("x", n) for n in range(1000)]
    value: Any = [shared] * 100
    assert plain_loads(pickle.dumps(value, 5)) == value
    for protocol in range(6):
        value = {"a": [1, (2, None)], "b": collections.Counter("aab")}
        value["circle"] = value
        assert plain_loads(pickle.dumps(value, protocol))["circle"]["a"] == [1, (2, None)]


def test_large_ints_are_shown_in_hexadecimal() -> None:
    """Python prints none of more than 4300 digits, and JSON none either."""
    assert shown([10**3000, -(16**5000)]) == [10**3000, {"int": f"-0x1{'0' * 5000}"}]


@given(st.binary(max_size=200))
def test_any_bytes_are_shown_or_refused(data: bytes) -> None:
    """With a ValueError, or as what is not shown."""
    with contextlib.suppress(ValueError):
        shown(plain_loads(b"\x80\x05" + data))


def test_a_call_is_shown_and_not_made() -> None:
    """A pickle that wants to run a command."""
    data = b"cposix\nsystem\n(S'exit 3'\ntR."
    assert shown(plain_loads(data)) == {"class": "posix.system", "arguments": ["exit 3"]}


@dataclass
class Visit:
    count: int
    colour: Any


def test_instances_are_shown_by_their_fields() -> None:
    """An instance is shown by the name of its class and its fields; the class is not looked for."""
    codec = DataValues(Classes(frozenset({__name__})))
    shapes = Shapes()
    shape, inside = map(codec.encoder(shapes), (Visit(1, "red"), [{"a": Visit(2, None)}]))
    reading = ShownData().decoder(shapes)
    first = {"class": f"{__name__}.Visit", "fields": {"count": 1, "colour": "red"}}
    assert shown(reading(shape)) == first
    assert shown(reading(inside)[0]["a"])["fields"] == {"count": 2, "colour": None}
    assert printed(reading(shape)) == f"{__name__}.Visit(count=1, colour='red')"
    key = decode_key(encode_key(Frozen(7)), ShownClasses())
    assert shown(key) == {"class": f"{__name__}.Frozen", "fields": [7]}


@dataclass(frozen=True)
class Frozen:
    number: int
