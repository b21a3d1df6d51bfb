"""Order and equality of values as in SQL."""

from __future__ import annotations

import pickle
from collections import namedtuple
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from dstreams.common.sql_values import (
    all_normalized,
    is_before,
    normalized,
    sort_key,
)

NAN = float("nan")
NAIVE = datetime(2026, 1, 1, tzinfo=timezone.utc).replace(tzinfo=None)
Point = namedtuple("Point", "x y")

IN_ORDER: list[list[Any]] = [
    [None, -1, 0, 2],
    [None, float("-inf"), -0.5, 2, float("inf"), NAN],
    [None, Decimal(1), Decimal("Infinity"), Decimal("NaN")],
    [None, Decimal(1), Decimal("sNaN")],
    [None, 1, Decimal("1.5"), 2.5, NAN],
    [np.float32(1), np.float64(2), np.float32("nan")],
    [None, "", "a", "b"],
    [None, date(2026, 1, 1), date(2026, 1, 2)],
    [None, NAIVE, NAIVE + timedelta(hours=1)],
    [None, (1, None), (1, 2.0), (1, NAN), (2, None)],
    [(1, (None, 3)), (1, (1, None)), (1, (NAN, 0))],
    [[], [None], [1], [1, None], [NAN]],
    [Point(1, None), Point(1, 2), Point(NAN, 1)],
    [Row(a=1, b=None), Row(a=1, b=NAN)],
]


@pytest.mark.parametrize("values", IN_ORDER, ids=repr)
def test_order(values: list[Any]) -> None:
    """None is first, NaN after every number, also inside tuples and lists."""
    for given_order in (values, values[::-1]):
        assert sorted(given_order, key=sort_key) == values  # the same objects, so NaN as well
    for first, second in permutations(range(len(values)), 2):
        assert is_before(values[first], values[second]) is (first < second)
    for value in values:
        assert not is_before(value, value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a", 1),
        (NAN, "a"),
        ((1, 2), 1),
        ((1, 2), [1, 2]),
        ({}, {"a": 1}),
    ],
)
def test_no_order(first: Any, second: Any) -> None:
    """Values of types without a common order are an error."""
    with pytest.raises(TypeError, match="not supported between"):
        is_before(first, second)
    with pytest.raises(TypeError, match="not supported between"):
        sorted([first, second], key=sort_key)


@given(st.lists(st.floats() | st.none() | st.integers()), st.randoms())
def test_order_of_any_numbers(values: list[Any], random: Any) -> None:
    """The result does not depend on the order of the input."""
    shuffled = list(values)
    random.shuffle(shuffled)
    assert sorted(map(sort_key, shuffled)) == sorted(map(sort_key, values))


def test_datetimes_with_and_without_a_zone() -> None:
    """Moments with and without a time zone have no common order."""
    for first, second in permutations([NAIVE, NAIVE.astimezone()]):
        with pytest.raises(TypeError, match="can't compare offset-naive and offset-aware"):
            is_before(first, second)


def test_one_nan() -> None:
    """All NaN are one value, -0.0 is 0.0, and named tuples and Rows keep their class."""
    nans = [float("nan"), NAN, Decimal("NaN"), Decimal("sNaN"), np.float32("nan")]
    assert len(set(map(normalized, nans))) == 1
    assert repr(normalized(-0.0)) == "0.0"
    assert repr(normalized((1, -0.0))) == "(1, 0.0)"
    assert len({normalized((1, (float("nan"),))) for _ in range(3)}) == 1
    point, row = normalized(Point(1, float("nan"))), normalized(Row(a=float("nan"), b=2))
    assert (type(point), point.x) == (Point, 1)
    assert (row.b, row.__fields__) == (2, ["a", "b"])
    same = (1, ("a", 2.5))
    assert normalized(same) is same


def test_one_nan_of_several_processes() -> None:
    """Merged sets from other processes have one NaN again."""
    values = {normalized(value) for value in (NAN, 1.0, (1, NAN), "a")}
    values.update(pickle.loads(pickle.dumps(values)))
    assert len(values) == 6
    assert len(all_normalized(values)) == 4
    texts = {"a", 1, b"c"}
    assert all_normalized(texts) is texts
