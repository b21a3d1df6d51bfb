"""Messages of ``pyspark.streaming.kafka`` of Spark 2.4.

Workers import this module, so it must not import the rest of the API.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dstreams.kafka.decoders import utf8_decoder
from dstreams.kafka.decoding import DecodedBlock, Messages
from dstreams.kafka.offsets import OffsetRange

Decoder = Callable[[Any], Any]
"""Decodes a key or value, bytes or None."""


class KafkaMessageAndMetadata:
    """A message of Kafka and its position; key and message are decoded on access.

    Args:
        topic: topic name of this Kafka message.
        partition: partition id of this Kafka message.
        offset: offset of this Kafka message in the specific partition.
        key: key payload of this Kafka message, undecoded; None if it has no key.
        message: actual message payload of this Kafka message, undecoded.

    Semantics: pyspark.streaming.kafka.KafkaMessageAndMetadata (2.4).
    """

    def __init__(
        self, topic: str, partition: int, offset: int, key: bytes | None, message: bytes | None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self._rawKey = key
        self._rawMessage = message
        self._keyDecoder: Decoder = utf8_decoder
        self._valueDecoder: Decoder = utf8_decoder

    def __str__(self) -> str:
        return (
            f"KafkaMessageAndMetadata(topic: {self.topic}, partition: {self.partition}, "
            f"offset: {self.offset}, key and message...)"
        )

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        made = (self.topic, self.partition, self.offset, self._rawKey, self._rawMessage)
        return KafkaMessageAndMetadata, made

    def _set_key_decoder(self, decoder: Decoder) -> None:
        self._keyDecoder = decoder

    def _set_value_decoder(self, decoder: Decoder) -> None:
        self._valueDecoder = decoder

    @property
    def key(self) -> Any:
        """The decoded key."""
        return self._keyDecoder(self._rawKey)

    @property
    def message(self) -> Any:
        """The decoded message."""
        return self._valueDecoder(self._rawMessage)


@dataclass(frozen=True)
class AsPairs:
    """Makes pairs of key and value."""

    decode_key: Decoder
    decode_value: Decoder

    def __call__(self, wanted: OffsetRange, messages: Messages) -> DecodedBlock:
        keys = map(self.decode_key, [message.key() for message in messages])
        values = map(self.decode_value, [message.value() for message in messages])
        return DecodedBlock(list(zip(keys, values, strict=True)), [])


@dataclass(frozen=True)
class ByHandler:
    """Makes records by the program's message handler."""

    decode_key: Decoder
    decode_value: Decoder
    handle: Callable[[KafkaMessageAndMetadata], Any]

    def __call__(self, wanted: OffsetRange, messages: Messages) -> DecodedBlock:
        return DecodedBlock([self._record(wanted, message) for message in messages], [])

    def _record(self, wanted: OffsetRange, message: Any) -> Any:
        found = KafkaMessageAndMetadata(
            wanted.topic, wanted.partition, message.offset(), message.key(), message.value()
        )
        found._set_key_decoder(self.decode_key)
        found._set_value_decoder(self.decode_value)
        return self.handle(found)
