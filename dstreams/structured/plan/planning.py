"""From logical to physical operators, with one strategy for each kind of step.

The plan knows nothing of a batch; :mod:`dstreams.structured.execution.incremental` fills that in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark import RDD

from dstreams.arrow.aggregates.functions import Several
from dstreams.common.callables import describe
from dstreams.errors import InvalidStreamError
from dstreams.sources.source import Source
from dstreams.spark.selectors import Fields, selector, show
from dstreams.state.flat_map_groups import EventTime, FlatMapGroups, OneRow
from dstreams.state.group_state import OutputMode
from dstreams.structured.conf import QueryConf
from dstreams.structured.operators.aggregation import plan_aggregation
from dstreams.structured.operators.deduplication import plan_deduplication
from dstreams.structured.operators.event_time_watermark import EventTimeWatermarkExec
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.fusion import fuse_stateful_operators
from dstreams.structured.operators.grouping import EVENT_TIME, Grouping
from dstreams.structured.operators.join import JoinCondition, JoinType, TimeRange, plan_join
from dstreams.structured.operators.limit import LimitExec, plan_limit
from dstreams.structured.operators.physical_operator import (
    LocalTableScanExec,
    PhysicalOperator,
    RDDScanExec,
)
from dstreams.structured.operators.session_state import SessionGrouping
from dstreams.structured.operators.sessions import plan_sessions
from dstreams.structured.operators.stateless import (
    AppendKeyExec,
    ElementsExec,
    RecordsExec,
    SortExec,
    StreamingRelationExec,
    TimedExec,
    UnionExec,
    WindowTimeExec,
)
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.plan import logical
from dstreams.structured.plan.join_events import (
    JoinedEventsExec,
    MatchesNested,
    NestedEventsExec,
    OfNested,
)
from dstreams.structured.window_function import SessionWindow


@dataclass(frozen=True)
class PlannedQuery:
    """A physical plan, and what a query has to know of it, in the order of the plan.

    The names of stateful operators are their identity on disk.
    """

    root: PhysicalOperator
    sources: tuple[Source, ...]
    watermarks: tuple[logical.EventTimeWatermark, ...]
    names: tuple[str, ...]
    mode: OutputMode
    fuses: bool = True

    def prepared(self, plan: PhysicalOperator | None = None) -> PhysicalOperator:
        """Return the plan, or the given one with the facts of a batch, as it is executed."""
        filled = self.root if plan is None else plan
        return fuse_stateful_operators(filled) if self.fuses else filled


@dataclass
class Planner:
    """Plans one query."""

    mode: OutputMode
    conf: QueryConf
    _sources: list[Source] = field(default_factory=list)
    _watermarks: list[logical.EventTimeWatermark] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)

    def query(self, plan: logical.LogicalPlan) -> PlannedQuery:
        """Plan a whole query."""
        root = RecordsExec(self.plan(plan))
        twice = sorted({name for name in self._names if self._names.count(name) > 1})
        if twice:
            raise InvalidStreamError(
                f"two stateful operators are named {twice[0]!r}; a name is the identity of their "
                "state, give each its own"
            )
        return PlannedQuery(
            root,
            tuple(self._sources),
            tuple(self._watermarks),
            tuple(self._names),
            self.mode,
            self.conf.fuses_operators,
        )

    def plan(self, step: logical.LogicalPlan) -> PhysicalOperator:
        """Plan a step and what is below it."""
        strategy = _STRATEGIES.get(type(step))
        if strategy is None:
            raise InvalidStreamError(
                f"{step.label} cannot be run as a stream; make queries of the methods of "
                "StreamingDataset"
            )
        return strategy(self, step)

    @property
    def partitions(self) -> int:
        """Partitions of state."""
        return self.conf.shuffle_partitions

    def number_of(self, source: Source) -> int:
        """Return the number of a source, the same for each step that reads it."""
        for number, known in enumerate(self._sources):
            if known is source:
                return number
        self._sources.append(source)
        return len(self._sources) - 1

    def watermark(self, step: logical.EventTimeWatermark) -> str:
        """Register a watermark, and return its name in the plan."""
        self._watermarks.append(step)
        return watermark_name(len(self._watermarks) - 1, step)

    def name(self, given: str | None, kind: str) -> None:
        """Give the next stateful operator its identity."""
        self._names.append(given or f"{kind}-{len(self._names)}")


def watermark_name(number: int, step: logical.EventTimeWatermark) -> str:
    """Return the name of a watermark in its plan."""
    return f"{show(step.spec)}#{number}"


def _relation(planner: Planner, step: logical.StreamingRelation) -> PhysicalOperator:
    number = planner.number_of(step.source)
    return StreamingRelationExec(number, step.source.name, step.source.fields)


def _elements(planner: Planner, step: logical.Elements) -> PhysicalOperator:
    return ElementsExec(planner.plan(step.child), step.func, step.kind)


def _union(planner: Planner, step: logical.Union) -> PhysicalOperator:
    return UnionExec(planner.plan(step.left), planner.plan(step.right))


def _event_time(planner: Planner, step: logical.EventTimeWatermark) -> PhysicalOperator:
    child = planner.plan(step.child)
    name = planner.watermark(step)
    where = f"withWatermark({show(step.spec)})"
    return EventTimeWatermarkExec(child, step.func, step.delay_ms, name, where)


def flat_map_groups_with_state_strategy(
    planner: Planner, step: logical.FlatMapGroupsWithState
) -> PhysicalOperator:
    """Plan ``mapGroupsWithState`` and ``flatMapGroupsWithState``.

    Semantics: FlatMapGroupsWithStateStrategy (Spark 4.3).
    """
    child = planner.plan(step.child)
    operation = "mapGroupsWithState" if step.is_map else "flatMapGroupsWithState"
    planner.name(step.name, "flatMapGroupsWithState")
    keyed = AppendKeyExec(child, step.key, step.key_text)
    groups = FlatMapGroupsWithStateExec(
        keyed,
        FlatMapGroups(
            func=OneRow(step.func) if step.is_map else step.func,
            where=f"{operation}({describe(step.func)})",
            timeoutConf=step.timeout,
            keepTimer=step.keep_timer,
            skipEmittingInitialStateKeys=planner.conf.skip_initial_keys,
            stateFormatVersion=planner.conf.flat_map_groups_state_format,
        ),
        step.key_text,
        step.mode,
        _initial_state(step.initial),
    )
    return ensure_requirements(groups, planner.partitions)


def _initial_state(initial: RDD[Any] | tuple[Any, ...] | None) -> PhysicalOperator | None:
    """Return the pairs of key and state that a program gives as an operator."""
    if initial is None:
        return None
    columns = ("key", "state")
    if isinstance(initial, RDD):
        return RDDScanExec(initial, "initial state", columns=columns)
    return LocalTableScanExec(initial, columns)


def stateful_aggregation_strategy(planner: Planner, step: logical.Aggregate) -> PhysicalOperator:
    """Plan an aggregation, of windows, of sessions or of all time.

    Semantics: StatefulAggregationStrategy (Spark 4.3).
    """
    child = planner.plan(step.child)
    session = step.session
    final = (
        _groups(planner, step, child)
        if session is None
        else _sessions(planner, step, session, child)
    )
    if step.time_of_record is None:
        return final
    return WindowTimeExec(final, EventTime(step.time_of_record, step.label))


def _groups(planner: Planner, step: logical.Aggregate, child: PhysicalOperator) -> PhysicalOperator:
    planner.name(step.name, "stateStoreSave")
    return plan_aggregation(
        child,
        grouping_of(step),
        aggregate_of(step.aggregates),
        numPartitions=planner.partitions,
        outputMode=planner.mode,
        stateFormatVersion=planner.conf.aggregation_state_format,
        where=step.label,
    )


def _sessions(
    planner: Planner, step: logical.Aggregate, session: SessionWindow, child: PhysicalOperator
) -> PhysicalOperator:
    planner.name(step.name, "sessionWindowStateStoreSaveExec")
    if session.spec != step.child.event_time:
        child = TimedExec(child, _time_of(session.spec))
    key = _key_of([part for part in step.keys if part is not session], step.child)
    return plan_sessions(
        child,
        SessionGrouping(session.gap_ms, key, _names(step.keys)),
        aggregate_of(step.aggregates),
        numPartitions=planner.partitions,
        outputMode=planner.mode,
        where=step.label,
    )


def _names(keys: Sequence[Any]) -> str:
    return f"[{', '.join(map(show, keys))}]"


def deduplication_strategy(planner: Planner, step: logical.Deduplicate) -> PhysicalOperator:
    """Plan ``dropDuplicates`` and ``dropDuplicatesWithinWatermark``."""
    child = planner.plan(step.child)
    planner.name(step.name, "dedupeWithinWatermark" if step.within_watermark else "dedupe")
    return plan_deduplication(
        child,
        step.key,
        numPartitions=planner.partitions,
        withEventTime=step.has_event_time_key and not step.within_watermark,
        withinMs=_delay_ms(step.child) if step.within_watermark else None,
        where=step.label,
    )


def _delay_ms(step: logical.LogicalPlan) -> int:
    """Return how late a row of a step may come: the longest delay of the watermarks below it."""
    marks = (below for below in step.walk() if isinstance(below, logical.EventTimeWatermark))
    return max((mark.delay_ms for mark in marks), default=0)


def aggregate_of(functions: Sequence[Any]) -> Any:
    """Return one function for all: its result is a tuple where there are several."""
    return functions[0] if len(functions) == 1 else Several(tuple(functions))


def grouping_of(step: logical.Aggregate) -> Grouping:
    """Return what the operators group by: what a watermark ends, and the rest of the key."""
    marked, window, name = step.child.event_time, step.window, _names(step.keys)
    key = _key_of([key for key in step.keys if key is not window], step.child)
    if window is not None:
        time = None if window.spec == marked else _time_of(window.spec)
        return Grouping(key, TimeWindows(window.size_ms, window.slide_ms), name, time)
    return Grouping(key, EVENT_TIME if step.has_event_time_key else None, name)


def _key_of(specs: Sequence[Any], child: logical.LogicalPlan) -> Callable[[Any], Any] | None:
    """Return the function that gives the key of a record, None for no key."""
    if not specs:
        return None
    times = {child.event_time: child.time_of_record}
    parts = tuple(times.get(spec) or selector(spec, "groupByKey") for spec in specs)
    return parts[0] if len(parts) == 1 else Fields(parts)


def _time_of(spec: Any) -> EventTime:
    return EventTime(selector(spec, "window"), f"window({show(spec)})")


def _sort(planner: Planner, step: logical.Sort) -> PhysicalOperator:
    return SortExec(planner.plan(step.child), step.key, step.ascending)


def _limit(planner: Planner, step: logical.Limit) -> PhysicalOperator:
    child = planner.plan(step.child)
    if planner.mode is OutputMode.Complete:
        return LimitExec(child, step.count)
    planner.name(step.name, "globalLimit")
    return plan_limit(child, step.count, numPartitions=planner.partitions)


def join_strategy(planner: Planner, step: logical.Join) -> PhysicalOperator:
    """Plan a join of two streams."""
    left, right = planner.plan(step.left), planner.plan(step.right)
    planner.name(step.name, "symmetricHashJoin")
    time_range = None if step.within_ms is None else TimeRange(*step.within_ms)
    kind = JoinType(step.how)
    if not (left.hasEventTime and right.hasEventTime):
        condition = JoinCondition(time_range, step.matches, step.label)
        return plan_join(
            left,
            right,
            step.left_key,
            step.right_key,
            kind,
            condition,
            numPartitions=planner.partitions,
        )
    matches = None if step.matches is None else MatchesNested(step.matches)
    joined = plan_join(
        NestedEventsExec(left),
        NestedEventsExec(right),
        OfNested(step.left_key),
        OfNested(step.right_key),
        kind,
        JoinCondition(time_range, matches, step.label),
        numPartitions=planner.partitions,
    )
    return JoinedEventsExec(joined, kind is JoinType.LeftSemi)


_STRATEGIES: dict[type[logical.LogicalPlan], Callable[[Planner, Any], PhysicalOperator]] = {
    logical.StreamingRelation: _relation,
    logical.Elements: _elements,
    logical.Union: _union,
    logical.EventTimeWatermark: _event_time,
    logical.FlatMapGroupsWithState: flat_map_groups_with_state_strategy,
    logical.Aggregate: stateful_aggregation_strategy,
    logical.Deduplicate: deduplication_strategy,
    logical.Sort: _sort,
    logical.Limit: _limit,
    logical.Join: join_strategy,
}


def plan_query(plan: logical.LogicalPlan, mode: OutputMode, conf: QueryConf) -> PlannedQuery:
    """Return the physical plan of a query."""
    return Planner(mode, conf).query(plan)
