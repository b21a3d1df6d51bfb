"""Streams over logs with holes and over topics that grow, on a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import StreamingContext
from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies, OffsetRange
from dstreams.testing import ManualClock
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.waiting import wait_for


@pytest.fixture
def ssc(sc: SparkContext) -> Iterator[StreamingContext]:
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    yield ssc
    ssc.stop(stopSparkContext=False)


def collected(
    ssc: StreamingContext, cluster: KafkaCluster, topic: str, **more: str
) -> list[list[str]]:
    """The values of each batch, as they come."""
    parameters = {
        "bootstrap.servers": cluster.bootstrap,
        "auto.offset.reset": "earliest",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    strategy = ConsumerStrategies.Subscribe([topic], parameters)
    where = LocationStrategies.PreferConsistent
    stream = KafkaUtils.createDirectStream(ssc, where, strategy)
    seen: list[list[str]] = []
    values = stream.map(lambda record: record.value.decode())
    values.foreachRDD(lambda rdd: seen.append(sorted(rdd.collect())))
    return seen


@pytest.mark.deep
def test_transactions(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """A batch ends before the first open one, has nothing of an aborted one, and may have none."""
    topic = kafka.create_topic()
    seen = collected(ssc, kafka, topic, isolation_level="read_committed")
    kafka.produce_committed(topic, ["a", "b"])
    kafka.produce_aborted(topic, ["lost"])
    wait_for(lambda: kafka.end_offsets(topic)[0] == 5)
    ssc.step()
    kafka.produce_aborted(topic, ["lost"])
    wait_for(lambda: kafka.end_offsets(topic)[0] == 7)
    ssc.step()
    with kafka.transaction(topic, ["c"]) as producer:
        kafka.produce(topic, ["d"])
        ssc.step()
        producer.commit_transaction()
    infos: list[Any] = []

    def has_them() -> bool:
        infos.extend(ssc.step())
        return ["c", "d"] in [sorted(itertools.chain(*seen[3:]))]

    wait_for(has_them)
    assert seen[:3] == [["a", "b"], [], []]
    assert sum(info.inputs[0].records for info in infos) == 2


def test_uncommitted_records(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """By default, as in Java, a batch has all that is in the log."""
    topic = kafka.create_topic()
    seen = collected(ssc, kafka, topic)
    kafka.produce_aborted(topic, ["aborted"])
    with kafka.transaction(topic, ["open"]):
        ssc.step()
    assert seen == [["aborted", "open"]]


def test_a_partition_that_is_added(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """All of its records are read, also where a stream begins with the latest."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["old"])
    seen = collected(ssc, kafka, topic, auto_offset_reset="latest")
    ssc.step()
    kafka.add_partitions(topic, 2)
    kafka.produce(topic, ["a", "b"], partition=1)
    ssc.step(2)
    assert seen == [[], ["a", "b"], []]


@pytest.mark.deep
def test_a_compacted_topic(sc: SparkContext, kafka: KafkaCluster, tmp_path: Path) -> None:
    """What compaction took is not waited for, in the middle and at the end of a range."""
    del kafka  # skips without parts
    with KafkaBroker(tmp_path / "kafka", {"log.cleaner.backoff.ms": "50"}) as broker:
        topic = broker.create_topic(
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.0",
            segment_ms="50",
            delete_retention_ms="0",
        )
        records = [Sent(f"{key}-{number}", key=key) for number in range(5) for key in "abc"]
        broker.produce(topic, records)

        def is_compacted() -> bool:
            broker.produce(topic, [Sent("end", key="end")])  # a new segment lets go of the old one
            return len(broker.values(topic)) < broker.end_offsets(topic)[0] - 8

        wait_for(is_compacted)
        parameters = {"bootstrap.servers": broker.bootstrap}
        kept = {record.offset: record.value for record in broker.read(topic)}
        where = LocationStrategies.PreferConsistent
        for until in (5, 12, 15):
            rdd = KafkaUtils.createRDD(sc, parameters, [OffsetRange(topic, 0, 0, until)], where)
            found = {record.offset: record.value for record in rdd.collect()}
            assert found == {offset: value for offset, value in kept.items() if offset < until}
