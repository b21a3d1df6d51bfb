"""Records of Kafka: as read, as a stream has them, and as a query has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP = 0, 1, -1
"""Values of ``timestampType``: the time of the producer, of the broker, or none."""

_TIMESTAMP_TYPES = (NO_TIMESTAMP, CREATE_TIME, LOG_APPEND_TIME)  # by the number of librdkafka

Headers = tuple[tuple[str, bytes | None], ...]
Messages = list[Any]


class ConsumerRecord(NamedTuple):
    """A record of a topic.

    Semantics: org.apache.kafka.clients.consumer.ConsumerRecord, with fields for its methods.

    Args:
        topic: its topic.
        partition: partition of the topic.
        offset: its offset in the partition.
        timestamp: milliseconds since the epoch, -1 if missing.
        timestampType: 0 if the producer set the time, 1 if the broker did, -1 if it is missing.
        headers: pairs of name and bytes in order; names may repeat.
        key: bytes or the decoded key; None if the record has no key.
        value: bytes or the decoded value; None for a tombstone.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestampType: int  # noqa: N815 - the name of Kafka and Spark
    headers: Headers
    key: Any
    value: Any


class KafkaRow(NamedTuple):
    """A record of a topic in a query, as Spark's source ``kafka`` has it.

    Args:
        key: None if the record has no key.
        value: None for a tombstone.
        topic: its topic.
        partition: partition of the topic.
        offset: its offset in the partition.
        timestamp: time of the record; local time without zone.
        timestampType: 0 if the producer set the time, 1 if the broker did, -1 if it is missing.
    """

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    timestampType: int  # noqa: N815 - the name of Spark


class KafkaRowWithHeaders(NamedTuple):
    """A :class:`KafkaRow` with its headers, by the option ``includeHeaders``."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    timestampType: int  # noqa: N815 - the name of Spark
    headers: Headers | None


class RecordBlock(NamedTuple):
    """Consecutive records of one partition in columns; keys and values are undecoded."""

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    timestamp_types: Sequence[int]
    headers: Sequence[Headers]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


class DeadLetter(NamedTuple):
    """A record that could not be decoded, with the reason.

    The fields up to *value* are those of :class:`ConsumerRecord`.

    Args:
        part: ``key`` or ``value``, whichever could not be decoded.
        reason: type and shortened message of the exception, in one line.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestampType: int  # noqa: N815 - the name of Kafka and Spark
    headers: Headers
    key: bytes | None
    value: bytes | None
    part: str
    reason: str

    @property
    def error_headers(self) -> Headers:
        """The headers of the record, followed by its origin and the error.

        The names follow the dead letter queue of Kafka Streams.

        >>> letter = DeadLetter("clicks", 2, 17, -1, -1, (), None, b"{", "value", "ValueError")
        >>> letter.error_headers[:2]
        (('__dstreams.errors.message', b'ValueError'), ('__dstreams.errors.topic', b'clicks'))
        """
        details = {
            "message": self.reason,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "part": self.part,
        }
        added = ((f"__dstreams.errors.{name}", str(v).encode()) for name, v in details.items())
        return (*self.headers, *added)


class DecodedBlock(NamedTuple):
    """The records of a block in order, and those that could not be decoded."""

    records: Sequence[Any]
    rejected: list[DeadLetter]


def block_of(topic: str, partition: int, messages: Messages) -> RecordBlock:
    """Return messages of the client in columns."""
    times = [message.timestamp() for message in messages]
    headers = [message.headers() for message in messages]
    return RecordBlock(
        topic,
        partition,
        [message.offset() for message in messages],
        [time[1] for time in times],
        [_TIMESTAMP_TYPES[time[0]] for time in times],
        [() if one is None else tuple(one) for one in headers],
        [message.key() for message in messages],
        [message.value() for message in messages],
    )
