"""From messages of the client to records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from dstreams.kafka_io.fetch import Messages
from dstreams.kafka_io.offsets import OffsetRange
from dstreams.kafka_io.records import NO_TIMESTAMP, ConsumerRecord, records_of

Decode = Callable[[bytes | None], Any]

# What librdkafka says of timestamps: 0 there is none, 1 of the producer, 2 of the broker.
_TIMESTAMP_TYPES = (NO_TIMESTAMP, 0, 1)


@dataclass(frozen=True)
class AsRecords:
    """Makes :class:`ConsumerRecord` of messages.

    Args:
        decode_key: bytes -> key; None leaves bytes.
        decode_value: likewise.
    """

    decode_key: Decode | None = None
    decode_value: Decode | None = None

    def __call__(self, wanted: OffsetRange, messages: Messages) -> Iterable[ConsumerRecord]:
        keys: Iterable[Any] = [message.key() for message in messages]
        values: Iterable[Any] = [message.value() for message in messages]
        if self.decode_key is not None:
            keys = map(self.decode_key, keys)
        if self.decode_value is not None:
            values = map(self.decode_value, values)
        times = [message.timestamp() for message in messages]
        headers = [message.headers() for message in messages]
        return records_of(
            (
                repeat(wanted.topic),
                repeat(wanted.partition),
                [message.offset() for message in messages],
                [time[1] for time in times],
                [_TIMESTAMP_TYPES[time[0]] for time in times],
                [() if one is None else tuple(one) for one in headers],
                keys,
                values,
            )
        )
