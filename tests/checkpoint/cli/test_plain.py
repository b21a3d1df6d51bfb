"""Display of pickles and stored values without running anything."""

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
from checkpoint.cli.plain import Shower, ShownClasses, ShownData, plain_loads
from checkpoint.state_store import Classes, DataValues, Shapes
from checkpoint.state_store.keys import decode_key, encode_key
from checkpoint.state_store.values import UndecodableValueError


class Money:
    """A class that defines how it is pickled."""

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
    """Plain data is shown as JSON, other objects as class and parts."""
    found = Shower().shown(plain_loads(pickle.dumps(value, 5)))
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
        (START + b"Nr\xff\xff\xff\x7f.", "object 2147483647, more than its size allows"),
        (START + b"Np2147483647\n.", "more than its size allows"),
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
    """Pickles that would take too much memory or change classes are rejected first."""
    with pytest.raises(ValueError, match=said):
        plain_loads(data)
    with pytest.raises(UndecodableValueError, match=said):
        ShownData().decoder(Shapes())(data)
    assert collections.Counter("aab") == {"a": 2, "b": 1}


def test_what_has_too_many_parts_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many such values, each takes less time; other values are shown as before."""
    monkeypatch.setattr(plain, "_MOST_PARTS", 100_000)
    value: list[Any] = []
    for _ in range(40):
        value = [value, value]
    shower = Shower()
    reason = {"not shown": "it has too many parts, most of them repeated"}
    assert [shower.shown(value) for _ in range(20)] == [reason] * 20
    assert shower.shown(list(range(900))) == list(range(900))
    assert Shower().shown(["x" * 10_000_000]) == reason


def test_shared_parts_are_shown() -> None:
    """Pickled data may share parts, also in a cycle."""
    shared = [("x", n) for n in range(1000)]
    value: Any = [shared] * 100
    assert plain_loads(pickle.dumps(value, 5)) == value
    for protocol in range(6):
        value = {"a": [1, (2, None)], "b": collections.Counter("aab")}
        value["circle"] = value
        assert plain_loads(pickle.dumps(value, protocol))["circle"]["a"] == [1, (2, None)]


def test_large_ints_are_shown_in_hexadecimal() -> None:
    """Python refuses to print ints of more than 4300 digits."""
    assert Shower().shown([10**3000, -(16**5000)]) == [10**3000, {"int": f"-0x1{'0' * 5000}"}]


@given(st.binary(max_size=200))
def test_any_bytes_are_shown_or_refused(data: bytes) -> None:
    """Arbitrary bytes are shown, or raise ValueError."""
    with contextlib.suppress(ValueError):
        Shower().shown(plain_loads(b"\x80\x05" + data))


def test_a_call_is_shown_and_not_made() -> None:
    """A pickle that would run a command is shown, and the command does not run."""
    data = b"cposix\nsystem\n(S'exit 3'\ntR."
    assert Shower().shown(plain_loads(data)) == {"class": "posix.system", "arguments": ["exit 3"]}


@dataclass
class Visit:
    count: int
    colour: Any


def test_instances_are_shown_by_their_fields() -> None:
    """Instances are shown with class name and fields; the class is not imported."""
    codec = DataValues(Classes(frozenset({__name__})))
    shapes = Shapes()
    shape, inside = map(codec.encoder(shapes), (Visit(1, "red"), [{"a": Visit(2, None)}]))
    reading = ShownData().decoder(shapes)
    first = {"class": f"{__name__}.Visit", "fields": {"count": 1, "colour": "red"}}
    assert Shower().shown(reading(shape)) == first
    assert Shower().shown(reading(inside)[0]["a"])["fields"] == {"count": 2, "colour": None}
    assert repr(reading(shape)) == f"{__name__}.Visit(count=1, colour='red')"
    key = decode_key(encode_key(Frozen(7)), ShownClasses())
    assert Shower().shown(key) == {"class": f"{__name__}.Frozen", "fields": [7]}


@dataclass(frozen=True)
class Frozen:
    number: int
