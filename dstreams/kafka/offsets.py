"""Topics, partitions, and ranges of offsets."""

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
"""An offset for each partition: the first record that is still to be read."""


@dataclass(frozen=True)
class OffsetRange:
    """The records of a partition from one offset to another.

    It says between which offsets, not how many records there are: a compacted topic and
    transactions leave holes.

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
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
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
        """Return the range, by the name that Scala has for it."""
        return cls(topic, partition, fromOffset, untilOffset)

    def topicPartition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    def count(self) -> int:
        """How many offsets there are between the two: at least as many as records."""
        return self.untilOffset - self.fromOffset


def ranges_between(start: Offsets, end: Offsets) -> tuple[OffsetRange, ...]:
    """Return the range of each partition, in their order, those with records first.

    The RDD of a batch has one partition for each range with records: so a task finds its range by
    the number of its partition.
    """
    ranges = (OffsetRange(*one, start.get(one, 0), until) for one, until in sorted(end.items()))
    return tuple(sorted(ranges, key=lambda one: one.count() == 0))


@dataclass(frozen=True)
class Position:
    """How far topics are read: what an offset of the kernel is here.

    Args:
        offsets: of each partition, the first one that is still to be read.
        topic_ids: of the topics that they are of, by name, as far as the brokers have ids: a topic
            that was deleted and made again under its name is another one.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it as begin records have it; offsets are in it as Spark writes them."""
        return {_OFFSETS: offsets_to_json(self.offsets), _TOPIC_IDS: dict(self.topic_ids)}

    @classmethod
    def is_json(cls, said: Any) -> bool:
        """Whether a value is what :meth:`to_json` returned, and of no other input."""
        return isinstance(said, Mapping) and {_OFFSETS, _TOPIC_IDS} == set(said)

    @classmethod
    def of_json(cls, said: Any) -> Position:
        """Read what :meth:`to_json` returned; None is before the first batch."""
        if said is None:
            return cls({}, {})
        return cls(offsets_of_json(said[_OFFSETS]), dict(said[_TOPIC_IDS]))


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets as Spark writes them: by topic, by partition."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def offsets_of_json(said: Any) -> dict[TopicPartition, int]:
    """Read what :func:`offsets_to_json` returned; None stands for no partition."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, of_topic in (said or {}).items()
        for partition, offset in of_topic.items()
    }


def described(ranges: Iterable[OffsetRange]) -> str:
    """Return what Spark says of the ranges that a batch reads, a line for each with records."""
    return "\n".join(
        f"topic: {one.topic}\tpartition: {one.partition}\t"
        f"offsets: {one.fromOffset} to {one.untilOffset}\tcount: {one.count()}"
        for one in ranges
        if one.count()
    )
