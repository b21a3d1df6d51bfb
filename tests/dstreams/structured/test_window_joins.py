"""Joins with a window as a part of the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dstreams.errors import InvalidStreamError, RestartError
from dstreams.structured import StreamingDataset, StreamSession, window
from dstreams.structured.named_rows import Window
from tests.dstreams.structured.runs import QueryRun


class Event(NamedTuple):
    """A record; its time is in milliseconds."""

    time: int | None
    user: str


W10 = window("time", "10 seconds")
FIRST, SECOND = Window(0, 10_000), Window(10_000, 20_000)


def at(second: float | None, user: str = "a") -> Event:
    return Event(None if second is None else round(second * 1000), user)


def joined(how: str, **options: Any) -> Callable[..., StreamingDataset[Any]]:
    """Join two streams on windows of their event times, and on users."""

    def build(left: StreamingDataset[Event], right: StreamingDataset[Event]) -> Any:
        left = left.withWatermark("time", "0 seconds")
        right = right.withWatermark("time", "0 seconds")
        return left.join(right, [W10, "user"], how, **options)

    return build


INNER: list[tuple[int, list[Event], list[Any]]] = [
    (0, [at(1), at(2, "b"), at(None)], []),
    (1, [at(9.999), at(10), at(None)], [(at(1), at(9.999))]),
    (0, [at(12), at(9)], [(at(12), at(10)), (at(9), at(9.999))]),
]
"""The input, its records, and the pairs that come out."""

LEFT_OUTER: list[tuple[int, list[Event], list[Any]]] = [
    (0, [at(1), at(2, "b"), at(None, "c")], [(at(None, "c"), None)]),
    (1, [at(9)], [(at(1), at(9))]),
    (0, [at(40)], []),
    (1, [at(40)], [(at(2, "b"), None), (at(40), at(40))]),
]


@pytest.mark.parametrize(
    ("how", "steps"),
    [
        ("inner", INNER),
        pytest.param("left_outer", LEFT_OUTER, marks=pytest.mark.deep),
    ],
)
def test_records_of_one_window_match(
    session: StreamSession, how: str, steps: list[tuple[int, list[Event], list[Any]]]
) -> None:
    """Records match in one window, and the watermark ends the wait for others of the window."""
    run = QueryRun(session, joined(how), "append", inputs=2)
    for number, events, pairs in steps:
        assert run.add_to(number, *events) == sorted(pairs, key=repr)
    for number in (0, 1):
        run.add_to(number, at(100, "z"))
    assert run.state()["tot"] == 2, "only the rows of the last window stay, one of each side"


def counted(left: StreamingDataset[Event], right: StreamingDataset[Event]) -> Any:
    """Join records with the counts of another stream in their window."""
    counts = right.withWatermark("time", "0 seconds").groupByKey(W10, "user").count()
    left = left.withWatermark("time", "0 seconds")
    return left.join(counts, [W10, "user"], otherOn=["window", "user"])


def both_counted(left: StreamingDataset[Event], right: StreamingDataset[Event]) -> Any:
    """Join the counts of two streams."""
    counts = [
        side.withWatermark("time", "0 seconds").groupByKey(W10).count() for side in (left, right)
    ]
    return counts[0].join(counts[1], "window", "left_outer")


@pytest.mark.deep
def test_joins_with_aggregations_of_windows(session: StreamSession) -> None:
    """A window of records equals that of a row, and rows of two aggregations match by theirs."""
    run = QueryRun(session, counted, "append", inputs=2)
    run.add_to(1, at(1), at(2), at(3, "b"))
    assert run.add_to(0, at(5), at(6, "c")) == []
    run.add_to(1, at(40))
    assert run.add_to(0, at(40)) == [(at(5), (FIRST, "a", 2))]
    run.query.stop()
    run = QueryRun(session, both_counted, "append", inputs=2)
    run.add_to(0, at(1), at(2), at(11))
    run.add_to(1, at(3))
    found = [*run.add_to(0, at(90)), *run.add_to(1, at(90))]
    assert found == [((FIRST, 2), (FIRST, 1)), ((SECOND, 1), None)]


def test_another_window_is_another_key(session: StreamSession, tmp_path: Any) -> None:
    """A restart with windows of another size is refused."""

    def build(size: str) -> Callable[..., Any]:
        return lambda left, right: left.join(right, window("time", size))

    run = QueryRun(session, build("10 seconds"), "append", tmp_path, inputs=2)
    run.add_to(0, at(1))
    with pytest.raises(RestartError, match=r"10000 ms.*20000 ms"):
        run.restart(build("20 seconds"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((window("time", "10 seconds", "5 seconds"), None), "takes windows that do not overlap"),
        ((W10, window("time", "20 seconds")), "their windows are never equal"),
        ((W10, window("time", "10 seconds", startTime="1 second")), "never equal"),
    ],
)
def test_windows_that_cannot_be_joined(
    session: StreamSession, keys: tuple[Any, Any], message: str
) -> None:
    """They are refused when the query is written."""
    events = session.memoryStream().toDS()
    with pytest.raises(InvalidStreamError, match=message):
        events.join(events, keys[0], otherOn=keys[1])
