"""Operators with state behind a windowed count, with the watermark at the edge of a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dstreams.state.group_state import GroupState, GroupStateTimeout
from dstreams.structured import StreamingDataset, StreamSession, Window, session_window, window
from dstreams.structured.api.aggregates import Sum
from tests.dstreams.structured.runs import QueryRun

# Event times in milliseconds. The delay is 10 s: the watermark becomes 9999, the last millisecond
# of the first window, then 20000, the end of the second one, and then 50000.
STEPS = ((5000, 19_999), (30_000,), (60_000,))
FIRST, SECOND, THIRD = (Window(start_ms, start_ms + 10_000) for start_ms in (0, 10_000, 30_000))
ROWS: tuple[list[Any], ...] = ([], [(FIRST, 1), (SECOND, 1)], [(THIRD, 1)])


def itself(record: Any) -> Any:
    return record


def first_of(row: Any) -> Any:
    return row[0]


def second_of(row: Any) -> Any:
    return row[1]


def end_of(row: Any) -> int:
    return row[0].end_ms  # type: ignore[no-any-return]


def counted(events: StreamingDataset) -> StreamingDataset:
    marked = events.withWatermark(itself, "10 seconds")
    return marked.groupByKey(window(itself, "10 seconds")).count()


def sums(*keys: Any) -> Callable[[StreamingDataset], StreamingDataset]:
    return lambda rows: rows.groupByKey(*keys).agg(Sum(second_of))


def matched(how: str, apart: str) -> Callable[[StreamingDataset], StreamingDataset]:
    def build(windows: StreamingDataset) -> StreamingDataset:
        rows = windows.map(lambda row: (row[0].end_ms, row[1]))
        return rows.join(rows, first_of, how, within=(apart, apart))

    return build


def with_timers(rows: StreamingDataset) -> StreamingDataset:
    def follow(key: Any, values: Any, state: GroupState) -> list[Any]:
        if state.hasTimedOut:
            state.remove()
            return [(key, "end", state.getCurrentWatermarkMs())]
        state.update(1)
        state.setTimeoutTimestamp(max(end_of((key,)), state.getCurrentWatermarkMs()))
        return [(key, sum(map(second_of, values)), state.getCurrentWatermarkMs())]

    grouped = rows.groupByKey(first_of)
    return grouped.flatMapGroupsWithState(follow, "append", GroupStateTimeout.EventTimeTimeout)


BEHIND: dict[str, tuple[Callable[[StreamingDataset], StreamingDataset], tuple[list[Any], ...]]] = {
    "dropDuplicates": (lambda rows: rows.dropDuplicates(), ROWS),
    "dropDuplicates of a key": (lambda rows: rows.dropDuplicates(first_of), ROWS),
    "dropDuplicatesWithinWatermark": (lambda rows: rows.dropDuplicatesWithinWatermark(), ROWS),
    "same windows": (sums(window("window", "10 seconds")), ROWS),
    "larger windows": (
        sums(window("window", "20 seconds")),
        ([], [(Window(0, 20_000), 2)], [(Window(20_000, 40_000), 1)]),
    ),
    "the window itself": (sums("window"), ROWS),
    "the window itself, then once each": (
        lambda rows: sums("window")(rows).dropDuplicates(),
        ROWS,
    ),
    "sessions": (
        sums(second_of, session_window("window", "5 seconds")),
        (
            [],
            [(Window(9999, 14_999), 1, 1)],
            [(Window(19_999, 24_999), 1, 1), (Window(39_999, 44_999), 1, 1)],
        ),
    ),
    "inner join": (
        matched("inner", "0 seconds"),
        tuple([((window.end_ms, n),) * 2 for window, n in rows] for rows in ROWS),
    ),
    "join on the window": (
        lambda rows: rows.join(rows, "window", "full_outer"),
        tuple([(row, row) for row in rows] for rows in ROWS),
    ),
    "outer join": (
        matched("left_outer", "1 second"),
        ([], [((10_000, 1), None)], [((20_000, 1), None), ((40_000, 1), None)]),
    ),
    "timers": (
        with_timers,
        (
            [],
            [(FIRST, 1, 20_000), (SECOND, 1, 20_000)],
            [(FIRST, "end", 50_000), (SECOND, "end", 50_000), (THIRD, 1, 50_000)],
        ),
    ),
}


ALWAYS = (
    "the window itself, then once each",
    "sessions",
    "join on the window",
    "outer join",
    "timers",
)
"""The others are tested against Spark, or are much like these."""


@pytest.mark.deep
@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in BEHIND],
)
def test_window_that_the_watermark_nearly_ended(session: StreamSession, name: str) -> None:
    """A window is passed to later operators, also if its last millisecond was passed first."""
    behind, expected = BEHIND[name]
    run = QueryRun(session, lambda events: behind(counted(events)), "append")
    assert tuple(run.add(*times) for times in STEPS) == expected
