"""How much a batch of a query reads of topics, without a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.rates import TriggerLimits

MINUTE_MS = 60_000


def offsets(*numbers: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", partition): offset for partition, offset in enumerate(numbers)}


def at_most(
    most: int, start: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return TriggerLimits(None, most, 0).at_most(start, ends)


def test_a_limit_is_shared_as_spark_shares_it() -> None:
    """KafkaMicroBatchSourceSuite: of 101, 11 and 1 records, ten at a time."""
    ends = offsets(101, 11, 1)
    first = at_most(10, offsets(0, 0, 0), ends)
    assert first == offsets(8, 1, 1)
    assert at_most(10, first, ends) == offsets(17, 2, 1)
    assert at_most(10, ends, ends) == ends


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1), st.data())
def test_a_limit_lets_every_partition_go_on(
    partitions: list[tuple[int, int]], data: st.DataObject
) -> None:
    """No partition starves, goes back or beyond its end; about as many are read as allowed."""
    start = offsets(*(begin for begin, _ in partitions))
    ends = offsets(*(begin + size for begin, size in partitions))
    most = data.draw(st.integers(1, 10**6))
    until = at_most(most, start, ends)
    for one, end in ends.items():
        assert start[one] <= until[one] <= end
        assert (until[one] > start[one]) == (end > start[one])
    count = sum(until.values()) - sum(start.values())
    assert count <= most + len(partitions)
    if sum(ends.values()) - sum(start.values()) <= most:
        assert until == ends


@pytest.mark.parametrize("most", [None, 4])
def test_a_batch_waits_until_it_is_worth_it(most: int | None) -> None:
    """The first does not wait; later ones wait for records, or the delay."""
    limits = TriggerLimits(5, most, MINUTE_MS)
    start = offsets(0)
    assert limits.until(start, offsets(1), 0) == offsets(1)
    assert limits.until(offsets(1), offsets(5), 1_000) == offsets(1)
    assert limits.until(offsets(1), offsets(6), 2_000) == offsets(6 if most is None else 5)
    assert limits.until(offsets(6), offsets(7), 2_000 + MINUTE_MS - 1) == offsets(6)
    assert limits.until(offsets(6), offsets(7), 2_000 + MINUTE_MS) == offsets(7)


def test_without_limits() -> None:
    """A batch has all that there is, at once."""
    limits = TriggerLimits(None, None, MINUTE_MS)
    assert limits.until(offsets(0, 3), offsets(9, 3), 0) == offsets(9, 3)
    assert limits.at_most(offsets(0, 3), offsets(9, 3)) == offsets(9, 3)
