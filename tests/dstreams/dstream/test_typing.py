"""Types: what a type checker knows of a pipeline's elements, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.types import checked, revealed_type

pytestmark = pytest.mark.deep

HEAD = """
from __future__ import annotations
from datetime import datetime
from typing import Iterable, Iterator
from pyspark import RDD, SparkContext
from dstreams import DStream, StreamingContext

def total(values: list[int], state: int | None) -> int | None:
    return sum(values) + (state or 0)

def keyed(time: datetime, key: str, values: list[int], state: float | None) -> float | None:
    return state

def rows(entries: Iterator[tuple[str, list[int], int | None]]) -> Iterable[tuple[str, int]]:
    return [(key, sum(values)) for key, values, _ in entries]

def program(ssc: StreamingContext, numbers: DStream[int], lines: DStream[str]) -> None:
    pairs = lines.map(lambda line: (line, len(line)))
"""

REVEALED = {
    "lines": "DStream[str]",
    "ssc.socketTextStream('host', 1)": "DStream[str]",
    "ssc.queueStream([[1, 2], None, [3]])": "DStream[int]",
    "ssc.rateStream(5).map(lambda row: row[1])": "DStream[int]",
    "lines.flatMap(str.split)": "DStream[str]",
    "lines.map(len).filter(bool)": "DStream[int]",
    "numbers.glom()": "DStream[list[int]]",
    "numbers.reduce(max)": "DStream[int]",
    "lines.count()": "DStream[int]",
    "lines.countByValue()": "DStream[tuple[str, int]]",
    "lines.union(numbers)": "DStream[str | int]",
    "ssc.union(lines, lines)": "DStream[str]",
    "lines.transform(lambda rdd: rdd.map(len))": "DStream[int]",
    "lines.transformWith(lambda a, b: a.zip(b), numbers)": "DStream[tuple[str, int]]",
    "pairs": "DStream[tuple[str, int]]",
    "pairs.mapValues(float)": "DStream[tuple[str, float]]",
    "pairs.flatMapValues(range)": "DStream[tuple[str, int]]",
    "pairs.reduceByKey(max)": "DStream[tuple[str, int]]",
    "pairs.groupByKey()": "DStream[tuple[str, Iterable[int]]]",
    "pairs.join(pairs.mapValues(float))": "DStream[tuple[str, tuple[int, float]]]",
    "pairs.leftOuterJoin(pairs)": "DStream[tuple[str, tuple[int, int | None]]]",
    "pairs.updateStateByKey(total)": "UpdateStateDStream[str, int]",
    "pairs.updateStateByKey(keyed, form='keyed')": "UpdateStateDStream[str, float]",
    "pairs.updateStateByKey(rows, form='iterator')": "UpdateStateDStream[str, int]",
    "lines.window(2)": "DStream[str]",
    "numbers.reduceByWindow(max, None, 2)": "DStream[int]",
    "lines.countByWindow(2)": "DStream[int]",
    "lines.countByValueAndWindow(2)": "DStream[tuple[str, int]]",
    "pairs.groupByKeyAndWindow(2)": "DStream[tuple[str, Iterable[int]]]",
    "pairs.reduceByKeyAndWindow(max, None, 2)": "DStream[tuple[str, int]]",
    "pairs.slice(0, 1)": "list[RDD[tuple[str, int]]]",
}

REFUSED = {
    "lines.mapValues(len)": "Invalid self argument",
    "lines.map(abs)": 'incompatible type "Callable[',
    "pairs.updateStateByKey(keyed)": 'expected "Callable[[list[int]',
    "pairs.join(numbers)": 'expected "DStream[tuple[',
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return what mypy reports for each line of the program, by its number in the tables."""
    return checked(HEAD, list(REVEALED), list(REFUSED), Path(tmp_path_factory.mktemp("typing")))


@pytest.mark.parametrize("expression", REVEALED)
def test_elements_are_followed(said: dict[int, str], expression: str) -> None:
    """The element type of each step is inferred from the functions."""
    assert revealed_type(said[list(REVEALED).index(expression)]) == REVEALED[expression]


@pytest.mark.parametrize("expression", REFUSED)
def test_a_mistake_is_found_before_it_runs(said: dict[int, str], expression: str) -> None:
    """The type checker rejects a function that does not fit the elements."""
    assert REFUSED[expression] in said[len(REVEALED) + list(REFUSED).index(expression)]
