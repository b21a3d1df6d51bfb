"""Functions of grouped state, for streams and for queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dstreams import GroupState

INITIAL = [("S1", 1), ("S2", 2), ("NoUpdate", 2), ("OnlyState", 1)]
"""What ``counting`` begins with."""


def running_count(key: str, values: Iterator[Any], state: GroupState[int]) -> list[Any]:
    """Counts up to three, and begins anew."""
    count = (state.getOption or 0) + len(list(values))
    if count == 3:
        state.remove()
        return []
    state.update(count)
    return [(key, count)]


def lazy_count(key: str, values: Iterator[Any], state: GroupState[int]) -> Iterator[Any]:
    """As ``running_count``, while its output is read."""
    for _ in values:
        count = (state.getOption or 0) + 1
        if count == 3:
            state.remove()
        else:
            state.update(count)
            yield key, count


def mapped_count(key: str, values: Iterator[Any], state: GroupState[int]) -> tuple[str, int]:
    """As ``running_count``, with a row for each call."""
    return (running_count(key, values, state) or [(key, -1)])[0]


def ten_seconds(key: str, values: Iterator[Any], state: GroupState[int]) -> list[Any]:
    """Ends ten seconds after the last value."""
    if state.hasTimedOut:
        assert list(values) == []
        state.remove()
        return [(key, -1)]
    count = (state.getOption or 0) + len(list(values))
    state.update(count)
    state.setTimeoutDuration("10 seconds")
    return [(key, count)]


def counting(key: str, values: Iterator[Any], state: GroupState[int]) -> list[Any]:
    """Counts, and does not store where the key says so."""
    seen = list(values)
    count = (state.getOption or 0) + len(seen)
    if "NoUpdate" not in str(key):
        state.update(count)
    return [(key, seen, count)]
