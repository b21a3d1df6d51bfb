"""Windows: which of them a moment is in, against their definition."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.errors import InvalidStreamError
from dstreams.structured.operators.time_windows import TimeWindows, Window


@pytest.mark.parametrize(
    ("windows", "time_ms", "ends"),
    [
        (TimeWindows(10), 0, (10,)),
        (TimeWindows(10), 9, (10,)),
        (TimeWindows(10), 10, (20,)),
        (TimeWindows(10), -1, (0,)),
        (TimeWindows(10, 5), 12, (20, 15)),
        (TimeWindows(10, 4), 9, (18, 14, 10)),
    ],
)
def test_ends(windows: TimeWindows, time_ms: int, ends: tuple[int, ...]) -> None:
    """Tumbling and sliding windows, before the epoch too."""
    assert windows.ends(time_ms) == ends


@given(st.data(), st.integers(1, 50), st.integers(-1000, 1000))
def test_ends_by_definition(data: st.DataObject, size_ms: int, time_ms: int) -> None:
    """A moment is in exactly the windows that begin at or before it and end after it."""
    slide_ms = data.draw(st.integers(1, size_ms))
    windows = TimeWindows(size_ms, slide_ms)
    starts = [slide_ms * n for n in range(-3000, 3000)]
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
