"""Logs as brokers have them: large and empty records, holes of transactions and of compaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import StreamingContext
from dstreams.errors import BatchFailedError
from dstreams.kafka import (
    ConsumerStrategies,
    KafkaUtils,
    LocationStrategies,
    OffsetRange,
    TopicPartition,
)
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.waiting import wait_for

MakeContext = Callable[..., StreamingContext]

COMMITTED = {"isolation.level": "read_committed"}


class Batches:
    """The values that batches of a stream of one topic have had."""

    def __init__(
        self,
        ssc: StreamingContext,
        kafka: KafkaCluster,
        topic: str,
        given: dict[str, Any] | None = None,
        offsets: dict[TopicPartition, int] | None = None,
    ) -> None:
        parameters = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
        strategy = ConsumerStrategies.Subscribe([topic], {**parameters, **(given or {})}, offsets)
        stream = KafkaUtils.createDirectStream(ssc, LocationStrategies.PreferConsistent, strategy)
        self._found: list[list[Any]] = []
        stream.map(lambda record: (record.key, record.value)).foreachRDD(
            lambda rdd: self._found.append(rdd.collect())
        )
        self._ssc = ssc

    def step(self) -> list[Any]:
        """Run a batch, and return its values."""
        self._ssc.step()
        return [value for _, value in self._found[-1]]

    def pairs(self) -> list[tuple[Any, Any]]:
        """Run a batch, and return its keys and values."""
        self._ssc.step()
        return self._found[-1]


def test_null_keys_and_values(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """Null is None, which differs from the empty string."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Sent(None), Sent("", ""), Sent(None, "k"), Sent("v", None)])
    expected = [(None, None), (b"", b""), (b"k", None), (None, b"v")]
    assert Batches(ssc, kafka, topic).pairs() == expected


def test_records_of_a_megabyte(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """A batch has them whole, also where they are more than a fetch may have."""
    topic = kafka.create_topic(max_message_bytes="4000000")
    values = [bytes([number]) * 1_000_000 for number in range(12)]
    kafka.produce(topic, values, message_max_bytes=4_000_000)
    given = {"fetch.max.bytes": 1_500_000, "max.partition.fetch.bytes": 100_000}
    assert Batches(ssc, kafka, topic, given).step() == values


@pytest.mark.deep
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_range_that_ends_with_markers(
    ssc: StreamingContext, kafka: KafkaCluster, isolation: str
) -> None:
    """A range may end with the ends of transactions, or have nothing else."""
    topic = kafka.create_topic()
    batches = Batches(ssc, kafka, topic, {"isolation.level": isolation})
    kafka.produce_committed(topic, ["a", "b"])
    assert batches.step() == [b"a", b"b"]
    kafka.produce_committed(topic, [])
    kafka.produce(topic, ["c"])
    kafka.produce_aborted(topic, ["x", "y"])
    aborted = [] if isolation == "read_committed" else [b"x", b"y"]
    assert batches.step() == [b"c", *aborted]
    kafka.produce_aborted(topic, ["z"])
    assert batches.step() == ([] if isolation == "read_committed" else [b"z"])
    kafka.produce(topic, ["d"])
    assert batches.step() == [b"d"]


@pytest.mark.deep
def test_an_open_transaction(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """With read_committed, records after an open transaction wait, and no batch repeats them."""
    topic = kafka.create_topic()
    batches = Batches(ssc, kafka, topic, COMMITTED)
    kafka.produce(topic, ["a"])
    with kafka.transaction(topic, ["b"]) as producer:
        kafka.produce(topic, ["c"])
        assert batches.step() == [b"a"]
        assert batches.step() == []
        producer.commit_transaction()
    wait_for(lambda: len(kafka.values(topic)) == 3)  # the broker ends it after it has answered
    assert batches.step() == [b"b", b"c"]


def test_a_compacted_topic(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """Offsets are missing at the begin, in the middle and at the end of ranges."""
    topic = kafka.create_topic(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        min_compaction_lag_ms="0",
        delete_retention_ms="0",
    )
    for number in range(3):
        kafka.produce(topic, [Sent(f"{key}{number}", key) for key in "abc"])

    def is_compacted() -> bool:
        # Only segments that were closed are compacted, and a record closes the one before it.
        kafka.produce(topic, [Sent(None, "tick")])
        return len([record for record in kafka.read(topic) if record.key != b"tick"]) == 3

    wait_for(is_compacted)
    begin = {TopicPartition(topic, 0): 1}
    batches = Batches(ssc, kafka, topic, offsets=begin)
    pairs = [pair for pair in batches.pairs() if pair[0] != b"tick"]
    assert pairs == [(b"a", b"a2"), (b"b", b"b2"), (b"c", b"c2")]
    assert batches.step() == []


# Offsets that are not there -----------------------------------------------------------------


def test_records_that_expire(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """The error has the deleted offsets, and nothing else is read."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b", "c"])
    begin = {TopicPartition(topic, 0): 1}
    kafka.delete_records(topic, before=2)
    batches = Batches(ssc, kafka, topic, offsets=begin)
    with pytest.raises(BatchFailedError, match=f"{topic}-0 begins at 2 and was read up to 1"):
        batches.step()


def test_a_begin_after_the_end(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """An offset that the partition does not have yet is named."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    batches = Batches(ssc, kafka, topic, offsets={TopicPartition(topic, 0): 7})
    with pytest.raises(BatchFailedError, match=f"{topic}-0 ends at 1 and was read up to 7"):
        batches.step()


@pytest.mark.deep
def test_records_that_expire_between_plan_and_task(
    make_ssc: MakeContext, kafka: KafkaCluster
) -> None:
    """The batch fails with topic, partition and offset, or reads existing records if configured."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b", "c"])

    def deleting(found: list[bytes], strategy: Any, ssc: StreamingContext) -> None:
        def take(rdd: Any) -> None:
            kafka.delete_records(topic, before=2)
            found.extend(rdd.map(lambda record: record.value).collect())

        KafkaUtils.createDirectStream(
            ssc, LocationStrategies.PreferConsistent, strategy
        ).foreachRDD(take)

    given = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
    strategy = ConsumerStrategies.Subscribe([topic], given)
    failing = make_ssc()
    deleting([], strategy, failing)
    with pytest.raises(
        BatchFailedError, match=f"{topic}-0, offsets 0 to 3: offset 0 is not available"
    ):
        failing.step()
    failing.stop(stopSparkContext=False)
    kafka.delete_topic(topic)
    kafka.create_topic(name=topic)
    kafka.produce(topic, ["a", "b", "c"])
    found: list[bytes] = []
    lenient = make_ssc(kafka_fail_on_data_loss=False)
    deleting(found, strategy, lenient)
    lenient.step()
    assert found == [b"c"]


def test_an_rdd_of_offsets_that_are_not_there(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Ranges of a program are read completely or fail."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b", "c"])
    kafka.delete_records(topic, before=1)
    parameters = {"bootstrap.servers": kafka.bootstrap}

    def values(begin: int, end: int) -> list[bytes]:
        ranges = [OffsetRange(topic, 0, begin, end)]
        records = KafkaUtils.createRDD(sc, parameters, ranges, LocationStrategies.PreferConsistent)
        return records.map(lambda record: record.value).collect()

    assert values(1, 3) == [b"b", b"c"]
    with pytest.raises(Exception, match=r"offset 0 is not available any more.*has 1 to 3 now"):
        values(0, 3)
