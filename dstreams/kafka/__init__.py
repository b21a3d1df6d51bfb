"""Kafka: streams and RDDs of topics, by the names of Spark's Scala integration.

>>> from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies
>>> records = KafkaUtils.createDirectStream(
...     ssc,
...     LocationStrategies.PreferConsistent,
...     ConsumerStrategies.Subscribe(["clicks"], {"bootstrap.servers": "localhost:9092"}),
... )

Needs the package confluent-kafka: ``pip install 'dstreams[kafka]'``.
"""

from dstreams.errors import DecodeError
from dstreams.kafka.strategies import (
    ConsumerStrategies,
    ConsumerStrategy,
    LocationStrategies,
    LocationStrategy,
)
from dstreams.kafka.stream import KafkaDStream, KafkaUtils
from dstreams.kafka_io.decoders import (
    AvroDecoder,
    Decoder,
    JsonDecoder,
    ProtobufDecoder,
    Utf8Decoder,
    utf8_decoder,
)
from dstreams.kafka_io.decoding import DeadLetter
from dstreams.kafka_io.kafka_rdd import KafkaRDD
from dstreams.kafka_io.kafka_sink import KafkaSink
from dstreams.kafka_io.offsets import OffsetRange, TopicPartition
from dstreams.kafka_io.rates import PerPartitionConfig
from dstreams.kafka_io.records import ConsumerRecord

__all__ = [
    "AvroDecoder",
    "ConsumerRecord",
    "ConsumerStrategies",
    "ConsumerStrategy",
    "DeadLetter",
    "DecodeError",
    "Decoder",
    "JsonDecoder",
    "KafkaDStream",
    "KafkaRDD",
    "KafkaSink",
    "KafkaUtils",
    "LocationStrategies",
    "LocationStrategy",
    "OffsetRange",
    "PerPartitionConfig",
    "ProtobufDecoder",
    "TopicPartition",
    "Utf8Decoder",
    "utf8_decoder",
]
