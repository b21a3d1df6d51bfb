"""TransformWithStateExec: the operator of ``transformWithState``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dstreams.errors import InvalidStreamError
from dstreams.state.stateful_processor import TimeMode
from dstreams.state.transform_groups import TransformGroups
from dstreams.structured.operators.flat_map_groups_with_state import (
    GroupedFunctionExec,
    event_time_of,
)


@dataclass(frozen=True)
class TransformWithStateExec(GroupedFunctionExec):
    """Calls a stateful processor for each key with records, then for each expired timer.

    The child has pairs ``(key, row)``, and each key is a tuple. With time mode ``eventTime``, late
    rows are dropped. Rows are events if the processor's output has an event time.

    Args:
        groups: the processor. It requires *batchTimestampMs* and *batchNumber*; time mode
            ``eventTime`` requires both watermarks of the operator.
        keyName, outputMode, initialState: as of :class:`GroupedFunctionExec`; a key may have
            several initial states.

    Raises:
        InvalidStreamError: at execution, a fact of the batch is missing.

    Semantics: TransformWithStateInPySparkExec (Spark 4.3), for rows.
    """

    shortName: ClassVar[str] = "transformWithStateExec"

    groups: TransformGroups

    @property
    def hasEventTime(self) -> bool:
        return self.groups.output_time is not None

    @property
    def arguments(self) -> list[str]:
        time = self.groups.batchTimestampMs
        state, *marks = self.watermarkArguments
        return [
            type(self.groups.processor).__name__,
            self.keyName,
            state,
            self.outputMode.name,
            self.groups.timeMode.name,
            "<unknown>" if time is None else str(time),
            *marks,
        ]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        """Return whether event-time timers may be due; the store reports other timers."""
        if self.groups.timeMode is not TimeMode.EventTime:
            return False
        return super().shouldRunAnotherBatch(newInputWatermark)

    def function(self, memory_mb: float = 512) -> TransformGroups:
        groups, are_events = self.groups, self.child.hasEventTime
        if groups.batchTimestampMs is None or groups.batchNumber is None:
            raise InvalidStreamError(
                f"{groups.where} needs batchTimestampMs and batchNumber; set them for each batch"
            )
        watermark_ms = self.eventTimeWatermarkForEviction if are_events else None
        late_ms = self.eventTimeWatermarkForLateEvents if are_events else None
        by_watermark = groups.timeMode is TimeMode.EventTime
        if by_watermark and (watermark_ms is None or late_ms is None):
            raise InvalidStreamError(
                f"{groups.where}: time mode 'eventTime' needs rows with event times and both "
                "watermarks"
            )
        return replace(
            groups,
            eventTimeWatermark=watermark_ms,
            lateWatermark=late_ms,
            event_time=event_time_of if by_watermark else None,
            are_events=are_events,
            memory_mb=memory_mb,
        )
