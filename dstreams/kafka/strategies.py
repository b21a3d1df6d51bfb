"""Which partitions a stream reads, and where its tasks run: by the names of Scala."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dstreams.errors import InvalidStreamError
from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.topics import Selection


@dataclass(frozen=True)
class LocationStrategy:
    """Where consumers are to run; see :class:`LocationStrategies`."""

    name: str


class LocationStrategies:
    """Where consumers are to run.

    They are taken for compatibility: a task runs where there is room for it, and every worker keeps
    its consumer between tasks, whichever partition comes next.

    Semantics: org.apache.spark.streaming.kafka010.LocationStrategies.
    """

    PreferBrokers: ClassVar = LocationStrategy("PreferBrokers")
    PreferConsistent: ClassVar = LocationStrategy("PreferConsistent")

    @staticmethod
    def PreferFixed(hostMap: Mapping[TopicPartition, str]) -> LocationStrategy:
        """Return the strategy that names hosts."""
        return LocationStrategy(f"PreferFixed({len(hostMap)} partitions)")


@dataclass(frozen=True)
class ConsumerStrategy:
    """What a stream reads; see :class:`ConsumerStrategies`."""

    selection: Selection
    parameters: Mapping[str, Any]
    offsets: Mapping[TopicPartition, int]

    def __repr__(self) -> str:
        return f"ConsumerStrategy({self.selection})"


class ConsumerStrategies:
    """What a stream reads, and where it begins.

    A partition begins at the offset that is given for it, else where the group (``group.id``) has
    committed, else as ``auto.offset.reset`` says: ``latest`` (the default), ``earliest`` or
    ``none``, which is an error. A partition or a topic that is made later begins at its first
    record.

    Semantics: org.apache.spark.streaming.kafka010.ConsumerStrategies.
    """

    @staticmethod
    def Subscribe(
        topics: Iterable[str],
        kafkaParams: Mapping[str, Any],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> ConsumerStrategy:
        """Read all partitions of some topics.

        Args:
            topics: their names.
            kafkaParams: parameters of Kafka's consumers; ``bootstrap.servers`` is needed.
                ``key.deserializer`` and ``value.deserializer`` are a
                :class:`~dstreams.kafka.Decoder` or a function of bytes; without, keys and values
                are bytes.
            offsets: where partitions begin, by :class:`TopicPartition`.

        Raises:
            InvalidStreamError: there is no name, or an offset cannot be.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidStreamError(f"Subscribe takes the names of topics, got {names!r}")
        return ConsumerStrategy(Selection(tuple(sorted({*names}))), kafkaParams, _offsets(offsets))

    @staticmethod
    def SubscribePattern(
        pattern: str | re.Pattern[str],
        kafkaParams: Mapping[str, Any],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> ConsumerStrategy:
        """Read all partitions of the topics whose whole name matches a pattern.

        Topics that are made later are found within some seconds, and read from their beginning.

        Args:
            pattern: regular expression.
            kafkaParams: as in :meth:`Subscribe`.
            offsets: as in :meth:`Subscribe`.

        Raises:
            InvalidStreamError: the pattern is none, or an offset cannot be.
        """
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        try:
            re.compile(text)
        except (re.error, TypeError) as error:
            raise InvalidStreamError(
                f"SubscribePattern takes a regular expression, got {pattern!r}: {error}"
            ) from None
        return ConsumerStrategy(Selection(pattern=text), kafkaParams, _offsets(offsets))

    @staticmethod
    def Assign(
        topicPartitions: Iterable[TopicPartition],
        kafkaParams: Mapping[str, Any],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> ConsumerStrategy:
        """Read some partitions, and no others.

        Args:
            topicPartitions: :class:`TopicPartition`, or pairs of topic and number.
            kafkaParams: as in :meth:`Subscribe`.
            offsets: as in :meth:`Subscribe`.

        Raises:
            InvalidStreamError: there is no partition, or an offset cannot be.
        """
        assigned = tuple(sorted({_partition(one, "Assign") for one in topicPartitions}))
        if not assigned:
            raise InvalidStreamError("Assign takes the partitions to read, got none")
        return ConsumerStrategy(Selection(assigned=assigned), kafkaParams, _offsets(offsets))


def _partition(given: Any, where: str) -> TopicPartition:
    if isinstance(given, tuple) and len(given) == 2:
        topic, partition = given
        is_number = isinstance(partition, int) and not isinstance(partition, bool)
        if isinstance(topic, str) and topic and is_number and partition >= 0:
            return TopicPartition(topic, partition)
    raise InvalidStreamError(
        f"{where} takes TopicPartition(topic, partition), or such pairs, got {given!r}"
    )


def _offsets(given: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
    found = {}
    for partition, offset in (given or {}).items():
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise InvalidStreamError(
                f"the offset of {partition!r} is {offset!r}; use a whole number of at least 0"
            )
        found[_partition(partition, "offsets")] = offset
    return found
