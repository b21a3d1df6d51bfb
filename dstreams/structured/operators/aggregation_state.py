"""How the buffers of an aggregation stand in a state store, and what a batch does with them.

The value of a key is its buffer, in a tuple so that it can be None. All of it runs in one
partition, and without Spark:

>>> from checkpoint.state_store import EMPTY, StateStore, StoreId
>>> from checkpoint.testing import MemoryBackend
>>> from dstreams.rdd.state_metrics import StateMetrics
>>> from dstreams.structured.operators.aggregate_functions import Count
>>> from dstreams.structured.operators.aggregation_state import MergeRows, RestoreRows, SaveRows
>>> from dstreams.structured.operators.grouping import Grouping
>>> from dstreams.state.group_state import OutputMode
>>> by_key = Grouping(key=str)
>>> with StateStore(MemoryBackend()).writer(StoreId("s", "count", "default", 0, 1), EMPTY) as store:
...     store.put("a", (4,))
...     rows = RestoreRows(by_key)(store, iter([("a", 1), ("b", 1)]), StateMetrics())
...     merged = MergeRows(Count())(store, rows, StateMetrics())
...     sorted(SaveRows(OutputMode.Update, by_key)(store, merged, StateMetrics()))
[('a', 5), ('b', 1)]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice
from time import perf_counter
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.rdd.ordered_reduction import reduce_in_order
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.user_errors import failed
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.aggregate_functions import AggregateFunction
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.state_steps import Row, Rows

_CHUNK_KEYS = 2000


@dataclass(frozen=True)
class MergeRows:
    """Makes one row of all those of a key, in the order in which keys came."""

    aggregate: AggregateFunction
    where: str = "agg"
    grouping: Grouping = field(default_factory=Grouping)
    memory_mb: float = 512

    def __call__(self, store: StateWriter | None, rows: Rows, metrics: StateMetrics) -> Rows:
        def explain(key: Any, error: Exception) -> Exception:
            return failed(self.where, self.grouping.result_key(key), error)

        return reduce_in_order(rows, self.aggregate.merge, self.memory_mb, explain)


@dataclass(frozen=True)
class RestoreRows:
    """Puts the row of the state in front of each row; without a key, and rows, all of the state."""

    grouping: Grouping

    def __call__(self, store: StateWriter, rows: Rows, metrics: StateMetrics) -> Rows:
        row = next(rows, None)
        if row is None:
            if self.grouping.isGlobal:
                yield from _rows(store)
            return
        for key, buffer in chain((row,), rows):
            old = store.get(key)
            if old is not None:
                metrics.numOutputRows += 1
                yield key, old[0]
            metrics.numOutputRows += 1
            yield key, buffer


@dataclass(frozen=True)
class SaveRows:
    """Writes one merged row for each key, gives up what the watermark has passed, and puts out.

    ========  ==========================  =====================  =========================
    mode      late rows                   state given up         rows out
    ========  ==========================  =====================  =========================
    Complete  kept                        none                   all of the state
    Append    left out                    passed by watermark    those given up
    Update    left out                    passed by watermark    those written
    ========  ==========================  =====================  =========================

    Semantics: StateStoreSaveExec (Spark 4.3).
    """

    mode: OutputMode
    grouping: Grouping
    late_ms: int | None = None
    evict_ms: int | None = None

    def __call__(self, store: StateWriter, rows: Rows, metrics: StateMetrics) -> Rows:
        return self.emit(store, self._written(store, rows, metrics), metrics)

    def _written(self, store: StateWriter, rows: Rows, metrics: StateMetrics) -> Rows:
        for row in self.on_time(rows, metrics):
            key, buffer = row
            store.put(key, (buffer,))
            metrics.numUpdatedStateRows += 1
            yield row

    def emit(self, store: StateWriter, written: Rows, metrics: StateMetrics) -> Rows:
        """Return what goes out; *written* are rows that are in the store once they are pulled."""
        if self.mode is OutputMode.Update:
            for row in written:
                metrics.numOutputRows += 1
                yield row
            for _ in self._evicted(store, metrics):
                pass
            return
        for _ in written:
            pass
        is_complete = self.mode is OutputMode.Complete
        for row in _rows(store) if is_complete else self._evicted(store, metrics):
            metrics.numOutputRows += 1
            yield row

    def on_time(self, rows: Rows, metrics: StateMetrics) -> Rows:
        late_ms = self.late_ms
        if self.mode is OutputMode.Complete or late_ms is None or not self.grouping.hasWatermark:
            yield from rows
            return
        is_late = self.grouping.is_passed(late_ms)
        for row in rows:
            if is_late(row[0]):
                metrics.numRowsDroppedByWatermark += 1
            else:
                yield row

    def _evicted(self, store: StateWriter, metrics: StateMetrics) -> Rows:
        if self.evict_ms is None:
            return
        started = perf_counter()
        for key, value in self.grouping.passed(store, self.evict_ms):
            store.remove(key)
            metrics.numRemovedStateRows += 1
            yield key, value[0]
        metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)


@dataclass(frozen=True)
class MergeIntoState:
    """Restores, merges and saves in one walk over the store."""

    aggregate: AggregateFunction
    save: SaveRows
    where: str = "agg"

    def __call__(self, store: StateWriter, rows: Rows, metrics: StateMetrics) -> Rows:
        return self.save.emit(store, self._written(store, rows, metrics), metrics)

    def _written(self, store: StateWriter, rows: Rows, metrics: StateMetrics) -> Rows:
        merge = self.aggregate.merge
        merged: list[Row] = []

        def step(row: Row, old: Any) -> Any:
            key, buffer = row
            if old is not None:
                try:
                    buffer = merge(old[0], buffer)
                except Exception as error:
                    shown = self.save.grouping.result_key(key)
                    raise failed(self.where, shown, error) from error
            merged.append((key, buffer))
            return (buffer,)

        kept = self.save.on_time(rows, metrics)
        while chunk := list(islice(kept, _CHUNK_KEYS)):
            store.update(((row[0], row) for row in chunk), step)
            metrics.numUpdatedStateRows += len(chunk)
            yield from merged
            merged.clear()


def _rows(store: StateWriter) -> Rows:
    return ((key, value[0]) for key, value in store.items())
