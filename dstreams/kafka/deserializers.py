"""``key.deserializer`` and ``value.deserializer`` among the parameters of consumers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoders.decoder import Decode, as_decoder
from dstreams.kafka.decoders.text import Utf8Decoder
from dstreams.kafka.decoding import Decoding
from dstreams.spark.bad_records import BAD_RECORDS

_PACKAGE = "org.apache.kafka.common.serialization."


def _number(form: str, data: bytes) -> Any:
    return struct.unpack(form, data)[0]


def _uuid(data: bytes) -> UUID:
    return UUID(data.decode())


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
"""The deserializers of Kafka's own package, by class."""


def decoding_of(parameters: Mapping[str, Any], bad_records: str, where: str) -> Decoding:
    """Return how records are decoded, by the deserializers that are given.

    Raises:
        InvalidStreamError: one is neither a decoder nor the name of one of Kafka's.
    """
    key, value = (
        as_decoder(_decoder(parameters, part, where), f"{where}: {part}.deserializer")
        for part in ("key", "value")
    )
    return Decoding(key, value, BAD_RECORDS.of(bad_records, f"badRecords of {where}"))


def _decoder(parameters: Mapping[str, Any], part: str, where: str) -> Decode | None:
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
