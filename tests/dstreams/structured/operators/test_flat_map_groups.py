"""flatMapGroupsWithState as a node of a plan, on real RDDs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode
from dstreams.structured.operators.event_time_watermark import EventTimeWatermarkExec
from dstreams.structured.operators.flat_map_groups import FlatMapGroupsWithStateExec
from dstreams.structured.operators.physical_operator import RDDScanExec
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo
from tests.dstreams.structured.operators.query import SparkQuery

SCAN = RDDScanExec(None)
EVENTS = EventTimeWatermarkExec(
    SCAN, lambda record: None if record[1] is None else record[1] * 1000, delayMs=10_000
)


def count_with_timer(key: Any, values: Iterator[Any], state: GroupState[int]) -> list[Any]:
    if state.hasTimedOut:
        state.remove()
        return [(key, -1)]
    state.update((state.getOption or 0) + len(list(values)))
    state.setTimeoutDuration("10 seconds")
    return [(key, state.get)]


def latest(key: Any, values: Iterator[Any], state: GroupState[int]) -> list[Any]:
    if state.hasTimedOut:
        state.remove()
        return [(key, -1)]
    seconds = [second for _, second in values if second is not None]
    state.update(max([state.getOption or 0, *seconds]))
    state.setTimeoutTimestamp((state.get + 5) * 1000)
    return [(key, state.get)]


def with_values(key: Any, values: Iterator[Any], state: GroupState[int]) -> list[Any]:
    found = sorted(values)
    count = (state.getOption or 0) + len(found)
    if "NoUpdate" not in key:
        state.update(count)
    return [(key, found, count)]


def counts_of(query: SparkQuery) -> tuple[int, int, int, int]:
    found = query.metrics["flatMapGroupsWithState"]
    return (
        found.numTotalStateRows,
        found.numUpdatedStateRows,
        found.numRemovedStateRows,
        found.numRowsDroppedByWatermark,
    )


def test_cases_19_to_24_processing_time(sc: SparkContext, tmp_path: Path) -> None:
    """Timers of the batch time: not when they equal it, and once when it is later."""
    node = FlatMapGroupsWithStateExec(
        SCAN, count_with_timer, lambda word: word, GroupStateTimeout.ProcessingTimeTimeout
    )
    query = SparkQuery(sc, node, tmp_path)
    story: list[tuple[int, list[str], list[Any], tuple[int, int, int, int]]] = [
        (1_000, ["a"], [("a", 1)], (1, 1, 0, 0)),
        (2_000, ["b"], [("b", 1)], (2, 1, 0, 0)),
        (11_000, [], [], (2, 0, 0, 0)),
        (12_000, ["b"], [("a", -1), ("b", 2)], (1, 1, 1, 0)),
        (23_000, ["c"], [("b", -1), ("c", 1)], (1, 1, 1, 0)),
    ]
    for query.time_ms, words, rows, counts in story:
        assert (sorted(query._run([words])[0]), counts_of(query)) == (rows, counts)


def test_cases_25_to_30_event_time(sc: SparkContext, tmp_path: Path) -> None:
    """Late rows are dropped, timers go off when the watermark has passed them."""
    node = FlatMapGroupsWithStateExec(
        EVENTS, latest, lambda record: record[0], GroupStateTimeout.EventTimeTimeout
    )
    query = SparkQuery(sc, node, tmp_path)
    assert query.add([("a", 11), ("a", 13), ("a", 15)]) == [("a", 15)]
    assert (query.watermark_ms, counts_of(query)) == (5_000, (1, 0, 0, 0))
    assert query.add([("a", 4), ("a", 5)]) == []
    assert counts_of(query) == (1, 0, 0, 2)
    assert query.add([("a", 10)]) == [("a", 15)]
    assert query.add([("n", None)]) == [("n", 0)]
    assert sorted(query.add([("b", 31)])) == [("a", -1), ("b", 31), ("n", -1)]


def test_case_17_a_watermark_with_another_timeout(sc: SparkContext, tmp_path: Path) -> None:
    """Without an event-time timeout nothing is late; the function can ask for the watermark."""

    def watermark(key: Any, values: Iterator[Any], state: GroupState[int]) -> list[Any]:
        return [(key, len(list(values)), state.getCurrentWatermarkMs())]

    query = SparkQuery(sc, FlatMapGroupsWithStateExec(EVENTS, watermark, itemgetter(0)), tmp_path)
    assert query.add([("a", 100)]) == [("a", 1, 0)]
    assert query.add([("a", 1), ("a", 2)]) == [("a", 2, 90_000)]
    assert query.add([("a", 1)]) == [("a", 1, 90_000)]


@pytest.mark.parametrize("skips", [False, True])
def test_cases_36_to_45_initial_state(sc: SparkContext, tmp_path: Path, skips: bool) -> None:
    """Initial states are put in batch 0, and their keys are called unless that is skipped."""
    states = [("S1", 1), ("S2", 2), ("NoUpdate", 2), ("OnlyState", 1)]
    node = FlatMapGroupsWithStateExec(
        SCAN,
        with_values,
        lambda word: word,
        initialState=RDDScanExec(None, "initial"),
        hasInitialState=True,
        skipEmittingInitialStateKeys=skips,
    )
    query = SparkQuery(sc, node, tmp_path)
    rows = query.add(["OnlyData", "S2"], states)
    both = [("OnlyData", ["OnlyData"], 1), ("S2", ["S2"], 3)]
    only_states = [("NoUpdate", [], 2), ("OnlyState", [], 1), ("S1", [], 1)]
    assert sorted(rows) == sorted(both if skips else both + only_states)
    assert counts_of(query) == (5, 2 if skips else 4, 0, 0)
    query._plan = replace(node, hasInitialState=False)
    assert query.add(["S1"], states) == [("S1", ["S1"], 2)]
    assert counts_of(query) == (5, 1, 0, 0)


def test_case_14_complete_is_refused() -> None:
    """The function's mode is append or update."""
    with pytest.raises(InvalidStreamError, match="output mode of the function should be append or"):
        FlatMapGroupsWithStateExec(SCAN, latest, len, outputMode=OutputMode.Complete)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            FlatMapGroupsWithStateExec(
                SCAN, latest, len, GroupStateTimeout.ProcessingTimeTimeout, where="f"
            ),
            "f with ProcessingTimeTimeout: batchTimestampMs must be filled in before execution",
        ),
        (
            FlatMapGroupsWithStateExec(
                EVENTS, latest, len, GroupStateTimeout.EventTimeTimeout, where="f"
            ),
            "f with EventTimeTimeout: eventTimeWatermarkForLateEvents and "
            "eventTimeWatermarkForEviction must be filled in",
        ),
        (
            FlatMapGroupsWithStateExec(
                SCAN, latest, len, GroupStateTimeout.EventTimeTimeout, where="f"
            ),
            "f with EventTimeTimeout needs an event time; call withWatermark before",
        ),
    ],
)
def test_facts_that_a_timeout_needs(node: FlatMapGroupsWithStateExec, message: str) -> None:
    """What a timeout is compared with has to be there."""
    with pytest.raises(InvalidStreamError, match=message):
        node.function()


@pytest.mark.parametrize(
    ("timeout", "asked"),
    [
        (GroupStateTimeout.NoTimeout, [False, False]),
        (GroupStateTimeout.ProcessingTimeTimeout, [True, True]),
        (GroupStateTimeout.EventTimeTimeout, [False, True]),
    ],
)
def test_when_another_batch_is_asked_for(timeout: GroupStateTimeout, asked: list[bool]) -> None:
    """Never, always, or when the watermark has moved."""
    node = FlatMapGroupsWithStateExec(EVENTS, latest, len, timeout)
    filled = node.inBatch(StatefulOperatorStateInfo.empty(2), 0, 5)
    assert [filled.shouldRunAnotherBatch(mark) for mark in (5, 6)] == asked
