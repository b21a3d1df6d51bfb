"""What tasks do with the store of their partition: ``mapWithState`` and ``flatMapGroupsWithState``.

Each is a value that is sent to the workers (:mod:`dstreams.spark.state_store_rdd`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from time import perf_counter
from typing import Any, ClassVar

from checkpoint.state_store import StateWriter
from dstreams.common.durations import event_time_us
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError, failed, mapped
from dstreams.spark.ordered_groups import GroupsInOrder
from dstreams.spark.state_metrics import StateMetrics
from dstreams.state.group_state import NO_TIMESTAMP, GroupStateTimeout
from dstreams.state.input_processor import Converter, GroupFunction, InputProcessor
from dstreams.state.map_with_state import MappingFunction, RecordProcessor, TouchedStates
from dstreams.state.state_manager import (
    ONE_COLUMN,
    StateEncoder,
    StateManager,
    create_state_manager,
)

Pairs = Iterator[tuple[Any, Any]]

_IN_MS = {int}


@dataclass(frozen=True)
class MapRecords:
    """Task, and parent operator of its :class:`RecordProcessor`: each record is one call.

    Keys that are due are called last.
    """

    mapping: MappingFunction
    batchTimestampMs: int
    idle_ms: int | None
    looks_for_timeouts: bool = True

    eventTimeWatermark: ClassVar[None] = None
    keepTimer: ClassVar[bool] = False
    getKeyObj: ClassVar[None] = None
    getValueObj: ClassVar[None] = None
    getOutputRow: ClassVar[None] = None

    @property
    def func(self) -> Callable[..., Any]:
        return self.mapping.func

    @property
    def where(self) -> str:
        return self.mapping.where

    @property
    def timeoutConf(self) -> GroupStateTimeout:
        has_timeouts = self.idle_ms is not None
        timeouts = GroupStateTimeout
        return timeouts.ProcessingTimeTimeout if has_timeouts else timeouts.NoTimeout

    @cached_property
    def stateManager(self) -> TouchedStates:
        return TouchedStates(self.batchTimestampMs, self.idle_ms)

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        processor = RecordProcessor(store, self, metrics)
        processor.put_initial_states(initial)
        yield from processor.process_new_data(records)
        if self.looks_for_timeouts:
            yield from _timed(processor.process_timed_out_state(), metrics)


@dataclass(frozen=True)
class EventTime:
    """A user's function that says when a value happened, by a datetime, milliseconds or None."""

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
        """Return the times of many values, faster; a call for each value says which is to blame."""
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
    str: "; make a datetime of the text: f(record) instead of the name of a field, with "
    "datetime.fromisoformat or datetime.strptime",
    float: "; of seconds return round(1000 * seconds)",
}
"""What to write where an event time is of a type that JSON has for times."""


@dataclass(frozen=True, kw_only=True)
class FlatMapGroups:
    """Task, and parent operator of its :class:`InputProcessor`: records of each key are one call.

    Keys that are due are called last. Records up to *lateWatermark* are late; *event_time* returns
    microseconds. Grouping takes up to *memory_mb* and spills the rest; records whose keys are
    adjacent (*is_sorted*) are not grouped again.

    Semantics: FlatMapGroupsWithStateExec.processDataWithPartition (Spark 4.3).
    """

    func: GroupFunction
    where: str = "flatMapGroupsWithState"
    timeoutConf: GroupStateTimeout = GroupStateTimeout.NoTimeout
    batchTimestampMs: int | None = None
    eventTimeWatermark: int | None = None
    lateWatermark: int | None = None
    event_time: Callable[[Any], int | None] | None = None
    keepTimer: bool = False
    skipEmittingInitialStateKeys: bool = False
    stateEncoder: StateEncoder = ONE_COLUMN
    stateFormatVersion: int = 2
    getKeyObj: Converter | None = None
    getValueObj: Converter | None = None
    getOutputRow: Converter | None = None
    memory_mb: float = 512
    is_sorted: bool = False

    @cached_property
    def stateManager(self) -> StateManager:
        has_timeouts = self.timeoutConf is not GroupStateTimeout.NoTimeout
        return create_state_manager(self.stateEncoder, has_timeouts, self.stateFormatVersion)

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        processor = InputProcessor(store, self, metrics)
        yield from self._data(processor, initial, records, metrics)
        yield from _timed(processor.process_timed_out_state(), metrics)

    def _data(
        self, processor: InputProcessor, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        first = next(initial, None)
        if first is None and self.is_sorted:
            return processor.process_new_data(self._on_time(records, metrics))
        if first is None:
            alone = GroupsInOrder(self.memory_mb)
            alone.add(self._on_time(records, metrics))
            return processor.process_groups(alone.items(), are_in_memory=alone.are_in_memory)
        groups = GroupsInOrder(self.memory_mb, has_sides=True)
        groups.add((key, (1, state)) for key, state in chain((first,), initial))
        groups.add((key, (0, value)) for key, value in self._on_time(records, metrics))
        sides = ((key, values, states) for key, (values, states) in groups.items())
        return processor.process_new_data_with_initial_state(
            sides, skip_keys=self.skipEmittingInitialStateKeys
        )

    def _on_time(self, records: Pairs, metrics: StateMetrics) -> Pairs:
        event_time = self.event_time
        return records if event_time is None else self._not_late(event_time, records, metrics)

    def _not_late(
        self, event_time: Callable[[Any], int | None], records: Pairs, metrics: StateMetrics
    ) -> Pairs:
        late_us = (NO_TIMESTAMP if self.lateWatermark is None else self.lateWatermark) * 1000
        for key, value in records:
            time_us = event_time(value)
            if time_us is not None:
                metrics.eventTimeMaxMs = max(metrics.eventTimeMaxMs, time_us // 1000)
                if time_us <= late_us:
                    metrics.numRowsDroppedByWatermark += 1
                    continue
            yield key, value


def _timed(rows: Iterator[Any], metrics: StateMetrics) -> Iterator[Any]:
    started = perf_counter()
    yield from rows
    metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)
