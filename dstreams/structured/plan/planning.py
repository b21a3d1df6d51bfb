"""Plans physical operators for logical ones, with one strategy for each kind of step.

A plan is made once; :mod:`dstreams.structured.execution.incremental` fills in the facts of a batch.
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
from dstreams.spark.rejected_records import event_time_itself
from dstreams.spark.selectors import Fields, selector, show
from dstreams.state.flat_map_groups import EventTime, FlatMapGroups, OneRow
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.state.stateful_processor import TimeMode
from dstreams.state.transform_groups import TransformGroups
from dstreams.structured.conf import QueryConf
from dstreams.structured.operators.aggregation import plan_aggregation
from dstreams.structured.operators.attempts import TryExec
from dstreams.structured.operators.deduplication import plan_deduplication
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.fusion import fuse_stateful_operators
from dstreams.structured.operators.grouping import EVENT_TIME, Grouping
from dstreams.structured.operators.join import (
    LEFT,
    RIGHT,
    JoinCondition,
    JoinedEventsExec,
    JoinType,
    MatchesNested,
    NestedEventsExec,
    OfNested,
    TimeRange,
    plan_join,
)
from dstreams.structured.operators.late_records import (
    EndOfSession,
    LastEnd,
    LateRecordsExec,
)
from dstreams.structured.operators.limit import LimitExec, plan_limit
from dstreams.structured.operators.physical_operator import (
    LocalTableScanExec,
    PhysicalOperator,
    RDDScanExec,
)
from dstreams.structured.operators.sessions import SessionGrouping, plan_sessions
from dstreams.structured.operators.stateless import (
    AppendKeyExec,
    BatchScanExec,
    ElementsExec,
    EventTimeWatermarkExec,
    ObserveExec,
    RecordsExec,
    SortExec,
    StreamingRelationExec,
    TimedExec,
    UnionExec,
    WindowTimeExec,
)
from dstreams.structured.operators.static_join import (
    MatchRows,
    StaticJoinExec,
    StaticSide,
    plan_batch_join,
)
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.operators.transform_with_state import TransformWithStateExec
from dstreams.structured.plan import logical
from dstreams.structured.window_function import SessionWindow


@dataclass(frozen=True)
class PlannedQuery:
    """A physical plan, with its sources, watermarks, names of states and static rows, in its order.

    A name identifies the state of an operator on disk.
    """

    root: PhysicalOperator
    sources: tuple[Source, ...]
    watermarks: tuple[logical.EventTimeWatermark, ...]
    names: tuple[str, ...]
    mode: OutputMode
    fuses: bool = True
    static: tuple[StaticSide, ...] = ()

    def prepared(self, plan: PhysicalOperator | None = None) -> PhysicalOperator:
        """Return the plan, or the given one with the facts of a batch, as it is executed."""
        filled = self.root if plan is None else plan
        return fuse_stateful_operators(filled) if self.fuses else filled


@dataclass
class Planner:
    """Plans one query."""

    mode: OutputMode
    conf: QueryConf
    keeps_state: bool = True
    """False for the plan of a batch dataset, in which no row is late and each key has one turn."""
    sources: list[Source] = field(default_factory=list)
    watermarks: list[logical.EventTimeWatermark] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    static: list[StaticSide] = field(default_factory=list)

    def plan(self, step: logical.LogicalPlan) -> PhysicalOperator:
        """Plan a step and what is below it."""
        strategy = _STRATEGIES.get(type(step))
        if strategy is None:
            raise InvalidStreamError(
                f"{step.label} cannot run as a stream; build the query with the methods of "
                "StreamingDataset"
            )
        return strategy(self, step)

    def number_of(self, source: Source) -> int:
        """Return the number of a source, the same for each step that reads it."""
        for number, known in enumerate(self.sources):
            if known is source:
                return number
        self.sources.append(source)
        return len(self.sources) - 1

    def name(self, given: str | None, kind: str) -> None:
        """Register the name of the next stateful operator; by default its kind and number."""
        self.names.append(given or f"{kind}-{len(self.names)}")

    def late(
        self,
        child: PhysicalOperator,
        step: logical.LogicalPlan,
        end_us: Callable[[int, Any], int] = event_time_itself,
    ) -> PhysicalOperator:
        """Return the input of the stateful operator that was named last.

        Its late records go to the sink of *step*, if that has one. *end_us* returns the end of a
        record by event time and record; if it is not after the watermark, the operator drops it.
        """
        sink = logical.late_output(step) if self.keeps_state else None
        if sink is None or not child.hasEventTime:
            return child
        return LateRecordsExec(child, sink, self.names[-1], len(self.names) - 1, end_us)


def watermark_name(number: int, step: logical.EventTimeWatermark) -> str:
    """Return the name of a watermark in its plan."""
    return f"{show(step.spec)}#{number}"


def _relation(planner: Planner, step: logical.StreamingRelation) -> PhysicalOperator:
    source = step.source
    return StreamingRelationExec(planner.number_of(source), source.name, source.fields)


def _batch_relation(planner: Planner, step: logical.BatchRelation) -> PhysicalOperator:
    return BatchScanExec(step.rows)


def _elements(planner: Planner, step: logical.Elements) -> PhysicalOperator:
    return ElementsExec(planner.plan(step.child), step.func, step.kind, step.on_error)


def _tried(planner: Planner, step: logical.Tried) -> PhysicalOperator:
    return TryExec(planner.plan(step.child), step.functions, step.where, step.on_error)


def _observe(planner: Planner, step: logical.Observe) -> PhysicalOperator:
    child = planner.plan(step.child)
    if step.name in planner.observed:
        raise InvalidStreamError(
            f"two observations are named {step.name!r}; the progress reports one for each name, so "
            "give each its own"
        )
    planner.observed.append(step.name)
    return ObserveExec(child, step.name, step.metrics, Several(step.aggregates))


def _union(planner: Planner, step: logical.Union) -> PhysicalOperator:
    return UnionExec(planner.plan(step.left), planner.plan(step.right))


def _event_time(planner: Planner, step: logical.EventTimeWatermark) -> PhysicalOperator:
    child = planner.plan(step.child)
    where = f"withWatermark({show(step.spec)})"
    if not planner.keeps_state:
        return TimedExec(child, EventTime(step.func, where))
    name = watermark_name(len(planner.watermarks), step)
    planner.watermarks.append(step)
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
    if step.timeout is GroupStateTimeout.EventTimeTimeout:
        child = planner.late(child, step.child)
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
    return ensure_requirements(groups, planner.conf.shuffle_partitions)


def transform_with_state_strategy(
    planner: Planner, step: logical.TransformWithState
) -> PhysicalOperator:
    """Plan ``transformWithState``.

    Semantics: TransformWithStateInPySparkStrategy (Spark 4.3).
    """
    child = planner.plan(step.child)
    planner.name(step.name, "transformWithState")
    if step.time_mode is TimeMode.EventTime:
        child = planner.late(child, step.child)
    keyed = AppendKeyExec(child, step.key, step.key_text)
    time = step.time_of_record
    groups = TransformGroups(
        processor=step.processor,
        where=f"transformWithState({type(step.processor).__name__})",
        timeMode=step.time_mode,
        variables=step.variables,
        deleted=step.deleted,
        output=step.output,
        output_time=None if time is None else EventTime(time, step.label),
    )
    initial = _initial_state(step.initial)
    transformed = TransformWithStateExec(keyed, groups, step.key_text, step.mode, initial)
    return ensure_requirements(transformed, planner.conf.shuffle_partitions)


def _initial_state(initial: RDD[Any] | tuple[Any, ...] | None) -> PhysicalOperator | None:
    """Return the operator that scans the pairs of key and state of a program."""
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
    if session is None:
        final = _groups(planner, step, child)
    else:
        final = _sessions(planner, step, session, child)
    if step.time_of_record is None:
        return final
    return WindowTimeExec(final, EventTime(step.time_of_record, step.label))


def _groups(planner: Planner, step: logical.Aggregate, child: PhysicalOperator) -> PhysicalOperator:
    planner.name(step.name, "stateStoreSave")
    grouping = grouping_of(step)
    if grouping.hasWatermark and planner.mode is not OutputMode.Complete:
        windows = grouping.windows
        end_us = LastEnd(windows) if isinstance(windows, TimeWindows) else event_time_itself
        child = planner.late(child, step.child, end_us)
    return plan_aggregation(
        child,
        grouping,
        aggregate_of(step.aggregates),
        numPartitions=planner.conf.shuffle_partitions,
        outputMode=planner.mode,
        stateFormatVersion=planner.conf.aggregation_state_format,
        where=step.label,
        keepsState=planner.keeps_state,
        result=step.result,
    )


def _sessions(
    planner: Planner, step: logical.Aggregate, session: SessionWindow, child: PhysicalOperator
) -> PhysicalOperator:
    planner.name(step.name, "sessionWindowStateStoreSaveExec")
    if session.spec != step.child.event_time:
        child = TimedExec(child, time_of_window(session.spec, step.child))
    key = _key_of([part for part in step.keys if part is not session], step.child)
    grouping = SessionGrouping(session.gap_us, key, _names(step.keys))
    return plan_sessions(
        planner.late(child, step.child, EndOfSession(grouping)),
        grouping,
        aggregate_of(step.aggregates),
        numPartitions=planner.conf.shuffle_partitions,
        outputMode=planner.mode,
        where=step.label,
        keepsState=planner.keeps_state,
        result=step.result,
    )


def _names(keys: Sequence[Any]) -> str:
    return f"[{', '.join(map(show, keys))}]"


def deduplication_strategy(planner: Planner, step: logical.Deduplicate) -> PhysicalOperator:
    """Plan ``dropDuplicates`` and ``dropDuplicatesWithinWatermark``."""
    child = planner.plan(step.child)
    planner.name(step.name, "dedupeWithinWatermark" if step.within_watermark else "dedupe")
    return plan_deduplication(
        planner.late(child, step.child),
        step.key,
        numPartitions=planner.conf.shuffle_partitions,
        withEventTime=step.has_event_time_key and not step.within_watermark,
        withinMs=_delay_ms(step.child) if step.within_watermark else None,
        where=step.label,
    )


def _delay_ms(step: logical.LogicalPlan) -> int:
    """Return how late a row of a step may be: the longest delay of the watermarks below it."""
    marks = (
        below
        for below in step.walk()
        if isinstance(below, logical.EventTimeWatermark) and below.is_streaming
    )
    return max((mark.delay_ms for mark in marks), default=0)


def aggregate_of(functions: Sequence[Any]) -> Any:
    """Return one function for all: its result is a tuple if there are several."""
    return functions[0] if len(functions) == 1 else Several(tuple(functions))


def grouping_of(step: logical.Aggregate) -> Grouping:
    """Return the grouping: the part of the key that a watermark ends, and the rest."""
    marked, window, name = step.child.event_time, step.window, _names(step.keys)
    key = _key_of([key for key in step.keys if key is not window], step.child)
    if window is not None:
        time = None if window.spec == marked else time_of_window(window.spec, step.child)
        return Grouping(
            key, TimeWindows(window.size_ms, window.slide_ms, window.start_ms), name, time
        )
    return Grouping(key, EVENT_TIME if step.has_event_time_key else None, name)


def _key_of(specs: Sequence[Any], child: logical.LogicalPlan) -> Callable[[Any], Any] | None:
    """Return the key function of a record, or None without a key."""
    if not specs:
        return None
    marked, time = child.event_time, child.time_of_record
    if isinstance(time, logical.TimeOfRow):
        time = None  # the key is the window, not its time
    parts = tuple(
        time if time is not None and spec == marked else selector(spec, "groupByKey")
        for spec in specs
    )
    return parts[0] if len(parts) == 1 else Fields(parts)


def time_of_window(spec: Any, child: logical.LogicalPlan) -> EventTime:
    """Return the function for the event time of a window in the rows of a step."""
    return EventTime(logical.event_time_of(child, spec, "window"), f"window({show(spec)})")


def _sort(planner: Planner, step: logical.Sort) -> PhysicalOperator:
    return SortExec(planner.plan(step.child), step.key, step.ascending)


def _limit(planner: Planner, step: logical.Limit) -> PhysicalOperator:
    child = planner.plan(step.child)
    if planner.mode is OutputMode.Complete:
        return LimitExec(child, step.count)
    planner.name(step.name, "globalLimit")
    return plan_limit(child, step.count, numPartitions=planner.conf.shuffle_partitions)


def join_strategy(planner: Planner, step: logical.Join) -> PhysicalOperator:
    """Plan a join of two streams, of two batch datasets, or of one of each."""
    if not step.keeps_state:
        return _join_once(planner, step) if step.stream is None else _static_join(planner, step)
    left, right = planner.plan(step.left), planner.plan(step.right)
    planner.name(step.name, "symmetricHashJoin")
    time_range = None if step.within_ms is None else TimeRange(*step.within_ms)
    kind = JoinType(step.how)
    left, right = _with_time(left, step.left_time), _with_time(right, step.right_time)
    watermarks = (
        left.hasEventTime and step.left_time is None,
        right.hasEventTime and step.right_time is None,
    )
    if watermarks[LEFT]:
        left = planner.late(left, step.left)
    if watermarks[RIGHT]:
        right = planner.late(right, step.right)
    are_events = all(watermarks)
    left_key, right_key, matches = step.left_key, step.right_key, step.matches
    if are_events:
        left, right = NestedEventsExec(left), NestedEventsExec(right)
        left_key, right_key = OfNested(left_key), OfNested(right_key)
        matches = None if matches is None else MatchesNested(matches)
    is_equal = step.within_ms == (0, 0)
    ends_itself = (
        is_equal and kind.waits(LEFT) and watermarks[LEFT],
        is_equal and kind.waits(RIGHT) and watermarks[RIGHT],
    )
    condition = JoinCondition(time_range, matches, step.label, watermarks, ends_itself)
    joined = plan_join(
        left,
        right,
        left_key,
        right_key,
        kind,
        condition,
        numPartitions=planner.conf.shuffle_partitions,
    )
    return JoinedEventsExec(joined, kind is JoinType.LeftSemi) if are_events else joined


def _match_of(step: logical.Join, side: int) -> MatchRows:
    """Return how the rows of a join without state are made."""
    time_range = None if step.within_ms is None else TimeRange(*step.within_ms)
    condition = JoinCondition(time_range, step.matches, step.label)
    are_events, is_batch = step.event_time is not None, not step.is_streaming
    return MatchRows(JoinType(step.how), condition, side, are_events, latest=is_batch)


def _join_once(planner: Planner, step: logical.Join) -> PhysicalOperator:
    return plan_batch_join(
        _with_time(planner.plan(step.left), step.left_time),
        _with_time(planner.plan(step.right), step.right_time),
        step.left_key,
        step.right_key,
        _match_of(step, LEFT),
        numPartitions=planner.conf.shuffle_partitions,
    )


def _static_join(planner: Planner, step: logical.Join) -> PhysicalOperator:
    """Plan a join of a stream with static rows.

    Semantics: JoinSelection (Spark 4.3), which also broadcasts the smaller side.
    """
    sides = [
        (step.left, step.left_key, step.left_time),
        (step.right, step.right_key, step.right_time),
    ]
    (stream, key, time), (other, other_key, other_time) = (
        sides if step.stream == LEFT else sides[::-1]
    )
    child = _with_time(planner.plan(stream), time)
    batch = Planner(OutputMode.Complete, planner.conf, keeps_state=False)
    plan = _with_time(batch.plan(other), other_time)
    side = LEFT if step.stream == LEFT else RIGHT
    uid = step.name or f"staticJoin-{len(planner.static)}"
    static = StaticSide(uid, plan, other_key, 1 - side, step.label, step.refresh_ms)
    planner.static.append(static)
    match = _match_of(step, side)
    return StaticJoinExec(child, key, static, match, planner.conf.shuffle_partitions)


def _with_time(child: PhysicalOperator, time: Callable[[Any], Any] | None) -> PhysicalOperator:
    return child if time is None else TimedExec(child, EventTime(time, "event time of join"))


_STRATEGIES: dict[type[logical.LogicalPlan], Callable[[Planner, Any], PhysicalOperator]] = {
    logical.StreamingRelation: _relation,
    logical.BatchRelation: _batch_relation,
    logical.Elements: _elements,
    logical.Tried: _tried,
    logical.Observe: _observe,
    logical.Union: _union,
    logical.EventTimeWatermark: _event_time,
    logical.FlatMapGroupsWithState: flat_map_groups_with_state_strategy,
    logical.TransformWithState: transform_with_state_strategy,
    logical.Aggregate: stateful_aggregation_strategy,
    logical.Deduplicate: deduplication_strategy,
    logical.Sort: _sort,
    logical.Limit: _limit,
    logical.Join: join_strategy,
}


def plan_query(plan: logical.LogicalPlan, mode: OutputMode, conf: QueryConf) -> PlannedQuery:
    """Return the physical plan of a query."""
    planner = Planner(mode, conf)
    root = RecordsExec(planner.plan(plan))
    names = tuple(planner.names)
    known = [*names, *(side.uid for side in planner.static)]
    twice = sorted({name for name in known if known.count(name) > 1})
    if twice:
        raise InvalidStreamError(
            f"two stateful operators are named {twice[0]!r}; a name identifies the state of an "
            "operator, so give each its own"
        )
    sources, watermarks = tuple(planner.sources), tuple(planner.watermarks)
    static = tuple(planner.static)
    return PlannedQuery(root, sources, watermarks, names, mode, conf.fuses_operators, static)


def plan_batch(plan: logical.LogicalPlan, conf: QueryConf) -> PhysicalOperator:
    """Return the physical plan of a batch dataset."""
    return RecordsExec(Planner(OutputMode.Complete, conf, keeps_state=False).plan(plan))
