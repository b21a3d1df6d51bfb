"""Topics of librdkafka's mock cluster, which does not describe topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from dstreams.cli.demo import PARTITIONS, MockCluster
from dstreams.common.clock import SystemClock
from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.parameters import KafkaParameters
from dstreams.kafka.topics import EARLIEST, LATEST, Topics, TopicSelection, UnknownTopicError
from tests.support.kafka_cluster import KafkaCluster


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


def topics_of(cluster: MockCluster, selection: TopicSelection) -> Topics:
    parameters = KafkaParameters.of({"bootstrap.servers": cluster.brokers}, "test")
    return Topics(parameters, selection, SystemClock(), "test", lambda *_: None)


@pytest.mark.parametrize("selection", [TopicSelection(("words",)), TopicSelection(pattern="w.*")])
def test_partitions_without_ids(cluster: MockCluster, selection: TopicSelection) -> None:
    """Partitions and where they end are found as consumers find them, and topics have no id."""
    KafkaCluster(cluster.brokers).produce("words", ["to", "be"], partition=2)
    topics = topics_of(cluster, selection)
    seen = topics.state()
    assert seen.ids == {}
    assert seen.ends == {TopicPartition("words", n): 2 * (n == 2) for n in range(PARTITIONS)}
    KafkaCluster(cluster.brokers).produce("words", ["or"], partition=0)
    again = topics.state(seen.ends)
    assert again.ends == {**seen.ends, TopicPartition("words", 0): 1}
    assert set(topics.offsets(dict.fromkeys(seen.ends, EARLIEST)).values()) == {0}
    topics.close()


class NewBrokers:
    """A consumer whose brokers do not know a topic yet."""

    def __init__(self, consumer: Any, *errors: int) -> None:
        self._consumer = consumer
        self.errors = list(errors)

    def offsets_for_times(self, asked: Any, timeout: float) -> Any:
        if self.errors:
            raise KafkaException(KafkaError(self.errors.pop()))
        return self._consumer.offsets_for_times(asked, timeout=timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


@pytest.mark.parametrize(
    "error",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    ],
)
def test_just_after_a_topic_was_made(cluster: MockCluster, error: int) -> None:
    """Requests to brokers that do not lead a partition yet are retried."""
    KafkaCluster(cluster.brokers).produce("words", ["to", "be"], partition=2)
    topics = topics_of(cluster, TopicSelection(("words",)))
    brokers = topics._consumer = NewBrokers(topics.consumer(), *[error] * 3)
    ends = topics.state().ends
    assert ends == {TopicPartition("words", n): 2 * (n == 2) for n in range(PARTITIONS)}
    brokers.errors = [error] * 3
    assert topics.offsets(dict.fromkeys(ends, LATEST)) == ends
    assert brokers.errors == []
    topics.close()


def test_what_stays_unknown(cluster: MockCluster) -> None:
    """A partition that is not there a moment later is an error that says so."""
    KafkaCluster(cluster.brokers).produce("words", ["to"])
    topics = topics_of(cluster, TopicSelection(("words",)))
    with pytest.raises(UnknownTopicError, match=r"no such topic.*or correct the name"):
        topics.offsets({TopicPartition("words", PARTITIONS): LATEST})
    topics.close()
