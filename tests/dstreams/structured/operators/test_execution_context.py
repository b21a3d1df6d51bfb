"""A batch of several stateful operators succeeds or fails as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from dstreams.errors import InvalidStreamError
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.aggregation import plan_aggregation
from dstreams.structured.operators.deduplication import plan_deduplication
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    StatefulOperatorStateInfo,
)
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.physical_operator import (
    PhysicalOperator,
    RDDScanExec,
)
from dstreams.structured.operators.stateless import EventTimeWatermarkExec
from dstreams.structured.operators.time_windows import TimeWindows
from tests.dstreams.structured.operators.query import MapPartitionsExec, SparkQuery
from tests.support.jobs import count_jobs


def distinct_by_window(fails_at: Any = None) -> PhysicalOperator:
    def check(rows: Any) -> Any:
        for time_ms, record in rows:
            if record[1] == fails_at:
                raise ValueError(f"no {fails_at}")
            yield time_ms, record

    marked = EventTimeWatermarkExec(RDDScanExec(None), lambda record: record[0] * 1000, 10_000)
    distinct = plan_deduplication(marked, lambda record: record[1], numPartitions=2)
    checked = MapPartitionsExec(distinct, check)
    windows = Grouping(windows=TimeWindows(5_000))
    return plan_aggregation(checked, windows, numPartitions=2, outputMode=OutputMode.Append)


def test_two_stateful_operators(sc: SparkContext, tmp_path: Path) -> None:
    """The second operator reads the rows of the first in the same batch; each has a version."""
    query = SparkQuery(sc, distinct_by_window(), tmp_path)
    assert query.add([(1, "a"), (2, "a"), (3, "b"), (6, "c")]) == []
    found: list[Any] = []
    jobs = count_jobs(sc, lambda: found.extend(query.add([(4, "b"), (15, "d")])))
    assert found == [((0, 5_000), 2)]
    assert jobs <= 6, "three for each of two batches: one makes all the state"
    versions = [info.storeVersion for info in query._infos.values()]
    assert versions == [3, 3]


@pytest.mark.deep
def test_a_batch_that_fails_changes_nothing(sc: SparkContext, tmp_path: Path) -> None:
    """If the second operator fails, the first one keeps the state of the previous batch."""
    query = SparkQuery(sc, distinct_by_window(fails_at="bad"), tmp_path)
    query.add([(1, "a")])
    with pytest.raises((Py4JJavaError, PySparkException), match="no bad"):
        query.add([(2, "b"), (3, "bad")])
    query._plan = distinct_by_window()
    assert query.add([(2, "b"), (15, "end")]) == [((0, 5_000), 2)]


def test_without_a_store(sc: SparkContext) -> None:
    """A plan with state needs StateVersions; one without state does not."""
    plan = distinct_by_window().filled([StatefulOperatorStateInfo.empty(2)] * 2)
    with pytest.raises(InvalidStreamError, match="an operator with state needs StateVersions"):
        plan.execute(ExecutionContext(sc))
    context = ExecutionContext(sc)
    assert RDDScanExec(None).execute(context).collect() == []
    assert (context.versions, context.event_times()) == ({}, {})
