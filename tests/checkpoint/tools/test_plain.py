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
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.tools.plain import plain_loads, shown


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


@given(st.binary(max_size=200))
def test_any_bytes_are_shown_or_refused(data: bytes) -> None:
    """With a ValueError, or a RecursionError where it nests too deeply: the command says both."""
    with contextlib.suppress(ValueError, RecursionError):
        shown(plain_loads(b"\x80\x05" + data))


def test_a_call_is_shown_and_not_made() -> None:
    """A pickle that wants to run a command."""
    data = b"cposix\nsystem\n(S'exit 3'\ntR."
    assert shown(plain_loads(data)) == {"class": "posix.system", "arguments": ["exit 3"]}
