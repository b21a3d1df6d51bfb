"""What windows and states have over batches that a restart merged into one.

A record comes in each batch that runs; none ran in the gap. The table has one row for each stream,
and one column for each batch that ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add as plus
from operator import sub as minus
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import BatchFailedError, DStream, Settings, StateSpec, StreamingContext
from dstreams.state.state_versions import StateVersions
from dstreams.testing import ManualClock

Table = dict[str, dict[int, list[int]]]

seen: Table = {}
"""What each output saw, by its name and the second of the batch."""


@pytest.fixture(autouse=True)
def notebook() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()
    _stop()


class Note:
    """An output that writes down the values of its pairs, sorted."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, time: Any, rdd: RDD[Any]) -> None:
        second = round(time.timestamp())
        seen.setdefault(self.name, {})[second] = sorted(rdd.values().collect())


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(key: str, value: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption or 0) + value)
    return key, state.get


def count_group(key: str, values: Iterator[int], state: Any) -> list[tuple[str, int]]:
    state.update((state.getOption or 0) + sum(values))
    return [(key, state.get)]


def define(ones: DStream[Any]) -> dict[str, DStream[Any]]:
    mapped = ones.mapWithState(StateSpec.function(count))
    grouped = ones.flatMapGroupsWithState(count_group)
    summed = ones.updateStateByKey(total)
    return {
        "window of 3 over mapWithState": mapped.window(3),
        "window of 4 by 2 over mapWithState": mapped.window(4, 2),
        "window of 3 over flatMapGroupsWithState": grouped.window(3),
        "window of 5 over updateStateByKey": summed.window(5),
        "window of 4 by 2": ones.window(4, 2),
        "window of 4 by 2 with an inverse": ones.reduceByKeyAndWindow(plus, minus, 4, 2),
        "window of 4 with an inverse over a state": summed.reduceByKeyAndWindow(plus, minus, 4),
        "state over windows of 2": ones.window(2, 2).updateStateByKey(total),
        "stored state over windows of 2": ones.window(2, 2).mapWithState(StateSpec.function(last)),
        "state over a state": summed.updateStateByKey(total),
    }


def last(key: str, value: int, state: Any) -> tuple[str, int]:
    return count(key, value, state)


Row = list[list[int] | None]

AFTER_2: dict[str, Row] = {
    "batch": [[1], [2], [6], [7], [8], [9]],
    "window of 3 over mapWithState": [[1], [1, 2], [3], [3, 4], [3, 4, 5], [4, 5, 6]],
    "window of 4 by 2 over mapWithState": [None, [1, 2], [3], None, [3, 4, 5], None],
    "window of 3 over flatMapGroupsWithState": [[1], [1, 2], [3], [3, 4], [3, 4, 5], [4, 5, 6]],
    "window of 5 over updateStateByKey": [[1], [1, 2], [2, 3], [3, 4], [3, 4, 5], [3, 4, 5, 6]],
    "window of 4 by 2": [None, [1, 1], [1], None, [1, 1, 1], None],
    "window of 4 by 2 with an inverse": [None, [2], [1], None, [3], None],
    "window of 4 with an inverse over a state": [[1], [3], [3], [7], [12], [18]],
    "state over windows of 2": [None, [2], [3], None, [5], None],
    "stored state over windows of 2": [None, [1, 2], [3], None, [4, 5], None],
    "state over a state": [[1], [3], [6], [10], [15], [21]],
}

# Here windows of two batches have begun when the driver dies: what they have is in the states.
AFTER_3: dict[str, Row] = {
    "batch": [[1], [2], [3], [6], [7], [8], [9]],
    "window of 3 over mapWithState": [
        *([1], [1, 2], [1, 2, 3]),
        *([4], [4, 5], [4, 5, 6], [5, 6, 7]),
    ],
    "window of 4 by 2 over mapWithState": [None, [1, 2], None, [3, 4], None, [4, 5, 6], None],
    "window of 3 over flatMapGroupsWithState": [
        *([1], [1, 2], [1, 2, 3]),
        *([4], [4, 5], [4, 5, 6], [5, 6, 7]),
    ],
    "window of 5 over updateStateByKey": [
        *([1], [1, 2], [1, 2, 3]),
        *([2, 3, 4], [3, 4, 5], [4, 5, 6], [4, 5, 6, 7]),
    ],
    "window of 4 by 2": [None, [1, 1], None, [1, 1], None, [1, 1, 1], None],
    "window of 4 by 2 with an inverse": [None, [2], None, [2], None, [3], None],
    "window of 4 with an inverse over a state": [[1], [3], [6], [7], [9], [15], [22]],
    "state over windows of 2": [None, [2], None, [4], None, [6], None],
    "stored state over windows of 2": [None, [1, 2], None, [4], None, [5, 6], None],
    "state over a state": [[1], [3], [6], [10], [15], [21], [28]],
}


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


