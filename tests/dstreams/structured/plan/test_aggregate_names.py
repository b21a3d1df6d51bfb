"""Names of aggregates on disk: equal in every process, and different for other aggregates."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from dstreams.arrow.aggregates.functions import Several
from dstreams.structured.api.aggregates import Count, First, MinBy, Reduce, Sum, UserAggregator
from dstreams.structured.plan.aggregate_names import are_same, name_of, names_of

COLUMN = "price"


def price(record: Any) -> Any:
    return record["price"]


def by_column(column: str) -> Callable[[Any], Any]:
    return lambda record: record[column]


@dataclass(frozen=True)
class Total:
    """An aggregator of a user's."""

    scale: int = 1


class Scaled:
    """A callable object of a user's."""

    def __call__(self, record: Any) -> Any:
        return record


@pytest.mark.parametrize(
    ("aggregate", "name"),
    [
        (Count(), "Count()"),
        (Sum(price), f"Sum(of={__name__}.price)"),
        (Sum(operator.itemgetter(1)), "Sum(of=operator.itemgetter(1))"),
        (Sum(operator.attrgetter("a.b")), "Sum(of=operator.attrgetter('a.b'))"),
        (Sum(partial(getattr, 1)), "Sum(of=partial(getattr, 1))"),
        (Sum(Scaled()), f"Sum(of={__name__}.Scaled)"),
        (First(ignoreNulls=True), "First(ignoreNulls=True)"),
        (MinBy(price, by=abs), f"MinBy(of={__name__}.price, by=abs)"),
        (Reduce(func=min), "Reduce(func=min)"),
        (Reduce(), "Reduce()"),
        (Total(5), f"{__name__}.Total"),
        (
            UserAggregator(int, operator.add, operator.mul, str),
            "UserAggregator(zero=int, reduce=_operator.add, merge=_operator.mul)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names(aggregate: Any, name: str) -> None:
    """Built-in aggregates are named with parameters, user-defined ones by their qualified name."""
    assert name_of(aggregate) == name
    assert names_of(Several((aggregate, Count()))) == [name, "Count()"]


def test_functions_without_a_name() -> None:
    """They are known by what they do, however that is laid out."""
    first = name_of(Sum(lambda record: record["price"]))
    assert first.startswith("Sum(of=<lambda>#")
    spaced = lambda item: item[  # noqa: E731
        "price"
    ]
    assert name_of(Sum(spaced)) == first
    others = [
        name_of(Sum(lambda record: record["cost"])),
        name_of(Sum(lambda record: -record["price"])),
        name_of(Sum(lambda record: record[COLUMN])),
        name_of(Sum(lambda record, column="price": record[column])),  # type: ignore[misc]
        name_of(Sum(by_column("price"))),
        name_of(Sum(by_column("cost"))),
        name_of(Sum(lambda record: record["price"] in {"a", "b"})),
    ]
    assert len({first, *others}) == len(others) + 1
    assert not any(are_same(first, other) for other in others)
    assert are_same(others[4], name_of(Sum(by_column("price"))))


def test_a_value_that_changes_is_no_part_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that a function uses has no name; a plain value that it uses is part of it."""

    def named() -> str:
        return name_of(Sum(lambda record: (record, COLUMN)))

    before = named()
    monkeypatch.setattr(f"{__name__}.COLUMN", object())
    after = named()
    assert not are_same(before, after)
    monkeypatch.setattr(f"{__name__}.COLUMN", object())
    assert named() == after


def test_digests_of_another_python() -> None:
    """They are not compared: the same source has other code there."""
    old, new = "Sum(of=<lambda>#3.10-00000000)", "Sum(of=<lambda>#3.11-11111111)"
    assert are_same(old, new)
    assert not are_same(old, "Sum(of=<lambda>#3.10-11111111)")
    assert not are_same(old, "Average(of=<lambda>#3.11-11111111)")
    assert not are_same(old, "Sum(of=job.price)")
