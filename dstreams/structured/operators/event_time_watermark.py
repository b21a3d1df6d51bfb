"""EventTimeWatermarkExec: gives records their event times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any

from dstreams.spark.failures import failed, mapped
from dstreams.spark.pair_columns import CHUNK_ROWS, Columns, PairColumns
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.flat_map_groups import EventTime
from dstreams.structured.operators.execution_context import EventTimeStats, ExecutionContext
from dstreams.structured.operators.physical_operator import NarrowExec, Task

_second = itemgetter(1)


@dataclass(frozen=True)
class EventTimeWatermarkExec(NarrowExec):
    """Makes events of records, and collects their times for the next watermark.

    The times come with the batch's own jobs: ``context.event_times()[name]``. A record without an
    event time counts as one of the epoch there, and travels with None.

    Semantics: EventTimeWatermarkExec (Spark 4.3).
    """

    eventTime: Callable[[Any], datetime | int | None]
    delayMs: int = 0
    name: str = "eventTime"
    where: str = "withWatermark"

    @property
    def hasEventTime(self) -> bool:
        return True

    @property
    def arguments(self) -> list[str]:
        return [self.name, f"{self.delayMs} ms"]

    def task(self, context: ExecutionContext) -> Task:
        event_time = EventTime(self.eventTime, self.where)
        report = context.observe(self.name)
        return MarkEvents(event_time, self.child.hasEventTime, report, self.where)


@dataclass(frozen=True)
class MarkEvents:
    """Task: records, or events with another time (*is_marked*) -> events; reports their times."""

    event_time: Callable[[Any], int | None]
    is_marked: bool
    report: Callable[[int, int, EventTimeStats], None]
    where: str = "withWatermark"

    def __call__(self, split: int, rows: Iterable[Any]) -> PairColumns:
        settle_worker()
        return PairColumns(self._marked(split, rows))

    def _marked(self, split: int, rows: Iterable[Any]) -> Iterator[Columns]:
        remaining = iter(rows)
        if self.is_marked:
            remaining = map(_second, remaining)
        seen: EventTimeStats | None = None
        try:
            while records := list(islice(remaining, CHUNK_ROWS)):
                times = self._times(records)
                known = times if None not in times else [time or 0 for time in times]
                stats = EventTimeStats.of(known)  # type: ignore[arg-type]
                seen = stats if seen is None else seen.merge(stats)
                yield times, records
        finally:
            if seen is not None:
                self.report(split, seen.count, seen)

    def _times(self, records: list[Any]) -> list[int | None]:
        try:
            if isinstance(self.event_time, EventTime):
                return self.event_time.of_all(records)
            return mapped(self.event_time, records)
        except Exception:
            for record in records:  # find the record that fails
                try:
                    self.event_time(record)
                except Exception as error:
                    raise failed(self.where, record, error, "record") from error
            raise
