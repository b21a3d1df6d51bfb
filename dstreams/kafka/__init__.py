"""Kafka: streams and RDDs of topics, with the API of Spark's Scala integration.

The API of ``pyspark.streaming.kafka`` (Spark 2.4) works as well, with its original signatures.

>>> from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies
>>> records = KafkaUtils.createDirectStream(
...     ssc,
...     LocationStrategies.PreferConsistent,
...     ConsumerStrategies.Subscribe(["clicks"], {"bootstrap.servers": "localhost:9092"}),
... )

Needs the package confluent-kafka: ``pip install 'dstreams[kafka]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstreams.common.imports import lazy_names

if TYPE_CHECKING:
    from dstreams.compat.kafka24 import Broker as Broker
    from dstreams.compat.kafka24 import TopicAndPartition as TopicAndPartition
    from dstreams.compat.kafka24_messages import KafkaMessageAndMetadata as KafkaMessageAndMetadata
    from dstreams.compat.kafka_utils import KafkaDStream as KafkaDStream
    from dstreams.compat.kafka_utils import KafkaUtils as KafkaUtils
    from dstreams.errors import DecodeError as DecodeError
    from dstreams.kafka.avro import AvroDecoder as AvroDecoder
    from dstreams.kafka.decoders import Decoder as Decoder
    from dstreams.kafka.decoders import JsonDecoder as JsonDecoder
    from dstreams.kafka.decoders import ProtobufDecoder as ProtobufDecoder
    from dstreams.kafka.decoders import Utf8Decoder as Utf8Decoder
    from dstreams.kafka.decoders import utf8_decoder as utf8_decoder
    from dstreams.kafka.decoding import ConsumerRecord as ConsumerRecord
    from dstreams.kafka.decoding import DeadLetter as DeadLetter
    from dstreams.kafka.fetch import KafkaRDD as KafkaRDD
    from dstreams.kafka.kafka_sink import KafkaSink as KafkaSink
    from dstreams.kafka.offsets import OffsetRange as OffsetRange
    from dstreams.kafka.offsets import PerPartitionConfig as PerPartitionConfig
    from dstreams.kafka.offsets import TopicPartition as TopicPartition
    from dstreams.kafka.strategies import ConsumerStrategies as ConsumerStrategies
    from dstreams.kafka.strategies import ConsumerStrategy as ConsumerStrategy
    from dstreams.kafka.strategies import LocationStrategies as LocationStrategies
    from dstreams.kafka.strategies import LocationStrategy as LocationStrategy

_HOMES = {
    "AvroDecoder": "dstreams.kafka.avro",
    "Broker": "dstreams.compat.kafka24",
    "ConsumerRecord": "dstreams.kafka.decoding",
    "ConsumerStrategies": "dstreams.kafka.strategies",
    "ConsumerStrategy": "dstreams.kafka.strategies",
    "DeadLetter": "dstreams.kafka.decoding",
    "DecodeError": "dstreams.errors",
    "Decoder": "dstreams.kafka.decoders",
    "JsonDecoder": "dstreams.kafka.decoders",
    "KafkaDStream": "dstreams.compat.kafka_utils",
    "KafkaMessageAndMetadata": "dstreams.compat.kafka24_messages",
    "KafkaRDD": "dstreams.kafka.fetch",
    "KafkaSink": "dstreams.kafka.kafka_sink",
    "KafkaUtils": "dstreams.compat.kafka_utils",
    "LocationStrategies": "dstreams.kafka.strategies",
    "LocationStrategy": "dstreams.kafka.strategies",
    "OffsetRange": "dstreams.kafka.offsets",
    "PerPartitionConfig": "dstreams.kafka.offsets",
    "ProtobufDecoder": "dstreams.kafka.decoders",
    "TopicAndPartition": "dstreams.compat.kafka24",
    "TopicPartition": "dstreams.kafka.offsets",
    "Utf8Decoder": "dstreams.kafka.decoders",
    "utf8_decoder": "dstreams.kafka.decoders",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
