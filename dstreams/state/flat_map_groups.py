"""FlatMapGroups: ``flatMapGroupsWithState`` of streams and of queries, as one value.

It is the definition in the graph or plan, the task of each batch, and the parent operator of the
task's :class:`~dstreams.state.input_processor.InputProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from time import perf_counter
from typing import Any, ClassVar

from checkpoint.state_store import StateWriter
from dstreams.common.callables import describe, require_function
from dstreams.common.durations import event_time_us, require_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError, failed, mapped
from dstreams.spark.spilling import GroupsInOrder
from dstreams.spark.state_version import StateMetrics
from dstreams.state.group_state import NO_TIMESTAMP, GroupState, GroupStateTimeout
from dstreams.state.input_processor import Converter, GroupFunction, InputProcessor
from dstreams.state.state_manager import (
    ONE_COLUMN,
    StateEncoder,
    StateManager,
    create_state_manager,
)

Pairs = Iterator[tuple[Any, Any]]

TIMEOUTS = {
    "none": GroupStateTimeout.NoTimeout,
    "processingTime": GroupStateTimeout.ProcessingTimeTimeout,
    "eventTime": GroupStateTimeout.EventTimeTimeout,
}
_IN_MS = {int}
_END_OF_TIME_MS = 1 << 62


@dataclass(frozen=True)
class EventTime:
    """A user's function that returns the event time of a value: datetime, milliseconds or None."""

    func: Callable[[Any], datetime | int | None]
    where: str

    def __call__(self, value: Any) -> int | None:
        """Return the time in microseconds since the epoch, or None."""
        try:
            moment = self.func(value)
        except Exception as error:
            raise failed(self.where, value, error, "record") from error
        return self._in_us(moment)

    def of_all(self, values: list[Any]) -> list[int | None]:
        """Return the times of many values, faster; errors do not name the value."""
        moments = mapped(self.func, values)
        if set(map(type, moments)) <= _IN_MS:
            return [time_ms * 1000 for time_ms in moments]
        return list(map(self._in_us, moments))

    def _in_us(self, moment: datetime | int | None) -> int | None:
        if isinstance(moment, datetime):
            return event_time_us(moment)
        if moment is None:
            return None
        if isinstance(moment, int) and not isinstance(moment, bool):
            return moment * 1000
        raise UserFunctionError(
            f"{self.where} must return a datetime, a whole number of milliseconds or None, got "
            f"{shorten(moment)} ({type(moment).__name__}){_REMEDIES.get(type(moment), '')}"
        )


_REMEDIES: dict[type, str] = {
    str: "; parse the text: f(record) instead of the name of a field, with "
    "datetime.fromisoformat or datetime.strptime",
    float: "; return round(1000 * seconds)",
}
"""Remedies for the types that event times have in JSON."""


@dataclass(frozen=True)
class EventClock:
    """The watermark of a stream: the event time of a value, and the delay."""

    event_time: EventTime
    delay_ms: int

    @classmethod
    def checked(
        cls,
        event_time: Any,
        watermark: float | None,
        timeout: str,
        operation: str,
        name: str = "timeout",
    ) -> EventClock | None:
        """Return the watermark with a delay in seconds, None if the operation has none.

        *name* is that of the argument *timeout*.
        """
        if timeout not in TIMEOUTS:
            raise InvalidStreamError(
                f"{name} of {operation} must be one of {', '.join(TIMEOUTS)}, got {timeout!r}"
            )
        if (event_time is None) != (watermark is None):
            raise InvalidStreamError(
                f"eventTime and watermark of {operation} need each other; give both, or neither"
            )
        if event_time is None or watermark is None:
            if timeout == "eventTime":
                raise InvalidStreamError(
                    f"{name}='eventTime' of {operation} needs eventTime and watermark; give both"
                )
            return None
        require_function(event_time, operation, "eventTime(value) -> datetime")
        delay_ms = 0 if watermark == 0 else require_duration_ms(watermark, "watermark")
        where = f"eventTime {describe(event_time)} of {operation}"
        return cls(EventTime(event_time, where), delay_ms)


@dataclass(frozen=True)
class OneRow:
    """A function that returns one row, as a function that returns rows."""

    func: Callable[[Any, Iterator[Any], GroupState[Any]], Any]

    def __call__(self, key: Any, values: Iterator[Any], state: GroupState[Any]) -> Iterable[Any]:
        return [self.func(key, values, state)]


