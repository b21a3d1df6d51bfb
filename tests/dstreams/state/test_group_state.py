"""GroupState: the contract of a handle, row by row."""

from __future__ import annotations

import itertools
import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest

from dstreams.errors import InvalidStateCallError, InvalidStreamError, NoStateError, StreamError
from dstreams.state.function_errors import NotStorableError
from dstreams.state.group_state import (
    NO_TIMESTAMP,
    GroupState,
    GroupStateContext,
    GroupStateTimeout,
    State,
    TestGroupState,
)


def answers(state: State[Any]) -> tuple[Any, ...]:
    return state.exists, state.getOption, state.isTimingOut, repr(state)


def test_no_state() -> None:
    """Nothing exists; removing it is fine; setting it makes it exist."""
    state: State[int] = State()
    assert answers(state) == (False, None, False, "<state not set>")
    with pytest.raises(
        NoStateError, match=r"not defined or was removed; check state\.exists first"
    ):
        state.get  # noqa: B018 - a property
    state.update(0)
    assert answers(state) == (True, 0, False, "0")
    assert (state.get, state.is_updated, state.is_removed) == (0, True, False)
    removed: State[int] = State()
    removed.remove()
    assert (removed.exists, removed.is_removed) == (False, True)


def test_after_a_removal() -> None:
    """In the same call it is gone for good."""
    state = State(1)
    state.update(2)
    state.remove()
    assert answers(state) == (False, None, False, "<state not set>")
    assert (state.is_updated, state.is_removed) == (False, True)
    with pytest.raises(InvalidStateCallError, match="updated after it has been removed"):
        state.update(3)
    with pytest.raises(InvalidStateCallError, match="already been removed"):
        state.remove()


def test_timing_out() -> None:
    """It can be read and not changed."""
    state = State(1, is_timing_out=True)
    assert answers(state) == (True, 1, True, "1")
    with pytest.raises(InvalidStateCallError, match="timing out cannot be updated"):
        state.update(3)
    with pytest.raises(InvalidStateCallError, match="timing out is removed anyway"):
        state.remove()
    assert state.get == 1


def test_none_is_no_state() -> None:
    """It is refused, with what to do instead."""
    state = State(1)
    with pytest.raises(InvalidStreamError, match=r"call state\.remove\(\)"):
        state.update(None)  # type: ignore[arg-type]
    assert state.get == 1


def test_it_does_not_outlive_its_call() -> None:
    """It cannot be kept in a result or a state."""
    with pytest.raises(TypeError, match=r"keep state\.get instead"):
        pickle.dumps(State(1))


NONE = GroupStateTimeout.NoTimeout
PROCESSING = GroupStateTimeout.ProcessingTimeTimeout
EVENT = GroupStateTimeout.EventTimeTimeout

Handle = TestGroupState[Any]


def handle(
    state: Any = None, timeout: GroupStateTimeout = NONE, watermark_ms: int | None = 1000
) -> Handle:
    return TestGroupState.create(state, timeout, 1000, watermark_ms)


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, tz=timezone.utc)


def test_without_a_state() -> None:
    """Without a state, get raises an error, and getOption returns None."""
    state = handle()
    assert (state.exists, state.getOption, state.isUpdated, state.isRemoved) == (
        False,
        None,
        False,
        False,
    )
    with pytest.raises(NoStateError, match=r"not defined.*state\.exists"):
        state.get  # noqa: B018 - a property
    with pytest.raises(LookupError):
        state.get  # noqa: B018 - the builtin kind
    assert repr(state) == "GroupState(<undefined>)"


@pytest.mark.parametrize("value", [0, "", False, [], {}, 0.0, ("a",)])
def test_what_is_empty_is_a_state(value: Any) -> None:
    """Only None means that there is no state."""
    for state in (handle(value), handle()):
        state.update(value)
        assert (state.exists, state.get, state.getOption) == (True, value, value)
        assert repr(state) == f"GroupState({value!r})"


def test_none_is_refused_and_changes_nothing() -> None:
    """A state of None would be no state; the message says what to call instead."""
    state = handle(7)
    with pytest.raises(InvalidStreamError, match=r"must not be None; call state\.remove\(\)"):
        state.update(None)
    assert (state.get, state.isUpdated) == (7, False)


CALLS: dict[str, Callable[[Handle], None]] = {
    "update 3": lambda state: state.update("3"),
    "update 4": lambda state: state.update("4"),
    "remove": lambda state: state.remove(),
}


