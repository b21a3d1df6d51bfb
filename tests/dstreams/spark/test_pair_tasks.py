"""Tasks over pairs, without Spark."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from dstreams.spark.element_tasks import FlatMapValues, MapValues
from dstreams.spark.shuffle import NotAPairError


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
    """What is no pair is named with the operation, after the pairs before it."""
    results = task(list, "mapValues at app.py:3")(0, [("a", [1]), record])
    next(results)
    with pytest.raises(NotAPairError, match=r"mapValues at app.py:3: expected \(key, value\)"):
        next(results)


def test_nothing_is_read_ahead() -> None:
    """A record is mapped when it is asked for."""
    called: list[int] = []

    def note(value: int) -> int:
        called.append(value)
        return value

    results = MapValues(note, "mapValues")(0, [("a", 1), ("b", 2)])
    next(results)
    assert called == [1]
