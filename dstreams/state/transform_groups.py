"""TransformGroups: ``transformWithState``, as one value for the plan and for the tasks.

A batch of a partition::

    init -> initial states and records, key by key -> expired timers -> expired TTLs -> close
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

from pyspark import cloudpickle

from checkpoint.state_store import StateWriter
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import failed
from dstreams.spark.spilling import GroupsInOrder
from dstreams.spark.state_version import StateMetrics
from dstreams.state.flat_map_groups import EventTime, Pairs, earliest_timeout_ms, on_time, timed
from dstreams.state.function_errors import PLAIN_ROWS, failed_with_state, require_rows
from dstreams.state.group_state import NO_TIMESTAMP
from dstreams.state.stateful_processor import (
    TIMERS,
    Columns,
    ExpiredTimerInfo,
    HandleState,
    StatefulProcessorHandle,
    StateVariable,
    TimeMode,
    TimerValues,
)

_METHODS = ("init", "handleInputRows", "handleExpiredTimer", "handleInitialState", "close")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class TransformGroups:
    """A stateful processor, with the facts of a batch.

    Records up to *lateWatermark* are late and dropped. Timers are due at the batch time or at
    *eventTimeWatermark*.

    Args:
        processor: any object with the methods of a ``StatefulProcessor``.
        variables: its state variables, as :func:`defined` found them in the driver.
        deleted: names of the state variables that it deletes.
        output: the columns of its output rows, None for any rows.
        output_time: the event time of an output row, which makes an event of it.
        are_pairs: keys are those of pairs. The processor gets a key that is not a tuple as a tuple
            of one part; in the store it is one part, so ``"a"`` and ``("a",)`` differ.
        reports_next_timeout: look for the earliest processing-time timer that is left.
        batchTimestampMs: the batch time.
        batchNumber: increases from batch to batch; list elements are ordered by it.
        event_time, are_events, memory_mb: as of ``FlatMapGroups``.

    Semantics: TransformWithStateInPySparkExec (Spark 4.3), for rows.
    """

    processor: Any
    where: str = "transformWithState"
    timeMode: TimeMode = TimeMode.NoTime
    variables: Mapping[str, StateVariable]
    deleted: tuple[str, ...] = ()
    output: Columns | None = None
    output_time: EventTime | None = None
    are_pairs: bool = False
    reports_next_timeout: bool = True
    batchTimestampMs: int | None = None
    batchNumber: int | None = None
    eventTimeWatermark: int | None = None
    lateWatermark: int | None = None
    event_time: Callable[[Any], int | None] | None = None
    are_events: bool = False
    memory_mb: float = 512

    pair_key: ClassVar[itemgetter[Any]] = itemgetter(1)

    def in_batch(self, time_ms: int, watermark_ms: int, is_checkpoint: bool) -> TransformGroups:
        """Return the task of a batch of a stream."""
        watermark = None if self.event_time is None else max(watermark_ms, 0)
        drops_late = self.timeMode is TimeMode.EventTime
        return replace(
            self,
            batchTimestampMs=time_ms,
            batchNumber=time_ms,
            eventTimeWatermark=watermark,
            lateWatermark=watermark if drops_late else None,
        )

    @property
    def described(self) -> dict[str, Any]:
        """The processor as JSON, as :func:`~dstreams.state.stored_columns.changed_variables`."""
        return {
            "timeMode": self.timeMode.value,
            "stateVariables": {name: one.described() for name, one in self.variables.items()},
            "deletedVariables": list(self.deleted),
        }

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        assert self.batchTimestampMs is not None, "the operator checks it"
        assert self.batchNumber is not None, "the operator checks it"
        handle = StatefulProcessorHandle(
            self.where,
            self.timeMode,
            store,
            self.variables,
            self.batchTimestampMs,
            self.batchNumber,
            metrics,
        )
        watermark_ms = self.eventTimeWatermark
        times = TimerValues()
        if self.timeMode is not TimeMode.NoTime:
            shown_ms = NO_TIMESTAMP if watermark_ms is None else watermark_ms
            times = TimerValues(self.batchTimestampMs, shown_ms)
        _call(self.where, self.processor.init, handle)
        handle.state = HandleState.INITIALIZED
        found = on_time(
            records, metrics, self.event_time, self.lateWatermark, are_events=self.are_events
        )
        groups, are_in_memory = self._groups(initial, found)
        assert handle.values is not None, "it has a store"
        for stored, states, rows in handle.values.of(groups, are_in_memory=are_in_memory):
            handle.key, key = stored, self._shown(stored)
            for state in states:
                self._of_key(key, self.processor.handleInitialState, _as_row(state), times)
            if rows:
                given = _as_rows(rows)
                yield from self._rows(metrics, key, self.processor.handleInputRows, given, times)
        handle.state = HandleState.DATA_PROCESSED
        yield from timed(self._expired(handle, times), metrics)
        handle.state, handle.key = HandleState.TIMER_PROCESSED, None
        handle.write()
        if any(variable.ttl_ms is not None for variable in self.variables.values()):
            _evict(store, self.batchTimestampMs, metrics)
        _call(self.where, self.processor.close)
        handle.state = HandleState.CLOSED
        if self.timeMode is TimeMode.ProcessingTime and self.reports_next_timeout:
            # A timer is due at its time, and a batch without data runs after nextTimeoutMs.
            metrics.nextTimeoutMs = max(earliest_timeout_ms(store) - 1, NO_TIMESTAMP)

    def _groups(
        self, initial: Pairs, records: Pairs
    ) -> tuple[Iterator[tuple[tuple[Any, ...], Iterable[Any], list[Any]]], bool]:
        """Return (key in the store, initial states, records), and whether all are in memory."""
        first = next(initial, None)
        groups = GroupsInOrder(self.memory_mb, has_sides=first is not None)
        if first is None:
            groups.add(records)
            found = ((self._stored(key), (), rows) for key, rows in groups.items())
            return found, groups.are_in_memory
        groups.add((key, (1, state)) for key, state in chain((first,), initial))
        groups.add((key, (0, record)) for key, record in records)
        sides = ((self._stored(key), states, rows) for key, (rows, states) in groups.items())
        return sides, groups.are_in_memory

    def _stored(self, key: Any) -> tuple[Any, ...]:
        """Return the parts of a key in the store."""
        return (key,) if self.are_pairs else key

    def _shown(self, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the key that a processor gets."""
        return stored[0] if self.are_pairs and isinstance(stored[0], tuple) else stored

    def _expired(self, handle: StatefulProcessorHandle, times: TimerValues) -> Iterator[Any]:
        """Process the timers that are due; those registered meanwhile wait for the next batch."""
        if self.timeMode is TimeMode.NoTime:
            return
        by_time = self.timeMode is TimeMode.ProcessingTime
        until_ms = self.batchTimestampMs if by_time else self.eventTimeWatermark
        assert until_ms is not None, "the operator checks it"
        for place, _, expiry_ms in handle.store.due(until_ms + 1):
            if place[0] != TIMERS:
                continue  # a TTL
            handle.key = place[1:-1]
            key = self._shown(handle.key)
            handle.metrics.numExpiredTimers += 1
            expired = ExpiredTimerInfo(expiry_ms)
            yield from self._rows(
                handle.metrics, key, self.processor.handleExpiredTimer, times, expired
            )
            handle.store.remove(place)

    def _rows(
        self, metrics: StateMetrics, key: Any, method: Callable[..., Any], *arguments: Any
    ) -> Iterator[Any]:
        """Iterate over the rows that a method returns for a key."""
        rows = self._checked(metrics, key, method, *arguments)
        return rows if self.output_time is None else ((self._time_of(row), row) for row in rows)

    def _checked(
        self, metrics: StateMetrics, key: Any, method: Callable[..., Any], *arguments: Any
    ) -> Iterator[Any]:
        columns = self.output
        try:
            returned = method(key, *arguments)
            if type(returned) not in PLAIN_ROWS:
                require_rows(returned, self.where, "key", key)
            for row in returned:
                made = row if columns is None else _of_columns(columns, row)
                metrics.numOutputRows += 1
                yield made
        except (Exception, SystemExit) as error:
            raise failed_with_state(self.where, key, error) from error

    def _of_key(self, key: Any, method: Callable[..., _R], *arguments: Any) -> _R:
        try:
            return method(key, *arguments)
        except (Exception, SystemExit) as error:
            raise failed_with_state(self.where, key, error) from error

    def _time_of(self, row: Any) -> int | None:
        """Return the event time of an output row, which must not be late for the next operator."""
        assert self.output_time is not None, "its caller checks it"
        time_us, late_ms = self.output_time(row), self.lateWatermark
        if time_us is not None and late_ms is not None and time_us < late_ms * 1000:
            raise InvalidStreamError(
                f"[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] {self.where}: an output row has "
                f"the event time {time_us // 1000} ms, which is before the watermark {late_ms} ms; "
                "emit rows with later event times"
            )
        return time_us


