"""Offsets, ranges of offsets, and limits of batches."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.errors import InvalidStreamError
from dstreams.kafka.offsets import (
    OfAllPartitions,
    OffsetRange,
    PartitionRates,
    PerPartitionConfig,
    Position,
    TopicPartition,
    TriggerLimits,
    describe_ranges,
    offsets_of_json,
    offsets_to_json,
    ranges_between,
)

some_offsets = st.dictionaries(
    st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 99)), st.integers(0, 2**63 - 1)
)


def test_a_range() -> None:
    """Names, places and equality are those of Scala."""
    one = OffsetRange.create("clicks", 3, 10, 17)
    assert one == OffsetRange("clicks", 3, fromOffset=10, untilOffset=17)
    assert (one.topic, one.partition, one.fromOffset, one.untilOffset) == ("clicks", 3, 10, 17)
    assert one.count() == 7
    assert one.topicPartition() == TopicPartition("clicks", 3) == ("clicks", 3)
    assert str(one.topicPartition()) == "clicks-3"
    assert len({one, OffsetRange("clicks", 3, 10, 17)}) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("", 0, 0, 1), "topic of an OffsetRange is ''; give its name"),
        ((None, 0, 0, 1), "topic of an OffsetRange is None"),
        (("t", -1, 0, 1), r"has partition, fromOffset, untilOffset \(-1, 0, 1\); give whole"),
        (("t", 0, -2, 1), "give whole numbers of at least 0"),
        (("t", 0, 0, 1.0), "give whole numbers of at least 0"),
        (("t", True, 0, 1), "give whole numbers of at least 0"),
        (("t", 0, 5, 4), "an OffsetRange of t-0 goes from 5 down to 4; untilOffset is the first"),
    ],
)
def test_a_range_that_cannot_be(fields: Any, message: str) -> None:
    """The error has the value and the rule."""
    with pytest.raises(InvalidStreamError, match=message):
        OffsetRange(*fields)


def test_ranges_with_records_come_first() -> None:
    """So that the number of a task's partition is that of its range; else in order."""
    a, b, c = (TopicPartition("t", number) for number in range(3))
    start, end = {a: 5, b: 0, c: 1}, {c: 2, b: 7, a: 5}
    assert ranges_between(start, end) == (
        OffsetRange("t", 1, 0, 7),
        OffsetRange("t", 2, 1, 2),
        OffsetRange("t", 0, 5, 5),
    )


@given(some_offsets, st.dictionaries(st.text(min_size=1), st.text()))
def test_offsets_go_through_json(some: dict[TopicPartition, int], ids: dict[str, str]) -> None:
    """As begin records keep them, and as Spark writes them."""
    written = json.loads(json.dumps(offsets_to_json(some)))
    assert offsets_of_json(written) == some
    position = Position(some, ids)
    assert Position.of_json(json.loads(json.dumps(position.to_json()))) == position


def test_offsets_as_spark_writes_them() -> None:
    """By topic and partition; nothing before the first batch."""
    some = {TopicPartition("b", 1): 4, TopicPartition("a", 0): 2, TopicPartition("b", 0): 3}
    assert json.dumps(offsets_to_json(some)) == '{"a": {"0": 2}, "b": {"0": 3, "1": 4}}'
    assert offsets_of_json(None) == {}
    assert Position.of_json(None) == Position({}, {})


def test_what_people_are_told() -> None:
    """The words of Spark's input metadata, of ranges with records."""
    ranges = [OffsetRange("t", 0, 5, 7), OffsetRange("t", 1, 5, 5), OffsetRange("u", 0, 0, 1)]
    assert describe_ranges(ranges) == (
        "topic: t\tpartition: 0\toffsets: 5 to 7\tcount: 2\n"
        "topic: u\tpartition: 0\toffsets: 0 to 1\tcount: 1"
    )


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
    """The error has the invalid limit of a program and its partition."""
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
