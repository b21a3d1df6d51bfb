"""LocationStrategies and ConsumerStrategies of Spark's Scala API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dstreams.errors import InvalidStreamError
from dstreams.kafka.offsets import TopicPartition, is_offset
from dstreams.kafka.topics import TopicSelection


@dataclass(frozen=True)
class LocationStrategy:
    """See :class:`LocationStrategies`."""

    name: str


class LocationStrategies:
    """The placement of consumers.

    They are accepted for compatibility and have no effect: Spark places tasks freely, and every
    worker keeps its consumer for the next partition.

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
    """The topics, parameters and starting offsets of a stream; see :class:`ConsumerStrategies`."""

    selection: TopicSelection
    parameters: Mapping[str, Any]
    offsets: Mapping[TopicPartition, int]

    def __repr__(self) -> str:
        return f"ConsumerStrategy({self.selection})"


class ConsumerStrategies:
    """The partitions that a stream reads, and its starting offsets.

    A partition begins at its given offset, else at the offset committed by the group
    (``group.id``), else by ``auto.offset.reset``: ``latest`` (the default), ``earliest`` or
    ``none``, which is an error. Partitions and topics that are created later begin at their first
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
            kafkaParams: parameters of Kafka's consumers; ``bootstrap.servers`` is required.
                ``key.deserializer`` and ``value.deserializer`` are a
                :class:`~dstreams.kafka.Decoder` or a function of bytes; by default, keys and values
                are bytes.
            offsets: starting offsets by :class:`TopicPartition`.

        Raises:
            InvalidStreamError: no topic is given, or an offset is invalid.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidStreamError(f"Subscribe takes the names of topics, got {names!r}")
        selection = TopicSelection(tuple(sorted({*names})))
        return ConsumerStrategy(selection, kafkaParams, _offsets(offsets))

    @staticmethod
    def SubscribePattern(
        pattern: str | re.Pattern[str],
        kafkaParams: Mapping[str, Any],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> ConsumerStrategy:
        """Read all partitions of the topics whose whole name matches a pattern.

        Topics that are created later are found within seconds, and read from their beginning.

        Args:
            pattern: regular expression.
            kafkaParams: as in :meth:`Subscribe`.
            offsets: as in :meth:`Subscribe`.

        Raises:
            InvalidStreamError: the pattern or an offset is invalid.
        """
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        try:
            re.compile(text)
        except (re.error, TypeError) as error:
            raise InvalidStreamError(
                f"SubscribePattern takes a regular expression, got {pattern!r}: {error}"
            ) from None
        return ConsumerStrategy(TopicSelection(pattern=text), kafkaParams, _offsets(offsets))

    @staticmethod
    def Assign(
        topicPartitions: Iterable[TopicPartition],
        kafkaParams: Mapping[str, Any],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> ConsumerStrategy:
        """Read only the given partitions.

        Args:
            topicPartitions: :class:`TopicPartition`, or pairs of topic and number.
            kafkaParams: as in :meth:`Subscribe`.
            offsets: as in :meth:`Subscribe`.

        Raises:
            InvalidStreamError: no partition is given, or an offset is invalid.
        """
        assigned = tuple(sorted({_partition(one, "Assign") for one in topicPartitions}))
        if not assigned:
            raise InvalidStreamError("Assign takes the partitions to read, got none")
        selection = TopicSelection(assigned=assigned)
        return ConsumerStrategy(selection, kafkaParams, _offsets(offsets))


def _partition(given: Any, where: str) -> TopicPartition:
    if isinstance(given, tuple) and len(given) == 2:
        topic, partition = given
        if isinstance(topic, str) and topic and is_offset(partition):
            return TopicPartition(topic, partition)
    raise InvalidStreamError(
        f"{where} takes TopicPartition(topic, partition), or such pairs, got {given!r}"
    )


def _offsets(given: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
    found = {}
    for partition, offset in (given or {}).items():
        if not is_offset(offset):
            raise InvalidStreamError(
                f"the offset of {partition!r} is {offset!r}; use a whole number of at least 0"
            )
        found[_partition(partition, "offsets")] = offset
    return found
