"""Tasks over elements, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from dstreams.spark.element_tasks import Filter, FlatMap, FlatMapValues, Map, MapValues, with_ones
from dstreams.spark.shuffle import NotAPairError


def test_elements() -> None:
    """Each task does to every element, in order, what its name says."""
    assert list(Map(str)(0, [1, None])) == ["1", "None"]
    assert list(FlatMap(range)(0, [2, 0, 1])) == [0, 1, 0]
    assert list(Filter(lambda x: x)(0, [0, 1, "", "a"])) == [1, "a"]
    assert list(with_ones(0, "ab")) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("task", [Map, FlatMap, Filter])
def test_stop_iteration_is_an_error(task: Any) -> None:
    """A function that raises StopIteration does not end the partition: no element is lost."""
    results = task(lambda x: [next(iter([x] * (x < 3)))])(0, [1, 2, 3, 4])
    next(results), next(results)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(results)


@pytest.mark.parametrize("task", [Map(str), FlatMap(str), Filter(str), with_ones])
def test_nothing_is_read_ahead(task: Any) -> None:
    """An element is read only when its result is read."""
    asked: list[int] = []

    def elements() -> Iterator[int]:
        for number in range(3):
            asked.append(number)
            yield number

    results = task(0, elements())
    assert asked == []
    next(results)
    assert asked == [0]


class Named(NamedTuple):
    key: str
    value: int


def test_values_are_mapped_and_keys_stay() -> None:
    """Tuples, lists and named tuples of two are pairs."""
    records = [("a", 1), ["b", 2], Named("c", 3)]
    assert list(MapValues(float, "mapValues")(0, records)) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_each_of_many_values_gets_its_key() -> None:
    """A value that becomes none takes its key with it."""
    task = FlatMapValues(range, "flatMapValues")
    assert list(task(0, [("a", 2), ("b", 0), ("c", 1)])) == [("a", 0), ("a", 1), ("c", 0)]


@pytest.mark.parametrize("task", [MapValues, FlatMapValues])
@pytest.mark.parametrize("record", ["ab", (1,), (1, 2, 3), 7, {1: 2, 3: 4}])
def test_no_pair(task: Any, record: Any) -> None:
    """The error for a record that is not a pair names the operation, after earlier pairs."""
    results = task(list, "mapValues at app.py:3")(0, [("a", [1]), record])
    next(results)
    with pytest.raises(NotAPairError, match=r"mapValues at app.py:3: expected \(key, value\)"):
        next(results)


def test_pairs_are_not_read_ahead() -> None:
    """A record is mapped only when its result is read."""
    called: list[int] = []

    def note(value: int) -> int:
        called.append(value)
        return value

    results = MapValues(note, "mapValues")(0, [("a", 1), ("b", 2)])
    next(results)
    assert called == [1]