@dataclass(frozen=True, kw_only=True)
class FlatMapGroups:
    """A function of the records of each key, with state and timers.

    Keys with records come first, then those whose timer is due. Records up to *lateWatermark* are
    late and dropped.

    Args:
        func: ``(key, records, GroupState) -> rows``; see :class:`OneRow` for one row.
        batchTimestampMs: the batch time; required with processing-time timeouts.
        eventTimeWatermark: timers before it are due; required with event-time timeouts.
        event_time: the event time of a record in microseconds; with *are_events* of an event.
        are_events: values are events ``(time, record)``, and the function gets the records.
        keepTimer: keep a timer that a call does not set again, unless it was due.
        skipEmittingInitialStateKeys: do not call the function for keys without records in the
            batch that has the initial state.
        stateFormatVersion: the layout of state and timer in the store, 1 or 2
            (``spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion``).
        getKeyObj, getValueObj, getOutputRow: convert keys, records and rows; None to keep them.
        is_sorted: records of a key are adjacent, so they are not grouped again.
        reports_next_timeout: look for the earliest timer that is left.

    Semantics: FlatMapGroupsWithStateExec.processDataWithPartition (Spark 4.3).
    """

    func: GroupFunction
    where: str = "flatMapGroupsWithState"
    timeoutConf: GroupStateTimeout = GroupStateTimeout.NoTimeout
    batchTimestampMs: int | None = None
    eventTimeWatermark: int | None = None
    lateWatermark: int | None = None
    event_time: Callable[[Any], int | None] | None = None
    are_events: bool = False
    keepTimer: bool = False
    skipEmittingInitialStateKeys: bool = False
    stateEncoder: StateEncoder = ONE_COLUMN
    stateFormatVersion: int = 2
    getKeyObj: Converter | None = None
    getValueObj: Converter | None = None
    getOutputRow: Converter | None = None
    memory_mb: float = 512
    is_sorted: bool = False
    reports_next_timeout: bool = False

    pair_key: ClassVar[None] = None

    @cached_property
    def stateManager(self) -> StateManager:
        has_timeouts = self.timeoutConf is not GroupStateTimeout.NoTimeout
        return create_state_manager(self.stateEncoder, has_timeouts, self.stateFormatVersion)

    def in_batch(self, time_ms: int, watermark_ms: int, is_checkpoint: bool) -> FlatMapGroups:
        """Return the task of a batch of a stream."""
        watermark = None if self.event_time is None else max(watermark_ms, 0)
        drops_late = self.timeoutConf is GroupStateTimeout.EventTimeTimeout
        return replace(
            self,
            batchTimestampMs=time_ms,
            eventTimeWatermark=watermark,
            lateWatermark=watermark if drops_late else None,
        )

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        processor = InputProcessor(store, self, metrics)
        found = on_time(
            records, metrics, self.event_time, self.lateWatermark, are_events=self.are_events
        )
        yield from self._data(processor, initial, found)
        yield from timed(processor.process_timed_out_state(), metrics)
        if self.reports_next_timeout:
            metrics.nextTimeoutMs = earliest_timeout_ms(store)

    def _data(self, processor: InputProcessor, initial: Pairs, records: Pairs) -> Iterator[Any]:
        first = next(initial, None)
        if first is None:
            if self.is_sorted:
                return processor.process_new_data(records)
            alone = GroupsInOrder(self.memory_mb)
            alone.add(records)
            return processor.process_groups(alone.items(), are_in_memory=alone.are_in_memory)
        groups = GroupsInOrder(self.memory_mb, has_sides=True)
        groups.add((key, (1, state)) for key, state in chain((first,), initial))
        groups.add((key, (0, value)) for key, value in records)
        sides = ((key, values, states) for key, (values, states) in groups.items())
        return processor.process_new_data_with_initial_state(
            sides, skip_keys=self.skipEmittingInitialStateKeys
        )


def on_time(
    records: Pairs,
    metrics: StateMetrics,
    event_time: Callable[[Any], int | None] | None,
    late_ms: int | None,
    *,
    are_events: bool,
) -> Pairs:
    """Return pairs without those that are late, and without their event times.

    Without *event_time* no pair is late; *are_events* if values are events ``(time, record)``.
    """
    if event_time is not None:
        records = _not_late(event_time, late_ms, records, metrics)
    return ((key, event[1]) for key, event in records) if are_events else records


def _not_late(
    event_time: Callable[[Any], int | None],
    late_ms: int | None,
    records: Pairs,
    metrics: StateMetrics,
) -> Pairs:
    late_us = (NO_TIMESTAMP if late_ms is None else late_ms) * 1000
    for key, value in records:
        time_us = event_time(value)
        if time_us is not None:
            metrics.eventTimeMaxMs = max(metrics.eventTimeMaxMs, time_us // 1000)
            if time_us <= late_us:
                metrics.numRowsDroppedByWatermark += 1
                continue
        yield key, value


def timed(rows: Iterator[Any], metrics: StateMetrics) -> Iterator[Any]:
    """Iterate over the rows of timed-out keys, and measure the time that they take."""
    started = perf_counter()
    yield from rows
    metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)


def earliest_timeout_ms(store: StateWriter) -> int:
    """Return the earliest timer of a store, milliseconds since the epoch; -1 without timers."""
    # A store finds keys in the order of the timers that they had first: a timer that was put off
    # comes too early, so those before it are searched again.
    earliest_ms, until_ms = -1, _END_OF_TIME_MS
    while (found := next(iter(store.due(until_ms)), None)) is not None:
        earliest_ms = until_ms = found[2]
    return earliest_ms
