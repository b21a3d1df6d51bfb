"""Topics, partitions, offsets and ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dstreams.errors import InvalidStreamError


class TopicPartition(NamedTuple):
    """A partition of a topic.

    Semantics: org.apache.kafka.common.TopicPartition.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_OFFSETS, _TOPIC_IDS = "offsets", "topicIds"

Offsets = Mapping[TopicPartition, int]
"""The next offset to read of each partition."""


def is_offset(value: object) -> bool:
    """Return whether a value is an int of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True)
class OffsetRange:
    """The records of a partition from one offset to another.

    The number of records may be smaller than the number of offsets: compaction and transactions
    leave gaps.

    Args:
        topic: the topic.
        partition: its partition.
        fromOffset: first offset of the range.
        untilOffset: first offset after the range.

    Semantics: org.apache.spark.streaming.kafka010.OffsetRange.
    """

    topic: str
    partition: int
    fromOffset: int
    untilOffset: int

    def __post_init__(self) -> None:
        numbers = (self.partition, self.fromOffset, self.untilOffset)
        if not isinstance(self.topic, str) or not self.topic:
            raise InvalidStreamError(f"topic of an OffsetRange is {self.topic!r}; give its name")
        if not all(map(is_offset, numbers)):
            raise InvalidStreamError(
                f"an OffsetRange of {self.topic!r} has partition, fromOffset, untilOffset "
                f"{numbers!r}; give whole numbers of at least 0"
            )
        if self.fromOffset > self.untilOffset:
            raise InvalidStreamError(
                f"an OffsetRange of {self.topicPartition()} goes from {self.fromOffset} down to "
                f"{self.untilOffset}; untilOffset is the first offset after the range"
            )

    @classmethod
    def create(cls, topic: str, partition: int, fromOffset: int, untilOffset: int) -> OffsetRange:
        """Return the range; the factory of the Scala API."""
        return cls(topic, partition, fromOffset, untilOffset)

    def topicPartition(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)

    def count(self) -> int:
        """Return the number of offsets, which is at least the number of records."""
        return self.untilOffset - self.fromOffset


def ranges_between(start: Offsets, end: Offsets) -> tuple[OffsetRange, ...]:
    """Return the range of each partition in order, non-empty ranges first.

    So each non-empty range has the index of its partition in the batch's RDD.
    """
    ranges = (OffsetRange(*one, start.get(one, 0), until) for one, until in sorted(end.items()))
    return tuple(sorted(ranges, key=lambda one: one.count() == 0))


@dataclass(frozen=True)
class Position:
    """The position of an input: its offset in the sense of the source contract.

    Args:
        offsets: next offset to read of each partition.
        topic_ids: by topic, if the brokers have ids: a topic that was deleted and created again has
            a new id, and its old offsets mean nothing.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the form of begin records; offsets are written as Spark writes them."""
        return {_OFFSETS: offsets_to_json(self.offsets), _TOPIC_IDS: dict(self.topic_ids)}

    @classmethod
    def is_json(cls, data: Any) -> bool:
        """Return whether a value was made by :meth:`to_json`."""
        return isinstance(data, Mapping) and {_OFFSETS, _TOPIC_IDS} == set(data)

    @classmethod
    def of_json(cls, data: Any) -> Position:
        """Reverse :meth:`to_json`; None is the beginning."""
        if data is None:
            return cls({}, {})
        return cls(offsets_of_json(data[_OFFSETS]), dict(data[_TOPIC_IDS]))


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition, as Spark writes them."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def offsets_of_json(data: Any) -> dict[TopicPartition, int]:
    """Reverse :func:`offsets_to_json`; None means no partitions."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, of_topic in (data or {}).items()
        for partition, offset in of_topic.items()
    }


def describe_ranges(ranges: Iterable[OffsetRange]) -> str:
    """Return Spark's description of non-empty ranges, one per line."""
    return "\n".join(
        f"topic: {one.topic}\tpartition: {one.partition}\t"
        f"offsets: {one.fromOffset} to {one.untilOffset}\tcount: {one.count()}"
        for one in ranges
        if one.count()
    )
