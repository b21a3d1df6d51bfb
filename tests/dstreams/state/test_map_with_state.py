"""mapWithState in one partition: Spark's tables, batch by batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from dstreams.common.durations import batch_datetime
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.group_state import State
from dstreams.state.map_with_state import MappingFunction, MapRecords, RecordProcessor, StateSpec
from tests.dstreams.state.stores import DictStore


def simple(key: Any, value: Any, state: Any) -> Any:
    return key


def full(time: Any, key: Any, value: Any, state: Any) -> Any:
    return key


def place(key: Any) -> int:
    return 0


@pytest.mark.parametrize(("func", "takes_time"), [(simple, False), (full, True)])
def test_forms(func: Callable[..., Any], takes_time: bool) -> None:
    """The number of arguments says which form it is; the place of the function is kept."""
    spec = StateSpec.function(func)
    assert spec.mapping.takes_time is takes_time
    assert func.__name__ in spec.mapping.where


def test_steps() -> None:
    """Each step leaves the specification before it as it was; the later partitioner wins."""
    first = StateSpec.function(simple)
    spec = first.initialState({"a": 1}.items()).numPartitions(3).timeout(1.5)
    assert (first.partitions, first.idle_ms, first.initial) == (None, None, None)
    assert (spec.partitions, spec.idle_ms) == (3, 1500)
    whole = StablePartitioner(5, place)
    assert (spec.partitioner(whole).partitions, spec.partitioner(whole).partition_func) == (
        5,
        whole,
    )
    assert spec.partitioner(whole).numPartitions(2).partition_func is None
    assert spec.partitioner(place).partitions == 3


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StateSpec.function(place), "StateSpec.function at .* calls f\\(key, value, state"),
        (lambda: StateSpec.function(7), "StateSpec.function at"),  # type: ignore[arg-type]
        (lambda: StateSpec.function(lambda k, v, s: LOCK.locked() or k), "LOCK|lock"),
        (lambda: StateSpec.function(simple).initialState("a"), "initialState must be an RDD"),
        (lambda: StateSpec.function(simple).initialState(7), "got int"),  # type: ignore[arg-type]
        (lambda: StateSpec.function(simple).numPartitions(0), "at least 1"),
        (lambda: StateSpec.function(simple).partitioner(full), "StateSpec.partitioner calls"),
        (lambda: StateSpec.function(simple).timeout(0), "idleDuration must be a positive number"),
    ],
)
def test_what_cannot_be(make: Callable[[], Any], message: str) -> None:
    """Wrong arguments are rejected at the call, and the error names the method."""
    with pytest.raises(InvalidStreamError, match=message):
        make()


def count(key: str, value: Any, state: State[int]) -> tuple[str, int]:
    state.update((state.getOption or 0) + 1)
    return key, state.get


def twice(time: datetime, key: str, value: Any, state: State[int]) -> str:
    state.update((state.getOption or 0) + 1)
    return key + key


def silent(time: datetime, key: str, value: Any, state: State[int]) -> None:
    state.update((state.getOption or 0) + value)


def toggle(time: datetime, key: str, value: Any, state: State[int]) -> str | None:
    if state.exists:
        state.remove()
        return key
    state.update(1)
    return None


def run(
    func: Any,
    batches: list[str],
    *,
    takes_time: bool = True,
    idle_ms: int | None = None,
    initial: dict[str, int] | None = None,
) -> tuple[list[list[Any]], list[dict[str, int]]]:
    """Return outputs and snapshots of batches of letters, one a second."""
    store, outputs, snapshots = DictStore(), [], []
    for number, batch in enumerate(batches, 1):
        mapping = MappingFunction(func, takes_time, "f at app.py:3")
        work = RecordProcessor(store, MapRecords(mapping, 1000 * number, idle_ms))
        if number == 1:
            work.put_initial_states((initial or {}).items())
        rows = list(work.process_new_data((letter, 1) for letter in batch))
        outputs.append(rows + list(work.process_timed_out_state()))
        snapshots.append({key: row[0] for key, row in store.rows.items()})
    return outputs, snapshots


BATCHES = ["", "a", "ab", "abc", "ab", "a", ""]


def test_simple_form() -> None:
    """The function of three arguments emits for each record; states count them."""
    outputs, snapshots = run(count, BATCHES, takes_time=False)
    assert outputs == [
        [],
        [("a", 1)],
        [("a", 2), ("b", 1)],
        [("a", 3), ("b", 2), ("c", 1)],
        [("a", 4), ("b", 3)],
        [("a", 5)],
        [],
    ]
    assert snapshots[-1] == {"a": 5, "b": 3, "c": 1}


def test_full_form() -> None:
    """The results of a function of four arguments are emitted."""
    outputs, _ = run(twice, BATCHES)
    assert outputs == [[], ["aa"], ["aa", "bb"], ["aa", "bb", "cc"], ["aa", "bb"], ["aa"], []]


def test_initial_states() -> None:
    """They are there before the first record; None is not emitted."""
    initial = {"a": 5, "b": 10, "c": -20, "d": 0}
    outputs, snapshots = run(silent, BATCHES, initial=initial)
    assert outputs == [[]] * len(BATCHES)
    assert [tuple(snapshot.values()) for snapshot in snapshots] == [
        (5, 10, -20, 0),
        (6, 10, -20, 0),
        (7, 11, -20, 0),
        (8, 12, -19, 0),
        (9, 13, -19, 0),
        (10, 13, -19, 0),
        (10, 13, -19, 0),
    ]


def test_removal() -> None:
    """A removed state is missing in the next batch."""
    outputs, snapshots = run(toggle, ["", "a", "ab", "abc", "abc", "ab", "a", ""])
    assert outputs == [[], [], ["a"], ["b"], ["a", "c"], ["b"], ["a"], []]
    assert snapshots == [
        {},
        {"a": 1},
        {"b": 1},
        {"a": 1, "c": 1},
        {"b": 1},
        {"a": 1},
        {},
        {},
    ]


def test_each_record_sees_the_one_before() -> None:
    """A key that comes twice is called twice; what was removed can be set again."""
    outputs, snapshots = run(toggle, ["aa", "aaa"])
    assert outputs == [["a"], ["a"]]
    assert snapshots == [{}, {"a": 1}]


@pytest.mark.parametrize(
    ("batches", "gone_at"),
    [
        ("a|||||", 5),  # touched at 1 s, idle for more than 3 s at 5 s: not yet at 4 s
        ("a|a||||", 6),
        ("a|b|||a|", None),  # a record in the batch in which it would time out keeps it
    ],
)
def test_timeouts_are_exact(batches: str, gone_at: int | None) -> None:
    """A key is called for the last time in the first batch after it was idle for too long."""

    def follow(time: datetime, key: str, value: Any, state: State[int]) -> Any:
        if state.isTimingOut:
            return (key, value, state.get, time)
        state.update(1)
        return None

    outputs, snapshots = run(follow, batches.split("|"), idle_ms=3000)
    ended = {
        number: rows[0] for number, rows in enumerate(outputs, 1) if rows and rows[0][0] == "a"
    }
    expected = {}
    if gone_at is not None:
        expected = {gone_at: ("a", None, 1, batch_datetime(1000 * gone_at))}
        assert "a" not in snapshots[gone_at - 1]
    assert ended == expected


def test_reading_keeps_a_key_alive_only_with_a_timeout() -> None:
    """A record of a key that has a state renews its time, also if nothing is set."""

    def once(time: datetime, key: str, value: Any, state: State[int]) -> Any:
        if not state.exists:
            state.update(0)
        return "out" if state.isTimingOut else None

    outputs, _ = run(once, ["a", "a", "a", "a", "a", "", "", "", ""], idle_ms=2000)
    assert outputs == [[], [], [], [], [], [], [], ["out"], []]
    store = DictStore()
    mapping = MappingFunction(once, True, "f")
    list(RecordProcessor(store, MapRecords(mapping, 1000, None)).process_new_data([("a", 1)]))
    store.writes = 0
    list(RecordProcessor(store, MapRecords(mapping, 2000, None)).process_new_data([("a", 1)]))
    assert store.writes == 0


def test_nothing_is_stored_for_nothing() -> None:
    """A function that leaves a key without a state leaves it without a timeout, too."""
    _, snapshots = run(lambda t, k, v, s: None, ["a", "b"], idle_ms=1000)
    assert snapshots == [{}, {}]


def test_a_dict_in_the_place_of_a_store() -> None:
    """Idle keys are found by their rows; the calls of one key alone do the same as those of all."""

    def follow(key: str, value: Any, state: State[int]) -> Any:
        if not state.isTimingOut:
            state.update((state.getOption or 0) + value)
        return key, value, state.get

    rows: dict[Any, Any] = {}
    mapping = MappingFunction(follow, False, "f")
    first = RecordProcessor(rows, MapRecords(mapping, 1000, 3000))
    first.put_initial_states([("b", 5)])
    assert list(first.process_new_data([("a", 1), ("a", 2)])) == [("a", 1, 1), ("a", 2, 3)]
    second = RecordProcessor(rows, MapRecords(mapping, 3000, 3000))
    data = second.operator.stateManager.get_state(second.store, "b")
    assert data == ("b", 5, 4000)
    assert list(second.call_function_and_update_state(data, [1, 1])) == [("b", 1, 6), ("b", 1, 7)]
    assert list(second.process_timed_out_state()) == []
    assert list(second.process_groups([("b", [1, 1])])) == [("b", 1, 8), ("b", 1, 9)]
    third = RecordProcessor(rows, MapRecords(mapping, 4001, 3000))
    assert list(third.process_timed_out_state()) == [("a", None, 3)]
    assert rows == {"b": (9, 3000)}
    data = third.operator.stateManager.get_state(third.store, "b")
    ended = third.call_function_and_update_state(data, [], has_timed_out=True)
    assert list(ended) == [("b", None, 9)]
    assert rows == {}
    counts = third.metrics
    assert (counts.numOutputRows, counts.numUpdatedStateRows, counts.numRemovedStateRows) == (
        2,
        0,
        2,
    )


def test_another_idle_time() -> None:
    """An index keeps the timers that were set when records came."""
    store = DictStore()
    mapping = MappingFunction(count, False, "f")
    list(RecordProcessor(store, MapRecords(mapping, 1000, 1000)).process_new_data([("a", 1)]))

    def ended(key: str, value: Any, state: State[int]) -> str:
        return key

    later = MapRecords(MappingFunction(ended, False, "f"), 2001, 9000)
    assert list(RecordProcessor(store, later).process_timed_out_state()) == ["a"]


def test_a_function_that_fails() -> None:
    """The message names the function and the key."""

    def fails(key: str, value: Any, state: State[int]) -> Any:
        raise KeyError(value)

    with pytest.raises(UserFunctionError, match=r"f at app\.py:3 failed for key 'a': KeyError: 1"):
        run(fails, ["a"], takes_time=False)


@pytest.mark.parametrize(
    "func",
    [
        lambda k, v, s: s.exists(),
        lambda k, v, s: s.isTimingOut() or v,
        lambda k, v, s: s.getOption() + v,
    ],
)
def test_a_property_that_is_called(func: Any) -> None:
    """The error for a property that is called like Scala's method explains it."""
    message = r"failed for key 'a': TypeError: .*; if it calls a property of the state, such as"
    with pytest.raises(UserFunctionError, match=message):
        run(func, ["a"], takes_time=False)


def test_another_type_error() -> None:
    """Nothing is said of properties where nothing was called that cannot be."""
    with pytest.raises(UserFunctionError) as raised:
        run(lambda k, v, s: len(s.exists), ["a"], takes_time=False)
    assert "property" not in str(raised.value)
