"""Kill -9 of a Python worker at each step of a task over stored state, in local mode."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import GroupState, State, StateSpec
from dstreams.testing import BatchDriver

pytestmark = pytest.mark.spark

BATCHES = [["a", "b", "a"], ["b", "c", "c", "a"], ["a"]]


def die_once(marker: str) -> None:
    """Kill this process, the first time that somebody asks."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def pairs_of(batches: list[list[str]]) -> list[list[tuple[str, int]]]:
    return [[(letter, 1) for letter in batch] for batch in batches]


@pytest.mark.deep
@pytest.mark.parametrize("moment", ["first record", "last record", "output"])
def test_a_worker_is_killed(sc: SparkContext, tmp_path: Path, moment: str) -> None:
    """A batch in which a worker dies counts every record once, in its rows and in the state."""
    marker = str(tmp_path / "killed")

    def count(key: str, value: int, state: State[int]) -> tuple[str, int]:
        state.update((state.getOption or 0) + value)
        is_second_batch = state.get >= 2 and key in "bc"
        if moment == ("first record" if key == "b" else "last record") and is_second_batch:
            die_once(marker)
        return key, state.get

    def late(row: Any) -> Any:
        if moment == "output" and row == ("c", 2):
            die_once(marker)
        return row

    with BatchDriver(sc) as driver:
        stream = driver.input(pairs_of(BATCHES)).mapWithState(StateSpec.function(count))
        rows, again = driver.output(stream.map(late)), driver.output(stream)
        driver.run(3)
        states = {key: state for key, state, _ in stream.stateStore().collect()}
    assert Path(marker).exists()
    expected = [
        [("a", 1), ("a", 2), ("b", 1)],
        [("a", 3), ("b", 2), ("c", 1), ("c", 2)],
        [("a", 4)],
    ]
    assert [sorted(out or []) for out in rows] == expected
    assert [sorted(out or []) for out in again] == expected
    assert states == {"a": 4, "b": 2, "c": 2}


def test_a_worker_is_killed_in_a_group(sc: SparkContext, tmp_path: Path) -> None:
    """Half a group that was emitted by a task that died is emitted whole, once."""
    marker = str(tmp_path / "killed")

    def lazily(key: str, values: Iterator[int], state: GroupState[int]) -> Iterator[Any]:
        for value in values:
            state.update((state.getOption or 0) + value)
            yield key, state.get
            if key == "c":
                die_once(marker)

    with BatchDriver(sc) as driver:
        stream = driver.input(pairs_of(BATCHES)).flatMapGroupsWithState(lazily)
        rows = driver.output(stream)
        driver.run(3)
        states = {key: state for key, state, _ in stream.stateStore().collect()}
    assert Path(marker).exists()
    assert sorted(rows[1] or []) == [("a", 3), ("b", 2), ("c", 1), ("c", 2)]
    assert states == {"a": 4, "b": 2, "c": 2}
