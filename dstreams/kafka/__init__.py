"""Kafka: streams and RDDs of topics, by the names of Spark's Scala integration.

The names of ``pyspark.streaming.kafka`` (Spark 2.4) are here, too, and called as they were.

>>> from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies
>>> records = KafkaUtils.createDirectStream(
...     ssc,
...     LocationStrategies.PreferConsistent,
...     ConsumerStrategies.Subscribe(["clicks"], {"bootstrap.servers": "localhost:9092"}),
... )

Needs the package confluent-kafka: ``pip install 'dstreams[kafka]'``.
"""

from dstreams.errors import DecodeError
from dstreams.kafka.legacy import Broker, TopicAndPartition
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
from dstreams.kafka_io.legacy_messages import KafkaMessageAndMetadata
from dstreams.kafka_io.offsets import OffsetRange, TopicPartition
from dstreams.kafka_io.rates import PerPartitionConfig
from dstreams.kafka_io.records import ConsumerRecord

__all__ = [
    "AvroDecoder",
    "Broker",
    "ConsumerRecord",
    "ConsumerStrategies",
    "ConsumerStrategy",
    "DeadLetter",
    "DecodeError",
    "Decoder",
    "JsonDecoder",
    "KafkaDStream",
    "KafkaMessageAndMetadata",
    "KafkaRDD",
    "KafkaSink",
    "KafkaUtils",
    "LocationStrategies",
    "LocationStrategy",
    "OffsetRange",
    "PerPartitionConfig",
    "ProtobufDecoder",
    "TopicAndPartition",
    "TopicPartition",
    "Utf8Decoder",
    "utf8_decoder",
]
