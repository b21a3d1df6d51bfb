"""Limits of records per batch and per second, and of warnings."""

from __future__ import annotations

import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.sources.rate_limit import RateLimit, RateLimiter, RepeatedWarning, records_due
from dstreams.testing import ManualClock
from tests.support.surroundings import HandClock
from tests.support.waiting import wait_for


@pytest.mark.parametrize(
    ("rate", "batch_ms", "shares"),
    [
        (10, 1000, [10, 10, 10]),
        (1, 500, [0, 1, 0, 1]),
        (1, 300, [0, 0, 0, 1, 0, 0, 1, 0, 0, 1]),
        (5, 300, [1, 2, 1, 2, 1, 2, 1, 2, 1, 2]),
        (3, 2500, [7, 8, 7, 8]),
    ],
)
def test_shares(rate: int, batch_ms: int, shares: list[int]) -> None:
    """Parts of records are not rounded away: they come in a later batch."""
    limit = RateLimit(batch_ms)
    limit.update(rate)
    assert [limit.most(batch_ms * (number + 1)) for number in range(len(shares))] == shares


def test_no_limit_at_first() -> None:
    """A limit can be set and changed."""
    limit = RateLimit(1000)
    assert limit.most(1000) is None
    limit.update(5)
    assert limit.most(2000) == 5
    limit.update(7)
    assert limit.most(3000) == 7


@given(
    rate=st.integers(1, 10**7),
    start=st.integers(0, 10**13),
    lengths=st.lists(st.integers(0, 10**5), max_size=10),
)
def test_neighbours_add_up(rate: int, start: int, lengths: list[int]) -> None:
    """Adjacent intervals add up to the whole interval."""
    total, now = 0, start
    for length in lengths:
        due = records_due(rate, now, now + length)
        assert abs(due - rate * length / 1000) < 1.001
        total, now = total + due, now + length
    assert total == records_due(rate, start, now)


class JumpingClock:
    """Passes the time in no time."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        self.time_ms = max(self.time_ms, time_ms)
        return True


def times_of(limiter: RateLimiter, clock: JumpingClock, count: int) -> list[int]:
    """When each of *count* records went through."""
    times = []
    for _ in range(count):
        limiter.acquire()
        times.append(clock.now_ms())
    return times


@pytest.mark.parametrize("rate", [1, 10, 100, 2500])
def test_the_limit_holds_from_the_first_second_on(rate: int) -> None:
    """In each second, also the first, as many go through as the rate says, and one at most."""
    clock = JumpingClock()
    times = times_of(RateLimiter(rate, clock), clock, 3 * rate)
    for second in range(2):
        within = sum(second * 1000 <= time_ms < (second + 1) * 1000 for time_ms in times)
        assert rate - 3 <= within <= rate + 3


def test_records_of_an_interval() -> None:
    """A block of an interval has about rate times interval records."""
    clock = JumpingClock()
    times = times_of(RateLimiter(100, clock), clock, 200)
    blocks = [sum(start <= time < start + 200 for time in times) for start in range(0, 1800, 200)]
    assert all(19 <= block <= 21 for block in blocks)


def test_one_second_is_saved_up() -> None:
    """After a pause a second's worth goes through at once, not more."""
    clock = JumpingClock()
    limiter = RateLimiter(10, clock)
    clock.time_ms = 60_000
    times = times_of(limiter, clock, 30)
    assert sum(time_ms == 60_000 for time_ms in times) == 11
    assert times[-1] >= 61_800


def test_many_at_once_are_paid_for_by_the_next() -> None:
    """A whole block goes through, and what follows waits."""
    clock = JumpingClock()
    limiter = RateLimiter(10, clock)
    limiter.acquire(50)
    assert clock.now_ms() == 0
    limiter.acquire(1)
    assert clock.now_ms() == 5000


@pytest.mark.parametrize(
    ("maximum", "rate", "expected"), [(10, 5, 5), (10, 50, 10), (None, 50, 50)]
)
def test_an_update_never_exceeds_the_maximum(
    maximum: float | None, rate: float, expected: float
) -> None:
    """Backpressure can only lower what the settings say."""
    limiter = RateLimiter(maximum, JumpingClock())
    limiter.update(rate)
    assert limiter.rate == expected


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_an_update_to_no_rate_is_ignored(rate: float) -> None:
    """A rate of nothing would stop the stream for ever."""
    limiter = RateLimiter(10, JumpingClock())
    limiter.update(rate)
    assert limiter.rate == 10


def test_without_a_limit_nobody_waits() -> None:
    """Until an update sets one."""
    clock = JumpingClock()
    limiter = RateLimiter(None, clock)
    assert times_of(limiter, clock, 1000)[-1] == 0
    limiter.update(10)
    assert times_of(limiter, clock, 11)[-1] == 1000


def test_a_clock_that_is_set_back_adds_nothing() -> None:
    """It adds no tokens; the limit continues from there."""
    clock = JumpingClock()
    limiter = RateLimiter(10, clock)
    clock.time_ms = 100_000
    times_of(limiter, clock, 11)
    clock.time_ms = 0
    assert times_of(limiter, clock, 10)[-1] == 1000


@pytest.mark.parametrize("how", ["update", "release"])
def test_who_waits_is_let_go(how: str) -> None:
    """A higher rate, or the end, reaches a caller who waits already."""
    clock = ManualClock()
    limiter = RateLimiter(None, clock)
    limiter.update(0.001)
    limiter.acquire(10)
    waiting = threading.Thread(target=limiter.acquire, daemon=True)
    waiting.start()
    if how == "release":
        limiter.release()
        limiter.update(0.001)
    else:
        limiter.update(1_000_000)
        clock.advance(1000)
    wait_for(lambda: not waiting.is_alive())


logger = logging.getLogger(__name__)


def test_it_is_said_at_once_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Events without a warning are counted in the next warning, or in the last."""
    clock = HandClock(1000)
    warning = RepeatedWarning(logger, clock, "%s: %d", "100 % of it")
    for time_ms, count in (1000, 1), (1001, 2), (60_999, 3), (61_000, 4), (61_001, 5):
        clock.time_ms = time_ms
        warning.add(count)
    warning.flush()
    warning.flush()
    assert caplog.messages == ["100 % of it: 1", "100 % of it: 9", "100 % of it: 5"]


def test_a_clock_that_was_set_back_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The minute counts from what was said last, also if that seems to be in the future."""
    clock = HandClock(1_000_000)
    warning = RepeatedWarning(logger, clock, "%d")
    warning.add(1)
    clock.time_ms = 1000
    warning.add(2)
    assert caplog.messages == ["1", "2"]
