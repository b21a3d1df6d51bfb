"""Batches whose time has passed while no driver ran: all of them, one in their place, or none."""

from __future__ import annotations

from functools import partial
from operator import add as plus
from operator import sub as minus
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import Settings, StreamingContext
from dstreams.testing import ManualClock
from tests.conformance.restarts import (
    crash,
    recover,
    times_of,
    to_a,
    total,
    value_of,
    values_of,
    watch,
    with_one,
)

pytestmark = pytest.mark.usefixtures("notebook")


def test_the_batches_of_the_down_time(sc: SparkContext, tmp_path: Path) -> None:
    """All of those whose time has passed run at once, in order, and the committed one does not."""
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.checkpoint(str(tmp_path))
    watch(ssc.queueStream([["a"]] * 9, replayable=True).count())
    ssc.step(3)
    crash(ssc)
    ssc = recover(tmp_path)
    ssc.step(3)
    assert times_of() == [1, 2, 3, 4, 5, 6]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("policy", "times", "values"),
    [
        (
            "all",
            [1, 2, 3, 4, 5, 6, 7],
            [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13]],
        ),
        ("merge", [1, 2, 6, 7], [[0, 1], [2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12, 13]]),
        ("skip", [1, 2, 6, 7], [[0, 1], [2, 3], [10, 11], [12, 13]]),
    ],
)
def test_batches_that_were_missed(
    sc: SparkContext, tmp_path: Path, policy: Any, times: list[int], values: list[list[int]]
) -> None:
    """All of them as in Spark, one in their place, or none; then a further restart goes on."""
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(catch_up=policy))
    ssc.checkpoint(str(tmp_path))
    rows = ssc.rateStream(2).map(value_of)
    watch(rows)
    watch(rows.map(to_a).updateStateByKey(total).checkpoint(20), "sums")
    watch(rows.map(to_a).reduceByKeyAndWindow(plus, minus, 5).checkpoint(20), "window")
    ssc.step(2)
    crash(ssc)
    ssc = recover(tmp_path)
    ssc._clock = ManualClock(6000)
    ssc.step(5 if policy == "all" else 1)
    crash(ssc)
    if policy != "all":
        ssc = recover(tmp_path)
        ssc._clock = ManualClock(6000)
        ssc.step(1)
    by_time = dict(zip(times, values, strict=True))
    assert (times_of(), values_of()) == (times, values)
    totals = [sum(map(sum, values[: n + 1])) for n in range(len(times))]
    assert values_of("sums") == [[("a", each)] for each in totals]
    windows = [sum(sum(by_time[t]) for t in times if time - 5 < t <= time) for time in times]
    assert values_of("window") == [[("a", each)] for each in windows]


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["merge", "skip"])
def test_keys_that_leave_a_window_in_a_gap(sc: SparkContext, tmp_path: Path, policy: Any) -> None:
    """They stay, with what is left of them, as over batches that are empty.

    So it is in Spark, which runs each of these batches; only the filter function drops a key.
    """
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(catch_up=policy))
    ssc.checkpoint(str(tmp_path))
    words = ssc.queueStream([["a", "b"], ["a"], ["c"]], replayable=True).map(with_one)
    window = partial(words.reduceByKeyAndWindow, plus, minus, 5)
    watch(window().checkpoint(20))
    watch(window(filterFunc=_is_positive).checkpoint(20), "filtered")
    ssc.step(2)
    crash(ssc)
    for now_ms in (7000, 7000):
        ssc = recover(tmp_path)
        ssc._clock = ManualClock(now_ms)
        ssc.step(1)
        crash(ssc)
    empty = [("a", 0), ("b", 0)]
    assert times_of() == [1, 2, 7, 8]
    first, second = [("a", 1), ("b", 1)], [("a", 2), ("b", 1)]
    # The window at 7 s begins after 2 s: nothing of before the gap is in it.
    assert values_of()[:2] == [first, second]
    assert [dict(rows) for rows in values_of()[2:]] == [{**dict(empty), "c": 1}] * 2
    assert values_of("filtered") == [first, second, [("c", 1)], [("c", 1)]]


def _is_positive(pair: tuple[str, int]) -> bool:
    return pair[1] > 0
