"""Grouping: the keys that a record is aggregated under.

===============  =======================  =======================
grouped by       key between operators    key in the result
===============  =======================  =======================
nothing          ``()``                   ``()``
a key            ``key``                  ``key``
windows          ``end``                  ``Window``
windows, a key   ``end, key``             ``(Window, key)``
event time       ``time``                 ``time``
event time, key  ``time, key``            ``(time, key)``
===============  =======================  =======================

Times are milliseconds since the epoch; a time and a key are one key by
:mod:`dstreams.structured.operators.window_keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.structured.operators.failures import failed
from dstreams.structured.operators.window_keys import passed_keys, split_time, time_prefix
from dstreams.structured.operators.windows import TimeWindows

EVENT_TIME = "event time"


@dataclass(frozen=True)
class Grouping:
    """What records are grouped by.

    Args:
        key: ``record -> key``, None for none. A key is hashable and equal to itself for ever.
        windows: windows of event time; :data:`EVENT_TIME` for the event time itself; None for
            neither. Records without an event time are then left out.
        name: what it is, for ``explain`` and error messages.
        time: ``record -> milliseconds since the epoch or None``, where another time than the one
            that has the watermark is meant. State is then kept for ever.
    """

    key: Callable[[Any], Any] | None = None
    windows: TimeWindows | str | None = None
    name: str = "key"
    time: Callable[[Any], int | None] | None = None

    @property
    def isGlobal(self) -> bool:
        """Whether all records are one group."""
        return self.key is None and self.windows is None

    @property
    def overlaps(self) -> bool:
        """Whether a record may be in several groups."""
        windows = self.windows
        return isinstance(windows, TimeWindows) and windows.step_ms < windows.size_ms

    @property
    def hasWatermark(self) -> bool:
        """Whether keys have a time that the watermark passes."""
        return self.windows is not None and self.time is None

    def assign(self, rows: Iterable[Any], are_events: bool) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, record): several for a record in several windows.

        Args:
            rows: records, or events.
            are_events: which of the two.
        """
        if self.windows is not None:
            yield from self._assign_windows(rows, are_events)
            return
        for row in rows:
            record = row[1] if are_events else row
            yield self.key_of(record), record

    def key_of(self, record: Any) -> Any:
        """Return the user's key of a record, ``()`` without one."""
        if self.key is None:
            return ()
        try:
            return self.key(record)
        except Exception as error:
            raise failed(self.name, record, error, "record") from error

    def _assign_windows(self, rows: Iterable[Any], are_events: bool) -> Iterator[tuple[Any, Any]]:
        has_key, key_of, moments = self.key is not None, self.key_of, self._moments
        prefixes: dict[int, str | None] = {}
        for time_ms, record in self._timed(rows, are_events):
            if time_ms is None:
                continue
            if not has_key:
                for moment_ms in moments(time_ms):
                    yield moment_ms, record
                continue
            own = key_of(record)
            is_text = isinstance(own, str)
            for moment_ms in moments(time_ms):
                if is_text:
                    if moment_ms not in prefixes:
                        prefixes[moment_ms] = time_prefix(moment_ms)
                    prefix = prefixes[moment_ms]
                    if prefix is not None:
                        yield prefix + own, record
                        continue
                yield (moment_ms, own), record

    def _timed(self, rows: Iterable[Any], are_events: bool) -> Iterable[Any]:
        if self.time is not None:
            time, records = self.time, (row[1] for row in rows) if are_events else rows
            return ((time(record), record) for record in records)
        return rows

    @property
    def _moments(self) -> Callable[[int], tuple[int, ...]]:
        return self.windows.ends if isinstance(self.windows, TimeWindows) else _itself

    def result_key(self, key: Any) -> Any:
        """Return the key as it stands in the result."""
        return self.result_keys()(key)

    def result_keys(self) -> Callable[[Any], Any]:
        """Return the function that does so for many."""
        windows, has_key = self.windows, self.key is not None
        if windows is None:
            return _same
        named: dict[int, Any] = {}

        def name(time_ms: int) -> Any:
            if time_ms not in named:
                named[time_ms] = (
                    windows.at(time_ms) if isinstance(windows, TimeWindows) else time_ms
                )
            return named[time_ms]

        def name_both(key: Any) -> Any:
            time_ms, own = split_time(key)
            return name(time_ms), own

        return name_both if has_key else name

    def passed(self, store: StateWriter, watermark_ms: int) -> Iterator[tuple[Any, Any]]:
        """Iterate over the (key, value) that a watermark has passed, found without a scan."""
        return passed_keys(store, watermark_ms) if self.hasWatermark else iter(())


def _itself(time_ms: int) -> tuple[int, ...]:
    return (time_ms,)


def _same(key: Any) -> Any:
    return key
