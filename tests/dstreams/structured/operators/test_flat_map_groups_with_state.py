"""FlatMapGroupsWithStateExec: its children, what it requires of them, and its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from dstreams.state.flat_map_groups import FlatMapGroups
from dstreams.state.group_state import GroupState
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.physical_operator import (
    BY_KEY,
    UNKNOWN,
    UNORDERED,
    LocalTableScanExec,
    RDDScanExec,
)
from tests.dstreams.structured.operators.query import SparkQuery


def counting(key: Any, values: Iterator[Any], state: GroupState[int]) -> Iterator[Any]:
    state.update((state.getOption or 0) + sum(1 for _ in values))
    yield key, state.get


PAIRS = RDDScanExec(None, "pairs", columns=("key", "row"))
COUNTING = FlatMapGroupsWithStateExec(
    PAIRS, FlatMapGroups(func=counting, where="counting"), "letter"
)


def test_children() -> None:
    """An initial state is a second child."""
    initial = LocalTableScanExec((("a", 1),), ("key", "state"))
    assert COUNTING.children == (PAIRS,)
    assert replace(COUNTING, initialState=initial).children == (PAIRS, initial)


def test_distribution_and_order() -> None:
    """Rows are required by key in the partition of their state; the output is unordered."""
    both = replace(COUNTING, initialState=LocalTableScanExec((), ("key", "state")))
    assert [str(each) for each in both.requiredChildDistribution] == [
        "hashpartitioning(letter, any)"
    ] * 2
    assert both.requiredChildOrdering == (BY_KEY, UNORDERED)
    assert (both.outputPartitioning, both.outputOrdering) == (UNKNOWN, UNORDERED)


def test_metrics(sc: SparkContext, tmp_path: Path) -> None:
    """The metrics of each batch count the keys of the store and its memory."""
    query = SparkQuery(sc, ensure_requirements(COUNTING, 2), tmp_path)
    found = []
    for batch in ([("a", 1), ("b", 1)], [("c", 1)]):
        query.add(batch)
        (metrics,) = query.metrics.values()
        assert metrics.stateMemory > 0
        found.append((metrics.numTotalStateRows, metrics.numOutputRows))
    assert found == [(2, 2), (3, 1)]
