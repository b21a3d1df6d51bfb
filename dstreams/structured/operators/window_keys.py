"""Keys with an event time in front, in the form that is cheapest to place, compare and store.

A store has its keys in order, so those that a watermark has passed stand first and are found
without a scan. A text is one text with the time in front of it; with another key it is a pair.

>>> from dstreams.structured.operators.window_keys import join_time, split_time
>>> join_time(1000, "spark"), join_time(1000, 7)
('80000000003e8spark', (1000, 7))
>>> split_time(join_time(1000, "spark"))
(1000, 'spark')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from checkpoint.state_store import StateWriter

TIME_CHARS = 13
_BIAS = 1 << (4 * TIME_CHARS - 1)


def time_prefix(time_ms: int) -> str | None:
    """Return what stands in front of a text; None for a time that is further than that goes."""
    return f"{time_ms + _BIAS:013x}" if -_BIAS <= time_ms < _BIAS else None


def join_time(time_ms: int, key: Any) -> Any:
    """Return the key that stands for a time and a key; equal ones for equal ones."""
    if isinstance(key, str):  # an enum of texts equals its text
        prefix = time_prefix(time_ms)
        if prefix is not None:
            return prefix + key
    return (time_ms, key)


def split_time(joined: Any) -> tuple[int, Any]:
    """Return time and key again."""
    if type(joined) is str:
        return int(joined[:TIME_CHARS], 16) - _BIAS, joined[TIME_CHARS:]
    return joined  # type: ignore[no-any-return]


def time_of(joined: Any) -> int:
    """Return the time of a key that has one in front, or is one."""
    return joined if type(joined) is int else split_time(joined)[0]


def passed_by(watermark_ms: int) -> Callable[[Any], bool]:
    """Return the function that says whether the time of a key is at or before a watermark."""
    # Times in texts have one length, so texts compare as their times do; a text is after the time
    # that it begins with.
    bound = _text_bound(watermark_ms + 1)

    def is_passed(joined: Any) -> bool:
        if type(joined) is str:
            return joined < bound
        return time_of(joined) <= watermark_ms

    return is_passed


def passed_keys(store: StateWriter, watermark_ms: int) -> Iterator[tuple[Any, Any]]:
    """Iterate over (key, value) of the keys with a time at or before a watermark."""
    after_ms = watermark_ms + 1
    for stop in (after_ms, _text_bound(after_ms), (after_ms,)):
        yield from store.range(None, stop)


def _text_bound(time_ms: int) -> str:
    """Return a text after those with an earlier time in front, and after no other."""
    if time_ms >= _BIAS:
        return "g"  # after every hexadecimal digit
    return time_prefix(time_ms) or ""
