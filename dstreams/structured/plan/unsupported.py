"""What cannot be run as a stream, said before anything starts, with what to write instead.

Semantics: UnsupportedOperationChecker (Spark 4.3). Where a query breaks several rules, the order of
the checks decides which of them is named.
"""

from __future__ import annotations

from typing import NoReturn

from dstreams.errors import InvalidStreamError
from dstreams.spark.selectors import show
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.structured.plan.logical import (
    Aggregate,
    Deduplicate,
    EventTimeWatermark,
    FlatMapGroupsWithState,
    Join,
    Limit,
    LogicalPlan,
    Sort,
    StreamingRelation,
)

_WATERMARK = "call withWatermark(eventTime, delay) before it"


class UnsupportedOperationError(InvalidStreamError):
    """A query that cannot be run as a stream.

    Args:
        message: why, and what to write instead.
        rule: number of the rule that it breaks, as in the table below.

    ==== =========================================================================
    1    there is no streaming source
    2    two mapGroupsWithState
    3    mapGroupsWithState with flatMapGroupsWithState
    4    two flatMapGroupsWithState that are not all of append mode
    6    mapGroupsWithState in another mode than update
    7    flatMapGroupsWithState in another mode than its query
    8    flatMapGroupsWithState of update mode with an aggregation
    10   event-time timeout without a watermark
    13   append mode, and an aggregation whose keys no watermark ends
    14   complete mode without an aggregation
    16   session windows in update mode, or without another key
    17   state after a step whose rows may be behind the watermark
    18   a join in a mode, or without a watermark, in which it has no result
    19   order on what is no complete result, or limit in update mode
    20   dropDuplicatesWithinWatermark without a watermark
    21   withWatermark on records that have an event time already
    ==== =========================================================================
    """

    def __init__(self, message: str, rule: int) -> None:
        super().__init__(message)
        self.rule = rule

    def __reduce__(self) -> tuple[type[UnsupportedOperationError], tuple[str, int]]:
        return (type(self), (str(self), self.rule))


def check_supported(plan: LogicalPlan, mode: OutputMode) -> None:
    """Refuse a query that cannot run as a stream.

    Raises:
        UnsupportedOperationError: for the first broken rule.
    """
    steps = list(plan.walk())
    if not any(isinstance(step, StreamingRelation) for step in steps):
        _refuse(1, "the query has no streaming source; begin it with readStream")
    groups = [step for step in steps if isinstance(step, FlatMapGroupsWithState)]
    aggregates = [step for step in steps if isinstance(step, Aggregate)]
    _check_groups_together(groups, mode)
    _check_mode(aggregates, mode)
    for step in steps:
        _check_step(step, mode, aggregates)
        if isinstance(step, EventTimeWatermark):
            _check_redefinition(step)
    behind = _state_behind_watermark(steps, mode)
    if behind is not None:
        _refuse(17, behind)


def _refuse(rule: int, message: str) -> NoReturn:
    raise UnsupportedOperationError(message, rule)


def _check_groups_together(groups: list[FlatMapGroupsWithState], mode: OutputMode) -> None:
    maps = [step for step in groups if step.is_map]
    if len(maps) > 1:
        _refuse(
            2,
            f"a query has {len(maps)} mapGroupsWithState, at most one is supported; use "
            "flatMapGroupsWithState in append mode for both",
        )
    if maps and len(groups) > 1:
        _refuse(
            3,
            "mapGroupsWithState and flatMapGroupsWithState in one query are not supported; use "
            "flatMapGroupsWithState in append mode for both",
        )
    appends = all(step.mode is OutputMode.Append for step in groups)
    if len(groups) > 1 and not (appends and mode is OutputMode.Append):
        _refuse(
            4,
            f"a query has {len(groups)} flatMapGroupsWithState, which is supported only if all of "
            "them and the query are in append mode; give each OutputMode.Append, and "
            "outputMode('append') to the query",
        )


def _check_mode(aggregates: list[Aggregate], mode: OutputMode) -> None:
    if mode is OutputMode.Complete and not aggregates:
        _refuse(
            14,
            "output mode complete is not supported without an aggregation: there is no result "
            "table; use append or update",
        )
    endless = [step for step in aggregates if not step.has_event_time_key]
    if mode is OutputMode.Append and endless:
        window, marked = endless[0].window or endless[0].session, endless[0].child.event_time
        if window is not None and marked is not None:
            _refuse(
                13,
                f"{window!r} and withWatermark({show(marked)}) use two different event times, so "
                "the watermark does not end the windows; give both the same field or the same "
                "function, or use output mode update or complete",
            )
        _refuse(
            13,
            "output mode append is not supported for an aggregation without a window of the event "
            "time with a watermark, because a result would never be final; call "
            "withWatermark(eventTime, delay) and group by window(eventTime, ...), or use output "
            "mode update or complete",
        )


