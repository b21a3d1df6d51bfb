"""Kafka: streams and RDDs of topics, by the names of Spark's Scala integration.

>>> from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies
>>> records = KafkaUtils.createDirectStream(
...     ssc,
...     LocationStrategies.PreferConsistent,
...     ConsumerStrategies.Subscribe(["clicks"], {"bootstrap.servers": "localhost:9092"}),
... )

Needs the package confluent-kafka: ``pip install 'dstreams[kafka]'``.
"""

from dstreams.kafka.strategies import (
    ConsumerStrategies,
    ConsumerStrategy,
    LocationStrategies,
    LocationStrategy,
)
from dstreams.kafka.stream import KafkaDStream, KafkaUtils
from dstreams.kafka_io.kafka_rdd import KafkaRDD
from dstreams.kafka_io.offsets import OffsetRange, TopicPartition
from dstreams.kafka_io.records import ConsumerRecord

__all__ = [
    "ConsumerRecord",
    "ConsumerStrategies",
    "ConsumerStrategy",
    "KafkaDStream",
    "KafkaRDD",
    "KafkaUtils",
    "LocationStrategies",
    "LocationStrategy",
    "OffsetRange",
    "TopicPartition",
]
