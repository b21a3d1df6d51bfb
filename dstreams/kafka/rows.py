"""Records of topics as rows of queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from dstreams.kafka.decoding import DecodedBlock
from dstreams.kafka.messages import Messages, block_of
from dstreams.kafka.offsets import OffsetRange
from dstreams.kafka.records import Headers


class KafkaRow(NamedTuple):
    """A record of a topic, as Spark's source ``kafka`` has it.

    Args:
        key: bytes, None for no key.
        value: bytes, None for a tombstone.
        topic: its topic.
        partition: partition of the topic.
        offset: its place in the partition.
        timestamp: when it was made, or written by the broker; local time without zone.
        timestampType: 0 the producer gave the time, 1 the broker did, -1 there is none.
    """

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    timestampType: int  # noqa: N815  # the name of Spark


class KafkaRowWithHeaders(NamedTuple):
    """The same with the option includeHeaders; the last field: pairs of name and bytes, or None."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    timestampType: int  # noqa: N815  # the name of Spark
    headers: Headers | None


@dataclass(frozen=True)
class AsRows:
    """Makes rows of messages."""

    has_headers: bool

    def __call__(self, wanted: OffsetRange, messages: Messages) -> DecodedBlock:
        block = block_of(wanted, messages)
        columns: list[Iterable[Any]] = [
            block.keys,
            block.values,
            repeat(block.topic),
            repeat(block.partition),
            block.offsets,
            # As batch_datetime, without a call of Python for each record.
            map(datetime.fromtimestamp, [time_ms / 1000 for time_ms in block.timestamps]),
            block.timestamp_types,
        ]
        row: type[tuple[Any, ...]] = KafkaRow
        if self.has_headers:
            row = KafkaRowWithHeaders
            columns.append([headers or None for headers in block.headers])
        rows = map(partial(tuple.__new__, row), zip(*columns, strict=False))
        return DecodedBlock(list(rows), [])
