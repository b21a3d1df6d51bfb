"""The functions of an aggregation in one partition, over its state store.

All of it runs without Spark. Restoring, merging and saving by hand:

>>> from checkpoint.state_store import EMPTY
>>> from dstreams.spark.state_metrics import StateMetrics
>>> from dstreams.state.group_state import OutputMode
>>> from dstreams.arrow.aggregates.functions import Count
>>> from dstreams.structured.operators.aggregation_state import MergeRows, RestoreRows, SaveRows
>>> from dstreams.structured.operators.grouping import Grouping
>>> from dstreams.structured.operators.streaming_aggregation_state_manager import (
...     create_aggregation_state_manager,
... )
>>> manager, by_word = create_aggregation_state_manager(2), Grouping(key=str)
>>> with store.writer(store_id, EMPTY) as writer:
...     manager.put(writer, ("a", 4))
...     rows = iter([("a", 1), ("b", 1)])
...     restored = list(RestoreRows(manager, is_global=False)(0, writer, rows))
...     merged = MergeRows(Count(), by_word)(0, restored)
...     save = SaveRows(manager, by_word, OutputMode.Update)
...     restored, list(save(writer, iter(()), merged, StateMetrics()))
([('a', 4), ('a', 1), ('b', 1)], [('a', 5), ('b', 1)])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, islice
from operator import not_
from time import perf_counter
from typing import Any

from checkpoint.state_store import StateReader, StateWriter
from dstreams.arrow.aggregates.functions import AggregateFunction
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import failed
from dstreams.spark.ordered_groups import reduce_by_key
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.streaming_aggregation_state_manager import (
    StreamingAggregationStateManager,
)

Row = tuple[Any, Any]
Rows = Iterator[Row]
Report = Callable[[int, int, dict[str, int]], None]
"""Reports the partition of a task, the number of its rows, and its counts."""

_CHUNK_KEYS = 2000
_NOTHING = {type(None)}


@dataclass(frozen=True)
class MergeRows:
    """Task: rows (key, buffer) -> one row for each key, in the order of the first rows.

    Buffers of a key are merged in their order; what takes more than *memory_mb* is spilled.
    """

    aggregate: AggregateFunction
    grouping: Grouping
    where: str = "agg"
    memory_mb: float = 512

    def __call__(self, _: int, rows: Iterable[Row]) -> Iterator[Row]:
        settle_worker()
        merged = self.merged(rows)
        return iter(merged.items()) if isinstance(merged, dict) else merged

    def merged(self, rows: Iterable[Row]) -> dict[Any, Any] | Rows:
        """Return one row for each key: in a dict, or as pairs if they do not fit into memory."""
        return reduce_by_key(rows, self.aggregate.merge, self.memory_mb, self.failed)

    def failed(self, key: Any, error: Exception) -> Exception:
        """Return the error to raise for an error of a merge."""
        return failed(self.where, self.grouping.result_key(key), error)


@dataclass(frozen=True)
class RestoreRows:
    """Function of a read-only store: the stored row of its key in front of each row."""

    manager: StreamingAggregationStateManager
    is_global: bool
    report: Report | None = None

    def __call__(self, split: int, store: StateReader, rows: Iterator[Row]) -> Rows:
        manager, count = self.manager, 0
        for row in rows:
            count += 1
            stored = manager.get(store, manager.get_key(row))
            if stored is not None:
                yield stored
            yield row
        if self.report is not None:
            self.report(split, count, {"numOutputRows": count})
        if not count and self.is_global:
            yield from manager.values(store)


@dataclass(frozen=True)
class SaveRows:
    """Function of a store: saves rows, evicts rows, and emits rows by output mode.

    See :class:`~dstreams.structured.operators.aggregation.StateStoreSaveExec`.
    """

    manager: StreamingAggregationStateManager
    grouping: Grouping
    mode: OutputMode
    late_ms: int | None = None
    evict_ms: int | None = None

    def __call__(
        self, store: StateWriter, initial: Iterable[Row], records: Rows, metrics: StateMetrics
    ) -> Rows:
        emitted: Iterable[Row]
        if self.mode is OutputMode.Update:
            evicted = chain.from_iterable(self.evicted(store, metrics))
            emitted = chain(self._saved(store, records, metrics), evicted)
        else:
            deque(self._saved(store, records, metrics), maxlen=0)
            emitted = (
                chain.from_iterable(self.evicted(store, metrics))
                if self.mode is OutputMode.Append
                else self.manager.values(store)
            )
        for row in emitted:
            metrics.numOutputRows += 1
            yield row

    def _saved(self, store: StateWriter, rows: Rows, metrics: StateMetrics) -> Rows:
        """Save the rows that are not late, and iterate over them."""
        late_ms = self.drops_ms
        is_late = None if late_ms is None else self.grouping.is_passed(late_ms)
        for row in rows:
            if is_late is not None and is_late(self.manager.get_key(row)):
                metrics.numRowsDroppedByWatermark += 1
                continue
            self.manager.put(store, row)
            metrics.numUpdatedStateRows += 1
            yield row

    @property
    def drops_ms(self) -> int | None:
        """The watermark of late rows, None if no row is dropped."""
        drops = self.mode is not OutputMode.Complete and self.grouping.hasWatermark
        return self.late_ms if drops else None

    def evicted(self, store: StateWriter, metrics: StateMetrics) -> Iterator[list[Row]]:
        """Evict the rows that the watermark has passed, and yield them in mode append."""
        if self.evict_ms is None:
            return
        started = perf_counter()
        if self.mode is OutputMode.Update:
            metrics.numRemovedStateRows += self.grouping.remove_passed(store, self.evict_ms)
        else:
            for keys, values in self.grouping.take_passed(store, self.evict_ms):
                rows = self.manager.rows_of(keys, values)
                metrics.numRemovedStateRows += len(rows)
                yield rows
        metrics.allRemovalsTimeMs += round((perf_counter() - started) * 1000)


def require_output_mode(mode: OutputMode | None, grouping: Grouping) -> OutputMode:
    """Return the output mode of an aggregation, or raise InvalidStreamError if it has none."""
    if mode is None:
        raise InvalidStreamError("StateStoreSave: outputMode is None; set it before execution")
    if mode is OutputMode.Append and not grouping.hasWatermark:
        raise InvalidStreamError(
            "append mode needs windows of an event time with a watermark, which makes rows final; "
            "use withWatermark and window, or mode update"
        )
    return mode


@dataclass(frozen=True)
class AggregateIntoState:
    """Function of a store: merging, restoring, merging and saving in one walk over the store.

    It does the work of MergeRows, RestoreRows, MergeRows and SaveRows, with state format 2.
    """

    merge: MergeRows
    save: SaveRows

    def __call__(
        self, store: StateWriter, initial: Iterable[Row], records: Rows, metrics: StateMetrics
    ) -> Rows:
        for rows in self._emitted(store, self._written(store, records, metrics), metrics):
            metrics.numOutputRows += len(rows)
            yield from rows

    def _emitted(
        self, store: StateWriter, written: Iterator[list[Row]], metrics: StateMetrics
    ) -> Iterator[list[Row]]:
        """Return the rows to emit; *written* are stored as they are pulled."""
        mode = self.save.mode
        if mode is OutputMode.Update:
            yield from written
        else:
            deque(written, maxlen=0)
        if mode is not OutputMode.Complete:
            yield from self.save.evicted(store, metrics)
            return
        rows = store.items()
        while chunk := list(islice(rows, _CHUNK_KEYS)):
            yield [(key, value[0]) for key, value in chunk]

    def _written(
        self, store: StateWriter, records: Rows, metrics: StateMetrics
    ) -> Iterator[list[Row]]:
        merged = self.merge.merged(records)
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
        emits = self.save.mode is OutputMode.Update
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
        metrics.numRestoredRows += len(keys)
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
        merge = self.merge.aggregate.merge
        for place, old in enumerate(values, start):
            if old is not None:
                try:
                    buffers[place] = merge(old[0], buffers[place])
                except Exception as error:
                    raise self.merge.failed(keys[place], error) from error
            yield (buffers[place],)

    def _on_time(
        self, keys: list[Any], buffers: list[Any], metrics: StateMetrics
    ) -> tuple[list[Any], list[Any]]:
        late_ms = self.save.drops_ms
        if late_ms is None:
            return keys, buffers
        is_late = self.save.grouping.passed_of(keys, late_ms)
        if True not in is_late:
            return keys, buffers
        metrics.numRowsDroppedByWatermark += is_late.count(True)
        on_time = list(map(not_, is_late))
        return list(compress(keys, on_time)), list(compress(buffers, on_time))
