"""Streams of Kafka, as the tests of streams, restarts and logs make them."""

from __future__ import annotations

from typing import Any

from dstreams import StreamingContext
from dstreams.kafka import (
    ConsumerRecord,
    ConsumerStrategy,
    KafkaDStream,
    KafkaUtils,
    LocationStrategies,
)
from tests.support.kafka_cluster import KafkaCluster


def parameters(cluster: KafkaCluster, **more: Any) -> dict[str, Any]:
    """Of a stream that begins with what there is; names have ``_`` for ``.``."""
    named = {key.replace("_", "."): value for key, value in more.items()}
    return {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest", **named}


def stream_of(
    ssc: StreamingContext, strategy: ConsumerStrategy, *limits: Any, **more: Any
) -> KafkaDStream[ConsumerRecord]:
    where = LocationStrategies.PreferConsistent
    return KafkaUtils.createDirectStream(ssc, where, strategy, *limits, **more)


def value_of(record: ConsumerRecord) -> str:
    text: str = record.value.decode()
    return text
