"""The arithmetic of windows, against sets of times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.errors import InvalidStreamError
from dstreams.graph.windowed import WindowTimes

STEPS = st.integers(1, 12)


@st.composite
def windows(draw: st.DrawFn) -> tuple[WindowTimes, int]:
    """Draw a window and a time at which it fires."""
    parent_ms = draw(st.sampled_from([1, 7, 500, 1000]))
    window_ms, slide_ms = draw(STEPS) * parent_ms, draw(STEPS) * parent_ms
    return WindowTimes(window_ms, slide_ms, parent_ms), draw(st.integers(1, 50)) * slide_ms


def covered(times: WindowTimes, time_ms: int) -> set[int]:
    """Return the parent's times in a window, by definition."""
    first = time_ms - times.window_ms
    return {ms for ms in range(first, time_ms + 1, times.parent_slide_ms) if first < ms}


@pytest.mark.parametrize(
    ("window", "slide", "time", "current", "left", "entered"),
    [
        pytest.param(3, 1, 5, [3, 4, 5], [2], [5], id="sliding"),
        pytest.param(2, 2, 4, [3, 4], [1, 2], [3, 4], id="tumbling"),
        pytest.param(2, 3, 6, [5, 6], [2, 3], [5, 6], id="gap, whose 4 is in no window"),
        pytest.param(4, 2, 6, [3, 4, 5, 6], [1, 2], [5, 6], id="two at a time"),
        pytest.param(5, 2, 7, [3, 4, 5, 6, 7], [1, 2], [6, 7], id="the picture"),
        pytest.param(2, 3, 5, [4, 5], [1, 2], [4, 5], id="the second picture"),
        pytest.param(1, 1, 5, [5], [4], [5], id="one batch"),
        pytest.param(3, 1, 1, [-1, 0, 1], [-2], [1], id="begins before zero time"),
    ],
)
def test_examples(
    window: int, slide: int, time: int, current: list[int], left: list[int], entered: list[int]
) -> None:
    """Times in the window, times that left and times that entered, for batches of a second."""
    times = WindowTimes(window * 1000, slide * 1000, 1000)
    found = [times.current(time * 1000), times.left(time * 1000), times.entered(time * 1000)]
    assert [[ms // 1000 for ms in some] for some in found] == [current, left, entered]


@given(windows())
def test_a_window_is_what_its_definition_says(drawn: tuple[WindowTimes, int]) -> None:
    """The times of the parent in (t - window, t], in order."""
    times, time_ms = drawn
    assert list(times.current(time_ms)) == sorted(covered(times, time_ms))
    assert len(times.current(time_ms)) == times.window_ms // times.parent_slide_ms


@given(windows())
def test_left_and_entered_lead_from_one_window_to_the_next(drawn: tuple[WindowTimes, int]) -> None:
    """They are the two differences of neighbouring windows, for any overlap."""
    times, time_ms = drawn
    previous, current = covered(times, time_ms - times.slide_ms), covered(times, time_ms)
    assert set(times.left(time_ms)) == previous - current
    assert set(times.entered(time_ms)) == current - previous
    assert list(times.left(time_ms)) == sorted(times.left(time_ms))


@given(windows())
def test_what_entered_leaves_once(drawn: tuple[WindowTimes, int]) -> None:
    """In a later window, and nothing leaves that has not entered, so the reduction is correct."""
    times, time_ms = drawn
    ends = range(time_ms, time_ms + times.window_ms + 2 * times.slide_ms, times.slide_ms)
    leaving = [ms for end in ends for ms in times.left(end)]
    assert all(leaving.count(ms) == 1 for ms in times.entered(time_ms))


@pytest.mark.parametrize(
    ("window_ms", "slide_ms", "message"),
    [
        (
            2500,
            1000,
            "window at a.py:1: windowDuration of 2500 ms must be a multiple of the parent stream's "
            "slide of 1000 ms; use 2000 or 3000 ms",
        ),
        (
            3000,
            500,
            "window at a.py:1: slideDuration of 500 ms must be a multiple of the parent stream's "
            "slide of 1000 ms; use 1000 ms",
        ),
    ],
)
def test_durations_that_are_no_multiples(window_ms: int, slide_ms: int, message: str) -> None:
    """They are refused, with the nearest valid ones."""
    with pytest.raises(InvalidStreamError) as caught:
        WindowTimes.of(window_ms / 1000, slide_ms / 1000, 1000, "window at a.py:1")
    assert str(caught.value) == message


def test_multiples_are_taken() -> None:
    """Also a slide that is longer than the window or does not divide it."""
    assert WindowTimes.of(2, 3, 1000, "window") == WindowTimes(2000, 3000, 1000)
