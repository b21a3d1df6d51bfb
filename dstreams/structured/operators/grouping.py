"""Grouping: the keys that a record is aggregated under.

===============  =======================  =======================
grouped by       key between operators    key in the result
===============  =======================  =======================
nothing          ``()``                   ``()``
a key            ``key``                  ``key``
windows          ``end``                  ``Window``
windows, a key   ``end, key``             ``(Window, key)``
event time       ``time, key``            ``key``, which has the time
===============  =======================  =======================

Ends are milliseconds since the epoch, times microseconds; a time and a key are one key by
:mod:`dstreams.structured.operators.time_windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from operator import add
from typing import Any

from checkpoint import rows_of_fields
from checkpoint.state_store import StateWriter
from dstreams.spark.blocks import columns_of
from dstreams.spark.failures import failed, mapped
from dstreams.structured.named_rows import Window, same
from dstreams.structured.operators.physical_operator import mapped_records
from dstreams.structured.operators.time_windows import (
    TIME_CHARS,
    Taken,
    TimeWindows,
    are_all_after,
    join_time,
    passed_by,
    remove_passed,
    split_time,
    take_passed,
    time_prefix,
)

EVENT_TIME = "event time"


def key_of(key: Callable[[Any], Any] | None, record: Any, name: str) -> Any:
    """Return the key of a record, ``()`` without a key function."""
    if key is None:
        return ()
    try:
        return key(record)
    except Exception as error:
        raise failed(name, record, error, "record") from error


@dataclass(frozen=True)
class Grouping:
    """The grouping of records by key and time.

    *windows* are windows of event time, :data:`EVENT_TIME` if the event time is part of the key, or
    None. *time* returns another time than the one with the watermark, in microseconds; state is
    then never evicted. Keys are hashable and equal to themselves in every process.
    """

    key: Callable[[Any], Any] | None = None
    windows: TimeWindows | str | None = None
    name: str = "key"
    time: Callable[[Any], int | None] | None = None

    @property
    def isGlobal(self) -> bool:
        """True if all records are one group."""
        return self.key is None and self.windows is None

    @property
    def overlaps(self) -> bool:
        """True if a record may be in several groups."""
        windows = self.windows
        return isinstance(windows, TimeWindows) and windows.step_ms < windows.size_ms

    @property
    def hasWatermark(self) -> bool:
        """True if keys have a time that the watermark passes."""
        return self.windows is not None and self.time is None

    def assign(self, rows: Iterable[Any], are_events: bool) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, record): several for a record in several windows."""
        if isinstance(self.windows, TimeWindows):
            if self.time is not None:
                time, records = self.time, (row[1] for row in rows) if are_events else rows
                rows = ((time(record), record) for record in records)
            yield from self._assign_windows(self.windows, rows)
            return
        for row in rows:
            record = row[1] if are_events else row
            key = self.key_of(record)
            yield key if self.windows is None else (row[0], key), record

    def assign_columns(
        self, rows: Iterable[Any], are_events: bool
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        """Iterate over the pairs of :meth:`assign` in columns; windows must not overlap."""
        windows = self.windows
        for times, column in columns_of(rows if are_events else ((None, row) for row in rows)):
            records = rows_of_fields(column)
            if windows is None:
                yield self._keys_of(records), records
            elif isinstance(windows, TimeWindows):
                known = mapped(self.time, records) if self.time is not None else times
                if None in known:
                    is_timed = [time_us is not None for time_us in known]
                    known = list(compress(known, is_timed))
                    records = list(compress(records, is_timed))
                if records:
                    yield self._window_keys(windows, known, records), records
            else:
                yield list(zip(times, self._keys_of(records), strict=True)), records

    def _window_keys(
        self, windows: TimeWindows, times_us: list[Any], records: list[Any]
    ) -> list[Any]:
        """Return the keys of records, each in one window."""
        size_us, start_us = windows.size_ms * 1000, windows.start_ms * 1000
        first, last = min(times_us), max(times_us)
        one_end_us = first - (first - start_us) % size_us + size_us
        if last < one_end_us:
            ends = [one_end_us // 1000] * len(times_us)
        else:
            ends = [
                (time_us - (time_us - start_us) % size_us + size_us) // 1000 for time_us in times_us
            ]
        if self.key is None:
            return ends
        keys = self._keys_of(records)
        if set(map(type, keys)) != {str}:
            return list(map(join_time, ends, keys))
        prefixes = {end_ms: time_prefix(end_ms) for end_ms in set(ends)}
        if None in prefixes.values():
            return list(map(join_time, ends, keys))
        if len(prefixes) == 1:
            prefix: Any = prefixes[ends[0]]
            return [prefix + key for key in keys]
        return list(map(add, map(prefixes.__getitem__, ends), keys))

    def _keys_of(self, records: list[Any]) -> list[Any]:
        if self.key is None:
            return [()] * len(records)
        return mapped_records(self.key, records, self.name)

    def key_of(self, record: Any) -> Any:
        return key_of(self.key, record, self.name)

    def _assign_windows(
        self, windows: TimeWindows, events: Iterable[Any]
    ) -> Iterator[tuple[Any, Any]]:
        has_key, key_of, ends = self.key is not None, self.key_of, windows.ends
        prefixes: dict[int, str | None] = {}
        for time_us, record in events:
            if time_us is None:
                continue
            time_ms = time_us // 1000  # windows begin and end at whole milliseconds
            if not has_key:
                for end_ms in ends(time_ms):
                    yield end_ms, record
                continue
            own = key_of(record)
            is_text = isinstance(own, str)
            for end_ms in ends(time_ms):
                if is_text:
                    if end_ms not in prefixes:
                        prefixes[end_ms] = time_prefix(end_ms)
                    prefix = prefixes[end_ms]
                    if prefix is not None:
                        yield prefix + own, record
                        continue
                yield (end_ms, own), record

    def result_key(self, key: Any) -> Any:
        return self.result_keys()(key)

    def result_keys(self) -> Callable[[Any], Any]:
        """Return the function from a key between operators to a key of the result."""
        windows, has_key = self.windows, self.key is not None
        if windows is None:
            return same
        if not isinstance(windows, TimeWindows):
            return _own
        named: dict[int, Window] = {}

        def name(end_ms: int) -> Window:
            if end_ms not in named:
                named[end_ms] = windows.at(end_ms)
            return named[end_ms]

        of_prefix: dict[str, Window] = {}

        def name_both(key: Any) -> Any:
            if type(key) is str:
                prefix = key[:TIME_CHARS]
                if prefix in of_prefix:
                    return of_prefix[prefix], key[TIME_CHARS:]
            end_ms, own = split_time(key)
            window = name(end_ms)  # type: ignore[arg-type]
            if type(key) is str:
                of_prefix[prefix] = window
            return window, own

        return name_both if has_key else name

    def take_passed(self, store: StateWriter, watermark_ms: int) -> Iterator[Taken]:
        """Remove the keys that a watermark has passed, and iterate over keys and values."""
        return take_passed(store, self._in_unit(watermark_ms)) if self.hasWatermark else iter(())

    def remove_passed(self, store: StateWriter, watermark_ms: int) -> int:
        """Remove the keys that a watermark has passed, and return their number."""
        return remove_passed(store, self._in_unit(watermark_ms)) if self.hasWatermark else 0

    def is_passed(self, watermark_ms: int) -> Callable[[Any], bool]:
        """Return a predicate: has a watermark passed a key?"""
        return passed_by(self._in_unit(watermark_ms))

    def passed_of(self, keys: list[Any], watermark_ms: int) -> list[bool]:
        """Return a flag for each key that a watermark has passed; empty if it has passed none."""
        last = self._in_unit(watermark_ms)
        return [] if are_all_after(keys, last) else list(map(passed_by(last), keys))

    def _in_unit(self, watermark_ms: int) -> int:
        return watermark_ms if isinstance(self.windows, TimeWindows) else watermark_ms * 1000


def _own(key: tuple[int | None, Any]) -> Any:
    return key[1]
