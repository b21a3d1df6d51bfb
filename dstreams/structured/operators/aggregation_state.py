"""How the buffers of an aggregation stand in a state store, and what a batch does with them.

The value of a key is its buffer, in a tuple so that it can be None. All of it runs in one
partition, and without Spark:

>>> from checkpoint.state_store import EMPTY, StateStore, StoreId
>>> from checkpoint.testing import MemoryBackend
>>> from dstreams.rdd.state_metrics import StateMetrics
>>> from dstreams.structured.operators.aggregate_functions import Count
>>> from dstreams.structured.operators.aggregation_state import AggregateIntoState
>>> from dstreams.structured.operators.grouping import Grouping
>>> from dstreams.state.group_state import OutputMode
>>> counts = AggregateIntoState(Count(), Grouping(key=str), OutputMode.Update)
>>> with StateStore(MemoryBackend()).writer(StoreId("s", "count", "default", 0, 1), EMPTY) as store:
...     store.put("a", (4,))
...     list(counts(store, iter(()), iter([("a", 1), ("b", 1)]), StateMetrics()))
[('a', 5), ('b', 1)]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.rdd.failures import failed
from dstreams.rdd.ordered_groups import reduce_in_order
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.aggregate_functions import AggregateFunction
from dstreams.structured.operators.grouping import Grouping

Row = tuple[Any, Any]
Rows = Iterator[Row]

_CHUNK_KEYS = 2000


@dataclass(frozen=True)
class AggregateIntoState:
    """Function of a task: rows (key, buffer) of a batch go into the state, and rows go out.

    It merges the rows of a key in the order in which keys came, merges those that are not late into
    the state in one walk over the store, gives up state that the watermark has passed, and emits:

    ========  ==========================  =====================  =========================
    mode      late rows                   state given up         rows out
    ========  ==========================  =====================  =========================
    Complete  kept                        none                   all of the state
    Append    left out                    passed by watermark    those given up
    Update    left out                    passed by watermark    those written
    ========  ==========================  =====================  =========================

    Semantics: StateStoreRestoreExec and StateStoreSaveExec (Spark 4.3).
    """

    aggregate: AggregateFunction
    grouping: Grouping
    mode: OutputMode
    late_ms: int | None = None
    evict_ms: int | None = None
    where: str = "agg"
    memory_mb: float = 512

    def __call__(
        self, store: StateWriter, initial: Iterable[Row], records: Rows, metrics: StateMetrics
    ) -> Rows:
        for row in self._emitted(store, self._written(store, records, metrics), metrics):
            metrics.numOutputRows += 1
            yield row

    def _emitted(self, store: StateWriter, written: Rows, metrics: StateMetrics) -> Rows:
        """Return what goes out; *written* are rows that are in the store once they are pulled."""
        if self.mode is OutputMode.Update:
            yield from written
            deque(self._evicted(store, metrics), maxlen=0)
            return
        deque(written, maxlen=0)
        if self.mode is OutputMode.Complete:
            yield from ((key, value[0]) for key, value in store.items())
        else:
            yield from self._evicted(store, metrics)

    def _written(self, store: StateWriter, records: Rows, metrics: StateMetrics) -> Rows:
        merge = self.aggregate.merge
        merged: list[Row] = []

        def step(row: Row, old: Any) -> Any:
            key, buffer = row
            if old is not None:
                try:
                    buffer = merge(old[0], buffer)
                except Exception as error:
                    raise self._failed(key, error) from error
            merged.append((key, buffer))
            return (buffer,)

        rows = self._on_time(self.merged(records), metrics)
        while chunk := list(islice(rows, _CHUNK_KEYS)):
            store.update(((row[0], row) for row in chunk), step)
            metrics.numUpdatedStateRows += len(chunk)
            yield from merged
            merged.clear()

    def merged(self, rows: Rows) -> Rows:
        """Return one row for each key, in the order of keys; what does not fit is spilled."""
        return reduce_in_order(rows, self.aggregate.merge, self.memory_mb, self._failed)

    def _failed(self, key: Any, error: Exception) -> Exception:
        return failed(self.where, self.grouping.result_key(key), error)

    def _on_time(self, rows: Rows, metrics: StateMetrics) -> Rows:
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
