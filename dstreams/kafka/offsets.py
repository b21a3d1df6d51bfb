"""Topics, partitions, offsets and their ranges, and limits of the records of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dstreams.common.settings import whole_number
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

    def is_of_old_topic(self, topic: str, ids: Mapping[str, str]) -> bool:
        """Return whether a topic was deleted and created again, by the *ids* that it has now."""
        known = self.topic_ids.get(topic)
        return known is not None and ids.get(topic, known) != known

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


_LIMIT = whole_number(0)


class PerPartitionConfig:
    """Limits by partition: subclass it, and pass it to ``createDirectStream``.

    It is called in every batch on the driver, and is stored in the checkpoint like a function.

    Semantics: org.apache.spark.streaming.kafka010.PerPartitionConfig.
    """

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        """Return the maximal number of records per second of a partition, 0 for no limit."""
        raise NotImplementedError

    def minRatePerPartition(self, topicPartition: TopicPartition) -> int:
        """Return the number of records of a partition that a batch may read despite any limit."""
        return 1


@dataclass(frozen=True)
class OfAllPartitions(PerPartitionConfig):
    """The same limits for each partition, from settings; None for no limit."""

    max_rate: int | None
    min_rate: int

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return self.max_rate or 0

    def minRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return self.min_rate


@dataclass(frozen=True)
class PartitionRates:
    """The limits of a stream's input: records per second.

    Semantics: org.apache.spark.streaming.kafka010.DirectKafkaInputDStream, maxMessagesPerPartition
    and clamp.
    """

    batch_ms: int
    config: PerPartitionConfig

    def until(self, start: Offsets, latest: Offsets, rate: int | None) -> dict[TopicPartition, int]:
        """Return the offsets at which the next batch ends.

        Args:
            start: where the batch begins.
            latest: the current ends of the partitions.
            rate: backpressure's limit in records per second of the whole input, which is divided
                between the partitions by their lags; None for no limit.
        """
        limits = self._limits(start, latest, rate)
        if not sum(limits.values()):
            return dict(latest)
        seconds = self.batch_ms / 1000
        until = {}
        for one, end in latest.items():
            least = _checked(self.config, "minRatePerPartition", one)
            until[one] = min(start[one] + max(int(seconds * limits[one]), least), end)
        return until

    def _limits(
        self, start: Offsets, latest: Offsets, rate: int | None
    ) -> Mapping[TopicPartition, float]:
        """Return the records per second of each partition, all 0 for no limit."""
        limits = {one: float(_checked(self.config, "maxRatePerPartition", one)) for one in latest}
        if not rate:
            return limits
        lags = {one: max(end - start[one], 0) for one, end in latest.items()}
        total = sum(lags.values())
        if not total:
            return dict.fromkeys(latest, 0.0)
        shares = {one: lag / total * rate for one, lag in lags.items()}
        return {one: min(share, limits[one] or share) for one, share in shares.items()}


def _checked(config: PerPartitionConfig, limit: str, one: TopicPartition) -> int:
    value: Any = getattr(config, limit)(one)
    _LIMIT.require(value, f"{type(config).__name__}.{limit} of {one}")
    return int(value)


class TriggerLimits:
    """The limits of a query's input: minimal and maximal numbers of offsets per batch.

    The first batch does not wait for the minimum, and no batch waits longer than *delay_ms* after
    the one before.

    Semantics: KafkaMicroBatchStream.latestOffset, delayBatch and rateLimit (Spark 4.3).
    """

    def __init__(self, least: int | None, most: int | None, delay_ms: int) -> None:
        self._least, self._most, self._delay_ms = least, most, delay_ms
        self._last_ms: int | None = None

    def until(self, start: Offsets, ends: Offsets, time_ms: int) -> dict[TopicPartition, int]:
        """Return the offsets at which a batch of this time ends; *start* if it waits for more."""
        if self._waits(start, ends, time_ms):
            return dict(start)
        return self.at_most(start, ends)

    def at_most(self, start: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Return the offsets at which a batch ends that does not wait.

        The maximum is divided by the lags of the partitions; each partition with records gets one.
        """
        if self._most is None:
            return dict(ends)
        lags = {one: end - start[one] for one, end in ends.items() if end > start[one]}
        total = sum(lags.values())
        until = dict(ends)
        for one, lag in lags.items():
            share = self._most * lag / total
            whole = math.ceil(share) if share < 1 else math.floor(share)
            until[one] = min(ends[one], start[one] + whole)
        return until

    def _waits(self, start: Offsets, ends: Offsets, time_ms: int) -> bool:
        if self._least is None:
            return False
        is_due = self._last_ms is None or time_ms - self._last_ms >= self._delay_ms
        if not is_due and sum(end - start[one] for one, end in ends.items()) < self._least:
            return True
        self._last_ms = time_ms
        return False
