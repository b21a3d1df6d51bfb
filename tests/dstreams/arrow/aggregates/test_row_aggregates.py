"""Aggregate functions: the result does not depend on how records are split and merged."""

from __future__ import annotations

import pickle
import re
from bisect import bisect_left, bisect_right
from datetime import timedelta
from decimal import Decimal
from functools import reduce
from itertools import permutations
from math import ceil, log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.arrow.aggregates.functions import (
    AggregateFunction,
    Average,
    CollectList,
    CollectSet,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    MaxBy,
    Min,
    MinBy,
    PercentileApprox,
    Reduce,
    Several,
    StdDev,
    Sum,
    UserAggregator,
    Variance,
    aggregate,
)
from dstreams.errors import InvalidStreamError


def half(value: Any) -> Any:
    return None if value is None else value / 2


def abs_or_none(value: Any) -> Any:
    return None if value is None else abs(value)


LONGEST = UserAggregator(
    zero=lambda: 0,
    reduce=lambda buffer, value: max(buffer, value or 0),
    merge=max,
    finish=lambda buffer: f"longest {buffer}",
)

TABLE: list[tuple[AggregateFunction, list[Any], Any]] = [
    (Count(), [None, 1, 2], 3),
    (Count(half), [None, 1, 2], 2),
    (Count(), [], 0),
    (Sum(), [None, 1, 2], 3),
    (Sum(half), [4, 2], 3.0),
    (Sum(), [None], None),
    (Average(), [1, None, 2], 1.5),
    (Average(), [], None),
    (Variance(), [1, None, 3], 2.0),
    (Variance(half, ddof=0), [2, 6], 1.0),
    (Variance(), [5], None),
    (Variance(ddof=0), [5], 0.0),
    (Variance(), [None], None),
    (StdDev(), [Decimal(1), 3, 5], 2.0),
    (StdDev(), [5], None),
    (PercentileApprox(), [5, None, 1, 3], 3),
    (PercentileApprox(percentage=(0, 0.5, 1)), [4, 1, 3, 2], [1, 2, 4]),
    (PercentileApprox(percentage=0.9), list(range(1, 11)), 9),
    (PercentileApprox(), [], None),
    (PercentileApprox(half, accuracy=1), [2], 1.0),
    (Min(), [3, None, 0], 0),
    (Max(), [0, None, -1], 0),
    (Min(), [], None),
    (First(), [None, 1], None),
    (First(ignoreNulls=True), [None, 0, 1], 0),
    (Last(), [1, None], None),
    (Last(ignoreNulls=True), [1, 2, None], 2),
    (First(), [], None),
    (First(half, by=abs_or_none), [-3, 2, -2, None], 1.0),
    (Last(half, by=abs_or_none), [-3, 2, 3], 1.5),
    (First(abs_or_none, by=half, ignoreNulls=True), [3, 1, None], 1),
    (CollectList(), [2, None, 1, 2], [2, 1, 2]),
    (CollectList(), [], []),
    (CollectSet(), [2, None, 1, 2], {1, 2}),
    (CollectSet(), [], set()),
    (CountDistinct(), [2, None, 1, 2, 1.0], 2),
    (CountDistinct(half), [2, None], 1),
    (CountDistinct(), [], 0),
    (MinBy(half), [3, None, 1, 2], 0.5),
    (MinBy(half, by=abs_or_none), [-3, 2, -2], 1.0),
    (MaxBy(half, by=abs_or_none), [-3, None, 2, 3], -1.5),
    (MaxBy(), [], None),
    (Reduce(func=lambda a, b: a * b), [2, 3, None, 4], 24),
    (LONGEST, [3, 9, 4], "longest 9"),
    (Several((Count(), Sum(), Average())), [1, 5], (2, 6, 3.0)),
    (Several((CollectList(), LONGEST)), [], ([], "longest 0")),
]


@pytest.mark.parametrize(("function", "records", "result"), TABLE)
def test_results(function: AggregateFunction, records: list[Any], result: Any) -> None:
    """None is ignored; without values there is no result, or an empty one."""
    assert aggregate(function, records) == result


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30), min_size=1, max_size=9))
def test_error_of_percentiles(parts: list[list[int]]) -> None:
    """The rank of a result is wrong by no more than the documented bound."""
    function = PercentileApprox(percentage=(0.0, 0.25, 0.5, 1.0), accuracy=8)
    buffers = [reduce(function.reduce, part, function.zero()) for part in parts]
    values = sorted(value for part in parts for value in part)
    count = len(values)
    bound = count * max(0, ceil(log2(count / 8))) / 8
    for percentage, found in zip(
        function.percentage, function.finish(reduce(function.merge, buffers)), strict=True
    ):
        lowest, highest = bisect_left(values, found) + 1, bisect_right(values, found)
        assert lowest - bound <= max(1, ceil(percentage * count)) <= highest + bound


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"percentage": 1.5}, "percentage of PercentileApprox must be from 0 to 1, got 1.5"),
        ({"percentage": (0.1, -1)}, "percentage of PercentileApprox must be from 0 to 1"),
        ({"accuracy": 0}, "accuracy of PercentileApprox must be at least 1, got 0"),
    ],
)
def test_no_percentiles(parameters: dict[str, Any], message: str) -> None:
    """Parameters out of range are refused at once."""
    with pytest.raises(ValueError, match=re.escape(message)):
        PercentileApprox(**parameters)