def _call(where: str, method: Callable[..., _R], *arguments: Any) -> _R:
    """Call a method of a processor that concerns no key."""
    try:
        return method(*arguments)
    except (Exception, SystemExit) as error:
        raise failed(where, method.__name__, error, "method") from error


def _evict(store: StateWriter, now_ms: int, metrics: StateMetrics) -> None:
    """Remove the entries whose TTL has expired."""
    for place, _, _ in store.due(now_ms + 1):
        if place[0] != TIMERS:
            store.remove(place)
            metrics.numRemovedStateRows += 1
            metrics.numValuesRemovedDueToTTLExpiry += 1


def _as_rows(records: Iterable[Any]) -> Iterator[Any]:
    """Iterate over records as :func:`_as_row` returns them."""
    if type(records) is list and dict not in map(type, records):
        return iter(records)
    return map(_as_row, records)


def _as_row(record: Any) -> Any:
    """Return a Row for a dict with names, as processors for Spark expect; else the record."""
    if type(record) is not dict or not all(isinstance(name, str) for name in record):
        return record
    from pyspark.sql.types import Row  # noqa: PLC0415 - imported by the worker only if needed

    return Row(**record)


def _of_columns(columns: Columns, row: Any) -> Any:
    """Return a Row of declared columns: by name for a Row or dict, else by position."""
    if hasattr(row, "__fields__"):
        row = row.asDict()
    if isinstance(row, dict):
        unknown = [name for name in row if name not in columns.names]
        if unknown:
            raise InvalidStreamError(
                f"an output row has a field {unknown[0]!r}, got {shorten(row)}; the columns of "
                f"outputStructType are {', '.join(columns.names)}"
            )
        row = tuple(row.get(name) for name in columns.names)
    return columns.named(columns.row(row, "an output row"))


