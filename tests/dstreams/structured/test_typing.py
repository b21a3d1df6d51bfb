"""Types: what a type checker knows of the records of a query, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.types import checked, revealed_type

HEAD = """
from __future__ import annotations
from typing import Iterator
from dstreams.structured import GroupState, StreamingDataset, window
from dstreams.structured.api.aggregates import Count, Sum

def latest(key: str, lines: Iterator[str], state: GroupState[int]) -> list[float]:
    return [float(state.getOption or 0)]

def newest(key: str, lines: Iterator[str], state: GroupState[int]) -> bytes:
    return b""

def program(lines: StreamingDataset[str], numbers: StreamingDataset[int]) -> None:
    groups = lines.groupByKey(lambda line: line[0])
"""

REVEALED = {
    "lines.map(len)": "StreamingDataset[int]",
    "lines.flatMap(str.split)": "StreamingDataset[str]",
    "lines.map(len).filter(bool)": "StreamingDataset[int]",
    "lines.withWatermark('t', '1 second').dropDuplicates().limit(3)": "StreamingDataset[str]",
    "lines.union(numbers)": "StreamingDataset[str | int]",
    "lines.join(numbers, 'k')": "StreamingDataset[tuple[str, int]]",
    "lines.join(numbers, 'k', 'left_outer')": "StreamingDataset[Any]",
    "groups": "GroupedDataset[str, str]",
    "lines.groupByKey('k', window('t', '1 second'))": "GroupedDataset[AnyKey, str]",
    "lines.groupByKey('k').flatMapGroupsWithState(latest, 'append')": "StreamingDataset[float]",
    "lines.groupByKey().count()": "StreamingDataset[NamedRow]",
    "lines.groupByKey('k').count().map(lambda row: row.count)": "StreamingDataset[Any]",
    "groups.count()": "StreamingDataset[tuple[str, int, fallback=KeyedRow[str, int]]]",
    "groups.count().map(lambda row: row[0])": "StreamingDataset[str]",
    "groups.count().map(lambda row: row[1])": "StreamingDataset[int]",
    "groups.count().filter(lambda row: row.count > 3).map(lambda row: row.key)": (
        "StreamingDataset[Any]"
    ),
    "groups.agg(Sum('n')).map(lambda row: row.sum_n)": "StreamingDataset[Any]",
    "groups.reduceGroups(max).map(lambda row: row[1])": "StreamingDataset[str]",
    "groups.agg(Sum('n'))": "StreamingDataset[tuple[str, Any, fallback=KeyedRow[str, Any]]]",
    "groups.agg(Count(), total=Sum('n'))": "StreamingDataset[NamedRow]",
    "groups.flatMapGroupsWithState(latest, 'append')": "StreamingDataset[float]",
    "groups.mapGroupsWithState(newest)": "StreamingDataset[bytes]",
}

REFUSED = {
    "numbers.map(str.upper)": "incompatible type",
    "numbers.groupByKey(abs).mapGroupsWithState(newest)": "incompatible type",
    "groups.count().map(lambda row: row[0] + 1)": "Unsupported operand types",
    "lines.map(len).join(lines, 'k').map(lambda pair: pair[0].upper())": '"int" has no attribute',
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The output of mypy for each line of the program, by its number in the tables."""
    return checked(HEAD, list(REVEALED), list(REFUSED), Path(tmp_path_factory.mktemp("typing")))


@pytest.mark.deep
@pytest.mark.parametrize("expression", REVEALED)
def test_records_are_followed(said: dict[int, str], expression: str) -> None:
    """The type of each step's records is known from the functions."""
    found = revealed_type(said[list(REVEALED).index(expression)])
    assert found == REVEALED[expression]


@pytest.mark.parametrize("expression", REFUSED)
def test_a_mistake_is_found_before_it_runs(said: dict[int, str], expression: str) -> None:
    """A function that does not fit the records is refused by the type checker."""
    assert REFUSED[expression] in said[len(REVEALED) + list(REFUSED).index(expression)]
