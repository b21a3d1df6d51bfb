"""Runs the state side of operators batch by batch on a store in memory, without Spark.

Watermarks move as in a query: what a batch has seen counts from the next batch on, late rows are
judged by the watermark of the batch before, and a batch without data runs when the watermark moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StoreId, VersionId
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_store_rdd import StoreFunction
from dstreams.spark.state_version import StateMetrics

MapSide = Callable[[list[Any]], Iterable[tuple[Any, Any]]]
StateSide = Callable[["int | None", "int | None"], StoreFunction]


def in_us(events: list[tuple[int | None, Any]]) -> list[tuple[int | None, Any]]:
    """Return events whose times are in milliseconds as operators have them."""
    return [(None if ms is None else ms * 1000, record) for ms, record in events]


class Batch(NamedTuple):
    """The rows and metrics of a batch."""

    rows: list[Any]
    metrics: StateMetrics

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Total, updated, removed, dropped by watermark."""
        found = self.metrics
        return (
            found.numTotalStateRows,
            found.numUpdatedStateRows,
            found.numRemovedStateRows,
            found.numRowsDroppedByWatermark,
        )


@dataclass
class LocalStore:
    """The partitions of one state in memory."""

    partitions: int = 2
    version_ids: list[VersionId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = StateStore(MemoryBackend())
        self.version_ids = [EMPTY] * self.partitions

    def batch(self, function: StoreFunction, pairs: Iterable[tuple[Any, Any]]) -> Batch:
        """Run one batch: every partition takes part."""
        places = StablePartitioner(self.partitions)
        parts: list[list[Any]] = [[] for _ in range(self.partitions)]
        for key, value in pairs:
            parts[places(key)].append((key, value))
        rows: list[Any] = []
        total = StateMetrics()
        for split, part in enumerate(parts):
            metrics = StateMetrics()
            with self.store.writer(self._id(split), self.version_ids[split]) as writer:
                rows += function(writer, iter(()), iter(part), metrics)
                committed = writer.commit()
            self.version_ids[split] = committed.version_id
            metrics.numTotalStateRows = committed.count
            total.add(metrics)
        return Batch(rows, total)

    def contents(self) -> dict[Any, Any]:
        """Return all keys and values."""
        return dict(self._items())

    def _items(self) -> Iterator[tuple[Any, Any]]:
        for split, version_id in enumerate(self.version_ids):
            with self.store.reader(self._id(split), version_id) as reader:
                yield from reader.items()

    def _id(self, split: int) -> StoreId:
        return StoreId("stream", "operator", "default", split, self.partitions)


class LocalQuery:
    """One stateful operator, and the watermark that drives it.

    Args:
        map_side: events -> pairs, as they are shuffled.
        state_side: (late watermark, eviction watermark) -> what a task does.
        delay_ms: of the watermark, None for no watermark.
        no_data: whether a batch without data follows when the watermark has moved.
    """

    def __init__(
        self,
        map_side: MapSide,
        state_side: StateSide,
        delay_ms: int | None = 10_000,
        *,
        no_data: bool = True,
        partitions: int = 2,
    ) -> None:
        self._map_side, self._state_side = map_side, state_side
        self._delay_ms, self._no_data = delay_ms, no_data
        self.state = LocalStore(partitions)
        self.late_ms = self.watermark_ms = 0
        self.batches: list[Batch] = []

    def add(self, events: list[tuple[int | None, Any]]) -> list[Any]:
        """Run a batch and, with *no_data*, one without data after it; return all rows.

        Args:
            events: pairs of event time, in milliseconds, and record.
        """
        rows = self._run(events)
        if self._no_data and self.watermark_ms > self.late_ms:
            rows += self._run([])
        return rows

    def _run(self, events: list[tuple[int | None, Any]]) -> list[Any]:
        has_watermark = self._delay_ms is not None
        marks = (self.late_ms, self.watermark_ms) if has_watermark else (None, None)
        batch = self.state.batch(self._state_side(*marks), self._map_side(in_us(events)))
        self.batches.append(batch)
        self.late_ms = self.watermark_ms
        if has_watermark:
            seen = max((time_ms or 0 for time_ms, _ in events), default=0)
            self.watermark_ms = max(self.watermark_ms, seen - (self._delay_ms or 0))
        return batch.rows
