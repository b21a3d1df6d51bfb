"""Sums of groups are exact or refused, and values keep their order as integers."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
np = pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.groups import (  # noqa: E402 - needs pyarrow
    Groups,
    Ordered,
    SumRangeError,
)

LARGE = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)


@given(st.lists(st.tuples(st.integers(0, 2), LARGE), max_size=9))
def test_sums_of_integers(rows: list[tuple[int, int]]) -> None:
    """A sum is exact even if partial sums overflow; a sum out of range is an error."""
    groups = Groups(np.array([group for group, _ in rows], np.int64), 3)
    exact = [sum(number for of, number in rows if of == group) for group in range(3)]
    beyond = [group for group in range(3) if not -(2**63) <= exact[group] < 2**63]
    numbers = np.array([number for _, number in rows], np.int64)
    if beyond:
        with pytest.raises(SumRangeError, match=f"group {beyond[0]} leaves the range of int64"):
            groups.int_sums(numbers)
    else:
        assert groups.int_sums(numbers).tolist() == exact


@given(st.lists(st.integers(0, 2**64 - 1), max_size=4))
def test_sums_of_unsigned_integers(numbers: list[int]) -> None:
    """The same of numbers without a sign."""
    groups = Groups(np.zeros(len(numbers), np.int64), 1)
    column = np.array(numbers, np.uint64)
    if sum(numbers) >= 2**64:
        with pytest.raises(SumRangeError, match="leaves the range of uint64"):
            groups.int_sums(column)
    else:
        assert groups.int_sums(column).tolist() == [sum(numbers)]


DIGITS = 10**38 - 1


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-DIGITS, DIGITS) | st.integers(-9, 9)), max_size=9
    )
)
def test_sums_of_decimals(rows: list[tuple[int, int]]) -> None:
    """Decimals of 38 digits are added exactly, too."""
    groups = Groups(np.array([group for group, _ in rows], np.int64), 3)
    with localcontext() as context:
        context.prec = 60
        column = pa.array([Decimal(n).scaleb(-2) for _, n in rows], pa.decimal128(38, 2))
        exact = [sum(n for of, n in rows if of == group) for group in range(3)]
        present = groups.counts() > 0
        if any(abs(total) > DIGITS for total in exact):
            with pytest.raises(SumRangeError, match=r"leaves the range of decimal128\(38, 2\)"):
                groups.decimal_sums(column, present)
            return
        sums = groups.decimal_sums(column, present).to_pylist()
        assert sums == [
            Decimal(total).scaleb(-2) if there else None
            for total, there in zip(exact, present, strict=True)
        ]


def test_a_slice_of_decimals() -> None:
    """The sum of a slice is of its own rows."""
    column = pa.array([Decimal("1.5"), Decimal("-2.0"), Decimal("4.0")], pa.decimal128(5, 1))
    sums = Groups(np.zeros(2, np.int64), 1).decimal_sums(column.slice(1), np.array([True]))
    assert sums.to_pylist() == [Decimal("2.0")]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [False, True]),
        (pa.int8(), [-128, 0, 127]),
        (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
        (pa.float32(), [-math.inf, -1.5, 0.0, 2.0**-140, 1.5, math.inf, math.nan]),
        (pa.float64(), [-math.inf, -1e300, -5e-324, 0.0, 5e-324, math.inf, math.nan]),
        (pa.decimal128(5, 2), [Decimal("-1.00"), Decimal("0.01"), Decimal("9.99")]),
        (pa.string(), ["", "B", "a", "ä", "ключ", "鍵"]),
        (pa.binary(2), [b"\0\1", b"ab"]),
        (pa.time32("s"), [0, 1, 86399]),
        (pa.timestamp("us", "Asia/Tokyo"), [-5, 0, 10**15]),
        (pa.duration("ms"), [-1, 0, 1]),
        (pa.date32(), [-1, 0, 20000]),
    ],
    ids=str,
)
def test_orders(kind: Any, values: list[Any]) -> None:
    """The integers of a type are in the order of its values, and become these again."""
    column = pa.array(values, kind)
    ordered = Ordered.of(column)
    assert ordered.numbers.tolist() == sorted(set(ordered.numbers.tolist()))
    missing = np.zeros(len(values), np.bool_)
    back = ordered.values(ordered.numbers, missing)
    assert back.type == kind
    assert repr(back.to_pylist()) == repr(column.to_pylist())
    nothing = ordered.values(ordered.numbers, ~missing)
    assert nothing.type == kind
    assert nothing.null_count == len(values)


def test_equal_floats() -> None:
    """One NaN is another, and zero has no sign."""
    column = pa.array([0.0, -0.0, math.nan, -math.nan])
    first, second, third, fourth = Ordered.of(column).numbers.tolist()
    assert (first, third) == (second, fourth)


def test_what_has_no_order() -> None:
    """Lists cannot be compared."""
    with pytest.raises(TypeError, match=r"values of list<.*> have no order; use numbers"):
        Ordered.of(pa.array([[1]]))
