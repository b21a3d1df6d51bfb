"""Stored state and what cannot be: the message names who did what, and nothing is committed."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import CommitLog, open_files
from dstreams import (
    BatchFailedError,
    DStream,
    DurabilityError,
    GroupState,
    Settings,
    State,
    StateSpec,
)
from dstreams.engine.lifecycle import StreamingContextState
from dstreams.testing import BatchDriver

Operation = Callable[[DStream[Any]], DStream[Any]]


class Seen:
    """A class that no codec of plain data knows."""


def keep(make: Callable[[], Any]) -> Operation:
    """A mapWithState whose function keeps what *make* makes for the value 2."""

    def keeps(key: Any, value: int, state: State[Any]) -> Any:
        state.update(make() if value == 2 else value)
        return key

    return lambda pairs: pairs.mapWithState(StateSpec.function(keeps))


def group(act: Callable[[GroupState[Any]], Any], **options: Any) -> Operation:
    """A flatMapGroupsWithState whose function does something for the value 2."""

    def acts(key: Any, values: Iterator[int], state: GroupState[Any]) -> Any:
        if 2 in values:
            return act(state)
        state.update(1)
        return [key]

    return lambda pairs: pairs.flatMapGroupsWithState(acts, **options)


def nested(depth: int) -> list[Any]:
    outer: list[Any] = []
    for _ in range(depth):
        outer = [outer]
    return outer


def half(state: GroupState[Any]) -> Iterator[int]:
    state.update(7)
    yield 1
    raise ValueError("half way")


def in_event_time(func: Callable[[int], Any]) -> Operation:
    return group(
        lambda state: [],
        timeout="eventTime",
        eventTime=lambda v: func(v) if v == 2 else 5,
        watermark=1,
    )


MAP = r"mapping function .*keep.*keeps:\d+"
GROUP = r"function .*group.*acts:\d+ of flatMapGroupsWithState at test_bad_state.py:\d+"

# name: operation, key and message; the bad value is 2.
CASES: dict[str, tuple[Operation, Any, str]] = {
    "a lock for a state": (
        keep(threading.Lock),
        "a",
        rf"{MAP}: the state of key 'a' cannot be stored: .*_thread\.lock, which is not plain data.*"
        "set spark.dstreams.state.values to pickle",
    ),
    "an object for a state": (keep(Seen), "a", rf"{MAP}: the state of key 'a' .*Seen"),
    "a state without an end": (
        keep(lambda: nested(100_000)),
        "a",
        rf"{MAP}: the state of key 'a' cannot be stored: a tuple is nested too deeply",
    ),
    "a state of None": (keep(lambda: None), "a", rf"{MAP} failed for key 'a': .*must not be None"),
    "a generator in a group's state": (
        group(lambda state: state.update(x for x in [1]) or []),
        "a",
        rf"{GROUP}: the state of key 'a' cannot be stored: .*generator",
    ),
    "a key without a hash": (
        keep(int),
        [1],
        r"mapWithState at .*: the key \[1\] cannot be placed: .*list is unhashable",
    ),
    "a key that is hashed by its address": (keep(int), Seen(), "the key .*hashed by its address"),
    "a key that no store takes": (
        keep(int),
        range(3),
        rf"{MAP}: the key range\(0, 3\) cannot be stored: .*range",
    ),
    "a key that is too long": (keep(int), "k" * 100_000, rf"{MAP}: the key 'kkk.*65536 bytes"),
    "no rows": (
        group(lambda state: None),
        "a",
        rf"{GROUP} must return an iterable of rows, got None \(NoneType\) for key 'a'",
    ),
    "a text for rows": (group(lambda state: "rows"), "a", f"{GROUP} must return an iterable"),
    "half the rows": (group(half), "a", f"{GROUP} failed for key 'a': ValueError: half way"),
    "a timer in the wrong mode": (
        group(lambda state: state.setTimeoutDuration(1000)),
        "a",
        f"{GROUP} failed for key 'a': .*cannot be set without ProcessingTimeTimeout",
    ),
    "a watermark without event time": (
        group(lambda state: [state.getCurrentWatermarkMs()]),
        "a",
        f"{GROUP} failed for key 'a': .*no event time watermark",
    ),
    "the end of the process": (
        group(lambda state: sys.exit(3)),
        "a",
        f"{GROUP} failed for key 'a': SystemExit: 3",
    ),
    "the state itself for a row": (
        group(lambda state: [state]),
        "a",
        r"flatMapGroupsWithState at .*GroupState is valid during one call only",
    ),
    "no event time": (
        in_event_time(lambda value: {}[value]),
        "a",
        r"eventTime .* of flatMapGroupsWithState at .* failed for record 2: KeyError: 2",
    ),
    "a text for an event time": (
        in_event_time(lambda value: "soon"),
        "a",
        r"eventTime .* must return a datetime, .* got 'soon' \(str\)",
    ),
}


def committed(directory: Path) -> list[int]:
    """Versions of the states that the newest commit record names."""
    (run,) = directory.glob("stream-*")
    record = CommitLog(open_files(str(run))).latest()
    assert record is not None
    return [part.version_id.version for store in record.stores for part in store.partitions]


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be(sc: SparkContext, tmp_path: Path, case: str) -> None:
    """The batch fails with the message; the state stays as it was, and what is committed of it."""
    operation, key, message = CASES[case]
    bad = sc.parallelize([0], 1).map(lambda _: (key, 2))
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        stream = operation(driver.input([[("a", 1)], bad]))
        rows = driver.output(stream)
        driver.run(1)
        before = stream.stateStore().collect()  # type: ignore[attr-defined]
        with pytest.raises(BatchFailedError, match=message) as raised:
            driver.run(1)
        assert not isinstance(raised.value, DurabilityError)
        assert (rows, committed(tmp_path)) == ([["a"], None], [1, 1])
        assert stream.stateStore().collect() == before == [("a", 1, None)]  # type: ignore[attr-defined]


def test_any_class_with_pickle(sc: SparkContext) -> None:
    """The advice works."""
    with BatchDriver(sc, settings=Settings(state_values="pickle")) as driver:
        rows = driver.output(keep(Seen)(driver.input([[("a", 2)], [("a", 1)]])))
        driver.run(2)
    assert rows == [["a"], ["a"]]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ([("a", None)], "the initial state of the key 'a' is None"),
        ([5], r"expected \(key, value\) pairs, got 5"),
        ([("b", Seen())], r"the state of key 'b' cannot be stored: .*Seen"),
    ],
)
@pytest.mark.parametrize("operation", ["map", "group"])
def test_initial_states_that_cannot_be(
    sc: SparkContext, initial: list[Any], message: str, operation: str
) -> None:
    """They fail the first batch, which names the operation."""
    pairs = sc.parallelize([0], 1).flatMap(lambda _: initial)

    def keeps(key: Any, value: int, state: State[Any]) -> Any:
        return key

    with BatchDriver(sc) as driver:
        stream = driver.input([[("c", 1)]])
        if operation == "map":
            states = stream.mapWithState(StateSpec.function(keeps).initialState(pairs))
        else:
            states = stream.flatMapGroupsWithState(lambda k, v, s: [], initialState=pairs)
        driver.output(states)
        with pytest.raises(BatchFailedError, match=rf"WithState at .*{message}"):
            driver.run(1)


@pytest.mark.deep
def test_the_second_of_two_states_fails(sc: SparkContext, tmp_path: Path) -> None:
    """The first one's state is kept; the second makes up for it when its function works again."""
    outage = tmp_path / "outage"

    def count(key: str, value: int, state: State[int]) -> int:
        state.update((state.getOption or 0) + 1)
        return state.get

    def second(key: str, value: int, state: State[int]) -> int:
        if outage.exists():
            raise OSError("no connection")
        return count(key, value, state)

    with BatchDriver(sc, checkpoint=str(tmp_path / "checkpoint")) as driver:
        pairs = driver.input([[("a", 1)]] * 4)
        firsts = driver.output(pairs.mapWithState(StateSpec.function(count)))
        seconds = driver.output(pairs.mapWithState(StateSpec.function(second)))
        driver.run(1)
        outage.touch()
        for _ in range(2):
            with pytest.raises(BatchFailedError, match="failed for key 'a': OSError: no conn"):
                driver.run(1)
        outage.unlink()
        driver.run(1)
    assert firsts == [[1], None, None, [4]]
    assert seconds == [[1], None, None, [4]]


def test_state_that_cannot_be_written_stops_the_context(sc: SparkContext, tmp_path: Path) -> None:
    """A version cannot be skipped: where the storage fails, no batch follows."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        driver.output(keep(int)(driver.input([[("a", 1)]] * 2)))
        driver.run(1)
        (run,) = tmp_path.glob("stream-*")
        shutil.rmtree(run / "stores")
        (run / "stores").write_text("in the way")
        with pytest.raises(DurabilityError, match="making the state of mapWithState at"):
            driver.run(1)
        assert driver.context.getState() is StreamingContextState.STOPPED
        assert committed(tmp_path) == [1, 1]
