"""What tasks do with the store of their partition: ``mapWithState`` and ``flatMapGroupsWithState``.

Each is a value that is sent to the workers (:mod:`dstreams.rdd.state_store_rdd`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from operator import itemgetter
from time import perf_counter
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.durations import event_time_us
from dstreams.rdd.blocks import shorten
from dstreams.rdd.failures import UserFunctionError, failed, mapped
from dstreams.rdd.ordered_groups import GroupsInOrder
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.state.group_state import NO_TIMESTAMP, GroupStateTimeout
from dstreams.state.group_state_rows import GroupStateManager
from dstreams.state.input_processor import GroupFunction, InputProcessor
from dstreams.state.map_with_state import MappingFunction, RecordProcessor

Pairs = Iterator[tuple[Any, Any]]

_IN_MS = {int}


@dataclass(frozen=True)
class MapRecords:
    """Task: each record is one call; keys that are due are called last."""

    mapping: MappingFunction
    batch_time_ms: int
    idle_ms: int | None
    looks_for_timeouts: bool = True

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        processor = RecordProcessor(store, self.mapping, self.batch_time_ms, self.idle_ms, metrics)
        processor.put_initial_states(initial)
        yield from processor.process_records(records)
        if self.looks_for_timeouts:
            yield from _timed(processor.process_timeouts(), metrics)


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


@dataclass(frozen=True)
class FlatMapGroups:
    """Task: the records of each key are one call; keys that are due are called last.

    Records up to *late_ms* are late; *event_time* returns microseconds. Grouping takes up to
    *memory_mb* and spills the rest; records whose keys come together (*is_sorted*) are not grouped
    again.

    Semantics: FlatMapGroupsWithStateExec.processDataWithPartition (Spark 4.3).
    """

    func: GroupFunction
    timeout: GroupStateTimeout
    batch_time_ms: int
    watermark_ms: int | None
    late_ms: int | None
    event_time: Callable[[Any], int | None] | None
    where: str
    keep_timer: bool = False
    skip_initial_keys: bool = False
    memory_mb: float = 512
    is_sorted: bool = False

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        has_timeouts = self.timeout is not GroupStateTimeout.NoTimeout
        processor = InputProcessor(
            store,
            GroupStateManager(has_timeouts),
            self.func,
            self.timeout,
            self.batch_time_ms,
            self.watermark_ms,
            self.where,
            self.keep_timer,
            metrics,
        )
        yield from self._data(processor, initial, records, metrics)
        yield from _timed(processor.process_timed_out_state(), metrics)

    def _data(
        self, processor: InputProcessor, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        first = next(initial, None)
        if first is None and self.is_sorted:
            adjacent = (
                (key, [value for _, value in rows])
                for key, rows in groupby(self._on_time(records, metrics), key=itemgetter(0))
            )
            return processor.process_groups(adjacent)
        if first is None:
            alone = GroupsInOrder(self.memory_mb)
            alone.add(self._on_time(records, metrics))
            return processor.process_groups(alone.items(), are_in_memory=alone.are_in_memory)
        groups = GroupsInOrder(self.memory_mb, has_sides=True)
        groups.add((key, (1, state)) for key, state in chain((first,), initial))
        groups.add((key, (0, value)) for key, value in self._on_time(records, metrics))
        sides = ((key, values, states) for key, (values, states) in groups.items())
        return processor.process_new_data_with_initial_state(
            sides, skip_keys=self.skip_initial_keys
        )

    def _on_time(self, records: Pairs, metrics: StateMetrics) -> Pairs:
        event_time = self.event_time
        return records if event_time is None else self._not_late(event_time, records, metrics)

    def _not_late(
        self, event_time: Callable[[Any], int | None], records: Pairs, metrics: StateMetrics
    ) -> Pairs:
        late_us = (NO_TIMESTAMP if self.late_ms is None else self.late_ms) * 1000
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
