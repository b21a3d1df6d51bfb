"""Deduplication: the first row of each key goes out, those that come later do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from operator import not_
from time import perf_counter
from typing import Any, NamedTuple

from pyspark.rdd import PipelinedRDD

from checkpoint import rows_of_fields
from checkpoint.state_store import StateWriter
from dstreams.durations import ms_upto
from dstreams.kernel.state_versions import StateUpdate
from dstreams.rdd.failures import failed, mapped
from dstreams.rdd.pair_columns import Column, Columns, PairColumns, columns_of, two_columns
from dstreams.rdd.shuffle import shuffle_pairs
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.worker_gc import settle_worker
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    Event,
    StatefulOperator,
    Task,
    UnaryExec,
)
from dstreams.structured.operators.window_keys import join_time, remove_passed

Row = tuple[Any, Event]

_SEEN = True


@dataclass(frozen=True)
class DropDuplicates:
    """Function of a task: lets the first event of each key pass.

    Only keys that have their event time in front (*by_event_time*) are ever forgotten. Rows go out
    as events or, unless *are_events*, as records.

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
            chunk = _Chunk.of(keys, events).on_time(self.late_ms, metrics)
            first = self._first_of_each(store, chunk)
            metrics.numUpdatedStateRows += len(first.keys)
            metrics.numOutputRows += len(first.keys)
            metrics.numDroppedDuplicateRows += len(chunk.keys) - len(first.keys)
            if first.keys:
                yield from first.events() if self.are_events else first.records()
        started = perf_counter()
        if self.evict_ms is not None:
            metrics.numRemovedStateRows += self._forget(store, self.evict_ms)
        metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)

    def _first_of_each(self, store: StateWriter, chunk: _Chunk) -> _Chunk:
        """Return the first event of each key that the state does not have, and remember the key."""
        found = chunk.distinct()
        there = store.has_many(found.keys)
        new = found.without(there)
        if new.keys:
            self._remember(store, new)
        return new

    def _remember(self, store: StateWriter, first: _Chunk) -> None:
        store.put_many(dict.fromkeys(first.keys, _SEEN))

    def _forget(self, store: StateWriter, watermark_ms: int) -> int:
        """Remove the keys that the watermark has passed, and return how many."""
        return remove_passed(store, watermark_ms * 1000) if self.by_event_time else 0


@dataclass(frozen=True)
class DropDuplicatesWithinWatermark(DropDuplicates):
    """Function of a task: as above, with keys forgotten *delay_ms* after their first event.

    Semantics: StreamingDeduplicateWithinWatermarkExec (Spark 4.3).
    """

    delay_ms: int = 0

    def _remember(self, store: StateWriter, first: _Chunk) -> None:
        delay_ms = self.delay_ms
        expires_ms = [ms_upto(time_us or 0) + delay_ms for time_us in first.times_us]
        if min(expires_ms) < 0:
            expires_ms = [max(time_ms, 0) for time_ms in expires_ms]
        store.put_many(dict(zip(first.keys, expires_ms, strict=True)), expires_ms)

    def _forget(self, store: StateWriter, watermark_ms: int) -> int:
        return store.remove_due(watermark_ms + 1)


class _Chunk(NamedTuple):
    """Some rows (key, event), in columns; the records as a block has them."""

    keys: list[Any]
    times_us: list[int | None]
    column: Column

    @classmethod
    def of(cls, keys: list[Any], events: Column) -> _Chunk:
        return cls(keys, *two_columns(events))

    def records(self) -> list[Any]:
        return rows_of_fields(self.column)

    def events(self) -> Iterator[Event]:
        return zip(self.times_us, self.records(), strict=True)

    def on_time(self, late_ms: int | None, metrics: StateMetrics) -> _Chunk:
        """Return the rows that are not late; those without a time never are."""
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
        """Return the rows that are not to be out."""
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
class StreamingDeduplicateExec(StatefulOperator, UnaryExec):
    """The first row of each key; without *key* of each record.

    The watermark ends keys that have the event time in them (*withEventTime*), and no others.
    """

    key: Callable[[Any], Any] | None = None
    withEventTime: bool = False
    where: str = "dropDuplicates"

    @property
    def shortName(self) -> str:
        return "dedupe"

    @property
    def arguments(self) -> list[str]:
        return [self.where, *self.watermarkArguments]

    def task(self) -> Task:
        return KeyEvents(self.key, self.child.hasEventTime, self.withEventTime, self.where)

    def function(self) -> DropDuplicates:
        has_time = self.child.hasEventTime
        return DropDuplicates(
            self.eventTimeWatermarkForLateEvents if has_time else None,
            self.eventTimeWatermarkForEviction,
            by_event_time=self.withEventTime,
            are_events=has_time,
        )

    def update(self, context: ExecutionContext) -> StateUpdate:
        info = self.getStateInfo()
        keyed = PipelinedRDD(self.child.execute(context), self.task())
        blocks = shuffle_pairs(keyed, info.partitioner, operation=self.where, ordered=True)
        return StateUpdate(info.before, [blocks], self.function())


@dataclass(frozen=True)
class StreamingDeduplicateWithinWatermarkExec(StreamingDeduplicateExec):
    """The first row of each key within the delay of the watermark."""

    delayMs: int = 0
    where: str = "dropDuplicatesWithinWatermark"

    @property
    def shortName(self) -> str:
        return "dedupeWithinWatermark"

    def function(self) -> DropDuplicates:
        return DropDuplicatesWithinWatermark(
            self.eventTimeWatermarkForLateEvents,
            self.eventTimeWatermarkForEviction,
            are_events=self.child.hasEventTime,
            delay_ms=self.delayMs,
        )


@dataclass(frozen=True)
class KeyEvents:
    """Task: records or events -> (key, event), the key with its event time if asked for."""

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
            keys = self._keys(records)
            if self.with_event_time:
                keys = [
                    (None, key) if time_us is None else join_time(time_us, key)
                    for time_us, key in zip(times_us, keys, strict=True)
                ]
            yield keys, (times_us, records)

    def _keys(self, records: list[Any]) -> list[Any]:
        if self.key is None:
            return records
        try:
            return mapped(self.key, records)
        except Exception:
            for record in records:  # one of them is to blame; the error says which
                try:
                    self.key(record)
                except Exception as error:
                    raise failed(self.where, record, error, "record") from error
            raise
