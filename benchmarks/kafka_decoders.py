"""Benchmark: decoders, one record at a time and a block at once, and whole blocks into records.

Each record is a page view of about 130 bytes as JSON. No Schema Registry is needed: a worker would
fetch schemas once, and here they are constants. Confluent's Avro deserializer is measured for
comparison, with the schema in its cache.

    python benchmarks/kafka_decoders.py
"""

from __future__ import annotations

import gc
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import fastavro
import msgspec
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dstreams.kafka.avro import AvroDecoder
from dstreams.kafka.decoders import Decoder, JsonDecoder, ProtobufDecoder, Utf8Decoder, as_decoder
from dstreams.kafka.decoding import Decoding, RecordBlock
from dstreams.spark.worker_gc import settle_worker

COUNT, ROUNDS = 50_000, 7
FIELDS = {"user": "string", "page": "string", "ms": "long", "n": "int", "ref": "string"}
AVRO = {
    "type": "record",
    "name": "View",
    "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()],
}


class View(msgspec.Struct):
    """A page view."""

    user: str
    page: str
    ms: int
    n: int
    ref: str


def view(number: int) -> dict[str, Any]:
    return {
        "user": f"user-{number % 1000:04}",
        "page": f"/products/{number % 10_000:05}",
        "ms": 1_700_000_000_000 + number,
        "n": number % 50,
        "ref": f"https://example.org/search?q={number:08}&lang=en-US",
    }


def avro_of(value: dict[str, Any], schema: Any, header: bytes) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return header + stream.getvalue()


def view_message() -> Any:
    """Return the class that protoc would generate."""
    kinds = {"string": 9, "long": 3, "int": 5}
    file = descriptor_pb2.FileDescriptorProto(name="view.proto", package="b", syntax="proto3")
    message = file.message_type.add(name="View")
    for number, (name, kind) in enumerate(FIELDS.items(), 1):
        message.field.add(name=name, number=number, type=kinds[kind], label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("b.View"))


def per_second(run: Callable[[], Any]) -> int:
    """Return records a second, the median of some rounds."""
    seconds = []
    for _ in range(ROUNDS):
        gc.collect()
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return round(COUNT / statistics.median(seconds))


def measure(name: str, decoder: Decoder[Any], values: list[bytes]) -> None:
    """Print records a second: one by one, a block at once, and from a block to records."""
    numbers = list(range(COUNT))
    block = RecordBlock(
        "views", 0, numbers, numbers, [0] * COUNT, [()] * COUNT, [None] * COUNT, values
    )
    decoding = Decoding(None, decoder)
    decode = decoder.decode
    one_by_one = per_second(lambda: [decode(value, "views") for value in values])
    at_once = per_second(lambda: decoder.decode_block(values, "views"))
    records = per_second(lambda: decoding(block))
    size = statistics.mean(map(len, values))
    print(f"| {name} | {size:.0f} | {one_by_one:,} | {at_once:,} | {records:,} |")


def measure_confluent(values: list[bytes], text: str) -> None:
    """Print the rate of Confluent's deserializer, which does not support blocks."""
    client = SchemaRegistryClient.new_client({"url": "mock://views"})
    client.register_schema("views-value", Schema(text, "AVRO"))
    context = SerializationContext("views", MessageField.VALUE)
    deserialize = AvroDeserializer(client)
    rate = per_second(lambda: [deserialize(value, context) for value in values])
    print(f"| Avro, AvroDeserializer of confluent-kafka | {len(values[0])} | {rate:,} | | |")


def main() -> None:
    settle_worker()
    views = [view(number) for number in range(COUNT)]
    texts = [msgspec.json.encode(value) for value in views]
    schema = fastavro.parse_schema(AVRO)
    header = b"\0\0\0\0\x01"
    framed = [avro_of(value, schema, header) for value in views]
    with_registry = AvroDecoder({"url": "http://localhost:8081"})
    with_registry._writers[header] = schema
    message = view_message()
    messages = [header + b"\0" + message(**value).SerializeToString() for value in views]
    print(
        "| decoder | bytes | one by one, records/s | a block, records/s | to records, records/s |"
    )
    print("| --- | --- | --- | --- | --- |")
    by_function = as_decoder(lambda data: data.decode(), "value")
    assert by_function is not None
    measure("a function, `data.decode()`", by_function, texts)
    measure("`Utf8Decoder`", Utf8Decoder(), texts)
    measure("`JsonDecoder()`", JsonDecoder(), texts)
    measure("`JsonDecoder(View)`, a msgspec.Struct", JsonDecoder(View), texts)
    measure("`AvroDecoder(registry)`", with_registry, framed)
    measure("`AvroDecoder(schema=)`", AvroDecoder(schema=AVRO), [data[5:] for data in framed])
    measure("`ProtobufDecoder(View)`", ProtobufDecoder(message), messages)
    measure_confluent(framed, msgspec.json.encode(AVRO).decode())


if __name__ == "__main__":
    main()
