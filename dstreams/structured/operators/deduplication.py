"""Deduplication: the first row of each key goes out, those that come later do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress, islice
from time import perf_counter
from typing import Any

from pyspark.rdd import PipelinedRDD

from checkpoint.state_store import StateWriter
from dstreams.durations import ms_upto
from dstreams.kernel.state_versions import StateUpdate
from dstreams.rdd.failures import failed
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
from dstreams.structured.operators.window_keys import join_time, passed_keys

Row = tuple[Any, Event]

_SEEN = True
_CHUNK_ROWS = 1000


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
        for chunk in _rows_on_time(records, self.late_ms, metrics):
            first = self._first_of_each(store, chunk)
            metrics.numUpdatedStateRows += len(first)
            metrics.numOutputRows += len(first)
            metrics.numDroppedDuplicateRows += len(chunk) - len(first)
            yield from first if self.are_events else (record for _, record in first)
        started = perf_counter()
        if self.evict_ms is not None:
            metrics.numRemovedStateRows += self._forget(store, self.evict_ms)
        metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)

    def _first_of_each(self, store: StateWriter, rows: list[Row]) -> list[Event]:
        """Return the first event of each key that the state does not have, and remember the key."""
        found = dict(rows)
        if len(found) < len(rows):
            found = {}
            for key, event in rows:
                found.setdefault(key, event)
        there = store.has_many(list(found))
        if all(there):
            return []
        new = found
        if any(there):
            pairs = zip(found.items(), there, strict=True)
            new = {key: event for (key, event), is_there in pairs if not is_there}
        self._remember(store, new)
        return list(new.values())

    def _remember(self, store: StateWriter, first: dict[Any, Event]) -> None:
        store.put_many(dict.fromkeys(first, _SEEN))

    def _forget(self, store: StateWriter, watermark_ms: int) -> int:
        """Remove the keys that the watermark has passed, and return how many."""
        if not self.by_event_time:
            return 0
        removed = 0
        for key, _ in passed_keys(store, watermark_ms * 1000):
            store.remove(key)
            removed += 1
        return removed


@dataclass(frozen=True)
class DropDuplicatesWithinWatermark(DropDuplicates):
    """Function of a task: as above, with keys forgotten *delay_ms* after their first event.

    Semantics: StreamingDeduplicateWithinWatermarkExec (Spark 4.3).
    """

    delay_ms: int = 0

    def _remember(self, store: StateWriter, first: dict[Any, Event]) -> None:
        delay_ms = self.delay_ms
        expires_ms = [max(ms_upto(time_us or 0) + delay_ms, 0) for time_us, _ in first.values()]
        store.put_many(dict(zip(first, expires_ms, strict=True)), expires_ms)

    def _forget(self, store: StateWriter, watermark_ms: int) -> int:
        return store.remove_due(watermark_ms + 1)


def _rows_on_time(
    rows: Iterator[Row], late_ms: int | None, metrics: StateMetrics
) -> Iterator[list[Row]]:
    """Yield chunks of pairs (key, event) that are not late; those without a time never are."""
    late_us = None if late_ms is None else late_ms * 1000
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        if late_us is not None:
            times = [event[0] for _, event in chunk]
            on_time = [time_us is None or time_us > late_us for time_us in times]
            if not all(on_time):
                metrics.numRowsDroppedByWatermark += on_time.count(False)
                chunk = list(compress(chunk, on_time))
        if chunk:
            yield chunk


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

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[tuple[Any, Event]]:
        settle_worker()
        events: Iterable[Event] = rows if self.are_events else ((None, row) for row in rows)
        key = self.key
        for event in events:
            time_us, own = event
            if key is not None:
                try:
                    own = key(own)
                except Exception as error:
                    raise failed(self.where, own, error, "record") from error
            if self.with_event_time:
                own = (None, own) if time_us is None else join_time(time_us, own)
            yield own, event
