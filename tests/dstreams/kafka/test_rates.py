"""How many records a batch reads of each partition: Spark's rules, as rows and as laws."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.errors import InvalidStreamError
from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.rates import OfAllPartitions, PartitionRates, PerPartitionConfig

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("rule", "batch_ms", "max_rate", "min_rate", "rate", "lags", "read"),
    [
        ("all there is", 1000, None, 1, None, (7, 0), (7, 0)),
        ("by the second", 1000, 3, 1, None, (7, 2), (3, 2)),
        ("by the length of a batch", 2500, 3, 1, None, (100, 100), (7, 7)),
        ("half a record is none", 100, 19, 1, None, (9, 9), (1, 1)),
        ("the least, where the limit is below it", 100, 1, 4, None, (9, 3), (4, 3)),
        ("a rate is shared by lag", 1000, None, 1, 10, (300, 100), (7, 2)),
        ("a rate above all there is", 1000, None, 1, 1000, (3, 1), (3, 1)),
        ("a small lag has the least", 1000, None, 1, 10, (999, 1), (9, 1)),
        ("a share is below the limit of a partition", 1000, 5, 1, 10, (300, 100), (5, 2)),
        ("a rate by the length of a batch", 500, None, 1, 10, (300, 100), (3, 1)),
        ("no lag, no limit", 1000, 5, 1, 10, (0, 0), (0, 0)),
        ("a rate of none is no limit", 1000, None, 1, 0, (5, 5), (5, 5)),
    ],
)
def test_rules(
    rule: str,
    batch_ms: int,
    max_rate: int | None,
    min_rate: int,
    rate: int | None,
    lags: tuple[int, int],
    read: tuple[int, int],
) -> None:
    """Each rule of DirectKafkaInputDStream."""
    rates = PartitionRates(batch_ms, OfAllPartitions(max_rate, min_rate))
    start = {A: 10, B: 20}
    latest = {A: 10 + lags[0], B: 20 + lags[1]}
    assert rates.until(start, latest, rate) == {A: 10 + read[0], B: 20 + read[1]}, rule


class Uneven(PerPartitionConfig):
    """Limits the first partition alone."""

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return 2 if topicPartition == A else 0


def test_limits_of_each_partition() -> None:
    """As in Spark, a partition without a limit has the least where another one has a limit."""
    assert PartitionRates(1000, Uneven()).until({A: 0, B: 0}, {A: 9, B: 9}, None) == {A: 2, B: 1}
    assert PartitionRates(1000, Uneven()).until({A: 0, B: 0}, {A: 9, B: 9}, 12) == {A: 2, B: 6}


class Wrong(PerPartitionConfig):
    def __init__(self, most: Any, least: Any = 1) -> None:
        self.limits = most, least

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return self.limits[0]  # type: ignore[no-any-return]

    def minRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return self.limits[1]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Wrong(-1), "Wrong.maxRatePerPartition of t-0 is -1; use a whole number of at least 0"),
        (Wrong(None), "Wrong.maxRatePerPartition of t-0 is None; use a whole number"),
        (Wrong(5, 1.5), "Wrong.minRatePerPartition of t-0 is 1.5; use a whole number"),
    ],
)
def test_limits_that_cannot_be(config: PerPartitionConfig, message: str) -> None:
    """What a program says is checked, and named with its partition."""
    with pytest.raises(InvalidStreamError, match=message):
        PartitionRates(1000, config).until({A: 0}, {A: 9}, None)


counts = st.integers(0, 10**12)


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from("xyz"), st.integers(0, 5)),
        st.tuples(counts, counts),
        min_size=1,
    ),
    st.none() | st.integers(1, 10**6),
    st.integers(1, 100),
    st.none() | st.integers(1, 10**9),
    st.integers(1, 10**7),
)
def test_laws(
    partitions: dict[TopicPartition, tuple[int, int]],
    max_rate: int | None,
    min_rate: int,
    rate: int | None,
    batch_ms: int,
) -> None:
    """No batch goes back, or beyond the end; each partition with records comes on; limits hold."""
    start = {one: begin for one, (begin, _) in partitions.items()}
    latest = {one: begin + lag for one, (begin, lag) in partitions.items()}
    until = PartitionRates(batch_ms, OfAllPartitions(max_rate, min_rate)).until(start, latest, rate)
    assert until.keys() == latest.keys()
    assert all(start[one] <= end <= latest[one] for one, end in until.items())
    assert all(end > start[one] for one, end in until.items() if latest[one] > start[one])
    seconds = batch_ms / 1000
    least = min_rate * len(partitions)
    if max_rate is not None:
        most = max(max_rate * seconds, min_rate)
        assert all(end - start[one] <= most for one, end in until.items())
    if rate is not None:
        read = sum(until.values()) - sum(start.values())
        assert read <= rate * seconds * (1 + 1e-9) + least
