"""Rejects queries that cannot run as a stream before they start; errors suggest an alternative.

Semantics: UnsupportedOperationChecker (Spark 4.3). If a query breaks several rules, the error names
the one that is checked first.
"""

from __future__ import annotations

from typing import NoReturn

from dstreams.errors import InvalidStreamError
from dstreams.spark.selectors import show
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.state.stateful_processor import TimeMode
from dstreams.structured.plan.logical import (
    Aggregate,
    Deduplicate,
    EventTimeWatermark,
    FlatMapGroupsWithState,
    Join,
    Limit,
    LogicalPlan,
    Observe,
    Sort,
    StreamingRelation,
    TransformWithState,
    Union,
)

_WATERMARK = "call withWatermark(eventTime, delay) before it"
_WATERMARKS_OF_JOINS = {
    "left_outer": ("right",),
    "right_outer": ("left",),
    "full_outer": ("left", "right"),
    "left_semi": ("right",),
}
"""The sides whose watermark decides that a row of the other side has no match."""

_STATIC_JOINS = (("inner", "left_outer", "left_semi", "left_anti"), ("inner", "right_outer"))
"""The joins with static data, by the side of the stream."""


class UnsupportedOperationError(InvalidStreamError):
    """A query that cannot run as a stream.

    Args:
        message: the reason, and what to write instead.
        rule: the number of the broken rule:

    ==== =========================================================================
    1    no streaming source
    2    two mapGroupsWithState
    3    mapGroupsWithState with flatMapGroupsWithState
    4    two flatMapGroupsWithState that are not all of append mode
    6    mapGroupsWithState in a mode other than update
    7    flatMapGroupsWithState in a mode other than that of its query
    8    flatMapGroupsWithState or transformWithState of update mode with an aggregation
    10   event-time timeout, or time mode ``eventTime``, without a watermark
    13   append mode with an aggregation whose keys no watermark ends
    14   complete mode without an aggregation
    16   session windows in update mode, or without another key
    17   an operator that may drop the late rows of the step below it
    18   a join of an unsupported type or mode, or without a required watermark
    19   orderBy on an incomplete result, or limit in update mode
    20   dropDuplicatesWithinWatermark without a watermark
    21   withWatermark on records that already have an event time
    22   a batch dataset where a stream is needed, or a stream where a batch dataset is needed
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
    steps = [step for step in plan.walk() if step.is_streaming]
    if not any(isinstance(step, StreamingRelation) for step in steps):
        _refuse(1, "the query has no streaming source; start it with readStream")
    groups = [step for step in steps if isinstance(step, FlatMapGroupsWithState)]
    aggregates = [step for step in steps if isinstance(step, Aggregate)]
    _check_groups_together(groups, mode)
    _check_mode(aggregates, mode)
    for step in steps:
        _check_step(step, mode, aggregates)
    _check_batches(plan)
    behind = _state_behind_watermark(steps, mode)
    if behind is not None:
        _refuse(17, behind)


def require_batch(plan: LogicalPlan, action: str) -> None:
    """Raise UnsupportedOperationError for an action on a stream, or a step that only streams have.

    Semantics: UnsupportedOperationChecker.checkForBatch (Spark 4.3).
    """
    if plan.is_streaming:
        _refuse(
            22,
            f"{action} needs a batch dataset, and the records of this one come from a stream, "
            "which has no end; send its rows to a sink with writeStream, for example to the "
            "memory sink for session.table",
        )
    _check_batches(plan)


def require_stream(plan: LogicalPlan) -> None:
    """Raise UnsupportedOperationError for writeStream on a batch dataset."""
    if not plan.is_streaming:
        _refuse(
            22,
            "writeStream needs records from a stream, and this is a batch dataset; use collect, "
            "show or rdd, or read the records with readStream",
        )


def _check_batches(plan: LogicalPlan) -> None:
    """Check the steps that are not of a stream."""
    for step in plan.walk():
        if isinstance(step, Union) and step.left.is_streaming is not step.right.is_streaming:
            _refuse(
                22,
                "union of a stream and a batch dataset is not supported, because a batch dataset "
                "has no offsets; union two streams, for example with the rows in a memoryStream",
            )
        if isinstance(step, Observe) and not step.is_streaming:
            _refuse(
                22,
                f"observe({step.name!r}) is not supported on a batch dataset, which has no "
                "progress; use groupByKey().agg(...)",
            )
        if isinstance(step, Deduplicate) and step.within_watermark and not step.is_streaming:
            _refuse(
                22,
                "dropDuplicatesWithinWatermark is not supported on a batch dataset, which has no "
                "watermark; use dropDuplicates",
            )


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
            "output mode complete is not supported without an aggregation, which makes the result "
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
            "time with a watermark, because its results are never final; call "
            "withWatermark(eventTime, delay) and group by window(eventTime, ...), or use output "
            "mode update or complete",
        )


def _check_step(step: LogicalPlan, mode: OutputMode, aggregates: list[Aggregate]) -> None:
    if isinstance(step, FlatMapGroupsWithState):
        _check_groups(step, mode, has_aggregate=bool(aggregates))
    elif isinstance(step, TransformWithState):
        _check_processor(step, has_aggregate=bool(aggregates))
    elif isinstance(step, EventTimeWatermark):
        _check_redefinition(step)
    elif isinstance(step, Aggregate) and step.session is not None:
        _check_session(step, mode)
    elif isinstance(step, Deduplicate) and step.within_watermark and step.event_time is None:
        _refuse(20, f"dropDuplicatesWithinWatermark needs a watermark; {_WATERMARK}")
    elif isinstance(step, Join) and step.stream is not None:
        _check_static_join(step, step.stream)
    elif isinstance(step, Join):
        _check_join(step, mode)
    elif isinstance(step, (Sort, Limit)):
        _check_order(step, mode)


def _check_redefinition(step: EventTimeWatermark) -> None:
    before = step.child.event_time
    if before is not None:
        _refuse(
            21,
            f"withWatermark({show(step.spec)}): records already have the event time "
            f"{show(before)}, and the operators below use its watermark; call it once",
        )


def _check_groups(step: FlatMapGroupsWithState, mode: OutputMode, *, has_aggregate: bool) -> None:
    name = "mapGroupsWithState" if step.is_map else "flatMapGroupsWithState"
    if step.is_map and mode is not OutputMode.Update:
        _refuse(
            6,
            f"mapGroupsWithState is not supported in output mode {mode.value}, because a key's row "
            "replaces its previous row; use outputMode('update')",
        )
    if has_aggregate and step.mode is OutputMode.Update and not step.is_map:
        _refuse(
            8,
            "flatMapGroupsWithState in update mode is not supported with aggregation, which would "
            "count changed rows twice; give it OutputMode.Append",
        )
    if not has_aggregate and step.mode is not mode:
        _refuse(
            7,
            f"flatMapGroupsWithState in {step.mode.value} mode is not supported in a query in "
            f"{mode.value} mode; give both the same",
        )
    if step.timeout is GroupStateTimeout.EventTimeTimeout and step.child.event_time is None:
        _refuse(10, f"event-time timeout of {name} needs a watermark; {_WATERMARK}")


def _check_processor(step: TransformWithState, *, has_aggregate: bool) -> None:
    if has_aggregate and step.mode is OutputMode.Update:
        _refuse(
            8,
            "transformWithState in update mode is not supported with aggregation, which would "
            "count changed rows twice; give it output mode append",
        )
    needs = "time mode 'eventTime'" if step.time_mode is TimeMode.EventTime else step.time_column
    if needs is not None and step.child.event_time is None:
        _refuse(10, f"{needs} of transformWithState needs a watermark; {_WATERMARK}")


def _check_session(step: Aggregate, mode: OutputMode) -> None:
    if mode is OutputMode.Update:
        _refuse(
            16,
            "output mode update is not supported for session windows, because a session that grows "
            "becomes another window; use append, with a watermark, or complete",
        )
    if len(step.keys) < 2:
        _refuse(
            16,
            "session windows without another key are not supported; group by another key as well",
        )


def _check_join(step: Join, mode: OutputMode) -> None:
    if step.how == "left_anti":
        _refuse(
            18,
            "a left_anti join of streams is not supported; use left_outer, and filter the pairs "
            "whose right record is None",
        )
    if mode is OutputMode.Complete:
        _refuse(18, "a join of streams is not supported in output mode complete; use append")
    if step.how == "inner":
        return
    if mode is not OutputMode.Append and step.how != "left_semi":
        _refuse(
            18,
            f"a {step.how} join of streams is not supported in output mode {mode.value}, because "
            "only the watermark decides that a row has no match; use append",
        )
    sides = {"left": step.left, "right": step.right}
    needed = _WATERMARKS_OF_JOINS[step.how]
    marked = [name for name, side in sides.items() if side.event_time is not None]
    is_bounded = set(needed) <= set(marked) or (step.within_ms == (0, 0) and marked)
    if step.within_ms is None or not is_bounded:
        where = f"on the {' and the '.join(needed)} side"
        _refuse(
            18,
            f"a {step.how} join of streams needs a watermark {where} and a range of event times "
            f"(within), which decide that a row has no match; {_WATERMARK} {where}, or join on the "
            "event times of both sides with one watermark",
        )


def _check_static_join(step: Join, stream: int) -> None:
    allowed = _STATIC_JOINS[stream]
    if step.how not in allowed:
        side, other = ("left", "right")[:: -1 if stream else 1]
        _refuse(
            18,
            f"a {step.how} join with a stream on the {side} and static data on the {other} is not "
            "supported, because only the end of the stream decides which static rows have no "
            f"match; use {', '.join(allowed)}, or swap the sides",
        )


def _check_order(step: Sort | Limit, mode: OutputMode) -> None:
    is_complete = mode is OutputMode.Complete
    if isinstance(step, Limit):
        if mode is OutputMode.Update:
            _refuse(
                19,
                "limit is not supported in output mode update, because emitted rows change later; "
                "use append or complete, or do it in foreachBatch",
            )
    elif not is_complete or not any(
        isinstance(below, Aggregate) and below.is_streaming for below in step.walk()
    ):
        _refuse(
            19,
            "orderBy is supported only on the complete result of an aggregation, got output mode "
            f"{mode.value}; use outputMode('complete') after an aggregation, or do it in "
            "foreachBatch",
        )


def _state_behind_watermark(steps: list[LogicalPlan], mode: OutputMode) -> str | None:
    for step in steps:
        if not _may_be_dropped_late(step):
            continue
        for below in step.walk():
            if below is not step and below.is_streaming and _may_be_behind_watermark(below, mode):
                return (
                    f"{step.label} after {below.label} may lose rows: rows behind the watermark "
                    "count as late; use append mode, or write the first result to a topic or "
                    "directory and start another query from there"
                )
    return None


def _may_be_dropped_late(step: LogicalPlan) -> bool:
    if isinstance(step, Deduplicate):
        return step.within_watermark or step.has_event_time_key
    return step.keeps_state and isinstance(
        step, (Aggregate, Join, FlatMapGroupsWithState, TransformWithState)
    )


def _may_be_behind_watermark(step: LogicalPlan, mode: OutputMode) -> bool:
    if isinstance(step, FlatMapGroupsWithState):
        return step.timeout is GroupStateTimeout.EventTimeTimeout
    if isinstance(step, TransformWithState):
        # With a time column, rows behind the watermark are refused.
        return step.time_mode is TimeMode.EventTime and step.time_column is None
    return isinstance(step, Aggregate) and mode is not OutputMode.Append
