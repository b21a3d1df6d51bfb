"""From a block of records in bytes to records of values; what cannot be decoded is set aside.

Nothing here knows brokers or Spark: a block comes in as columns, as the fetch has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, NamedTuple

from dstreams.errors import DecodeError, InvalidStreamError, StreamError
from dstreams.kafka.decoders.decoder import Decoder
from dstreams.kafka.records import Headers, records_of
from dstreams.spark.bad_records import BadRecords

_NOT_OF_A_RECORD = (StreamError, MemoryError)
"""What a decoder raises where no record is to blame: it fails the task, whatever the rule."""

_REASON_LENGTH = 120


class RecordBlock(NamedTuple):
    """Records of one partition as they were read, column by column.

    Args:
        topic: their topic.
        partition: partition of the topic.
        offsets: of each its offset.
        timestamps: of each its time, in milliseconds since the epoch, -1 for none.
        timestamp_types: of each what its time is (:class:`ConsumerRecord`).
        headers: of each its headers.
        keys: of each its key, None for no key.
        values: of each its value, None for a tombstone.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    timestamp_types: Sequence[int]
    headers: Sequence[Headers]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


class DeadLetter(NamedTuple):
    """A record that could not be decoded, as it was read, and why.

    The fields up to *value* are those of :class:`ConsumerRecord`.

    Args:
        part: what could not be decoded: ``key`` or ``value``.
        reason: why, in a line: the kind of exception and what it says, shortened.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestampType: int  # noqa: N815  # the name of Kafka and Spark
    headers: Headers
    key: bytes | None
    value: bytes | None
    part: str
    reason: str

    @property
    def error_headers(self) -> Headers:
        """The headers of the record, then where it is from, and why it is a dead letter.

        They are named as Kafka Streams names those of its dead letter queue.

        >>> letter = DeadLetter("clicks", 2, 17, -1, -1, (), None, b"{", "value", "ValueError")
        >>> letter.error_headers[:2]
        (('__dstreams.errors.message', b'ValueError'), ('__dstreams.errors.topic', b'clicks'))
        """
        said = {
            "message": self.reason,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "part": self.part,
        }
        own = ((f"__dstreams.errors.{name}", str(value).encode()) for name, value in said.items())
        return (*self.headers, *own)


class DecodedBlock(NamedTuple):
    """What a block became: its records in their order, and those that could not be decoded."""

    records: Sequence[Any]
    rejected: list[DeadLetter]


@dataclass(frozen=True)
class Decoding:
    """How the records of an input are decoded; None leaves keys or values as bytes."""

    key: Decoder[Any] | None = None
    value: Decoder[Any] | None = None
    bad_records: BadRecords = "FAILFAST"

    def __call__(self, block: RecordBlock) -> DecodedBlock:
        """Decode a block.

        Raises:
            DecodeError: a record cannot be decoded, and the rule is FAILFAST: the first such.
            StreamError: a decoder cannot work, whatever the record.
        """
        keys = _decoded("key", self.key, block.keys, block.topic)
        values = _decoded("value", self.value, block.values, block.topic)
        columns = (
            repeat(block.topic),
            repeat(block.partition),
            block.offsets,
            block.timestamps,
            block.timestamp_types,
            block.headers,
            keys.values,
            values.values,
        )
        records = records_of(columns)
        if not (keys.failures or values.failures):
            return DecodedBlock(records, [])
        failures = {**values.failures, **keys.failures}
        if self.bad_records == "FAILFAST":
            raise self._error(block, *min(failures.items()))
        good = [index not in failures for index in range(len(records))]
        return DecodedBlock(
            list(compress(records, good)),
            [_letter(block, index, failures[index]) for index in sorted(failures)],
        )

    def _error(self, block: RecordBlock, index: int, failure: _Failure) -> DecodeError:
        decoder = self.key if failure.part == "key" else self.value
        offset = block.offsets[index]
        return DecodeError(
            block.topic, block.partition, offset, failure.part, repr(decoder), failure.reason
        )


class _Failure(NamedTuple):
    part: str
    reason: str


class _Column(NamedTuple):
    """The decoded keys or values of a block, and by index those that could not be decoded."""

    values: Sequence[Any]
    failures: dict[int, _Failure]


def _decoded(
    part: str, decoder: Decoder[Any] | None, values: Sequence[bytes | None], topic: str
) -> _Column:
    if decoder is None:
        return _Column(values, {})
    try:
        decoded = decoder.decode_block(values, topic)
    except _NOT_OF_A_RECORD:
        raise
    except Exception:
        return _one_by_one(part, decoder, values, topic)
    if len(decoded) != len(values):
        raise InvalidStreamError(
            f"{decoder!r} made {len(decoded)} values of a block of {len(values)}; decode_block has "
            "to return one for each, None for None"
        )
    return _Column(decoded, {})


def _one_by_one(
    part: str, decoder: Decoder[Any], values: Sequence[bytes | None], topic: str
) -> _Column:
    decoded: list[Any] = []
    failures = {}
    for index, data in enumerate(values):
        value = None
        try:
            value = None if data is None else decoder.decode(data, topic)
        except _NOT_OF_A_RECORD:
            raise
        except Exception as error:
            failures[index] = _Failure(part, _reason(error))
        decoded.append(value)
    return _Column(decoded, failures)


def _reason(error: Exception) -> str:
    """Return in a line what an exception says; it may quote the data, so no more than a bit."""
    try:
        said = str(error)
    except Exception:
        said = ""
    text = " ".join(said[: 2 * _REASON_LENGTH].split())
    if len(text) > _REASON_LENGTH:
        text = f"{text[: _REASON_LENGTH - 3]}..."
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _letter(block: RecordBlock, index: int, failure: _Failure) -> DeadLetter:
    fields = (column[index] for column in block[2:])
    return DeadLetter._make((block.topic, block.partition, *fields, *failure))
