"""The functions of an aggregation in one partition, over its state store."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from dstreams.spark.spilling import reduce_by_key
from dstreams.spark.state_version import StateMetrics
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.group_state import OutputMode
from dstreams.state.state_manager import KeyedStore, StoredRows
from dstreams.structured.operators.grouping import Grouping

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
    """Return the output mode of an aggregation, or raise InvalidStreamError if it is not valid."""
    if mode is None:
        raise InvalidStreamError(
            "StateStoreSave: outputMode must be set before execution, got None"
        )
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
        """Merge rows that are not late into the state; return their keys and new buffers."""
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


AGGREGATION_STATE_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"


class StreamingAggregationStateManager(ABC):
    """Reads and writes rows (key, buffer) in a state store, under their keys.

    =======  ===================  =================================================
    version  value in the store   a stored row is read as
    =======  ===================  =================================================
    1        ``(key, buffer)``    the value, which is the whole row
    2        ``(buffer,)``        the key, joined with the value, which lacks the key
    =======  ===================  =================================================

    Semantics: StreamingAggregationStateManager and its ImplV1 and ImplV2 (Spark 4.3).
    """

    @abstractmethod
    def value_of(self, row: Row) -> Any:
        """Return the value that the store has for a row."""

    @abstractmethod
    def row_of(self, key: Any, value: Any) -> Row:
        """Return the row of a key and its value in the store."""

    def get_key(self, row: Row) -> Any:
        return row[0]

    def get(self, store: StoredRows, key: Any) -> Row | None:
        """Return the stored row of a key, None if it is missing."""
        value = store.get(key)
        return None if value is None else self.row_of(key, value)

    def put(self, store: KeyedStore, row: Row) -> None:
        """Store a row under its key."""
        store.put(row[0], self.value_of(row))

    def values(self, store: StoredRows) -> Iterator[Row]:
        """Iterate over all rows, in the order of the store."""
        return (self.row_of(key, value) for key, value in store.items())

    def rows_of(self, keys: Iterable[Any], values: Iterable[Any]) -> list[Row]:
        """Return the rows of some keys and values."""
        return list(map(self.row_of, keys, values))


class StreamingAggregationStateManagerImplV1(StreamingAggregationStateManager):
    """The value is the whole row."""

    def value_of(self, row: Row) -> Row:
        return row[0], row[1]

    def row_of(self, key: Any, value: Row) -> Row:
        return value


class StreamingAggregationStateManagerImplV2(StreamingAggregationStateManager):
    """The value is the row without its key."""

    def value_of(self, row: Row) -> tuple[Any]:
        return (row[1],)

    def row_of(self, key: Any, value: tuple[Any]) -> Row:
        return key, value[0]

    def rows_of(self, keys: Iterable[Any], values: Iterable[Any]) -> list[Row]:
        return [(key, value[0]) for key, value in zip(keys, values, strict=True)]


def create_aggregation_state_manager(state_format_version: int) -> StreamingAggregationStateManager:
    """Return the state manager of a state format.

    Raises:
        InvalidStreamError: the format is neither 1 nor 2.
    """
    if state_format_version == 1:
        return StreamingAggregationStateManagerImplV1()
    if state_format_version == 2:
        return StreamingAggregationStateManagerImplV2()
    raise InvalidStreamError(
        f"{AGGREGATION_STATE_FORMAT}: the state format must be 1 or 2, got "
        f"{state_format_version!r}; use 2, or the format of the checkpoint"
    )
