"""Shares of a rate, batch by batch. No Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.sources.rate_limit import RateLimit, records_due


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
    """A limit is set, and set anew."""
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
    """What intervals that follow each other have is what all of them together have."""
    total, now = 0, start
    for length in lengths:
        due = records_due(rate, now, now + length)
        assert abs(due - rate * length / 1000) < 1.001
        total, now = total + due, now + length
    assert total == records_due(rate, start, now)