NAN = float("nan")


@pytest.mark.parametrize("nan", [NAN, Decimal("NaN"), np.float32("nan"), np.float64(NAN)], ids=repr)
@pytest.mark.parametrize("places", list(permutations(range(3))))
def test_nan_is_the_greatest_number(nan: Any, places: tuple[int, ...]) -> None:
    """Spark's order of numbers, for any order of records."""
    one, two = (Decimal(1), Decimal(2)) if isinstance(nan, Decimal) else (1.0, 2.0)
    records = [(one, two, nan)[place] for place in places]
    assert aggregate(Max(), records) is nan
    assert aggregate(Min(), records) == one
    assert aggregate(MaxBy(), records) is nan
    assert aggregate(MinBy(), records) == one
    assert aggregate(Min(), [nan, None, nan]) is nan


def test_extremes_of_tuples() -> None:
    """None and NaN inside a tuple are in the order of a struct in Spark."""
    rows = [(1, 2.0), (1, None), (1, NAN)]
    for records in permutations(rows):
        assert aggregate(Max(), records) is rows[2]
        assert aggregate(Min(), records) is rows[1]


def test_extremes_without_an_order() -> None:
    """Values without an order are an error."""
    with pytest.raises(TypeError, match="'<' not supported between instances of"):
        aggregate(Max(), [1, "a"])


def test_nan_is_one_value() -> None:
    """Different values count each NaN once, and -0.0 as 0.0, in every split of the records."""
    records = [float("nan"), 1.0, float("nan"), -0.0, 0.0, None]
    assert aggregate(CountDistinct(), records) == 3
    assert sorted(map(repr, aggregate(CollectSet(), records))) == ["0.0", "1.0", "nan"]
    function = CountDistinct()
    first, second = (
        pickle.loads(pickle.dumps(reduce(function.reduce, records, function.zero())))
        for _ in range(2)
    )
    assert function.finish(function.merge(first, second)) == 3
    assert aggregate(CountDistinct(), [(1, float("nan")), (1, float("nan")), (2, NAN)]) == 2


@pytest.mark.parametrize(
    ("values", "result", "mean"),
    [
        ([np.int8(100)] * 3, 300, 100.0),
        ([np.uint64(2**63)] * 2, 2**64, 2.0**63),
        ([np.float32(0.1)] * 4, 4 * float(np.float32(0.1)), float(np.float32(0.1))),
        ([True, False, True, True], 3, 0.75),
        ([Decimal("1e20"), Decimal("1e-10")], Decimal("100000000000000000000.0000000001"), None),
        ([Decimal("0.10"), 1], Decimal("1.10"), Decimal("0.55")),
        ([timedelta(1), timedelta(2)], timedelta(3), timedelta(1.5)),
    ],
)
def test_sums_of_exact_numbers(values: list[Any], result: Any, mean: Any) -> None:
    """Sums neither wrap around nor lose digits that Spark keeps."""
    found = aggregate(Sum(), values)
    assert (found, type(found)) == (result, type(result))
    if mean is not None:
        assert aggregate(Average(), values) == mean
    assert type(aggregate(Sum(), values[:1])) is type(result)


@given(st.sampled_from([row[0] for row in TABLE]), st.data())
def test_merging_changes_nothing(function: AggregateFunction, data: st.DataObject) -> None:
    """Cut anywhere, in buffers of their own, the records come to the same result."""
    records = data.draw(st.lists(st.none() | st.integers(1, 9), max_size=8))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3)))
    merged = function.zero()
    for start, stop in zip([0, *cuts], [*cuts, len(records)], strict=True):
        buffer = function.zero()
        for record in records[start:stop]:
            buffer = function.reduce(buffer, record)
        merged = function.merge(merged, buffer)
    wanted = aggregate(function, records)
    if isinstance(function, Variance):  # the last digits of floats depend on their order
        wanted = pytest.approx(wanted)
    assert function.finish(merged) == wanted


PRICES = [{"item": "a", "price": 3}, {"item": "b", "price": None}, {"item": "c", "price": 5}]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Count("price"), 2),
        (Sum("price"), 8),
        (Max("price"), 5),
        (CollectList("item"), ["a", "b", "c"]),
        (First("price", ignoreNulls=True), 3),
        (MaxBy("item", by="price"), "c"),
    ],
)
def test_fields_by_name(function: AggregateFunction, expected: Any) -> None:
    """The name of a field is accepted instead of a function."""
    assert aggregate(function, PRICES) == expected


def test_what_is_no_part_of_a_record() -> None:
    """Anything but a field or a function is rejected by the constructor."""
    with pytest.raises(InvalidStreamError, match="of of Sum takes the name of a field or a func"):
        Sum(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidStreamError, match="by of MinBy takes the name of a field"):
        MinBy("price", by=3)  # type: ignore[arg-type]
