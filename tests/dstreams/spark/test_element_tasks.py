"""Tasks over elements, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dstreams.spark.element_tasks import Filter, FlatMap, Map, with_ones


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
    """An element is asked for when its result is."""
    asked: list[int] = []

    def elements() -> Iterator[int]:
        for number in range(3):
            asked.append(number)
            yield number

    results = task(0, elements())
    assert asked == []
    next(results)
    assert asked == [0]