def begin(sc: SparkContext, directory: Path, on_failure: Any = "continue") -> StreamingContext:
    settings = Settings(catch_up="merge", window_inverse="scala", on_failure=on_failure)
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
    ssc.checkpoint(str(directory))
    ones = ssc.queueStream([[("a", 1)]] * 9, replayable=True)
    for name, stream in define(ones).items():
        stream.foreachRDD(Note(name))
    return ssc


@pytest.mark.deep
@pytest.mark.parametrize(
    ("table", "lives"),
    [
        pytest.param(AFTER_2, (1, 1, 2), id="after 2, three lives"),
        pytest.param(AFTER_3, (2, 2), id="after 3, two lives"),
        pytest.param(AFTER_2, (4,), id="after 2, one life", marks=pytest.mark.slow),
        pytest.param(AFTER_2, (2, 2), id="after 2, two lives", marks=pytest.mark.slow),
        pytest.param(AFTER_3, (4,), id="after 3, one life", marks=pytest.mark.slow),
        pytest.param(AFTER_3, (1, 1, 2), id="after 3, three lives", marks=pytest.mark.slow),
    ],
)
def test_over_missed_batches(
    sc: SparkContext, tmp_path: Path, table: dict[str, Row], lives: tuple[int, ...]
) -> None:
    """Nothing is in a window at a time of the gap, and no state changes at one.

    The driver dies before the gap, and once more after each of the later lives but the last.
    """
    times = [row[0] for row in table["batch"] if row is not None]
    begin(sc, tmp_path).step(len(times) - 4)
    _stop()
    for batches in lives:
        recover(tmp_path).step(batches)
        _stop()
    found = {name: [rows.get(time) for time in times] for name, rows in seen.items()}
    assert {"batch": table["batch"], **found} == table


@pytest.mark.deep
@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_failure_on_the_way_over_a_gap(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_failure: Any
) -> None:
    """Fails the batch, as every other failure, and loses nothing of what had been received.

    The next batch goes on with it, or a restart runs the batch again.
    """
    begin(sc, tmp_path, on_failure).step(2)
    _stop()
    reuse, refused = StateVersions.reuse, ["once"]

    def refuse_once(states: StateVersions, *given: Any) -> None:
        if refused:
            raise RuntimeError(refused.pop())
        reuse(states, *given)

    monkeypatch.setattr(StateVersions, "reuse", refuse_once)
    ssc = recover(tmp_path)
    with pytest.raises(BatchFailedError, match=r"making the state of earlier batches: .*once"):
        ssc.step()
    assert sorted({time for rows in seen.values() for time in rows}) == [1, 2]
    if on_failure == "continue":
        ssc.step()
    _stop()
    recover(tmp_path).step(2 if on_failure == "continue" else 4)
    times = [row[0] for row in AFTER_2["batch"] if row is not None]
    found = {name: [rows.get(time) for time in times] for name, rows in seen.items()}
    expected = {name: list(row) for name, row in AFTER_2.items() if name != "batch"}
    if on_failure == "continue":
        for row in expected.values():
            row[2] = None
    assert found == expected


def recover(directory: Path) -> StreamingContext:
    """Return the context of the run before; its clock stands after the gap."""
    ssc = StreamingContext.getOrCreate(str(directory), never)
    ssc._clock = ManualClock(6000)
    return ssc


def _stop() -> None:
    active = StreamingContext.getActive()
    if active is not None:
        active.stop(stopSparkContext=False)
