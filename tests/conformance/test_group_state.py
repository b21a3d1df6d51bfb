"""GroupState and InputProcessor as Spark's suites say they are.

One call for the key 0 at the batch time 1000 ms with the watermark 1000 ms, unless a case says
otherwise. Every combination of row, call and timer is in ``tests/dstreams/state``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, TypeAlias

import pytest

from dstreams import (
    GroupState,
    GroupStateTimeout,
    InvalidStateCallError,
    InvalidStreamError,
    NoStateError,
    TestGroupState,
)
from dstreams.state.flat_map_groups import FlatMapGroups
from dstreams.state.input_processor import InputProcessor
from dstreams.state.state_manager import ONE_COLUMN, create_state_manager
from tests.dstreams.state.stores import DictStore

NONE = GroupStateTimeout.NoTimeout
PROCESSING = GroupStateTimeout.ProcessingTimeTimeout
EVENT = GroupStateTimeout.EventTimeTimeout
BOTH = (PROCESSING, EVENT)
NO = -1

Row: TypeAlias = "tuple[Any, int] | None"
Call: TypeAlias = "Callable[[Any], object]"


def update(state: GroupState[int]) -> None:
    state.update(5)


def remove(state: GroupState[int]) -> None:
    state.remove()


def duration(state: GroupState[int]) -> None:
    state.setTimeoutDuration(5000)


def stamp(time_ms: int) -> Call:
    return lambda state: state.setTimeoutTimestamp(time_ms)


# calls: timeouts, rows before, calls, row after ------------------------------------------------

WITH_DATA: dict[str, tuple[tuple[GroupStateTimeout, ...], list[Row], list[Call], Row]] = {
    "no state, nothing called": ((NONE,), [None], [], None),
    "a state, nothing called": ((NONE,), [(0, NO)], [], (0, NO)),
    "update": ((NONE,), [None, (0, NO)], [update], (5, NO)),
    "remove": ((NONE,), [None, (0, NO)], [remove], None),
    "a timer is cleared by a call": (BOTH, [(0, 1000)], [], (0, NO)),
    "update clears the timer": (BOTH, [None, (0, NO), (0, 1000)], [update], (5, NO)),
    "remove clears the timer": (BOTH, [None, (0, NO), (0, 1000)], [remove], None),
    "update, duration": ((PROCESSING,), [None, (0, NO), (0, 1000)], [update, duration], (5, 6000)),
    "remove, duration": (
        (PROCESSING,),
        [None, (0, NO), (0, 1000)],
        [remove, duration],
        (None, 6000),
    ),
    "stamp alone": ((EVENT,), [None], [stamp(10000)], (None, 10000)),
    "update, stamp": ((EVENT,), [None, (0, NO), (0, 1000)], [update, stamp(5000)], (5, 5000)),
    "remove, stamp": ((EVENT,), [None, (0, NO), (0, 1000)], [remove, stamp(10000)], (None, 10000)),
}
TIMED_OUT: dict[str, tuple[tuple[GroupStateTimeout, ...], Row, list[Call] | None, Row]] = {
    "not due": (BOTH, (5, 1001), None, (5, 1001)),
    "due at this time, which is not yet": (BOTH, (5, 1000), None, (5, 1000)),
    "nothing called": (BOTH, (5, 999), [], (5, NO)),
    "update": (BOTH, (5, 999), [update], (5, NO)),
    "remove": (BOTH, (5, 999), [remove], None),
    "a duration": ((PROCESSING,), (5, 999), [duration], (5, 6000)),
    "a timestamp": ((EVENT,), (5, 999), [stamp(5000)], (5, 5000)),
    "update, stamp": ((EVENT,), (5, 999), [update, stamp(5000)], (5, 5000)),
}


def stored(row: Row, timeout: GroupStateTimeout) -> DictStore:
    store = DictStore()
    manager = create_state_manager(ONE_COLUMN, timeout is not NONE, 2)
    if row is not None:
        manager.put_state(store, 0, *row)
    return store


def row_of(store: DictStore, timeout: GroupStateTimeout) -> Row:
    if 0 not in store.rows:
        return None
    data = create_state_manager(ONE_COLUMN, timeout is not NONE, 2).get_state(store, 0)
    return data.state, data.timeout_ms


def run(
    store: DictStore, timeout: GroupStateTimeout, calls: list[Call] | None, *, due: bool
) -> int:
    """Run the calls as data, or as what is due; returns how often the function was called."""
    called: list[bool] = []

    def func(key: int, values: Iterator[int], state: GroupState[int]) -> list[Any]:
        called.append(state.hasTimedOut)
        assert list(values) == ([] if due else [7])
        for call in calls or ():
            call(state)
        return []

    operator = FlatMapGroups(
        func=func, timeoutConf=timeout, batchTimestampMs=1000, eventTimeWatermark=1000
    )
    work = InputProcessor(store, operator)
    assert list(work.process_timed_out_state() if due else work.process_groups([(0, [7])])) == []
    assert set(called) <= {due}
    return len(called)


@pytest.mark.parametrize("case", WITH_DATA)
def test_a_call_with_data(case: str) -> None:
    """What the function did to the state is the row after a call with values."""
    timeouts, rows, calls, after = WITH_DATA[case]
    for timeout in timeouts:
        for before in rows:
            store = stored(before, timeout)
            assert run(store, timeout, calls, due=False) == 1
            assert row_of(store, timeout) == after, (timeout, before)


@pytest.mark.parametrize("case", TIMED_OUT)
def test_a_call_that_is_due(case: str) -> None:
    """A key that is due is called, and what it did is the row; one that is not is left alone."""
    timeouts, before, calls, after = TIMED_OUT[case]
    for timeout in timeouts:
        store = stored(before, timeout)
        assert run(store, timeout, calls, due=True) == (0 if calls is None else 1)
        assert row_of(store, timeout) == after, timeout


def test_a_timestamp_before_the_watermark() -> None:
    """It is refused, the state that was set before it is stored, without a timer."""

    def too_early(state: GroupState[int]) -> None:
        with pytest.raises(InvalidStreamError, match="cannot be earlier than the current"):
            state.setTimeoutTimestamp(999)

    store = stored((0, 1000), EVENT)
    run(store, EVENT, [update, too_early], due=False)
    assert row_of(store, EVENT) == (5, NO)


# The handle --------------------------------------------------------------------------------------

Handle: TypeAlias = "TestGroupState[Any]"


def handle(timeout: GroupStateTimeout = NONE, state: Any = None, watermark: Any = 1000) -> Handle:
    return TestGroupState.create(state, timeout, 1000, watermark)


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)


def test_a_state_that_is_not_there() -> None:
    """Get raises, the option is None; an empty text is a state."""
    state = handle()
    with pytest.raises(NoStateError):
        state.get  # noqa: B018 - a property
    assert (state.getOption, state.exists) == (None, False)
    state.update("")
    assert (state.exists, state.get, state.isUpdated) == (True, "", True)


def test_updates_and_removals() -> None:
    """The last call decides, and removing twice is fine."""
    state = handle(state="2")
    seen = []
    for call in (
        lambda: state.update("3"),
        state.remove,
        state.remove,
        lambda: state.update("4"),
    ):
        call()
        seen.append((state.getOption, state.exists, state.isUpdated, state.isRemoved))
    removed = (None, False, False, True)
    assert seen == [("3", True, True, False), removed, removed, ("4", True, True, False)]


SETTERS: dict[str, Call] = {
    "duration": lambda s: s.setTimeoutDuration(1000),
    "duration as text": lambda s: s.setTimeoutDuration("1 second"),
    "timestamp": lambda s: s.setTimeoutTimestamp(5000),
    "timestamp and text": lambda s: s.setTimeoutTimestamp(5000, "1 second"),
    "date": lambda s: s.setTimeoutTimestamp(at(5000)),
    "date and text": lambda s: s.setTimeoutTimestamp(at(5000), "1 second"),
}


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize("timeout", GroupStateTimeout)
def test_timers_where_there_are_none(timeout: GroupStateTimeout, setter: str) -> None:
    """A timer of the other kind, or of any where there is none, is refused."""
    state = handle(timeout)
    fits = {PROCESSING: setter.startswith("duration"), EVENT: not setter.startswith("duration")}
    if fits.get(timeout):
        SETTERS[setter](state)
        assert state.getTimeoutTimestampMs is not None
        return
    with pytest.raises(InvalidStateCallError):
        SETTERS[setter](state)
    assert state.getTimeoutTimestampMs is None


def timers_after(state: Handle, calls: list[Call]) -> list[int | None]:
    seen = []
    for call in calls:
        call(state)
        seen.append(state.getTimeoutTimestampMs)
    return seen


def test_timers_in_processing_time() -> None:
    """Each counts from the batch time; updates and removals leave it."""
    calls: list[Call] = [
        lambda s: s.setTimeoutDuration("-1 month 31 days 1 second"),
        lambda s: s.setTimeoutDuration(500),
        lambda s: s.update(5),
        lambda s: s.setTimeoutDuration(1000),
        lambda s: s.setTimeoutDuration("2 second"),
        lambda s: s.remove(),
        lambda s: s.setTimeoutDuration(500),
    ]
    expected = [2000, 1500, 1500, 2000, 3000, 3000, 1500]
    assert timers_after(handle(PROCESSING), calls) == expected


def test_timers_in_event_time() -> None:
    """Each is a time of events, the watermark at the earliest."""
    calls: list[Call] = [
        lambda s: s.setTimeoutTimestamp(5000),
        lambda s: s.update(5),
        lambda s: s.setTimeoutTimestamp(10000),
        lambda s: s.setTimeoutTimestamp(at(20000)),
        lambda s: s.remove(),
        lambda s: s.setTimeoutTimestamp(5000),
        lambda s: s.setTimeoutTimestamp(1000),
    ]
    expected = [5000, 5000, 10000, 20000, 20000, 5000, 1000]
    assert timers_after(handle(EVENT), calls) == expected


@pytest.mark.parametrize("given", [-1000, 0, "-2 second", "-1 month", "1 month -31 day"])
def test_durations_that_cannot_be(given: int | str) -> None:
    """None is positive, and the timer stays unset."""
    state = handle(PROCESSING)
    with pytest.raises(InvalidStreamError, match="positive"):
        state.setTimeoutDuration(given)
    assert state.getTimeoutTimestampMs is None


@pytest.mark.parametrize(
    "given",
    [
        (-10000,),
        (10000, "-3 second"),
        (10000, "-1 month"),
        (10000, "1 month -32 day"),
        (at(-10000),),
        (at(-10000), "-3 second"),
        (at(-10000), "-1 month"),
        (at(-10000), "1 month -32 day"),
    ],
    ids=str,
)
def test_timestamps_that_cannot_be(given: tuple[Any, ...]) -> None:
    """A time before the epoch, a duration that goes back; the timer stays unset."""
    state = handle(EVENT)
    with pytest.raises(InvalidStreamError, match=r"positive|negative"):
        state.setTimeoutTimestamp(*given)
    assert state.getTimeoutTimestampMs is None


def test_handles_that_cannot_be() -> None:
    """A watermark or a time before the epoch, a timeout where there is none."""
    with pytest.raises(InvalidStreamError, match="watermark must be 0 or positive"):
        TestGroupState.create(5, EVENT, 1000, -1000)
    with pytest.raises(InvalidStreamError, match="time must be 0 or positive"):
        TestGroupState.create(5, EVENT, -100, 1000)
    with pytest.raises(InvalidStateCallError, match="cannot time out"):
        TestGroupState.create(5, NONE, 1000, 1000, True)


@pytest.mark.parametrize("timeout", GroupStateTimeout)
def test_the_watermark(timeout: GroupStateTimeout) -> None:
    """It is there where one was set upstream, whatever the timeout is."""
    assert handle(timeout).getCurrentWatermarkMs() == 1000
    with pytest.raises(InvalidStateCallError, match="no event time watermark"):
        handle(timeout, watermark=None).getCurrentWatermarkMs()
    assert handle(timeout).getCurrentProcessingTimeMs() == 1000


def test_zero_is_a_state() -> None:
    """What is false is a state."""
    state = handle(state=10)
    state.update(0)
    assert (state.exists, state.get, state.isRemoved) == (True, 0, False)


# Rows of the store -------------------------------------------------------------------------------


@pytest.mark.parametrize("has_timeouts", [False, True])
def test_rows(has_timeouts: bool) -> None:
    """Absent, put, get, removed."""
    store, manager = DictStore(), create_state_manager(ONE_COLUMN, has_timeouts, 2)
    assert manager.get_state(store, "a") == ("a", None, NO)
    timer_ms = 1000 if has_timeouts else NO
    manager.put_state(store, "a", (1, "x"), timer_ms)
    assert manager.get_state(store, "a") == ("a", (1, "x"), timer_ms)
    manager.remove_state(store, "a")
    assert manager.get_state(store, "a") == ("a", None, NO)


def test_a_timer_without_a_state() -> None:
    """It comes back as such."""
    store = DictStore()
    manager = create_state_manager(ONE_COLUMN, True, 2)
    manager.put_state(store, "a", None, 1000)
    assert manager.get_state(store, "a") == ("a", None, 1000)


def test_a_state_of_nothing_but_none() -> None:
    """It is told from no state."""
    store, manager = DictStore(), create_state_manager(ONE_COLUMN, True, 2)
    manager.put_state(store, "a", (None, None), NO)
    assert manager.get_state(store, "a").state == (None, None)
