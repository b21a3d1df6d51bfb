"""Which watermark reaches which operator of a batch, without Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkpoint import BeginRecord
from dstreams.state.flat_map_groups import FlatMapGroups
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.structured.execution.incremental import IncrementalExecution
from dstreams.structured.execution.query_records import QueryBatch, batch_start
from dstreams.structured.operators.aggregation import plan_aggregation
from dstreams.structured.operators.deduplication import StreamingDeduplicateExec
from dstreams.structured.operators.execution_context import StatefulOperatorStateInfo
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.grouping import EVENT_TIME, Grouping
from dstreams.structured.operators.join import JoinCondition, JoinType, TimeRange, plan_join
from dstreams.structured.operators.physical_operator import PhysicalOperator, RDDScanExec
from dstreams.structured.operators.sessions import SessionGrouping, plan_sessions
from dstreams.structured.operators.stateful_operator import StatefulOperator
from dstreams.structured.operators.stateless import (
    EventTimeWatermarkExec,
    RecordsExec,
    UnionExec,
    WindowTimeExec,
)
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.plan.planning import PlannedQuery

Change = Callable[[PhysicalOperator], PhysicalOperator]

MARKED = EventTimeWatermarkExec(RDDScanExec(None, events=True), abs, 0)
LATE_MS, EVICT_MS = 9999, 20_000


def aggregated(child: PhysicalOperator, by: TimeWindows | str) -> PhysicalOperator:
    grouping = Grouping(windows=by)
    return WindowTimeExec(
        plan_aggregation(child, grouping, numPartitions=1, outputMode=OutputMode.Append), abs
    )


def windows(child: PhysicalOperator) -> PhysicalOperator:
    return aggregated(child, TimeWindows(10_000))


def times(child: PhysicalOperator) -> PhysicalOperator:
    return aggregated(child, EVENT_TIME)


def sessions(child: PhysicalOperator) -> PhysicalOperator:
    return WindowTimeExec(plan_sessions(child, SessionGrouping(5_000_000), numPartitions=1), abs)


def joined(other: PhysicalOperator, kind: JoinType) -> Change:
    condition = JoinCondition(TimeRange(-1000, 2000))
    return lambda child: plan_join(child, other, abs, abs, kind, condition, numPartitions=1)


def with_timers(child: PhysicalOperator) -> PhysicalOperator:
    timeout = GroupStateTimeout.EventTimeTimeout
    groups = FlatMapGroups(func=lambda key, values, state: [], where="f", timeoutConf=timeout)
    return FlatMapGroupsWithStateExec(child, groups, "key", OutputMode.Append)


# Chains of operators, and the watermarks for late rows and eviction that reach each of them.
REACHED: list[tuple[tuple[Change, ...], list[tuple[int | None, int | None]]]] = [
    ((StreamingDeduplicateExec,), [(9999, 20_000)]),
    ((windows, StreamingDeduplicateExec), [(9999, 20_000), (9998, 19_999)]),
    ((windows, windows), [(9999, 20_000), (9999, 20_000)]),
    ((windows, windows, StreamingDeduplicateExec), [(9999, 20_000)] * 2 + [(9998, 19_999)]),
    ((times, StreamingDeduplicateExec), [(9999, 20_000)] * 2),
    ((windows, times, StreamingDeduplicateExec), [(9999, 20_000)] + [(9998, 19_999)] * 2),
    ((windows, sessions, windows), [(9999, 20_000), (9998, 19_999), (9999, 20_000)]),
    ((windows, sessions, times), [(9999, 20_000), (9998, 19_999), (9997, 19_998)]),
    ((windows, with_timers), [(9999, 20_000), (9998, 20_000)]),
    ((with_timers, StreamingDeduplicateExec), [(9999, 20_000), (None, None)]),
    (
        (windows, lambda child: UnionExec(child, MARKED), StreamingDeduplicateExec),
        [(9999, 20_000), (9998, 19_999)],
    ),
    (
        (windows, joined(MARKED, JoinType.Inner), windows, StreamingDeduplicateExec),
        [(9999, 20_000), (9998, 19_999), (9999, 20_000), (9998, 19_999)],
    ),
    (
        (windows, joined(MARKED, JoinType.LeftOuter), times),
        [(9999, 20_000), (9998, 19_999), (7998, 17_999)],
    ),
]


def batch_with(evict_ms: int, late_ms: int) -> QueryBatch:
    return QueryBatch(BeginRecord("query", 7, 0, 1, **batch_start(0, evict_ms, late_ms, ())))


@pytest.mark.parametrize(("steps", "expected"), REACHED, ids=range(len(REACHED)))
def test_what_reaches_an_operator(
    steps: tuple[Change, ...], expected: list[tuple[int | None, int | None]]
) -> None:
    """Behind windows, rows have their last millisecond: the watermark is past it at their end."""
    root: PhysicalOperator = MARKED
    for step in steps:
        root = step(root)
    names = tuple(map(str, range(len(expected))))
    query = PlannedQuery(RecordsExec(root), (), (), names, OutputMode.Append)
    states = [StatefulOperatorStateInfo.empty(1, number) for number in range(len(expected))]
    execution = IncrementalExecution(query, batch_with(EVICT_MS, LATE_MS), states)
    found = [
        (operator.eventTimeWatermarkForLateEvents, operator.eventTimeWatermarkForEviction)
        for operator in execution.stateful()
    ]
    assert found == expected


def test_when_a_batch_without_data_is_wanted() -> None:
    """Another batch is due as soon as the watermark advances for an operator."""
    root = RecordsExec(StreamingDeduplicateExec(windows(MARKED)))
    query = PlannedQuery(root, (), (), ("0", "1"), OutputMode.Append)
    states = [StatefulOperatorStateInfo.empty(1, number) for number in range(2)]
    execution = IncrementalExecution(query, batch_with(20_000, 9999), states)
    wanted = [execution.should_run_another_batch(ms) for ms in (9999, 20_000, 20_001)]
    assert wanted == [False, False, True]


def test_the_state_rule_fills_readers_and_writers() -> None:
    """Before a batch there is no state info; afterwards both operators of a state share one."""
    root = RecordsExec(StreamingDeduplicateExec(windows(MARKED)))
    first, second = (StatefulOperatorStateInfo.empty(1, number) for number in range(2))
    query = PlannedQuery(root, (), (), ("0", "1"), OutputMode.Append, fuses=False)
    plan = IncrementalExecution(query, batch_with(20_000, 9999), [first, second]).plan
    for tree, wanted in ((root, [None] * 3), (plan, [first, first, second])):
        found = [step.stateInfo for step in tree.walk() if isinstance(step, StatefulOperator)]
        assert found == wanted


def test_batch_time_is_that_of_the_batch() -> None:
    """It is filled into operators that have timers."""
    query = PlannedQuery(RecordsExec(with_timers(MARKED)), (), (), ("0",), OutputMode.Append)
    states = [StatefulOperatorStateInfo.empty(1)]
    batch = batch_with(20_000, 9999)
    (operator,) = IncrementalExecution(query, batch, states).stateful()
    assert isinstance(operator, FlatMapGroupsWithStateExec)
    assert operator.groups.batchTimestampMs == batch.timestamp_ms
