"""Keys with an event time in front, in the form that is cheapest to place, compare and store.

A store has its keys in order, so those that a watermark has passed stand first and are found
without a scan. A text has the time in front of it, as one text; another key makes a pair with the
time, which is None for a key that no watermark passes.

Times are whole numbers of one unit in a store: windows end at milliseconds, events happen at
microseconds, which from the year 2041 on are too large to stand in texts.

>>> from dstreams.structured.operators.window_keys import join_time, split_time
>>> join_time(1000, "spark"), join_time(1000, 7)
('80000000003e8spark', (1000, 7))
>>> split_time(join_time(1000, "spark"))
(1000, 'spark')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from checkpoint.state_store import StateWriter

Taken = tuple[list[Any], Iterable[Any]]
"""Some keys that were removed, and their values."""

TIME_CHARS = 13
_BIAS = 1 << (4 * TIME_CHARS - 1)


def time_prefix(moment: int) -> str | None:
    """Return what stands in front of a text; None for a time that is too far away."""
    return f"{moment + _BIAS:013x}" if -_BIAS <= moment < _BIAS else None


def join_time(moment: int, key: Any) -> Any:
    """Return the key for a time and a key; equal ones for equal ones."""
    if isinstance(key, str):  # an enum of texts equals its text
        prefix = time_prefix(moment)
        if prefix is not None:
            return prefix + key
    return (moment, key)


def split_time(joined: Any) -> tuple[int | None, Any]:
    """Return time and key again."""
    if type(joined) is str:
        return int(joined[:TIME_CHARS], 16) - _BIAS, joined[TIME_CHARS:]
    return joined  # type: ignore[no-any-return]


def time_of(joined: Any) -> int | None:
    """Return the time of a key that has one in front, or is one; None for none."""
    return joined if type(joined) is int else split_time(joined)[0]


def passed_by(last: int) -> Callable[[Any], bool]:
    """Return the function that says whether the time of a key is at or before a watermark."""
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
    """Return what ends the keys of each kind that have a time at or before a watermark."""
    after = last + 1
    return after, _text_bound(after), (after,)


def are_all_after(keys: list[Any], last: int) -> bool:
    """Whether keys are texts of which none was passed; False where it takes a look at each."""
    return set(map(type, keys)) == {str} and min(keys) >= _text_bound(last + 1)


def _text_bound(moment: int) -> str:
    """Return a text after those with an earlier time in front, and after no other."""
    if moment >= _BIAS:
        return "g"  # after every hexadecimal digit
    return time_prefix(moment) or ""
