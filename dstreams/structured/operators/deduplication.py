"""Deduplication: emits the first row of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import not_
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

from checkpoint import rows_of_fields
from checkpoint.state_store import StateWriter
from dstreams.common.durations import ms_upto
from dstreams.spark.blocks import Column, Columns, PairColumns, columns_of, two_columns
from dstreams.spark.state_version import StateMetrics
from dstreams.spark.worker_gc import settle_worker
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    Distribution,
    Event,
    NarrowExec,
    PhysicalOperator,
    Task,
    UnaryExec,
    mapped_records,
)
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.operators.time_windows import join_time, remove_passed

Row = tuple[Any, Event]

_SEEN = True


@dataclass(frozen=True)
class DropDuplicates:
    """Function of a store: emits the first event of each key.

    Only keys that begin with their event time (*by_event_time*) are evicted. Rows are emitted as
    events or, unless *are_events*, as records.

    Semantics: StreamingDeduplicateExec (Spark 4.3).
    """

    late_ms: int | None = None
    evict_ms: int | None = None
    by_event_time: bool = False
    are_events: bool = True

    def __call__(
        self,
        store: StateWriter,
        initial: Iterable[Any],
        records: Iterator[Row],
        metrics: StateMetrics,
    ) -> Iterator[Any]:
        for keys, events in columns_of(records):
            chunk = _Chunk(keys, *two_columns(events)).on_time(self.late_ms, metrics)
            first = chunk.distinct()
            first = first.without(store.has_many(first.keys))
            metrics.numUpdatedStateRows += len(first.keys)
            metrics.numOutputRows += len(first.keys)
            metrics.numDroppedDuplicateRows += len(chunk.keys) - len(first.keys)
            if first.keys:
                self._store(store, first)
                yield from first.events() if self.are_events else first.records()
        started = perf_counter()
        if self.evict_ms is not None:
            metrics.numRemovedStateRows += self._evict(store, self.evict_ms)
        metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)

    def _store(self, store: StateWriter, first: _Chunk) -> None:
        store.put_many(dict.fromkeys(first.keys, _SEEN))

    def _evict(self, store: StateWriter, watermark_ms: int) -> int:
        """Evict the keys that the watermark has passed, and return their number."""
        return remove_passed(store, watermark_ms * 1000) if self.by_event_time else 0


@dataclass(frozen=True)
class DropDuplicatesWithinWatermark(DropDuplicates):
    """Function of a store: as above, with keys evicted *delay_ms* after their first event.

    Semantics: StreamingDeduplicateWithinWatermarkExec (Spark 4.3).
    """

    delay_ms: int = 0

    def _store(self, store: StateWriter, first: _Chunk) -> None:
        delay_ms = self.delay_ms
        expires_ms = [ms_upto(time_us or 0) + delay_ms for time_us in first.times_us]
        if min(expires_ms) < 0:
            expires_ms = [max(time_ms, 0) for time_ms in expires_ms]
        store.put_many(dict(zip(first.keys, expires_ms, strict=True)), expires_ms)

    def _evict(self, store: StateWriter, watermark_ms: int) -> int:
        return store.remove_due(watermark_ms + 1)


class _Chunk(NamedTuple):
    """Rows (key, event) in columns."""

    keys: list[Any]
    times_us: list[int | None]
    column: Column

    def records(self) -> list[Any]:
        return rows_of_fields(self.column)

    def events(self) -> Iterator[Event]:
        return zip(self.times_us, self.records(), strict=True)

    def on_time(self, late_ms: int | None, metrics: StateMetrics) -> _Chunk:
        """Return the rows that are not late; rows without a time never are."""
        if late_ms is None:
            return self
        late_us = late_ms * 1000
        is_late = [time_us is not None and time_us <= late_us for time_us in self.times_us]
        metrics.numRowsDroppedByWatermark += is_late.count(True)
        return self.without(is_late)

    def distinct(self) -> _Chunk:
        """Return the first row of each key."""
        if len(set(self.keys)) == len(self.keys):
            return self
        first: dict[Any, int] = {}
        for place, key in enumerate(self.keys):
            first.setdefault(key, place)
        records = self.records()
        places = first.values()
        return _Chunk(
            list(first),
            [self.times_us[place] for place in places],
            [records[place] for place in places],
        )

    def without(self, is_out: list[bool]) -> _Chunk:
        """Return the rows whose flag is False."""
        if True not in is_out:
            return self
        if False not in is_out:
            return _Chunk([], [], [])
        stays = list(map(not_, is_out))
        return _Chunk(
            list(compress(self.keys, stays)),
            list(compress(self.times_us, stays)),
            list(compress(self.records(), stays)),
        )


@dataclass(frozen=True)
class KeyEventsExec(NarrowExec):
    """Puts a key before each event: ``(key, (event time, record))``, the time None without one.

    Without *key* the record is the key. The rows of a *side* of a join, 0 or 1, are ``(key, (side,
    event))``.
    """

    nodeName: ClassVar[str] = "Project"
    output: ClassVar[tuple[str, ...]] = ("key", "event")

    key: Callable[[Any], Any] | None = None
    withEventTime: bool = False
    where: str = "key"
    side: int | None = None

    @property
    def arguments(self) -> list[str]:
        return [self.where]

    def task(self, context: ExecutionContext) -> Task:
        keys = KeyEvents(self.key, self.child.hasEventTime, self.withEventTime, self.where)
        return keys if self.side is None else partial(_of_side, self.side, keys)


def _of_side(side: int, keys: KeyEvents, split: int, rows: Iterable[Any]) -> Iterator[Any]:
    return ((key, (side, event)) for key, event in keys(split, rows))


@dataclass(frozen=True)
class StreamingDeduplicateExec(StateStoreWriter, UnaryExec):
    """Emits the first of the rows (key, event) of each key, as an event or a record.

    The watermark evicts keys that have the event time in them (*withEventTime*), and no others.
    Rows are events if those of the child hold event times.

    Semantics: StreamingDeduplicateExec (Spark 4.3).
    """

    output: ClassVar[tuple[str, ...]] = ("value",)
    shortName: ClassVar[str] = "dedupe"

    withEventTime: bool = False
    where: str = "dropDuplicates"

    @property
    def arguments(self) -> list[str]:
        return [self.where, *self.watermarkArguments]

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        return (self.clustered(self.where, self.where),)

    def function(self, memory_mb: float = 512) -> DropDuplicates:
        has_time = self.child.hasEventTime
        return DropDuplicates(
            self.eventTimeWatermarkForLateEvents if has_time else None,
            self.eventTimeWatermarkForEviction,
            by_event_time=self.withEventTime,
            are_events=has_time,
        )


@dataclass(frozen=True)
class StreamingDeduplicateWithinWatermarkExec(StreamingDeduplicateExec):
    """Emits the first of the rows of each key within the delay of the watermark.

    Semantics: StreamingDeduplicateWithinWatermarkExec (Spark 4.3).
    """

    shortName: ClassVar[str] = "dedupeWithinWatermark"

    delayMs: int = 0
    where: str = "dropDuplicatesWithinWatermark"

    def function(self, memory_mb: float = 512) -> DropDuplicates:
        return DropDuplicatesWithinWatermark(
            self.eventTimeWatermarkForLateEvents,
            self.eventTimeWatermarkForEviction,
            are_events=self.child.hasEventTime,
            delay_ms=self.delayMs,
        )


def plan_deduplication(
    child: PhysicalOperator,
    key: Callable[[Any], Any] | None = None,
    *,
    numPartitions: int,
    withEventTime: bool = False,
    withinMs: int | None = None,
    where: str | None = None,
) -> PhysicalOperator:
    """Return the operators that drop duplicates of records or events.

    Keys are kept for *withinMs* milliseconds of event time; if None, without limit.

    Semantics: StreamingDeduplicationStrategy (Spark 4.3).
    """
    text = where or ("dropDuplicates" if withinMs is None else "dropDuplicatesWithinWatermark")
    keyed = KeyEventsExec(child, key, withEventTime, text)
    plan = (
        StreamingDeduplicateExec(keyed, withEventTime, text)
        if withinMs is None
        else StreamingDeduplicateWithinWatermarkExec(keyed, where=text, delayMs=withinMs)
    )
    return ensure_requirements(plan, numPartitions)


@dataclass(frozen=True)
class KeyEvents:
    """Task: records or events -> (key, event), with the event time in the key if set."""

    key: Callable[[Any], Any] | None
    are_events: bool
    with_event_time: bool = False
    where: str = "key"

    def __call__(self, _: int, rows: Iterable[Any]) -> PairColumns:
        settle_worker()
        return PairColumns(self._keyed(rows))

    def _keyed(self, rows: Iterable[Any]) -> Iterator[Columns]:
        events = columns_of(rows if self.are_events else ((None, row) for row in rows))
        for times_us, column in events:
            records = rows_of_fields(column)
            keys = records if self.key is None else mapped_records(self.key, records, self.where)
            if self.with_event_time:
                keys = [
                    (None, key) if time_us is None else join_time(time_us, key)
                    for time_us, key in zip(times_us, keys, strict=True)
                ]
            yield keys, (times_us, records)
