"""Decoders: from the bytes of keys and values to what programs work with, one format a module."""

from dstreams.kafka.decoders.avro import AvroDecoder
from dstreams.kafka.decoders.decoder import Decode, Decoder, utf8_decoder
from dstreams.kafka.decoders.json import JsonDecoder
from dstreams.kafka.decoders.protobuf import ProtobufDecoder
from dstreams.kafka.decoders.text import Utf8Decoder

__all__ = [
    "AvroDecoder",
    "Decode",
    "Decoder",
    "JsonDecoder",
    "ProtobufDecoder",
    "Utf8Decoder",
    "utf8_decoder",
]
