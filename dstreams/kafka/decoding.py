"""Records of Kafka and their decoding; records that cannot be decoded are set aside.

Workers import this module, so it imports neither brokers' clients nor Spark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import compress, repeat
from typing import Any, NamedTuple
from uuid import UUID

from dstreams.errors import DecodeError, InvalidStreamError, StreamError
from dstreams.kafka.decoders import Decode, Decoder, Utf8Decoder, as_decoder
from dstreams.kafka.offsets import OffsetRange
from dstreams.spark.task_reports import BAD_RECORDS, BadRecords

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


_FAIL_THE_TASK = (StreamError, MemoryError)
"""Errors of a decoder that no record causes: they fail the task in every mode."""

_REASON_LENGTH = 120

MakeRecords = Callable[[OffsetRange, Messages], DecodedBlock]
"""Makes records of messages of a range, in their order."""

_make_record = partial(tuple.__new__, ConsumerRecord)


@dataclass(frozen=True)
class Decoding:
    """The decoders of an input; without a decoder keys or values stay bytes."""

    key: Decoder[Any] | None = None
    value: Decoder[Any] | None = None
    bad_records: BadRecords = "FAILFAST"

    def __call__(self, block: RecordBlock) -> DecodedBlock:
        """Decode a block.

        Raises:
            DecodeError: a record cannot be decoded, in mode FAILFAST.
            StreamError: a decoder cannot work for any record.
        """
        keys = _decoded("key", self.key, block.keys, block.topic)
        values = _decoded("value", self.value, block.values, block.topic)
        columns = (repeat(block.topic), repeat(block.partition), *block[2:6])
        rows = zip(*columns, keys.values, values.values)  # noqa: B905 - checked in _decoded
        records = list(map(_make_record, rows))
        if not (keys.failures or values.failures):
            return DecodedBlock(records, [])
        failures = {**values.failures, **keys.failures}
        if self.bad_records == "FAILFAST":
            raise self._error(block, *min(failures.items()))
        good = [index not in failures for index in range(len(records))]
        rejected = [_dead_letter(block, index, failures[index]) for index in sorted(failures)]
        return DecodedBlock(list(compress(records, good)), rejected)

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
    """Decoded keys or values, and the failures by index."""

    values: Sequence[Any]
    failures: dict[int, _Failure]


def _decoded(
    part: str, decoder: Decoder[Any] | None, values: Sequence[bytes | None], topic: str
) -> _Column:
    if decoder is None:
        return _Column(values, {})
    try:
        decoded = decoder.decode_block(values, topic)
    except _FAIL_THE_TASK:
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
        except _FAIL_THE_TASK:
            raise
        except Exception as error:
            failures[index] = _Failure(part, _reason(error))
        decoded.append(value)
    return _Column(decoded, failures)


def _reason(error: Exception) -> str:
    """Return type and message of an exception in a line; shortened, as it may quote the data."""
    try:
        message = str(error)
    except Exception:
        message = ""
    text = " ".join(message[: 2 * _REASON_LENGTH].split())
    if len(text) > _REASON_LENGTH:
        text = f"{text[: _REASON_LENGTH - 3]}..."
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _dead_letter(block: RecordBlock, index: int, failure: _Failure) -> DeadLetter:
    fields = (column[index] for column in block[2:])
    return DeadLetter._make((block.topic, block.partition, *fields, *failure))


@dataclass(frozen=True)
class AsRecords:
    """Makes decoded :class:`ConsumerRecord` values."""

    decoding: Decoding = field(default_factory=Decoding)

    def __call__(self, wanted: OffsetRange, messages: Messages) -> DecodedBlock:
        return self.decoding(block_of(wanted.topic, wanted.partition, messages))


@dataclass(frozen=True)
class AsRows:
    """Makes :class:`KafkaRow` values, with headers if required."""

    has_headers: bool

    def __call__(self, wanted: OffsetRange, messages: Messages) -> DecodedBlock:
        block = block_of(wanted.topic, wanted.partition, messages)
        columns: list[Iterable[Any]] = [
            block.keys,
            block.values,
            repeat(block.topic),
            repeat(block.partition),
            block.offsets,
            # As batch_datetime, without a Python call for each record.
            map(datetime.fromtimestamp, [time_ms / 1000 for time_ms in block.timestamps]),
            block.timestamp_types,
        ]
        row: type[tuple[Any, ...]] = KafkaRow
        if self.has_headers:
            row = KafkaRowWithHeaders
            columns.append([headers or None for headers in block.headers])
        rows = map(partial(tuple.__new__, row), zip(*columns, strict=False))
        return DecodedBlock(list(rows), [])


def require_dead_letters(make_records: object) -> None:
    """Require that bad records are skipped.

    Raises:
        InvalidStreamError: they fail the batch.
    """
    if not isinstance(make_records, AsRecords) or make_records.decoding.bad_records == "FAILFAST":
        raise InvalidStreamError(
            "deadLetters returns skipped records, but a record that cannot be decoded fails the "
            "batch; read the topic with badRecords='DROPMALFORMED'"
        )


def _number(form: str, data: bytes) -> Any:
    return struct.unpack(form, data)[0]


def _uuid(data: bytes) -> UUID:
    return UUID(data.decode())


_PACKAGE = "org.apache.kafka.common.serialization."
_OF_KAFKA: Mapping[str, Decode | None] = {
    "ByteArrayDeserializer": None,
    "ByteBufferDeserializer": None,
    "BytesDeserializer": None,
    "StringDeserializer": Utf8Decoder(),
    "ShortDeserializer": partial(_number, ">h"),
    "IntegerDeserializer": partial(_number, ">i"),
    "LongDeserializer": partial(_number, ">q"),
    "FloatDeserializer": partial(_number, ">f"),
    "DoubleDeserializer": partial(_number, ">d"),
    "UUIDDeserializer": _uuid,
}
"""The deserializers of Kafka's Java package."""


def decoding_of(parameters: Mapping[str, Any], bad_records: str, where: str) -> Decoding:
    """Return the decoding by ``key.deserializer`` and ``value.deserializer``.

    Raises:
        InvalidStreamError: one is neither a decoder nor the name of one of Kafka's.
    """
    key, value = (
        as_decoder(_deserializer(parameters, part, where), f"{where}: {part}.deserializer")
        for part in ("key", "value")
    )
    return Decoding(key, value, BAD_RECORDS.of(bad_records, f"badRecords of {where}"))


def _deserializer(parameters: Mapping[str, Any], part: str, where: str) -> Decode | None:
    given = parameters.get(f"{part}.deserializer")
    if not isinstance(given, str):
        return given
    name = given.removeprefix(_PACKAGE)
    if name not in _OF_KAFKA:
        raise InvalidStreamError(
            f"{where}: {part}.deserializer is {given!r}, a class of Java; give a function of "
            "bytes, a decoder of dstreams.kafka such as JsonDecoder(), or one of "
            f"{', '.join(sorted(_OF_KAFKA))}"
        )
    return _OF_KAFKA[name]