def defined(
    processor: Any, timeMode: TimeMode, where: str
) -> tuple[dict[str, StateVariable], tuple[str, ...]]:
    """Return the state variables that a processor defines, and the names of those it deletes.

    Its ``init`` and ``close`` run in the driver, on a copy.

    Raises:
        InvalidStreamError: the processor lacks a method, cannot be pickled, or ``init`` fails.
    """
    if isinstance(processor, type):
        name = processor.__name__
        raise InvalidStreamError(
            f"transformWithState needs an instance of a processor, got the class; pass {name}()"
        )
    missing = [name for name in _METHODS if not callable(getattr(processor, name, None))]
    if missing:
        raise InvalidStreamError(
            f"{where} needs an object with the methods of StatefulProcessor, got {processor!r}, "
            f"which lacks {', '.join(missing)}"
        )
    handle = StatefulProcessorHandle(where, timeMode)
    try:
        copy = cloudpickle.loads(cloudpickle.dumps(processor))
        copy.init(handle)
        copy.close()
    except InvalidStreamError:
        raise
    except Exception as error:
        raise InvalidStreamError(
            f"{where}: init or close of the processor failed in the driver, where it runs once to "
            f"find the state variables: {type(error).__name__}: {error}"
        ) from error
    return handle.variables, tuple(handle.deleted)
