"""Ranges of offsets, and how far topics are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.errors import InvalidStreamError
from dstreams.kafka.offsets import (
    OffsetRange,
    Position,
    TopicPartition,
    describe_ranges,
    offsets_of_json,
    offsets_to_json,
    ranges_between,
)

offsets = st.dictionaries(
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
    """What is wrong is said with the value and the rule."""
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


@given(offsets, st.dictionaries(st.text(min_size=1), st.text()))
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