@pytest.mark.parametrize("before", [None, "2"])
@pytest.mark.parametrize(
    "calls", [list(calls) for n in range(4) for calls in itertools.product(CALLS, repeat=n)]
)
def test_the_last_call_decides(before: Any, calls: list[str]) -> None:
    """The last call of update or remove takes effect."""
    state = handle(before)
    for call in calls:
        CALLS[call](state)
    last = calls[-1] if calls else ""
    expected = {"": before, "remove": None}.get(last, last.removeprefix("update "))
    assert state.getOption == expected
    assert (state.isUpdated, state.isRemoved) == (last.startswith("update"), last == "remove")
    assert state.effect == (expected, state.isUpdated, state.isRemoved, NO_TIMESTAMP)


@pytest.mark.parametrize(
    ("call", "expected_ms"),
    [
        (lambda s: s.setTimeoutDuration(500), 1500),
        (lambda s: s.setTimeoutDuration("2 second"), 3000),
        (lambda s: s.setTimeoutDuration("-1 month 31 days 1 second"), 2000),
        (lambda s: s.setTimeoutDuration("interval 1 hour 30 minutes"), 1000 + 5_400_000),
        (lambda s: s.setTimeoutDuration(5000), 6000),
    ],
)
def test_a_duration_counts_from_the_batch_time(call: Any, expected_ms: int) -> None:
    """The timer is the batch time and the duration; a month is 31 days."""
    state = handle(timeout=PROCESSING)
    call(state)
    assert state.getTimeoutTimestampMs == expected_ms
    state.update("x")
    state.remove()
    assert state.getTimeoutTimestampMs == expected_ms


@pytest.mark.parametrize(
    ("call", "expected_ms"),
    [
        (lambda s: s.setTimeoutTimestamp(5000), 5000),
        (lambda s: s.setTimeoutTimestamp(1000), 1000),
        (lambda s: s.setTimeoutTimestamp(at(20)), 20_000),
        (lambda s: s.setTimeoutTimestamp(at(20) - timedelta(microseconds=1)), 19_999),
        (lambda s: s.setTimeoutTimestamp(5000, "5 seconds"), 10_000),
        (lambda s: s.setTimeoutTimestamp(5000, 1), 5001),
        (lambda s: s.setTimeoutTimestamp(at(20), "1 minute"), 80_000),
        (lambda s: s.setTimeoutTimestamp(5000, "1 month -31 day"), 5000),
    ],
)
def test_a_timestamp_is_the_timer(call: Any, expected_ms: int) -> None:
    """A time of events may be as early as the watermark, and may have a duration added."""
    state = handle(timeout=EVENT)
    call(state)
    assert state.getTimeoutTimestampMs == expected_ms


REFUSED: list[tuple[GroupStateTimeout, Callable[[Handle], None], type[StreamError], str]] = [
    (PROCESSING, lambda s: s.setTimeoutDuration(-1000), InvalidStreamError, "must be positive"),
    (PROCESSING, lambda s: s.setTimeoutDuration(0), InvalidStreamError, "must be positive"),
    (PROCESSING, lambda s: s.setTimeoutDuration("-2 second"), InvalidStreamError, "positive"),
    (PROCESSING, lambda s: s.setTimeoutDuration("-1 month"), InvalidStreamError, "positive"),
    (PROCESSING, lambda s: s.setTimeoutDuration("1 month -31 day"), InvalidStreamError, "positive"),
    (PROCESSING, lambda s: s.setTimeoutDuration("soon"), InvalidStreamError, "'soon', which is no"),
    (PROCESSING, lambda s: s.setTimeoutDuration(True), InvalidStreamError, "True (bool)"),
    (PROCESSING, lambda s: s.setTimeoutDuration(1.5), InvalidStreamError, "1.5 (float)"),  # type: ignore[arg-type]
    (PROCESSING, lambda s: s.setTimeoutTimestamp(5000), InvalidStateCallError, "EventTimeTimeout"),
    (EVENT, lambda s: s.setTimeoutDuration(5000), InvalidStateCallError, "ProcessingTimeTimeout"),
    (
        EVENT,
        lambda s: s.setTimeoutDuration("soon"),
        InvalidStreamError,
        "duration is 'soon', which is not a duration",
    ),
    (EVENT, lambda s: s.setTimeoutTimestamp(-10_000), InvalidStreamError, "must be positive"),
    (EVENT, lambda s: s.setTimeoutTimestamp(999), InvalidStreamError, "(999) cannot be earlier"),
    (EVENT, lambda s: s.setTimeoutTimestamp(at(-10)), InvalidStreamError, "must be positive"),
    (EVENT, lambda s: s.setTimeoutTimestamp(10_000, "-3 second"), InvalidStreamError, "negative"),
    (EVENT, lambda s: s.setTimeoutTimestamp(10_000, "-1 month"), InvalidStreamError, "negative"),
    (
        EVENT,
        lambda s: s.setTimeoutTimestamp(10_000, "1 month -32 day"),
        InvalidStreamError,
        "negative",
    ),
    (NONE, lambda s: s.setTimeoutDuration(5000), InvalidStateCallError, "NoTimeout"),
    (NONE, lambda s: s.setTimeoutDuration("2 second"), InvalidStateCallError, "NoTimeout"),
    (NONE, lambda s: s.setTimeoutTimestamp(5000), InvalidStateCallError, "NoTimeout"),
    (NONE, lambda s: s.setTimeoutTimestamp(at(5), "1 day"), InvalidStateCallError, "NoTimeout"),
]