def _check_step(step: LogicalPlan, mode: OutputMode, aggregates: list[Aggregate]) -> None:
    if isinstance(step, FlatMapGroupsWithState):
        _check_groups(step, mode, has_aggregate=bool(aggregates))
    elif isinstance(step, Aggregate) and step.session is not None:
        _check_session(step, mode)
    elif isinstance(step, Deduplicate) and step.within_watermark and step.event_time is None:
        _refuse(20, f"dropDuplicatesWithinWatermark needs a watermark; {_WATERMARK}")
    elif isinstance(step, Join):
        _check_join(step, mode)
    elif isinstance(step, (Sort, Limit)):
        _check_order(step, mode)


def _check_redefinition(step: EventTimeWatermark) -> None:
    before = step.child.event_time
    if before is not None:
        _refuse(
            21,
            f"withWatermark({show(step.spec)}) on records whose event time is {show(before)} "
            "already: operators below and above it would go by two watermarks; call it once",
        )


def _check_groups(step: FlatMapGroupsWithState, mode: OutputMode, *, has_aggregate: bool) -> None:
    name = "mapGroupsWithState" if step.is_map else "flatMapGroupsWithState"
    if step.is_map and mode is not OutputMode.Update:
        _refuse(
            6,
            f"mapGroupsWithState is not supported in output mode {mode.value}: a key's row "
            "replaces the one before; use outputMode('update')",
        )
    if has_aggregate and step.mode is OutputMode.Update and not step.is_map:
        _refuse(
            8,
            "flatMapGroupsWithState in update mode is not supported with aggregation: changed "
            "rows would be counted twice; give it OutputMode.Append",
        )
    if not has_aggregate and step.mode is not mode:
        _refuse(
            7,
            f"flatMapGroupsWithState in {step.mode.value} mode is not supported in a query in "
            f"{mode.value} mode; give both the same",
        )
    if step.timeout is GroupStateTimeout.EventTimeTimeout and step.child.event_time is None:
        _refuse(10, f"event-time timeout of {name} needs a watermark; {_WATERMARK}")


def _check_session(step: Aggregate, mode: OutputMode) -> None:
    if mode is OutputMode.Update:
        _refuse(
            16,
            "output mode update is not supported for session windows: a session that grows is "
            "another window; use append, with a watermark, or complete",
        )
    if len(step.keys) < 2:
        _refuse(
            16,
            "session windows of all records together are not supported; group by another key too",
        )


def _check_join(step: Join, mode: OutputMode) -> None:
    if mode is OutputMode.Complete:
        _refuse(18, "a join of streams is not supported in output mode complete; use append")
    if step.how == "inner":
        return
    if mode is not OutputMode.Append:
        _refuse(
            18,
            f"a {step.how} join of streams is supported in output mode append only: that a row "
            "has no match is known in the end; use append",
        )
    if step.within_ms is None or None in (step.left.event_time, step.right.event_time):
        _refuse(
            18,
            f"a {step.how} join of streams needs watermarks on both sides and a range of event "
            f"times (within), or it would never know that a row has no match; {_WATERMARK} on "
            "both sides",
        )


def _check_order(step: Sort | Limit, mode: OutputMode) -> None:
    is_complete = mode is OutputMode.Complete
    if isinstance(step, Limit):
        if mode is OutputMode.Update:
            _refuse(
                19,
                "limit is not supported in output mode update: rows change that went out before; "
                "use append or complete, or do it in foreachBatch",
            )
    elif not is_complete or not any(isinstance(below, Aggregate) for below in step.walk()):
        _refuse(
            19,
            "orderBy is supported on the complete result of an aggregation only, got output mode "
            f"{mode.value}; use outputMode('complete') after an aggregation, or do it in "
            "foreachBatch",
        )


def _state_behind_watermark(steps: list[LogicalPlan], mode: OutputMode) -> str | None:
    for step in steps:
        if not _may_be_dropped_late(step):
            continue
        for below in step.walk():
            if below is not step and _may_be_behind_watermark(below, mode):
                return (
                    f"{step.label} after {below.label} may lose rows: those are behind the "
                    "watermark, and would count as late; use append mode, write the first result "
                    "to a topic or directory and start another query from there"
                )
    return None


def _may_be_dropped_late(step: LogicalPlan) -> bool:
    if isinstance(step, Deduplicate):
        return step.within_watermark or step.has_event_time_key
    return isinstance(step, (Aggregate, Join, FlatMapGroupsWithState))


def _may_be_behind_watermark(step: LogicalPlan, mode: OutputMode) -> bool:
    if isinstance(step, FlatMapGroupsWithState):
        return step.timeout is GroupStateTimeout.EventTimeTimeout
    return isinstance(step, Aggregate) and mode is not OutputMode.Append
