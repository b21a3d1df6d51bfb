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
from functools import partial
from itertools import compress, islice
from operator import not_
from time import perf_counter
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.rdd.failures import failed
from dstreams.rdd.ordered_groups import reduce_by_key
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.aggregate_functions import AggregateFunction
from dstreams.structured.operators.grouping import Grouping

Row = tuple[Any, Any]
Rows = Iterator[Row]

_CHUNK_KEYS = 2000
_NOTHING = {type(None)}


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
        for rows in self._emitted(store, self._written(store, records, metrics), metrics):
            metrics.numOutputRows += len(rows)
            yield from rows

    def _emitted(
        self, store: StateWriter, written: Iterator[list[Row]], metrics: StateMetrics
    ) -> Iterator[list[Row]]:
        """Return what goes out; *written* are rows that are in the store once they are pulled."""
        if self.mode is OutputMode.Update:
            yield from written
            self._evict(store, metrics)
            return
        deque(written, maxlen=0)
        if self.mode is OutputMode.Append:
            yield from self._evicted(store, metrics)
            return
        rows = store.items()
        while chunk := list(islice(rows, _CHUNK_KEYS)):
            yield [(key, value[0]) for key, value in chunk]

    def _written(
        self, store: StateWriter, records: Rows, metrics: StateMetrics
    ) -> Iterator[list[Row]]:
        merged = self.merged(records)
        if isinstance(merged, dict):
            yield from self._write_in_order(store, merged, metrics)
            return
        while chunk := list(islice(merged, _CHUNK_KEYS)):
            keys, buffers = map(list, zip(*chunk, strict=True))
            yield list(zip(*self._write(store, keys, buffers, metrics), strict=True))

    def _write_in_order(
        self, store: StateWriter, total: dict[Any, Any], metrics: StateMetrics
    ) -> Iterator[list[Row]]:
        """Write in the order of the store, which is faster; rows come in that of *total*."""
        ordered = sorted(total) if set(map(type, total)) == {str} else list(total)
        emits = self.mode is OutputMode.Update
        take = total.__getitem__ if emits else total.pop
        for start in range(0, len(ordered), _CHUNK_KEYS):
            keys = ordered[start : start + _CHUNK_KEYS]
            on_time, buffers = self._write(store, keys, list(map(take, keys)), metrics)
            if emits:
                for key in set(keys).difference(on_time):
                    del total[key]
                total.update(zip(on_time, buffers, strict=True))
        rows = iter(total.items())
        while chunk := list(islice(rows, _CHUNK_KEYS)):
            yield chunk

    def _write(
        self, store: StateWriter, keys: list[Any], buffers: list[Any], metrics: StateMetrics
    ) -> tuple[list[Any], list[Any]]:
        """Merge rows that are not late into the state, and return them as they are there."""
        keys, buffers = self._on_time(keys, buffers, metrics)
        store.update_many(keys, partial(self._merge_into, keys, buffers))
        metrics.numUpdatedStateRows += len(keys)
        return keys, buffers

    def _merge_into(
        self, keys: list[Any], buffers: list[Any], start: int, values: Iterable[Any]
    ) -> Iterable[tuple[Any]]:
        """Return the new values of some keys; *buffers* then has what is in them."""
        if isinstance(values, list) and set(map(type, values)) == _NOTHING:
            return list(zip(buffers[start : start + len(values)], strict=True))
        return self._merged_into(keys, buffers, start, values)

    def _merged_into(
        self, keys: list[Any], buffers: list[Any], start: int, values: Iterable[Any]
    ) -> Iterator[tuple[Any]]:
        merge = self.aggregate.merge
        for place, old in enumerate(values, start):
            if old is not None:
                try:
                    buffers[place] = merge(old[0], buffers[place])
                except Exception as error:
                    raise self._failed(keys[place], error) from error
            yield (buffers[place],)

    def merged(self, rows: Rows) -> dict[Any, Any] | Rows:
        """Return one row for each key, in the order of keys; what does not fit is spilled."""
        return reduce_by_key(rows, self.aggregate.merge, self.memory_mb, self._failed)

    def _failed(self, key: Any, error: Exception) -> Exception:
        return failed(self.where, self.grouping.result_key(key), error)

    def _on_time(
        self, keys: list[Any], buffers: list[Any], metrics: StateMetrics
    ) -> tuple[list[Any], list[Any]]:
        late_ms = self.late_ms
        if self.mode is OutputMode.Complete or late_ms is None or not self.grouping.hasWatermark:
            return keys, buffers
        is_late = self.grouping.passed_of(keys, late_ms)
        if True not in is_late:
            return keys, buffers
        metrics.numRowsDroppedByWatermark += is_late.count(True)
        on_time = list(map(not_, is_late))
        return list(compress(keys, on_time)), list(compress(buffers, on_time))

    def _evicted(self, store: StateWriter, metrics: StateMetrics) -> Iterator[list[Row]]:
        """Return the rows that are given up."""
        if self.evict_ms is None:
            return
        started = perf_counter()
        for keys, values in self.grouping.take_passed(store, self.evict_ms):
            rows = [(key, value[0]) for key, value in zip(keys, values, strict=True)]
            metrics.numRemovedStateRows += len(rows)
            yield rows
        metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)

    def _evict(self, store: StateWriter, metrics: StateMetrics) -> None:
        if self.evict_ms is None:
            return
        started = perf_counter()
        metrics.numRemovedStateRows += self.grouping.remove_passed(store, self.evict_ms)
        metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)
