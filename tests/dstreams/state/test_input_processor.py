"""InputProcessor: calls, rows and states of one partition, from Spark's tables."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.rdd.failures import UserFunctionError
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.state.group_state import NO_TIMESTAMP, GroupState, GroupStateTimeout
from dstreams.state.input_processor import InputProcessor
from dstreams.state.partition_tasks import FlatMapGroups
from dstreams.state.state_manager import StateData
from tests.dstreams.state.stores import DictStore
from tests.support.group_functions import running_count

NONE = GroupStateTimeout.NoTimeout
PROCESSING = GroupStateTimeout.ProcessingTimeTimeout
EVENT = GroupStateTimeout.EventTimeTimeout

Call = Callable[[GroupState[Any]], object]
Row = tuple[Any, int] | None
"""State and timer of a key in the store, None for no row."""


def processor(
    store: DictStore,
    func: Callable[..., Any],
    timeout: GroupStateTimeout = NONE,
    *,
    keep_timer: bool = False,
) -> InputProcessor:
    return InputProcessor(store, operator_of(func, timeout, keepTimer=keep_timer))


def operator_of(
    func: Callable[..., Any], timeout: GroupStateTimeout = NONE, **facts: Any
) -> FlatMapGroups:
    return FlatMapGroups(
        func=func,
        where="f at app.py:3",
        timeoutConf=timeout,
        batchTimestampMs=1000,
        eventTimeWatermark=1000,
        **facts,
    )


def doing(*calls: Call) -> Callable[..., list[Any]]:
    def func(key: Any, values: Iterator[Any], state: GroupState[Any]) -> list[Any]:
        for call in calls:
            call(state)
        return []

    return func


def stored(row: Row, timeout: GroupStateTimeout, key: Any = 0) -> DictStore:
    store = DictStore()
    if row is not None and timeout is NONE:
        store.put(key, (row[0],))
    elif row is not None:
        store.put(key, row, None if row[1] == NO_TIMESTAMP else row[1])
    return store


def row_of(store: DictStore, timeout: GroupStateTimeout, key: Any = 0) -> Row:
    row = store.rows.get(key)
    if row is None or timeout is not NONE:
        return row
    return (row[0], NO_TIMESTAMP)


# What a call does to the state and the timer, and what it asks for all in all ---------------------

VALUE: dict[str, tuple[list[Call], str]] = {
    "nothing": ([], "-"),
    "update": ([lambda s: s.update(5)], "U"),
    "remove": ([lambda s: s.remove()], "R"),
    "update, remove": ([lambda s: s.update(5), lambda s: s.remove()], "R"),
    "remove, update": ([lambda s: s.remove(), lambda s: s.update(5)], "U"),
    "update twice": ([lambda s: s.update(4), lambda s: s.update(5)], "U"),
}
TIMER: dict[GroupStateTimeout, dict[str, tuple[list[Call], int]]] = {
    NONE: {"no timer": ([], NO_TIMESTAMP)},
    PROCESSING: {
        "no timer": ([], NO_TIMESTAMP),
        "timer": ([lambda s: s.setTimeoutDuration(5000)], 6000),
        "two timers": (
            [lambda s: s.setTimeoutDuration(1), lambda s: s.setTimeoutDuration(5000)],
            6000,
        ),
    },
    EVENT: {
        "no timer": ([], NO_TIMESTAMP),
        "timer": ([lambda s: s.setTimeoutTimestamp(6000)], 6000),
        "text": ([lambda s: s.setTimeoutTimestamp(1000, "5 seconds")], 6000),
    },
}
BEFORE: list[Row] = [
    None,
    (7, NO_TIMESTAMP),
    (5, NO_TIMESTAMP),
    (7, 999),
    (7, 6000),
    (None, 999),
    (None, 6000),
    (None, NO_TIMESTAMP),
]


def expected(before: Row, value: str, timer_ms: int) -> tuple[Row, int, int]:
    """The rule of Spark in words of its own: row after, updated, removed."""
    state, old_ms = before or (None, NO_TIMESTAMP)
    if value == "R" and timer_ms == NO_TIMESTAMP:
        return None, 0, 1
    if value == "-" and timer_ms == old_ms:
        return before, 0, 0
    return ({"-": state, "U": 5, "R": None}[value], timer_ms), 1, 0


@pytest.mark.parametrize("timeout", GroupStateTimeout)
def test_what_a_call_leaves(timeout: GroupStateTimeout) -> None:
    """Every row before, every effect on state and timer, as data or as timed out: row after."""
    kinds = [False] if timeout is NONE else [False, True]
    tried = 0
    for before, value, timer, has_timed_out in itertools.product(
        BEFORE, VALUE, TIMER[timeout], kinds
    ):
        if timeout is NONE and before is not None and before != (7, NO_TIMESTAMP):
            continue
        store = stored(before, timeout)
        store.writes = 0
        (value_calls, asked), (timer_calls, timer_ms) = VALUE[value], TIMER[timeout][timer]
        for calls in ((*value_calls, *timer_calls), (*timer_calls, *value_calls)):
            work = processor(stored(before, timeout), doing(*calls), timeout)
            data = work.operator.stateManager.get_state(work.store, 0)
            after, updated, removed = expected(before, asked, timer_ms)
            story = f"{before} {value} {timer} timed out: {has_timed_out}"
            rows = work.call_function_and_update_state(data, iter(()), has_timed_out=has_timed_out)
            assert list(rows) == []
            assert isinstance(work.store, DictStore)
            assert row_of(work.store, timeout) == after, story
            counted = (work.metrics.numUpdatedStateRows, work.metrics.numRemovedStateRows)
            assert counted == (updated, removed), story
            tried += 1
    assert tried >= 10


@pytest.mark.parametrize(
    ("before", "calls", "after"),
    [
        ((5, 1001), None, (5, 1001)),
        ((5, 1000), None, (5, 1000)),
        ((5, NO_TIMESTAMP), None, (5, NO_TIMESTAMP)),
        ((5, 999), [], (5, NO_TIMESTAMP)),
        ((5, 999), [lambda s: s.update(6)], (6, NO_TIMESTAMP)),
        ((5, 999), [lambda s: s.remove()], None),
        ((5, 999), [lambda s: s.setTimeoutTimestamp(5000)], (5, 5000)),
        ((None, 999), [lambda s: s.update(6), lambda s: s.setTimeoutTimestamp(5000)], (6, 5000)),
    ],
)
def test_only_what_is_due_times_out(before: Row, calls: list[Call] | None, after: Row) -> None:
    """A timer before the watermark is due, one that equals it is not; a call has no values."""
    seen: list[tuple[Any, list[Any], bool, bool]] = []

    def func(key: Any, values: Iterator[Any], state: GroupState[Any]) -> Iterable[Any]:
        seen.append((key, list(values), state.hasTimedOut, state.exists))
        return doing(*(calls or ()))(key, values, state)

    store = stored(before, EVENT)
    assert list(processor(store, func, EVENT).process_timed_out_state()) == []
    is_called = (
        [] if calls is None else [(0, [], True, before is not None and before[0] is not None)]
    )
    assert seen == is_called
    assert row_of(store, EVENT) == after


def test_groups_in_order_with_states() -> None:
    """Each group is one call, and its state is that of the batch before."""
    store = DictStore()
    batches = [["a"], ["a", "b"], ["a", "c"]]
    outputs, metrics = [], []
    for batch in batches:
        work = processor(store, running_count)
        outputs.append(list(work.process_new_data([(key, key) for key in batch])))
        metrics.append((work.metrics.numUpdatedStateRows, work.metrics.numRemovedStateRows))
    assert outputs == [[("a", 1)], [("a", 2), ("b", 1)], [("c", 1)]]
    assert metrics == [(1, 0), (2, 0), (1, 1)]
    assert store.rows == {"b": (1,), "c": (1,)}


def test_groups_whose_values_are_in_lists() -> None:
    """They do what the same rows do, one by one, lazily and with the same errors."""
    store = DictStore()
    work = processor(store, running_count)
    rows = work.process_groups([("a", ["x", "y"]), ("b", ["z"])])
    assert next(rows) == ("a", 2)
    assert store.rows == {}
    assert list(rows) == [("b", 1)]
    assert store.rows == {"a": (2,), "b": (1,)}
    assert (work.metrics.numOutputRows, work.metrics.numUpdatedStateRows) == (2, 2)
    failing = processor(store, lambda key, values, state: [1 / len(key)])
    with pytest.raises(UserFunctionError, match="failed for key '': ZeroDivisionError"):
        list(failing.process_groups([("", ["x"])]))


def test_groups_that_are_not_in_memory_are_pulled_one_by_one() -> None:
    """Only where all of them are in memory some are pulled ahead."""
    for are_in_memory, ahead in ((True, 3), (False, 1)):
        pulled: list[str] = []

        def groups(pulled: list[str] = pulled) -> Iterator[tuple[str, list[str]]]:
            for key in "abc":
                pulled.append(key)
                yield key, [key]

        store = DictStore()
        work = processor(store, running_count)
        rows = work.process_groups(groups(), are_in_memory=are_in_memory)
        assert next(rows) == ("a", 1)
        assert len(pulled) == ahead
        assert list(rows) == [("b", 1), ("c", 1)]
        assert store.rows == {"a": (1,), "b": (1,), "c": (1,)}


def test_a_lazy_function_works_while_it_is_read() -> None:
    """A generator may update between its rows; the last update is what is stored."""

    def lazily(key: Any, values: Iterator[Any], state: GroupState[int]) -> Iterator[Any]:
        for _ in values:
            state.update((state.getOption or 0) + 1)
            yield key, state.get

    store = DictStore()
    rows = processor(store, lazily).process_new_data([("a", 1), ("a", 2), ("b", 3)])
    assert next(rows) == ("a", 1)
    assert store.rows == {}
    assert list(rows) == [("a", 2), ("b", 1)]
    assert store.rows == {"a": (2,), "b": (1,)}


def test_values_that_are_not_read_are_skipped() -> None:
    """A function need not read its values; the next group has its own."""
    work = processor(DictStore(), lambda key, values, state: [(key, next(values))])
    assert list(work.process_new_data([("a", 1), ("a", 2), ("b", 3)])) == [("a", 1), ("b", 3)]
    assert work.metrics.numOutputRows == 2


def test_a_timer_can_be_kept() -> None:
    """With keep_timer, a call that sets none leaves the old one; one that was due goes."""
    store = stored((5, 6000), PROCESSING)
    work = processor(store, doing(lambda s: s.update(6)), PROCESSING, keep_timer=True)
    list(work.process_new_data([(0, "x")]))
    assert row_of(store, PROCESSING) == (6, 6000)
    store = stored((5, 999), PROCESSING)
    list(processor(store, doing(), PROCESSING, keep_timer=True).process_timed_out_state())
    assert row_of(store, PROCESSING) == (5, NO_TIMESTAMP)


INITIAL = [
    ("OnlyState", [], [1]),
    ("NoUpdate", [], [2]),
    ("S2", ["S2"], [2]),
    ("S1", [], [1]),
    ("OnlyData", ["OnlyData"], []),
]


def counting(key: str, values: Iterator[Any], state: GroupState[int]) -> list[Any]:
    seen = list(values)
    count = (state.getOption or 0) + len(seen)
    if "NoUpdate" not in key:
        state.update(count)
    return [(key, seen, count)]


@pytest.mark.parametrize("skip_keys", [False, True])
def test_initial_states(skip_keys: bool) -> None:
    """Every initial state is stored; its key is called, unless it has no values and is skipped."""
    store = DictStore()
    work = processor(store, counting)
    rows = list(work.process_new_data_with_initial_state(INITIAL, skip_keys=skip_keys))
    called = [("S2", ["S2"], 3), ("OnlyData", ["OnlyData"], 1)]
    if not skip_keys:
        called = [
            ("OnlyState", [], 1),
            ("NoUpdate", [], 2),
            ("S2", ["S2"], 3),
            ("S1", [], 1),
            ("OnlyData", ["OnlyData"], 1),
        ]
    assert rows == called
    assert {key: row[0] for key, row in store.rows.items()} == {
        "OnlyState": 1,
        "NoUpdate": 2,
        "S2": 3,
        "S1": 1,
        "OnlyData": 1,
    }
    assert work.metrics.numUpdatedStateRows == (2 if skip_keys else 4)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([1, 2], "f at app.py:3: the initial state has 2 states for the key 'a'; reduce it by key"),
        ([None], "f at app.py:3: the initial state of the key 'a' is None"),
    ],
)
def test_initial_states_that_cannot_be(states: list[Any], message: str) -> None:
    """A key has one initial state, and None is none."""
    work = processor(DictStore(), counting)
    with pytest.raises(InvalidStreamError) as raised:
        list(work.process_new_data_with_initial_state([("a", [], states)]))
    assert str(raised.value).startswith(message)


class _Table(list[Any]):
    """Stands for a table: what is iterated over are the names of its columns."""


FRAME: Any = type("DataFrame", (_Table,), {"__module__": "pandas.core.frame"})("ab")
ARRAY: Any = type("ndarray", (_Table,), {"__module__": "numpy"})("ab")


def fails(key: Any, values: Iterator[Any], state: GroupState[Any]) -> list[Any]:
    raise KeyError("no such thing")


def fails_late(key: Any, values: Iterator[Any], state: GroupState[Any]) -> Iterator[Any]:
    state.update(1)
    yield key
    raise ValueError("late")


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (fails, "f at app.py:3 failed for key 'a': KeyError: 'no such thing'"),
        (fails_late, "f at app.py:3 failed for key 'a': ValueError: late"),
        (lambda k, v, s: None, "f at app.py:3 must return an iterable of rows, got None"),
        (lambda k, v, s: "row", "f at app.py:3 must return an iterable of rows, got 'row' (str)"),
        (lambda k, v, s: 7, "f at app.py:3 must return an iterable of rows, got 7 (int)"),
        (lambda k, v, s: {"a": 1}, "got {'a': 1} (dict) for key 'a'; return [row] for one row"),
        (lambda k, v, s: {"b", k} - {"b"}, "got {'a'} (set) for key 'a'; return them in an order"),
        (lambda k, v, s: frozenset(k), "(frozenset) for key 'a'"),
        (lambda k, v, s: StateData(k, 1, 2), "(StateData) for key 'a'; return [row] for one row"),
        (lambda k, v, s: FRAME, "(DataFrame) for key 'a'; return its rows"),
        (lambda k, v, s: ARRAY, "(ndarray) for key 'a'; return its rows"),
        (lambda k, v, s: s.get, "failed for key 'a': NoStateError: the state is not defined"),
    ],
)
def test_a_function_that_fails(func: Any, message: str) -> None:
    """The message names function and key, and the state is not written."""
    store = DictStore()
    with pytest.raises(UserFunctionError) as raised:
        list(processor(store, func).process_new_data([("a", 1)]))
    assert message in str(raised.value)
    assert store.rows == {}


@pytest.mark.parametrize(
    "func",
    [
        lambda k, v, s: (k, 1),
        lambda k, v, s: iter([k, 1]),
        lambda k, v, s: (row for row in (k, 1)),
        lambda k, v, s: map(str, [k]),
        lambda k, v, s: deque([k, 1]),
    ],
)
def test_what_is_a_series_of_rows(func: Any) -> None:
    """Lists, tuples, generators and other iterators go out row by row."""
    assert next(processor(DictStore(), func).process_new_data([("a", 1)])) == "a"


def test_an_error_of_the_values_is_not_the_functions() -> None:
    """What fails while values are read is passed on as it is."""

    def values() -> Iterator[tuple[str, int]]:
        yield "a", 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(processor(DictStore(), running_count).process_new_data(values()))


def test_state_of_a_group_that_is_read_in_part_is_not_written() -> None:
    """Who stops in the middle of a group leaves its state as it was."""
    store = DictStore()
    rows = processor(store, fails_late).process_new_data([("a", 1)])
    assert next(rows) == "a"
    rows.close()  # type: ignore[attr-defined]
    assert store.rows == {}


def test_metrics_add_up() -> None:
    """The counts of partitions make those of the operator."""
    total = StateMetrics(numOutputRows=1, stateMemory=10)
    total.add(StateMetrics(numOutputRows=2, numRemovedStateRows=3))
    assert total.as_dict()["numOutputRows"] == 3
    assert (total.numRemovedStateRows, total.stateMemory) == (3, 10)
