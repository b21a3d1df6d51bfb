"""Functions that work in place, over records that are in several windows or functions."""

from __future__ import annotations

import doctest
from collections import Counter
from operator import itemgetter
from typing import Any

import pytest

from dstreams.arrow.aggregates import functions
from dstreams.arrow.aggregates.functions import (
    AggregateFunction,
    CollectList,
    Count,
    First,
    Reduce,
    Several,
    UserAggregator,
    copies,
    may_change_records,
)
from dstreams.spark.failures import UserFunctionError
from dstreams.structured.operators.aggregation import AggregateRecords
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.time_windows import TimeWindows

A, B, C = ({"a": 1}, {"a": 1, "b": 1}, {"b": 1})
EVENTS = ((6000, A), (7000, B), (12_000, C))
WINDOWS = {10_000: [A, B], 15_000: [A, B, C], 20_000: [C]}


def into_first(first: Any, second: Any) -> Any:
    first.update(second)
    return first


def into_second(first: Any, second: Any) -> Any:
    second.update(first)
    return second


class TakesTheRecord:
    """A user's aggregator that uses the first record as buffer."""

    def zero(self) -> Any:
        return None

    def reduce(self, buffer: Any, record: Any) -> Any:
        return record if buffer is None else into_first(buffer, record)

    def merge(self, first: Any, second: Any) -> Any:
        return into_first(first, second)

    def finish(self, buffer: Any) -> dict[str, int]:
        return dict(buffer)


BY_FUNCTIONS = UserAggregator(lambda: None, TakesTheRecord().reduce, into_first, dict)
TAKES_PART = Reduce(of=itemgetter("in"), func=into_first)


def total(records: list[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, records), Counter()))


IN_PLACE: list[tuple[AggregateFunction, Any]] = [
    (Reduce(func=into_first), total),
    (Reduce(func=into_second), total),
    (TakesTheRecord(), total),
    (BY_FUNCTIONS, total),
    (
        Several((Reduce(func=into_first), CollectList(), BY_FUNCTIONS, First(), Count())),
        lambda records: (total(records), records, total(records), records[0], len(records)),
    ),
    (Several((CollectList(), Count())), lambda records: (records, len(records))),
]


@pytest.mark.parametrize(("function", "expected"), IN_PLACE, ids=range(len(IN_PLACE)))
def test_sliding_windows(function: AggregateFunction, expected: Any) -> None:
    """Windows do not affect each other, even if functions change records."""
    task = AggregateRecords(function, Grouping(windows=TimeWindows(10_000, 5_000)), True)
    events = [(time_ms * 1000, Counter(record)) for time_ms, record in EVENTS]
    found = {end_ms: function.finish(buffer) for end_ms, buffer in task(0, events)}
    assert found == {end_ms: expected(records) for end_ms, records in WINDOWS.items()}


def test_part_of_a_record() -> None:
    """A buffer that is a part of the record is a window's own as well."""
    task = AggregateRecords(TAKES_PART, Grouping(windows=TimeWindows(10_000, 5_000)), True)
    events = [(time_ms * 1000, {"in": Counter(record)}) for time_ms, record in EVENTS]
    found = dict(task(0, events))
    assert found == {end_ms: Counter(total(records)) for end_ms, records in WINDOWS.items()}


def test_what_needs_no_copies() -> None:
    """Records are copied for functions that may change them, and only where these can be."""
    builtin = [Count(), CollectList(), Several((Reduce(), Count()))]
    assert not any(map(may_change_records, builtin))
    assert may_change_records(BY_FUNCTIONS)
    record = ("a", 1, (2.0, None))
    assert copies(record)() is record


def test_record_of_a_class_without_a_name() -> None:
    """Records that cannot be pickled are copied all the same."""

    class Local:
        def __init__(self) -> None:
            self.seen = [1]

    copy = copies(Local())
    first, second = copy(), copy()
    first.seen.append(2)
    assert second.seen == [1]


def test_record_that_cannot_be_copied() -> None:
    """The error has the record and the operation."""
    task = AggregateRecords(
        Reduce(func=into_first), Grouping(windows=TimeWindows(10, 5)), True, "reduceGroups"
    )
    with pytest.raises(UserFunctionError, match=r"reduceGroups failed for record .*generator"):
        list(task(0, [(1, (number for number in ()))]))


def test_examples() -> None:
    """The examples in the docstrings are true."""
    for module in (functions,):
        assert doctest.testmod(module).failed == 0
