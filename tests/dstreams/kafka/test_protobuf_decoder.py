"""Protobuf: what Confluent's serializers write is read, and no message is taken for another."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2

from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoders import ProtobufDecoder
from tests.support.schema_registry import LocalRegistry

HEADER = b"\0\0\0\0\x09"
Range = descriptor_pb2.DescriptorProto.ExtensionRange  # the first within the third message


def serialized(registry: LocalRegistry, message: Any) -> bytes:
    with SchemaRegistryClient({"url": registry.url}) as client:
        return ProtobufSerializer(type(message), client, {"use.deprecated.format": False})(
            message, SerializationContext("t", MessageField.VALUE)
        )


@pytest.mark.parametrize(
    "message",
    [
        timestamp_pb2.Timestamp(seconds=60, nanos=7),
        struct_pb2.ListValue(values=[struct_pb2.Value(number_value=3)]),
        Range(start=3, end=9),
    ],
)
def test_reads_what_the_serializer_of_confluent_writes(
    registry: LocalRegistry, message: Any
) -> None:
    """The first message of a file, a later one, and one within another."""
    data = serialized(registry, message)
    decoder = pickle.loads(pickle.dumps(ProtobufDecoder(type(message))))
    assert decoder.decode(data, "t") == message
    assert decoder.decode_block([data, None, data], "t") == [message, None, message]
    assert registry.asked == []


def test_values_are_sent_between_workers() -> None:
    """A message survives pickling, as every record that is shuffled has to."""
    message = ProtobufDecoder(timestamp_pb2.Timestamp).decode(HEADER + b"\0\x08\x3c", "t")
    assert pickle.loads(pickle.dumps(message)) == message


def test_several_messages_of_a_topic() -> None:
    """Each is read by the class of its place."""
    classes = {(0,): timestamp_pb2.Timestamp, (1,): duration_pb2.Duration}
    decoder = ProtobufDecoder(classes)
    first = HEADER + b"\0\x08\x3c"
    second = HEADER + b"\x02\x02\x08\x3c"
    assert decoder.decode_block([first, second, None], "t") == [
        timestamp_pb2.Timestamp(seconds=60),
        duration_pb2.Duration(seconds=60),
        None,
    ]
    assert repr(decoder) == "ProtobufDecoder(Timestamp, Duration)"


def test_messages_without_a_header() -> None:
    """Bytes of one message are read as they are."""
    decoder = ProtobufDecoder(timestamp_pb2.Timestamp, framed=False)
    assert decoder.decode(b"\x08\x3c", "t").seconds == 60
    assert [each.seconds for each in decoder.decode_block([b"\x08\x3c", b""], "t")] == [60, 0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0", "3 bytes are too few for the 5 of a schema id"),
        (b"\x08\x3c\0\0\0\0\0", "it begins with the byte 0x08"),
        (
            HEADER + b"\x02\x02\x08\x3c",
            r"it is the message at \(1,\) of its .proto file, and ProtobufDecoder has Timestamp at "
            r"\(0,\)",
        ),
        (HEADER, "the index of its message in the .proto file is damaged"),
        (HEADER + b"\x04\x02", "the index of its message in the .proto file is damaged"),
        (HEADER + b"\x01", "the index of its message in the .proto file is damaged"),
        (HEADER + b"\xff" * 9, "the index of its message in the .proto file is damaged"),
    ],
)
def test_bytes_that_are_no_message(data: bytes, reason: str) -> None:
    """The reason says which part is not there."""
    decoder = ProtobufDecoder(timestamp_pb2.Timestamp)
    for decode in (decoder.decode, lambda data, topic: decoder.decode_block([data], topic)):
        with pytest.raises(ValueError, match=reason):
            decode(data, "t")


def test_a_damaged_message() -> None:
    """Invalid protobuf data is an error."""
    with pytest.raises(Exception, match="Error parsing message"):
        ProtobufDecoder(timestamp_pb2.Timestamp).decode(HEADER + b"\0\x08", "t")


@pytest.mark.parametrize("given", [timestamp_pb2.Timestamp(), str, "Timestamp", {(0,): 3}])
def test_what_is_no_class_of_messages(given: Any) -> None:
    """It is refused where the decoder is made."""
    with pytest.raises(InvalidStreamError, match="needs a message class that protoc has generated"):
        ProtobufDecoder(given)


def test_places_need_a_header() -> None:
    """Without a message index, only one class can be read."""
    with pytest.raises(InvalidStreamError, match="if framed and not empty: framed is False"):
        ProtobufDecoder({(0,): timestamp_pb2.Timestamp}, framed=False)
