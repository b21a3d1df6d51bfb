"""From messages of the client to records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoding import DecodedBlock, Decoding, RecordBlock
from dstreams.kafka.offsets import OffsetRange
from dstreams.kafka.records import NO_TIMESTAMP

Messages = list[Any]

# What librdkafka says of timestamps: 0 there is none, 1 of the producer, 2 of the broker.
_TIMESTAMP_TYPES = (NO_TIMESTAMP, 0, 1)


@dataclass(frozen=True)
class AsRecords:
    """Makes :class:`ConsumerRecord` of messages, decoded."""

    decoding: Decoding = field(default_factory=Decoding)

    def __call__(self, wanted: OffsetRange, messages: Messages) -> DecodedBlock:
        return self.decoding(block_of(wanted, messages))


def require_dead_letters(made: object) -> None:
    """Refuse what makes records of which none is left out.

    Raises:
        InvalidStreamError: it does.
    """
    if not isinstance(made, AsRecords) or made.decoding.bad_records == "FAILFAST":
        raise InvalidStreamError(
            "deadLetters has the records that are left out, and none are: one that cannot be "
            "decoded fails the batch; read the topic with badRecords='DROPMALFORMED'"
        )


def block_of(wanted: OffsetRange, messages: Messages) -> RecordBlock:
    """Return messages of a range, column by column."""
    times = [message.timestamp() for message in messages]
    headers = [message.headers() for message in messages]
    return RecordBlock(
        wanted.topic,
        wanted.partition,
        [message.offset() for message in messages],
        [time[1] for time in times],
        [_TIMESTAMP_TYPES[time[0]] for time in times],
        [() if one is None else tuple(one) for one in headers],
        [message.key() for message in messages],
        [message.value() for message in messages],
    )
