"""Windows of event time, and keys that begin with an event time.

>>> from dstreams.structured.operators.time_windows import TimeWindows
>>> TimeWindows(10_000).ends(12_000)
(20000,)
>>> [window.start_ms for window in map(TimeWindows(10_000, 5_000).at, (15_000, 20_000))]
[5000, 10000]

::

    size 10 s, slide 5 s:      event at 12 s
                                    |
    [ 5 s ------------------- 15 s )|         in
              [ 10 s ---------------+-- 20 s )    in
                        [ 15 s ------------------- 25 s )   not

A store keeps its keys in order, so keys that begin with a time are found without a scan when the
watermark passes them. A text is prefixed with the time, as one text; other keys make a pair with
it. A key that no watermark passes has the time None. Times are integers of one unit in a store:
milliseconds for ends of windows, microseconds for events, which do not fit into prefixes from 2041
on.

>>> from dstreams.structured.operators.time_windows import join_time, split_time
>>> join_time(1000, "spark"), join_time(1000, 7)
('80000000003e8spark', (1000, 7))
>>> split_time(join_time(1000, "spark"))
(1000, 'spark')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from checkpoint.state_store import StateWriter
from dstreams.errors import InvalidStreamError
from dstreams.state.flat_map_groups import EventTime
from dstreams.structured.named_rows import Window  # older states refer to it here


@dataclass(frozen=True)
class TimeWindows:
    """Windows of one size, each a slide after the one before; one of them starts at *start_ms*.

    Semantics: ``pyspark.sql.functions.window`` (4.3).
    """

    size_ms: int
    slide_ms: int | None = None
    start_ms: int = 0

    def __post_init__(self) -> None:
        if self.size_ms <= 0:
            raise InvalidStreamError(f"window size of {self.size_ms} ms must be greater than 0 ms")
        if not 0 < self.step_ms <= self.size_ms:
            raise InvalidStreamError(
                f"window slide of {self.slide_ms} ms must be greater than 0 ms, and at most the "
                f"size of {self.size_ms} ms; a larger one would skip records"
            )

    def __str__(self) -> str:
        start = f" from {self.start_ms} ms" if self.start_ms else ""
        return f"windows of {self.size_ms} ms every {self.step_ms} ms{start}"

    @property
    def step_ms(self) -> int:
        """The time between the starts of two windows."""
        return self.size_ms if self.slide_ms is None else self.slide_ms

    def ends(self, time_ms: int) -> tuple[int, ...]:
        """Return the ends of the windows that contain a moment, the latest first."""
        step_ms = self.step_ms
        latest_ms = time_ms - (time_ms - self.start_ms) % step_ms + self.size_ms
        return tuple(range(latest_ms, time_ms, -step_ms))

    def at(self, end_ms: int) -> Window:
        return Window(end_ms - self.size_ms, end_ms)


@dataclass(frozen=True)
class WindowOfRecord:
    """Function: the window of a record, None without event time; windows must not overlap."""

    windows: TimeWindows
    time: EventTime

    def __call__(self, record: Any) -> Window | None:
        time_us = self.time(record)
        return None if time_us is None else self.windows.at(*self.windows.ends(time_us // 1000))


Taken = tuple[list[Any], Iterable[Any]]
"""Removed keys and their values."""

TIME_CHARS = 13
_BIAS = 1 << (4 * TIME_CHARS - 1)


def time_prefix(moment: int) -> str | None:
    """Return the prefix of a text key; None if the time does not fit."""
    return f"{moment + _BIAS:013x}" if -_BIAS <= moment < _BIAS else None


def join_time(moment: int, key: Any) -> Any:
    """Return the key for a time and a key."""
    if isinstance(key, str):  # an enum of texts equals its text
        prefix = time_prefix(moment)
        if prefix is not None:
            return prefix + key
    return (moment, key)


def split_time(joined: Any) -> tuple[int | None, Any]:
    """Return the time and the key of a joined key."""
    if type(joined) is str:
        return int(joined[:TIME_CHARS], 16) - _BIAS, joined[TIME_CHARS:]
    return joined  # type: ignore[no-any-return]


def time_of(joined: Any) -> int | None:
    """Return the time that a key begins with, or is; None without one."""
    return joined if type(joined) is int else split_time(joined)[0]


def passed_by(last: int) -> Callable[[Any], bool]:
    """Return a predicate: is the time of a key at or before a watermark?"""
    # Times in texts have one length, so texts compare as their times do; a text is after the time
    # that it begins with.
    bound = _text_bound(last + 1)

    def is_passed(joined: Any) -> bool:
        if type(joined) is str:
            return joined < bound
        moment = time_of(joined)
        return moment is not None and moment <= last

    return is_passed


def take_passed(store: StateWriter, last: int) -> Iterator[Taken]:
    """Remove the keys with a time at or before a watermark, and iterate over keys and values."""
    for stop in _stops(last):
        yield from store.take_range(None, stop)


def remove_passed(store: StateWriter, last: int) -> int:
    """Remove the keys with a time at or before a watermark, and return how many."""
    return sum(store.remove_range(None, stop) for stop in _stops(last))


def _stops(last: int) -> tuple[Any, ...]:
    """Return the ends of the ranges of passed keys, one for each kind of key."""
    after = last + 1
    return after, _text_bound(after), (after,)


def are_all_after(keys: list[Any], last: int) -> bool:
    """Return True if keys are texts and none was passed; False if each must be checked."""
    return set(map(type, keys)) == {str} and min(keys) >= _text_bound(last + 1)


def _text_bound(moment: int) -> str:
    """Return the least text that follows all texts with an earlier time."""
    if moment >= _BIAS:
        return "g"  # after every hexadecimal digit
    return time_prefix(moment) or ""
