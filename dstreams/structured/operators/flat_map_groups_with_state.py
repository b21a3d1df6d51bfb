"""FlatMapGroupsWithStateExec: the operator of ``flatMapGroupsWithState`` and its variants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import Side
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.selectors import show
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.state.flat_map_groups import FlatMapGroups, OneRow
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.state.transform_groups import TransformGroups
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    BY_KEY,
    UNORDERED,
    Distribution,
    Ordering,
    PhysicalOperator,
    UnaryExec,
)
from dstreams.structured.operators.stateful_operator import StateStoreWriter

event_time_of = itemgetter(0)
"""Return the event time of an event."""


@dataclass(frozen=True)
class GroupedFunctionExec(StateStoreWriter, UnaryExec):
    """An operator that calls functions of the user with the records of each key, and timers.

    Args:
        groups: the functions, with the facts of a batch.
        keyName: the key expression, for ``explain``.
        outputMode: append or update; the mode of the function.
        initialState: pairs of key and state; for the first batch only.
    """

    output: ClassVar[tuple[str, ...]] = ("value",)
    keepsEventTime: ClassVar[bool] = False

    groups: FlatMapGroups | TransformGroups
    keyName: str = "key"
    outputMode: OutputMode = OutputMode.Update
    initialState: PhysicalOperator | None = None

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        return (self.clustered(self.keyName, self.groups.where),) * len(self.children)

    @property
    def hasInitialState(self) -> bool:
        """True if the batch starts from the initial state, which only the first one does."""
        return self.initialState is not None and self.getStateInfo().storeVersion == 0

    def data_of(self, child: PhysicalOperator, context: ExecutionContext) -> RDD[Any]:
        rows = child.execute(context)
        if self.initialState is None or not self.hasInitialState:
            return rows
        partitioner, where = self.getStateInfo().partitioner, self.groups.where
        states = self.initialState.execute(context)
        return state_inputs(
            shuffle_pairs(states, partitioner, Side.STATE, f"initial state of {where}"),
            shuffle_pairs(rows, partitioner, Side.BATCH, where),
        )


@dataclass(frozen=True)
class FlatMapGroupsWithStateExec(GroupedFunctionExec):
    """Calls a function for each key with records, then for each key whose timer is due.

    The child has pairs ``(key, row)``, those of a key next to each other. With event-time timeouts
    late rows are dropped. The store is committed after the last row.

    Args:
        groups: the function, its timeout and its state. Processing-time timeouts require its
            *batchTimestampMs*; event-time timeouts require both watermarks of the operator.
        keyName, outputMode, initialState: as of :class:`GroupedFunctionExec`.

    Raises:
        InvalidStreamError: at execution, a time that the timeout requires is missing.

    Semantics: FlatMapGroupsWithStateExec (Spark 4.3).
    """

    shortName: ClassVar[str] = "flatMapGroupsWithState"

    groups: FlatMapGroups

    @property
    def arguments(self) -> list[str]:
        func, time = self.groups.func, self.groups.batchTimestampMs
        state, *marks = self.watermarkArguments
        return [
            show(func.func if isinstance(func, OneRow) else func),
            self.keyName,
            state,
            self.outputMode.name,
            self.groups.timeoutConf.value,
            "<unknown>" if time is None else str(time),
            *marks,
        ]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        """Return whether event-time timers may be due; the store reports other timers."""
        if self.groups.timeoutConf is not GroupStateTimeout.EventTimeTimeout:
            return False
        return super().shouldRunAnotherBatch(newInputWatermark)

    @property
    def requiredChildOrdering(self) -> tuple[Ordering, ...]:
        """Rows of a key come together; initial states are grouped with them in the task."""
        return (BY_KEY, UNORDERED)[: len(self.children)]

    def function(self, memory_mb: float = 512, *, is_sorted: bool = True) -> FlatMapGroups:
        """Return the function of each task, for rows with adjacent keys (*is_sorted*) or any rows.

        Grouping beyond *memory_mb* is spilled.
        """
        groups, are_events = self.groups, self.child.hasEventTime
        by_batch_time = groups.timeoutConf is GroupStateTimeout.ProcessingTimeTimeout
        if by_batch_time and groups.batchTimestampMs is None:
            raise InvalidStreamError(
                f"{groups.where}: processing-time timeout needs batchTimestampMs, got None; set it "
                "for each batch"
            )
        by_watermark = groups.timeoutConf is GroupStateTimeout.EventTimeTimeout
        watermark_ms = self.eventTimeWatermarkForEviction if are_events else None
        late_ms = self.eventTimeWatermarkForLateEvents if by_watermark else None
        if by_watermark and (watermark_ms is None or late_ms is None):
            raise InvalidStreamError(
                f"{groups.where}: event-time timeout needs rows with event times and both "
                "watermarks"
            )
        return replace(
            groups,
            eventTimeWatermark=watermark_ms,
            lateWatermark=late_ms,
            event_time=event_time_of if are_events and by_watermark else None,
            are_events=are_events,
            memory_mb=memory_mb,
            is_sorted=is_sorted,
            reports_next_timeout=by_batch_time,
        )
