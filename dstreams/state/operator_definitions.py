"""Definitions of stateful operators: values in the graph that make the task of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dstreams.common.callables import describe, require_function
from dstreams.common.durations import require_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.spark.state_version import StateVersion
from dstreams.state.group_state import GroupState, GroupStateTimeout
from dstreams.state.input_processor import GroupFunction
from dstreams.state.map_with_state import MappingFunction
from dstreams.state.partition_tasks import EventTime, FlatMapGroups, MapRecords

_TIMEOUTS = {
    "none": GroupStateTimeout.NoTimeout,
    "processingTime": GroupStateTimeout.ProcessingTimeTimeout,
    "eventTime": GroupStateTimeout.EventTimeTimeout,
}


@dataclass(frozen=True)
class StateBatch:
    """A batch of a stream with state in the state store; *before* has its watermark."""

    time_ms: int
    before: StateVersion
    is_checkpoint: bool = False


@dataclass(frozen=True)
class MapWithStateDefinition:
    """``mapWithState``: keys time out when they are due, or at the stream's checkpoint interval."""

    mapping: MappingFunction
    idle_ms: int | None
    timeouts: str = "exact"

    def __call__(self, batch: StateBatch) -> MapRecords:
        looks = self.timeouts == "exact" or batch.is_checkpoint
        return MapRecords(self.mapping, batch.time_ms, self.idle_ms, looks)


@dataclass(frozen=True)
class EventClock:
    """The watermark of a stream: what says when a value happened, and the delay."""

    event_time: EventTime
    delay_ms: int

    @classmethod
    def checked(
        cls, event_time: Any, watermark: float | None, timeout: str, operation: str
    ) -> EventClock | None:
        """Return the watermark that a user asked for, by its delay in seconds; None for none."""
        if timeout not in _TIMEOUTS:
            raise InvalidStreamError(
                f"timeout of {operation} is {timeout!r}; use one of {', '.join(_TIMEOUTS)}"
            )
        if (event_time is None) != (watermark is None):
            raise InvalidStreamError(
                f"eventTime and watermark of {operation} go together; give both, or neither"
            )
        if event_time is None or watermark is None:
            if timeout == "eventTime":
                raise InvalidStreamError(
                    f"{operation} has timeout='eventTime', which needs eventTime and watermark"
                )
            return None
        require_function(event_time, operation, "eventTime(value) -> datetime")
        delay_ms = 0 if watermark == 0 else require_duration_ms(watermark, "watermark")
        where = f"eventTime {describe(event_time)} of {operation}"
        return cls(EventTime(event_time, where), delay_ms)


@dataclass(frozen=True)
class GroupsWithStateDefinition:
    """``flatMapGroupsWithState`` and its variants."""

    func: GroupFunction
    timeout: GroupStateTimeout
    clock: EventClock | None
    where: str
    keep_timer: bool = False
    skip_initial_keys: bool = False

    @classmethod
    def of(
        cls,
        func: Callable[..., Any],
        timeout: str,
        clock: EventClock | None,
        operation: str,
        keep_timer: bool,
        skip_initial_keys: bool,
        *,
        is_map: bool = False,
    ) -> GroupsWithStateDefinition:
        """Return the definition of a function that returns rows or, if *is_map*, one row."""
        where = f"function {describe(func)} of {operation}"
        rows_of = _OneRow(func) if is_map else func
        chosen = _TIMEOUTS[timeout]
        return cls(rows_of, chosen, clock, where, bool(keep_timer), skip_initial_keys)

    def __call__(self, batch: StateBatch) -> FlatMapGroups:
        watermark_ms = None if self.clock is None else max(batch.before.watermark_ms, 0)
        drops_late = self.timeout is GroupStateTimeout.EventTimeTimeout
        return FlatMapGroups(
            func=self.func,
            where=self.where,
            timeoutConf=self.timeout,
            batchTimestampMs=batch.time_ms,
            eventTimeWatermark=watermark_ms,
            lateWatermark=watermark_ms if drops_late else None,
            event_time=None if self.clock is None else self.clock.event_time,
            keepTimer=self.keep_timer,
            skipEmittingInitialStateKeys=self.skip_initial_keys,
        )


@dataclass(frozen=True)
class _OneRow:
    """A function that returns one row, as a function that returns rows."""

    func: Callable[[Any, Iterator[Any], GroupState[Any]], Any]

    def __call__(self, key: Any, values: Iterator[Any], state: GroupState[Any]) -> Iterable[Any]:
        return [self.func(key, values, state)]
