"""States of pyspark.sql.streaming as those of the operators of a query.

============================  =====================================================================
operator of Spark             value of a key there -> here
============================  =====================================================================
stateStoreSave                the columns of the buffers, in the order of the aggregates -> buffers
dedupe                        nothing -> a mark
dedupeWithinWatermark         the time after which the key is forgotten -> the same, as a timer
applyInPandasWithState,       ``groupState``, ``timeoutTimestamp`` -> the columns of the state in a
flatMapGroupsWithState        tuple, and the timer
============================  =====================================================================

Key columns are matched with the parts of the key by name, and those of functions by their order.
Timestamps become instants with the zone UTC, as in the records of sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import timezone
from math import gcd
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    TimestampType,
    UserDefinedType,
)

from dstreams.arrow.aggregates.functions import (
    Average,
    Count,
    First,
    Last,
    Max,
    Min,
    Several,
    StdDev,
    Sum,
    Variance,
)
from dstreams.common.durations import event_time_us, ms_upto
from dstreams.errors import RestartError
from dstreams.sources.file_formats import TextLines
from dstreams.spark.selectors import Field, Fields
from dstreams.state.group_state import NO_TIMESTAMP, GroupStateTimeout
from dstreams.structured.execution.restart_checks import key_below
from dstreams.structured.execution.spark_query import columns_of
from dstreams.structured.named_rows import Window
from dstreams.structured.operators.aggregation import StateStoreSaveExec
from dstreams.structured.operators.deduplication import (
    StreamingDeduplicateExec,
    StreamingDeduplicateWithinWatermarkExec,
)
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.grouping import EVENT_TIME
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.operators.stateless import (
    ElementsExec,
    StreamingRelationExec,
)
from dstreams.structured.operators.time_windows import TimeWindows, join_time, time_of
from dstreams.structured.plan.aggregate_names import name_of
from dstreams.structured.plan.planning import PlannedQuery
from dstreams.structured.sources.file_source import FileStreamSource
from dstreams.structured.sources.query_formats import ColumnFormat

_WATERMARK = "spark.watermarkDelayMs"
"""In the metadata of the column that has the event time."""

_NESTED = (StructType, ArrayType, MapType, UserDefinedType)
_BUFFERS: dict[type, tuple[str, ...]] = {
    Count: ("count",),
    Sum: ("sum",),
    Min: ("min",),
    Max: ("max",),
    Average: ("sum", "count"),
    Variance: ("n", "avg", "m2"),
    StdDev: ("n", "avg", "m2"),
    First: ("first", "valueSet"),
    Last: ("last", "valueSet"),
}
"""Names of the columns of buffers in Spark."""

_SAME_WINDOWS = "define window() with the size, slide and startTime of Spark's query"

NAMES = {
    "stateStoreSave": StateStoreSaveExec,
    "dedupe": StreamingDeduplicateExec,
    "dedupeWithinWatermark": StreamingDeduplicateWithinWatermarkExec,
    "applyInPandasWithState": FlatMapGroupsWithStateExec,
    "flatMapGroupsWithState": FlatMapGroupsWithStateExec,
}
"""The operators whose state can be adopted, by their names in Spark."""

Entry = tuple[Any, tuple[None, Any, int | None]]
"""(key in the store; None; row, timeout in ms)."""


class NotAdoptableError(Exception):
    """The state of an operator is not what the operator of the program continues."""


def entries_of(
    frame: DataFrame, operator: StateStoreWriter, planned: PlannedQuery
) -> Callable[[Row], Entry]:
    """Return the function from a row of Spark's state to the entry of a store.

    Raises:
        NotAdoptableError: the state does not fit the operator.
    """
    key = _key_of(columns_of(frame, "key"), operator, planned)
    value = _value_of(columns_of(frame, "value"), operator, planned)
    return _ToEntry(key, value)


def require_slide(operator: StateStoreWriter, watermark_ms: int, entries: RDD[Entry]) -> None:
    """Refuse the windows of a query with a larger slide, which are among those of the operator.

    Raises:
        NotAdoptableError: a window is there without those that have the same records.
    """
    windows = getattr(getattr(operator, "keyExpressions", None), "windows", None)
    if not isinstance(windows, TimeWindows) or windows.size_ms < 2 * windows.step_ms:
        return
    found = entries.keys().map(time_of).distinct().collect()
    ends = {end for end in found if end is not None}
    alone = [end for end in ends if is_alone(end, ends, windows, watermark_ms)]
    if alone:
        slide_ms = gcd(*(end - alone[0] for end in ends))
        raise NotAdoptableError(
            f"it has the {windows.at(min(alone))!r}, but not the window {windows.step_ms} ms "
            f"before or after it, one of which has the same records in {windows}, as this program "
            f"has; {f'those of Spark are every {slide_ms} ms; ' if slide_ms else ''}{_SAME_WINDOWS}"
        )


def is_alone(end: int, ends: Set[int], windows: TimeWindows, watermark_ms: int) -> bool:
    """Return whether overlapping windows would have kept the one before or after a window."""
    before, after = end - windows.step_ms, end + windows.step_ms
    return before > watermark_ms and before not in ends and after not in ends


@dataclass(frozen=True)
class _ToEntry:
    key: _Key
    value: Any

    def __call__(self, row: Row) -> Entry:
        key = self.key(row.key)
        return key, (None, *self.value(key, row.value))


def _plain(value: Any, is_instant: bool) -> Any:
    """Return a value as the records of sources have it; Spark has instants in local time."""
    return value.astimezone(timezone.utc) if is_instant and value is not None else value


# Keys ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Key:
    """Function: the key columns of Spark -> the key in the store.

    Args:
        places: the column of each part of the key, and whether it is an instant.
        make: makes the key of the parts.
        time: the column of the event time or window that the key begins with, None without one.
        windows: the windows, if it is one.
        is_pair: whether time and key are always a pair.
    """

    places: tuple[tuple[int, bool], ...]
    make: Callable[..., Any] | None
    time: int | None = None
    windows: TimeWindows | None = None
    is_pair: bool = False

    def __call__(self, key: Row) -> Any:
        parts = tuple(_plain(key[place], is_instant) for place, is_instant in self.places)
        own = parts if self.make is None else self.make(*parts)
        if self.time is None:
            return own
        time = key[self.time]
        if self.windows is not None:
            start_us, end_us = event_time_us(time.start), event_time_us(time.end)
            end_ms = end_us // 1000
            found, windows = Window(start_us // 1000, end_ms), self.windows
            is_apart = (start_us - 1000 * windows.start_ms) % (1000 * windows.step_ms)
            if is_apart or end_us - start_us != 1000 * windows.size_ms:
                raise RestartError(
                    f"it has the {found!r}, which is not one of the {windows} of this program; "
                    f"{_SAME_WINDOWS}"
                )
            return join_time(end_ms, own) if self.places else end_ms
        time_us = None if time is None else event_time_us(time)
        return (time_us, own) if time_us is None or self.is_pair else join_time(time_us, own)


def _only(part: Any) -> Any:
    return part


def _key_of(
    columns: Sequence[StructField], operator: StateStoreWriter, planned: PlannedQuery
) -> _Key:
    times = [place for place, column in enumerate(columns) if _WATERMARK in column.metadata]
    spans = [
        place
        for place, column in enumerate(columns)
        if isinstance(column.dataType, StructType) and column.dataType.names == ["start", "end"]
    ]
    if isinstance(operator, StateStoreSaveExec):
        grouping = operator.keyExpressions
        key = Fields(()) if grouping.key is None else grouping.key
        if isinstance(grouping.windows, TimeWindows):
            time = _one(spans, "window", columns)
            return _matched(columns, key, time, grouping.windows)
        if grouping.windows == EVENT_TIME:
            return _matched(columns, key, _one(times, "event time", columns), is_pair=True)
        return _matched(columns, key)
    key = key_below(operator.children[0])
    has_time = isinstance(operator, StreamingDeduplicateExec) and operator.withEventTime
    marked = _one(times, "event time", columns) if has_time else None
    if key is None:
        return _Key(*_record(columns, operator, planned), marked)
    return _matched(columns, key, marked, drops_time=has_time)


def _one(places: Sequence[int], what: str, columns: Sequence[StructField]) -> int:
    if len(places) != 1:
        names = ", ".join(column.name for column in columns) or "none"
        raise NotAdoptableError(f"its keys have one {what} here, and {len(places)} there: {names}")
    return places[0]


def _matched(
    columns: Sequence[StructField],
    key: Any,
    time: int | None = None,
    windows: TimeWindows | None = None,
    *,
    is_pair: bool = False,
    drops_time: bool = False,
) -> _Key:
    """Match the parts of a key with the columns of Spark, by name or else by place."""
    parts = key.parts if isinstance(key, Fields) else (key,)
    is_apart = windows is not None or drops_time
    free = [place for place in range(len(columns)) if not (is_apart and place == time)]
    names = [part.name if isinstance(part, Field) else None for part in parts]
    shown = ", ".join("a function" if name is None else name for name in names) or "none"
    there = ", ".join(columns[place].name for place in free) or "none"
    error = NotAdoptableError(f"its keys are {shown} here, and {there} there")
    if len(parts) != len(free):
        raise error
    by_name = {columns[place].name.lower(): place for place in free}
    if any(name is not None and name.lower() not in by_name for name in names):
        raise error
    taken = [None if name is None else by_name[name.lower()] for name in names]
    rest = iter([place for place in free if place not in taken])
    places = [next(rest) if place is None else place for place in taken]
    make = None if isinstance(key, Fields) else _only
    return _Key(tuple(_typed(columns, place) for place in places), make, time, windows, is_pair)


def _typed(columns: Sequence[StructField], place: int) -> tuple[int, bool]:
    kind = columns[place].dataType
    if isinstance(kind, _NESTED):
        raise NotAdoptableError(
            f"its column {columns[place].name} is {kind.simpleString()}; only plain values can be "
            "taken"
        )
    return place, isinstance(kind, TimestampType)


def _record(
    columns: Sequence[StructField], operator: StateStoreWriter, planned: PlannedQuery
) -> tuple[tuple[tuple[int, bool], ...], Callable[..., Any]]:
    """Return the columns of a key that is the whole record, and what makes the record."""
    steps = list(operator.walk())
    sources = [planned.sources[s.number] for s in steps if isinstance(s, StreamingRelationExec)]
    is_mapped = any(isinstance(s, ElementsExec) and s.kind != "filter" for s in steps)
    source = sources[0] if len(sources) == 1 and not is_mapped else None
    format = source.format if isinstance(source, FileStreamSource) else None
    by_name = {column.name: place for place, column in enumerate(columns)}
    if isinstance(format, TextLines) and len(columns) == 1:
        return (_typed(columns, 0),), _only
    if isinstance(format, ColumnFormat) and set(format.columns.schema.names) == set(by_name):
        names = format.columns.schema.names
        make: Any = format.columns.record_class or Row(*names)
        return tuple(_typed(columns, by_name[name]) for name in names), make
    raise NotAdoptableError(
        f"its keys are whole records here, and {', '.join(by_name)} there; name the fields as "
        "subset"
    )


# Values ----------------------------------------------------------------------------------------


def _value_of(
    columns: Sequence[StructField], operator: StateStoreWriter, planned: PlannedQuery
) -> Any:
    names = [column.name for column in columns]
    if isinstance(operator, StateStoreSaveExec):
        return _buffers(columns, operator, planned)
    if isinstance(operator, StreamingDeduplicateWithinWatermarkExec):
        if names != ["expiresAtMicros"]:
            raise _unknown(names)
        return _expiry
    if isinstance(operator, StreamingDeduplicateExec):
        return _seen
    assert isinstance(operator, FlatMapGroupsWithStateExec)
    if names[:1] != ["groupState"] or names[1:] not in ([], ["timeoutTimestamp"]):
        raise _unknown(names)
    has_timers = operator.groups.timeoutConf is not GroupStateTimeout.NoTimeout
    if has_timers != (len(names) == 2):
        timer = "a" if has_timers else "no"
        raise NotAdoptableError(f"it has {timer} timeout here, and not so there")
    return _GroupValue(operator.groups.stateManager, has_timers)


def _unknown(names: Sequence[str]) -> NotAdoptableError:
    return NotAdoptableError(f"its format is not known: its values have {', '.join(names)}")


def _seen(key: Any, value: Row) -> tuple[Any, int | None]:
    return True, None


def _expiry(key: Any, value: Row) -> tuple[Any, int | None]:
    expires_ms = max(ms_upto(value.expiresAtMicros), 0)
    return expires_ms, expires_ms


@dataclass(frozen=True)
class _GroupValue:
    manager: Any
    has_timers: bool

    def __call__(self, key: Any, value: Row) -> tuple[Any, int | None]:
        state = None if value.groupState is None else tuple(value.groupState)
        timer_ms = value.timeoutTimestamp if self.has_timers else NO_TIMESTAMP
        kept = _Kept()
        self.manager.put_state(kept, key, state, timer_ms)
        return kept.row


class _Kept:
    """Keeps the row that is put, and its timeout."""

    row: tuple[Any, int | None]

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        self.row = value, timeout_ms


@dataclass(frozen=True)
class _BufferValue:
    """Function: the buffers of Spark -> the row; *parts* has kind and columns of each."""

    manager: Any
    parts: tuple[tuple[type, tuple[tuple[int, bool], ...]], ...]

    def __call__(self, key: Any, value: Row) -> tuple[Any, int | None]:
        buffers = [
            _buffer(kind, [_plain(value[place], is_instant) for place, is_instant in places])
            for kind, places in self.parts
        ]
        buffer = buffers[0] if len(buffers) == 1 else buffers
        return self.manager.value_of((key, buffer)), None


def _buffer(kind: type, values: list[Any]) -> Any:
    """Return the buffer of an aggregate for the columns that Spark has."""
    if kind is Sum:
        return None if len(values) == 2 and values[1] else values[0]
    if kind is Average:
        return (values[0], values[1]) if values[1] else None
    if kind in (Variance, StdDev):
        return (int(values[0]), values[1], values[2]) if values[0] else None
    if kind in (First, Last):
        return (values[0],) if values[1] else None
    return values[0]


def _buffers(
    columns: Sequence[StructField], operator: StateStoreSaveExec, planned: PlannedQuery
) -> _BufferValue:
    aggregate = getattr(operator.child, "aggregate", None)
    functions = aggregate.functions if isinstance(aggregate, Several) else (aggregate,)
    names, at = [column.name for column in columns], 0
    parts: list[tuple[type, tuple[tuple[int, bool], ...]]] = []
    for function in functions:
        wanted = _BUFFERS.get(type(function), ())
        if type(function) is Sum and names[at + 1 : at + 2] == ["isEmpty"]:
            wanted = ("sum", "isEmpty")
        if not wanted or getattr(function, "by", None) or names[at : at + len(wanted)] != [*wanted]:
            parts = []
            break
        _require_scaled(function, columns[at], planned)
        kind = type(function)
        parts.append((kind, tuple(_typed(columns, at + n) for n in range(len(wanted)))))
        at += len(wanted)
    if not parts or at < len(names):
        shown = ", ".join(map(name_of, functions))
        raise NotAdoptableError(
            f"it computes {shown} here, and its values there are {', '.join(names)}; use the same "
            f"aggregates in the same order: {', '.join(sorted(kind.__name__ for kind in _BUFFERS))}"
        )
    return _BufferValue(operator.stateManager, tuple(parts))


def _require_scaled(function: Any, column: StructField, planned: PlannedQuery) -> None:
    """Refuse a sum of decimals of few digits, which Spark keeps as numbers without a scale."""
    if type(function) not in (Sum, Average) or isinstance(column.dataType, DecimalType):
        return
    decimals = {
        field.name
        for source in planned.sources
        if isinstance(source, FileStreamSource) and isinstance(source.format, ColumnFormat)
        for field in source.format.columns.schema
        if str(field.type).startswith("decimal")
    }
    if function.of in decimals or (decimals and not isinstance(function.of, str)):
        raise NotAdoptableError(
            f"{name_of(function)} may be of a decimal with few digits, whose sum Spark keeps "
            "without its scale; name the field, and use another type than decimal"
        )
