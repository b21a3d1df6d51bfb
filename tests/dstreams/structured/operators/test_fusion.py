"""Fused operators: the same rows, state and metrics as one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext

from checkpoint.state_store import StateWriter
from dstreams.arrow.aggregates.functions import (
    Average,
    CollectList,
    Count,
    Max,
    Several,
)
from dstreams.spark.state_store_rdd import StoreFunction
from dstreams.spark.state_version import StateMetrics
from dstreams.state.flat_map_groups import FlatMapGroups
from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode
from dstreams.structured.operators.aggregation import AggregateRecords, plan_aggregation
from dstreams.structured.operators.aggregation_state import (
    AggregateIntoState,
    MergeRows,
    RestoreRows,
    SaveRows,
    create_aggregation_state_manager,
)
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.fusion import FusedExec, fuse_stateful_operators
from dstreams.structured.operators.grouping import EVENT_TIME, Grouping
from dstreams.structured.operators.physical_operator import (
    LocalTableScanExec,
    PhysicalOperator,
    RDDScanExec,
)
from dstreams.structured.operators.sessions import (
    AggregateSessions,
    RestoreSessions,
    SaveSessions,
    SessionGrouping,
    SessionsIntoState,
    merge_touching,
    plan_sessions,
)
from dstreams.structured.operators.stateless import AppendKeyExec, EventTimeWatermarkExec
from dstreams.structured.operators.time_windows import TimeWindows
from tests.dstreams.structured.operators.local_query import LocalQuery
from tests.dstreams.structured.operators.query import SparkQuery

Pairs = Iterator[tuple[Any, Any]]

_TIMES = {"allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs", "stateMemory"}
COUNTED = [field.name for field in fields(StateMetrics) if field.name not in _TIMES]


def counts_of(metrics: StateMetrics) -> dict[str, int]:
    return {name: getattr(metrics, name) for name in COUNTED}


@dataclass(frozen=True)
class OneByOne:
    """Function of a store: what the operators of a stage do, one after the other."""

    restore: Callable[[Any], Callable[[int, StateWriter, Pairs], Pairs]]
    merges: tuple[Callable[[int, Iterable[Any]], Any], Callable[[int, Iterable[Any]], Any]]
    save: StoreFunction

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterable[Any]:
        reported: dict[str, int] = {}
        first, second = self.merges
        restore = self.restore(lambda split, records, counts: reported.update(counts))
        # All is restored before anything is saved: the version that is read is the one before.
        restored = list(restore(0, store, iter(first(0, records))))
        yield from self.save(store, iter(()), iter(second(0, restored)), metrics)
        metrics.numRestoredRows = reported["numOutputRows"]
        metrics.numRowsDroppedByWatermark += reported.get("numRowsDroppedByWatermark", 0)


FUNCTIONS = [Count(), Average(), Max(), Several((Count(), CollectList()))]
GROUPINGS = [
    (Grouping(), False),
    (Grouping(key=lambda value: value % 3), False),
    (Grouping(key=lambda value: str(value % 3)), False),
    (Grouping(windows=TimeWindows(4_000)), True),
    (Grouping(key=lambda value: str(value % 3), windows=TimeWindows(4_000, 2_000)), True),
    (Grouping(key=lambda value: value % 2, windows=EVENT_TIME), True),
]
EVENTS = st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 9)), max_size=12)
BATCHES = st.lists(EVENTS, min_size=1, max_size=6)


@pytest.mark.deep
@given(
    BATCHES,
    st.sampled_from(FUNCTIONS),
    st.sampled_from(GROUPINGS),
    st.sampled_from(OutputMode),
    st.sampled_from([1, 2]),
)
def test_aggregations(
    batches: list[list[tuple[int, int]]],
    function: Any,
    grouped: tuple[Grouping, bool],
    mode: OutputMode,
    version: int,
) -> None:
    """Random batches, functions, groupings and output modes, in both formats of the state."""
    grouping, has_watermark = grouped
    if mode is OutputMode.Append and not has_watermark:
        mode = OutputMode.Update
    manager = create_aggregation_state_manager(version)
    partial = AggregateRecords(function, grouping, are_events=True)

    def one_by_one(late_ms: int | None, evict_ms: int | None) -> StoreFunction:
        merge = MergeRows(function, grouping)
        save = SaveRows(manager, grouping, mode, late_ms, evict_ms)
        return OneByOne(
            lambda report: RestoreRows(manager, grouping.isGlobal, report), (merge, merge), save
        )

    def fused(late_ms: int | None, evict_ms: int | None) -> StoreFunction:
        save = SaveRows(create_aggregation_state_manager(2), grouping, mode, late_ms, evict_ms)
        return AggregateIntoState(MergeRows(function, grouping), save)

    sides = [
        LocalQuery(lambda events: partial(0, events), side, 5_000) for side in (one_by_one, fused)
    ]
    for batch in batches:
        rows = [sorted(side.add(list(batch)), key=repr) for side in sides]
        assert rows[0] == rows[1]
        counted = [[counts_of(done.metrics) for done in side.batches] for side in sides]
        assert counted[0] == counted[1]
    stored = [side.state.contents() for side in sides]
    assert {key: manager.row_of(key, value)[1] for key, value in stored[0].items()} == {
        key: value[0] for key, value in stored[1].items()
    }


@pytest.mark.deep
@given(BATCHES, st.sampled_from([OutputMode.Append, OutputMode.Complete]))
def test_sessions(batches: list[list[tuple[int, int]]], mode: OutputMode) -> None:
    """Random batches of sessions in both output modes, some of them late."""
    grouping = SessionGrouping(3_000_000, key=lambda value: value % 2)

    def sorted_pairs(_: int, rows: Iterable[Any]) -> list[Any]:
        pairs = list(rows)
        keys = list(dict.fromkeys(key for key, _ in pairs))
        return sorted(pairs, key=lambda row: (keys.index(row[0]), row[1][0]))

    def one_by_one(late_ms: int | None, evict_ms: int | None) -> StoreFunction:
        return OneByOne(
            lambda report: RestoreSessions(late_ms, report),
            (sorted_pairs, lambda split, rows: merge_touching(Count(), "agg", split, rows)),
            SaveSessions(mode, evict_ms),
        )

    def fused(late_ms: int | None, evict_ms: int | None) -> StoreFunction:
        return SessionsIntoState(Count(), SaveSessions(mode, evict_ms), late_ms)

    def query(side: Any) -> LocalQuery:
        made = LocalQuery(lambda events: partial(0, events, made), side, 5_000)
        return made

    def partial(split: int, events: Any, made: LocalQuery) -> Any:
        return AggregateSessions(Count(), grouping, made.late_ms)(split, events)

    sides = [query(one_by_one), query(fused)]
    for batch in batches:
        rows = [sorted(side.add(list(batch)), key=repr) for side in sides]
        assert rows[0] == rows[1]
        counted = [[counts_of(done.metrics) for done in side.batches] for side in sides]
        assert counted[0] == counted[1]
        assert sides[0].state.contents() == sides[1].state.contents()


def count_until_timeout(key: Any, values: Iterator[Any], state: GroupState[int]) -> Iterator[Any]:
    if state.hasTimedOut:
        yield key, "timed out", state.get
        state.remove()
        return
    state.update((state.getOption or 0) + sum(1 for _ in values))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 12_000)
    yield key, "has", state.get


MARKED = EventTimeWatermarkExec(RDDScanExec(None), lambda record: record[0] * 1000, 5_000)
BY_WINDOW = Grouping(lambda record: record[1], TimeWindows(10_000), "window, key")


def groups(initial: tuple[Any, ...] | None = None) -> PhysicalOperator:
    plan = FlatMapGroupsWithStateExec(
        AppendKeyExec(MARKED, lambda record: record[1], "key"),
        FlatMapGroups(
            func=count_until_timeout,
            where="count_until_timeout",
            timeoutConf=GroupStateTimeout.EventTimeTimeout,
            batchTimestampMs=0,
        ),
        initialState=None if initial is None else LocalTableScanExec(initial, ("key", "state")),
    )
    return ensure_requirements(plan, 2)


def aggregation(mode: OutputMode, version: int = 2) -> PhysicalOperator:
    return plan_aggregation(
        MARKED,
        BY_WINDOW,
        numPartitions=2,
        outputMode=mode,
        stateFormatVersion=version,
    )


PLANS: list[tuple[str, PhysicalOperator, int]] = [
    ("append", aggregation(OutputMode.Append), 1),
    ("update", aggregation(OutputMode.Update), 1),
    ("complete", aggregation(OutputMode.Complete), 1),
    ("format 1", aggregation(OutputMode.Update, 1), 0),
    (
        "all",
        plan_aggregation(MARKED, Grouping(), numPartitions=2, outputMode=OutputMode.Complete),
        1,
    ),
    (
        "sessions",
        plan_sessions(
            MARKED,
            SessionGrouping(3_000_000, key=lambda record: record[1]),
            numPartitions=2,
            outputMode=OutputMode.Append,
        ),
        1,
    ),
    ("groups", groups(), 1),
    ("groups with an initial state", groups((("a", 10), ("z", 20))), 1),
]
ON_SPARK = [
    [(10, "a"), (12, "b"), (14, "a"), (15, "a")],
    [(25, "a"), (31, "b")],
    [(10, "a"), (27, "b"), (40, "c")],
]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("plan", "stages"), [case[1:] for case in PLANS], ids=[case[0] for case in PLANS]
)
def test_on_rdds(sc: SparkContext, tmp_path: Path, plan: PhysicalOperator, stages: int) -> None:
    """Plans on Spark, with and without the rule: rows, metrics and states are equal."""
    shown = fuse_stateful_operators(plan)
    assert sum(isinstance(step, FusedExec) for step in shown.walk()) == stages
    queries = [SparkQuery(sc, plan, tmp_path / str(fuses), fuses=fuses) for fuses in (True, False)]
    for batch in ON_SPARK:
        rows = [sorted(query.add(list(batch)), key=repr) for query in queries]
        assert rows[0] == rows[1]
        counted = [
            {
                name: {**counts_of(metrics), "numRestoredRows": 0}
                for name, metrics in query.metrics.items()
            }
            for query in queries
        ]
        assert counted[0] == counted[1]
        assert queries[0].read_metrics == queries[1].read_metrics
    assert queries[0].contents() == queries[1].contents()
    assert queries[0].contents()


def test_what_is_fused_is_shown() -> None:
    """Operators of a stage are marked with its number, in the plan that explain prints."""
    nested = plan_sessions(aggregation(OutputMode.Append), SessionGrouping(1_000), numPartitions=2)
    marks = [line.lstrip(" +-:") for line in fuse_stateful_operators(nested).tree().splitlines()]
    assert [line.split()[0:2] for line in marks if line.startswith("*")] == [
        ["*(2)", "SessionWindowStateStoreSave"],
        ["*(2)", "MergingSessions"],
        ["*(2)", "SessionWindowStateStoreRestore"],
        ["*(2)", "Sort"],
        ["*(1)", "StateStoreSave"],
        ["*(1)", "HashAggregate"],
        ["*(1)", "StateStoreRestore"],
        ["*(1)", "HashAggregate"],
    ]
    assert "*" not in nested.tree()


def test_what_the_rule_leaves_alone() -> None:
    """Operators in another order are not fused."""
    save = aggregation(OutputMode.Update).children[0]
    restore = save.children[0].children[0]
    moved = replace(save, child=restore)  # type: ignore[type-var]
    assert fuse_stateful_operators(moved) == moved
