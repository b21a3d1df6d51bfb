"""What is known of the fields of records before they exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import pytest
from pyspark.sql import Row

from dstreams import InvalidStreamError
from dstreams.spark.selectors import Field, UnknownFieldError, fields_of_results
from dstreams.structured import StreamingDataset
from dstreams.structured.api.aggregates import First, Sum
from dstreams.structured.plan.logical import StreamingRelation
from dstreams.structured.sources.memory_source import MemoryStream


@dataclass(frozen=True)
class Order:
    item: str
    amount: int

    @property
    def double(self) -> int:
        return 2 * self.amount


class Pair(NamedTuple):
    left: int
    right: int


class Entry(TypedDict):
    name: str


def order(line: str) -> Order:
    item, amount = line.split()
    return Order(item, int(amount))


def orders(line: str) -> Iterator[Order]:
    yield order(line)


def pairs(line: str) -> list[Pair]:
    return []


def entry(line: str) -> Entry:
    return {"name": line}


def maybe(line: str) -> Order | None:
    return None


def untyped(line):  # type: ignore[no-untyped-def]
    return line


@pytest.mark.parametrize(
    ("func", "are_many", "fields"),
    [
        (order, False, ("item", "amount", "double")),
        (Order, False, ("item", "amount", "double")),
        (orders, True, ("item", "amount", "double")),
        (pairs, True, ("left", "right")),
        (entry, False, ("name",)),
        (maybe, False, None),
        (untyped, False, None),
        (str.split, True, None),
        (lambda line: line, False, None),
        (order, True, None),
    ],
)
def test_fields_of_results(
    func: Callable[[Any], Any], are_many: bool, fields: tuple[str, ...] | None
) -> None:
    """They are those of the class that the annotation names, properties included."""
    assert fields_of_results(func, are_many=are_many) == fields


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        ({"count": 3}, "count", 3),
        (Row(index=1, count=3), "count", 3),
        (Row(index=1, count=3), "index", 1),
        (Row(asDict=5), "asDict", 5),
        (Order("tea", 2), "double", 4),
        (Row(index=1), "count", None),
        ((1, 2), "count", None),
        ("text", "title", None),
        (Pair(1, 2), "_asdict", None),
    ],
)
def test_a_field_is_never_a_method(record: Any, name: str, value: Any) -> None:
    """A Row has fields that its methods hide; of other records, a method is not a field."""
    if value is None:
        with pytest.raises(UnknownFieldError, match=f"test: a record has no field '{name}'"):
            Field(name, "test")(record)
    else:
        assert Field(name, "test")(record) == value


def test_fields_are_checked_when_a_query_is_defined() -> None:
    """Keys, event times and aggregators of a field that the records lack are refused."""
    lines: StreamingDataset[str] = StreamingDataset(
        StreamingRelation(MemoryStream()),
        None,  # type: ignore[arg-type] # only a query that is started needs it
    )
    read = lines.flatMap(orders).filter(lambda each: each.amount > 0)
    groups = read.groupByKey("item")
    names = ("item", "sum_double", "first_item")
    assert groups.agg(Sum("double"), First("item", by="amount")).plan.fields == names
    for wrong in (
        lambda: groups.agg(Sum("amuont")),
        lambda: groups.agg(First("item", by="amuont")),
        lambda: read.groupByKey("amuont"),
        lambda: read.withWatermark("amuont", "1 second"),
        lambda: read.observe("seen", Sum("amuont")),
    ):
        with pytest.raises(InvalidStreamError, match=r"unknown field 'amuont'; .* item, amount"):
            wrong()