@pytest.mark.parametrize(("timeout", "call", "kind", "message"), REFUSED)
def test_a_refused_timer_leaves_the_one_before(
    timeout: GroupStateTimeout,
    call: Callable[[Handle], None],
    kind: type[StreamError],
    message: str,
) -> None:
    """An invalid timer, or one of another timeout, is rejected and changes nothing."""
    state = handle(timeout=timeout)
    if timeout is PROCESSING:
        state.setTimeoutDuration(1)
    elif timeout is EVENT:
        state.setTimeoutTimestamp(1001)
    before = state.getTimeoutTimestampMs
    with pytest.raises(kind) as raised:
        call(state)
    assert message in str(raised.value)
    assert state.getTimeoutTimestampMs == before


@pytest.mark.parametrize("timeout", GroupStateTimeout)
def test_times(timeout: GroupStateTimeout) -> None:
    """The batch time is always there, the watermark where one was set upstream."""
    state = handle(timeout=timeout)
    assert (state.getCurrentProcessingTimeMs(), state.getCurrentWatermarkMs()) == (1000, 1000)
    without = handle(timeout=timeout, watermark_ms=None)
    with pytest.raises(InvalidStateCallError, match="no event time watermark"):
        without.getCurrentWatermarkMs()


def test_without_a_watermark_any_positive_time_will_do() -> None:
    """Before the first watermark, an event-time timer may be at any positive time."""
    state = handle(timeout=EVENT, watermark_ms=None)
    state.setTimeoutTimestamp(1)
    assert state.getTimeoutTimestampMs == 1


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((None, NONE, -100), InvalidStreamError, "must be 0 or positive, got -100 ms"),
        ((None, EVENT, 100, -1000), InvalidStreamError, "0 or positive if present, got -1000"),
        ((None, NONE, 100, None, True), InvalidStateCallError, "with GroupStateTimeout.NoTimeout"),
    ],
)
def test_handles_that_cannot_be(arguments: Any, kind: type[StreamError], message: str) -> None:
    """Times before the epoch, and a timeout with NoTimeout, are rejected."""
    with pytest.raises(kind, match=message):
        TestGroupState.create(*arguments)


@pytest.mark.parametrize("timeout", GroupStateTimeout)
@pytest.mark.parametrize("state", [None, 5])
def test_the_test_handle_is_the_real_one(timeout: GroupStateTimeout, state: Any) -> None:
    """A handle for tests behaves like that of an operator."""
    has_timed_out = timeout is not NONE
    mine = TestGroupState.create(state, timeout, 2000, 1500, has_timed_out)
    facts = GroupStateContext.of(timeout, 2000, 1500, has_timed_out=has_timed_out)
    real: GroupState[Any] = GroupState(state, facts)
    for each in (mine, real):
        each.update(6)
        each.remove()
        each.update(7)
    answers = [
        (
            each.exists,
            each.get,
            each.hasTimedOut,
            each.getCurrentWatermarkMs(),
            each.getCurrentProcessingTimeMs(),
            each.effect,
            repr(each),
        )
        for each in (mine, real)
    ]
    assert answers[0] == answers[1]


def test_a_handle_does_not_outlive_its_call() -> None:
    """A handle that was put into a result or a state says what to keep instead."""
    with pytest.raises(TypeError, match=r"during one call only; keep state\.get instead"):
        pickle.dumps(handle(1))


@dataclass
class Named:
    count: int


class Kind(Enum):
    USED = 1


class Unnamed:
    """A class that is not a class of data."""


def test_handles_of_tests_refuse_what_stores_refuse() -> None:
    """A state that a test makes takes what a store takes, and refuses the rest as a store does."""
    for make in (lambda: TestGroupState.create(None, GroupStateTimeout.NoTimeout, 0), State):
        for value in (1, Named(1), [Named(2)], {Kind.USED: 1}):
            handle: Any = make()
            handle.update(value)
            assert handle.get == value
        handle = make()
        for value in (Unnamed(), Named(Unnamed()), lambda: 1, defaultdict(lambda: 1)):  # type: ignore[arg-type]
            with pytest.raises(NotStorableError, match="a state cannot be stored: it holds"):
                handle.update(value)
        assert not handle.exists
    with pytest.raises(NotStorableError, match="make it a dataclass"):
        TestGroupState.create(Unnamed(), GroupStateTimeout.NoTimeout, 0)
