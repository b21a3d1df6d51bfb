"""Streaming aggregation as a plan on real RDDs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.arrow.aggregates.functions import Average, Count, Several
from dstreams.errors import InvalidStreamError
from dstreams.state.group_state import OutputMode
from dstreams.structured.named_rows import Window
from dstreams.structured.operators.aggregation import (
    StateStoreSaveExec,
    plan_aggregation,
)
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    StatefulOperatorStateInfo,
)
from dstreams.structured.operators.fusion import fuse_stateful_operators
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.physical_operator import (
    PhysicalOperator,
    RDDScanExec,
)
from dstreams.structured.operators.stateless import EventTimeWatermarkExec
from dstreams.structured.operators.time_windows import TimeWindows
from tests.dstreams.structured.operators.query import MapPartitionsExec, SparkQuery
from tests.support.jobs import count_jobs

SCAN = RDDScanExec(None, "numbers")
READINGS = EventTimeWatermarkExec(SCAN, lambda reading: reading[0] * 1000, delayMs=10_000)
BY_PARITY = Grouping(key=lambda value: value % 2, name="value % 2")


def windowed(mode: OutputMode) -> PhysicalOperator:
    by_window = Grouping(
        key=lambda reading: reading[1], windows=TimeWindows(5_000), name="window, sensor"
    )
    return plan_aggregation(READINGS, by_window, numPartitions=2, outputMode=mode)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (OutputMode.Append, [{}, {(10, "a"): 2, (10, "b"): 1}, {}]),
        (
            OutputMode.Update,
            [{(10, "a"): 2, (10, "b"): 1, (15, "a"): 1}, {(25, "a"): 1}, {(25, "b"): 1}],
        ),
        (
            OutputMode.Complete,
            [
                {(10, "a"): 2, (10, "b"): 1, (15, "a"): 1},
                {(10, "a"): 2, (10, "b"): 1, (15, "a"): 1, (25, "a"): 1},
                {(10, "a"): 3, (10, "b"): 1, (15, "a"): 1, (25, "a"): 1, (25, "b"): 1},
            ],
        ),
    ],
)
def test_by_sensor(sc: SparkContext, tmp_path: Path, mode: OutputMode, expected: list[Any]) -> None:
    """Windows and a key in each output mode, from batch to batch, with batches without data."""
    query = SparkQuery(sc, windowed(mode), tmp_path)
    batches = [[(10, "a"), (12, "b"), (14, "a"), (15, "a")], [(25, "a")], [(10, "a"), (25, "b")]]
    found = []
    for batch in batches:
        rows = query.add(batch)
        found.append({(window.start_ms // 1000, key): n for (window, key), n in rows})
        assert len(found[-1]) == len(rows)
    assert found == expected


def test_one_job_makes_the_version(sc: SparkContext, tmp_path: Path) -> None:
    """Saying what the batch does runs nothing; the rows and event times come of one job."""
    plan = windowed(OutputMode.Update)
    query = SparkQuery(sc, plan, tmp_path)
    info = StatefulOperatorStateInfo.empty(2)
    sc.parallelize(range(2), 2).count()
    context = ExecutionContext(sc, query.states)
    with_data = plan.transform(
        lambda node: (
            replace(node, rdd=sc.parallelize([(3, "a")], 2))
            if isinstance(node, RDDScanExec)
            else node.inBatch(info, 0, 0)
        )
    )
    (saving,) = (node for node in with_data.walk() if isinstance(node, StateStoreSaveExec))
    rows = []

    def run() -> None:
        rows.append(with_data.execute(context))

    assert count_jobs(sc, lambda: saving.update(context)) == 0
    assert count_jobs(sc, run) == 1
    assert context.event_times()["eventTime"].max_ms == 3000  # type: ignore[union-attr]
    assert rows[0].collect() == [((Window(0, 5000), "a"), 1)]
    query.states.release()


def test_partitions_of_the_input_do_not_matter(sc: SparkContext, tmp_path: Path) -> None:
    """Keys find their state however the input is split."""
    few = MapPartitionsExec(SCAN, lambda rows: rows)
    plan = plan_aggregation(few, BY_PARITY, numPartitions=3, outputMode=OutputMode.Update)
    query = SparkQuery(sc, plan, tmp_path, partitions=3)
    assert dict(query.add([1, 2, 3])) == {0: 1, 1: 2}
    assert dict(query.add([5])) == {1: 3}


def test_a_global_aggregate(sc: SparkContext, tmp_path: Path) -> None:
    """Without a key there is one row, of all partitions, also for a batch without data."""
    function = Several((Count(), Average()))
    plan = plan_aggregation(
        SCAN, Grouping(), function, numPartitions=2, outputMode=OutputMode.Update
    )
    query = SparkQuery(sc, plan, tmp_path)
    found = [query.add(batch) for batch in ([], [1, 2, 3], [])]
    assert found == [[((), (0, None))], [((), (3, 2.0))], [((), (3, 2.0))]]


def test_append_needs_a_watermark(sc: SparkContext, tmp_path: Path) -> None:
    """Append without windows of the event time is refused, with what to do."""
    plan = plan_aggregation(SCAN, BY_PARITY, numPartitions=2, outputMode=OutputMode.Append)
    with pytest.raises(InvalidStreamError, match="use withWatermark and window, or mode update"):
        SparkQuery(sc, plan, tmp_path).add([1])


def test_without_facts_of_a_batch() -> None:
    """Missing facts of a batch are shown as unknown, and are errors at execution."""
    plan = plan_aggregation(SCAN, BY_PARITY, numPartitions=2)
    with pytest.raises(InvalidStreamError, match="state location not present for execution"):
        plan.child.update(None)  # type: ignore[attr-defined]
    with pytest.raises(InvalidStreamError, match="outputMode must be set before"):
        plan.child.function()  # type: ignore[attr-defined]
    unknown = ", ".join(
        f"{name} = <unknown>" for name in ("checkpoint", "runId", "opId", "ver", "numPartitions")
    )
    state = f"state info [ {unknown}]"
    below = [
        "            +- Exchange hashpartitioning(value % 2, 2)",
        "               +- HashAggregate partial Count, by value % 2",
        "                  +- RDDScan numbers",
    ]
    assert plan.tree().splitlines() == [
        "HashAggregate final Count, by value % 2",
        f"+- StateStoreSave by value % 2, {state}, <unknown>, <unknown>, <unknown>, 2",
        "   +- HashAggregate merge Count, by value % 2",
        f"      +- StateStoreRestore by value % 2, {state}, 2",
        "         +- HashAggregate merge Count, by value % 2",
        *below,
    ]
    assert fuse_stateful_operators(plan).tree().splitlines() == [
        "HashAggregate final Count, by value % 2",
        f"+- *(1) StateStoreSave by value % 2, {state}, <unknown>, <unknown>, <unknown>, 2",
        "   +- *(1) HashAggregate merge Count, by value % 2",
        f"      +- *(1) StateStoreRestore by value % 2, {state}, 2",
        "         +- *(1) HashAggregate merge Count, by value % 2",
        *below,
    ]


def test_when_another_batch_is_asked_for() -> None:
    """When the watermark has moved, but never for the whole table."""
    info = StatefulOperatorStateInfo.empty(2)
    asked = {
        mode: [
            StateStoreSaveExec(SCAN, BY_PARITY, mode)
            .inBatch(info, 0, 5)
            .shouldRunAnotherBatch(mark)
            for mark in (5, 6, None)
        ]
        for mode in OutputMode
    }
    assert asked == {
        OutputMode.Append: [False, True, False],
        OutputMode.Update: [False, True, False],
        OutputMode.Complete: [False, False, False],
    }
