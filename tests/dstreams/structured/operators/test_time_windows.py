"""Windows: which of them a moment is in, against their definition."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StoreId
from dstreams.errors import InvalidStreamError
from dstreams.structured.named_rows import Window
from dstreams.structured.operators.time_windows import (
    TimeWindows,
    join_time,
    passed_by,
    split_time,
    take_passed,
    time_of,
)


@pytest.mark.parametrize(
    ("windows", "time_ms", "ends"),
    [
        (TimeWindows(10), 0, (10,)),
        (TimeWindows(10), 9, (10,)),
        (TimeWindows(10), 10, (20,)),
        (TimeWindows(10), -1, (0,)),
        (TimeWindows(10, 5), 12, (20, 15)),
        (TimeWindows(10, 4), 9, (18, 14, 10)),
        (TimeWindows(10, start_ms=3), 2, (3,)),
        (TimeWindows(10, start_ms=3), 3, (13,)),
        (TimeWindows(10, 5, 3), 12, (18, 13)),
    ],
)
def test_ends(windows: TimeWindows, time_ms: int, ends: tuple[int, ...]) -> None:
    """Tumbling and sliding windows, before the epoch too."""
    assert windows.ends(time_ms) == ends


@given(st.data(), st.integers(1, 50), st.integers(-1000, 1000))
def test_ends_by_definition(data: st.DataObject, size_ms: int, time_ms: int) -> None:
    """A moment is in exactly the windows that begin at or before it and end after it."""
    slide_ms = data.draw(st.integers(1, size_ms))
    start_ms = data.draw(st.integers(0, slide_ms - 1))
    windows = TimeWindows(size_ms, slide_ms, start_ms)
    starts = [slide_ms * n + start_ms for n in range(-3000, 3000)]
    expected = {Window(s, s + size_ms) for s in starts if s <= time_ms < s + size_ms}
    assert set(map(windows.at, windows.ends(time_ms))) == expected
    assert len(windows.ends(time_ms)) == len(expected)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0,), "window size of 0 ms must be greater than 0 ms"),
        ((10, 0), "window slide of 0 ms must be greater than 0 ms"),
        ((10, 11), "at most the size of 10 ms"),
    ],
)
def test_no_windows(sizes: tuple[int, ...], message: str) -> None:
    """Sizes that make no windows are refused when they are given."""
    with pytest.raises(InvalidStreamError, match=message):
        TimeWindows(*sizes)


def test_a_window_in_utc() -> None:
    """A window says when it begins and ends, with a zone."""
    window = Window(0, 60_000)
    assert window.start == datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert (window.end - window.start).total_seconds() == 60


TIMES = st.integers(-(2**60), 2**60) | st.integers(-20, 20)
KEYS = st.text() | st.integers() | st.none() | st.tuples(st.text(), st.integers())


@given(TIMES, KEYS)
def test_there_and_back(time_ms: int, key: Any) -> None:
    """Time and key come back as they were."""
    joined = join_time(time_ms, key)
    assert split_time(joined) == (time_ms, key)
    assert time_of(joined) == time_ms
    assert time_of(time_ms) == time_ms


def test_equal_keys_are_one() -> None:
    """An enum of texts is the text that it equals."""

    class Color(str, Enum):
        RED = "red"

    assert join_time(5, Color.RED) == join_time(5, "red")
    assert split_time(join_time(5, Color.RED)) == (5, "red")


@given(st.lists(st.tuples(TIMES, KEYS)), TIMES)
def test_passed_by_a_watermark(pairs: list[tuple[int, Any]], watermark_ms: int) -> None:
    """Exactly the keys with a time at or before it, by a comparison and in a store."""
    is_passed = passed_by(watermark_ms)
    expected = {join_time(*pair) for pair in pairs if pair[0] <= watermark_ms}
    assert {join_time(*pair) for pair in pairs if is_passed(join_time(*pair))} == expected
    with StateStore(MemoryBackend()).writer(StoreId("s", "o", "default", 0, 1), EMPTY) as store:
        for pair in pairs:
            store.put(join_time(*pair), pair[0])
        taken = take_passed(store, watermark_ms)
        found = [pair for part in taken for pair in zip(*part, strict=True)]
    assert len(found) == len(expected)
    assert {key for key, _ in found} == expected
    assert all(time_of(key) == time_ms for key, time_ms in found)


def test_passed_times() -> None:
    """A time that is a key of its own is passed likewise."""
    with StateStore(MemoryBackend()).writer(StoreId("s", "o", "default", 0, 1), EMPTY) as store:
        for time_ms in (-5, 0, 3, 4, 2**62):
            store.put(time_ms, True)
        assert [key for keys, _ in take_passed(store, 3) for key in keys] == [-5, 0, 3]
    assert [passed_by(3)(time_ms) for time_ms in (3, 4)] == [True, False]
