"""What is read from Kafka: one record, as its consumers in other languages know it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP = 0, 1, -1
"""What ``timestampType`` says: the producer gave the time, the broker did, or nobody."""

Headers = tuple[tuple[str, bytes | None], ...]


class ConsumerRecord(NamedTuple):
    """One record of a topic.

    Semantics: org.apache.kafka.clients.consumer.ConsumerRecord, with fields for its methods.

    Args:
        topic: its topic.
        partition: partition of the topic.
        offset: its place in the partition.
        timestamp: milliseconds since the epoch, -1 for none.
        timestampType: 0 the producer gave the time, 1 the broker did, -1 there is none.
        headers: pairs of name and bytes, in order; a name may come more than once.
        key: bytes, or what the key's decoder made of them; None for no key.
        value: likewise; None for a tombstone.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestampType: int  # noqa: N815 - the name of Kafka and Spark
    headers: Headers
    key: Any
    value: Any


_make = partial(tuple.__new__, ConsumerRecord)


def records_of(columns: Iterable[Iterable[Any]]) -> list[ConsumerRecord]:
    """Make records of their fields, column by column; the columns are of one length."""
    return list(map(_make, zip(*columns)))  # noqa: B905 - it is checked where they are made
