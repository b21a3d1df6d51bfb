"""What the driver finds out about topics of a cluster that describes none: librdkafka's mock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dstreams.clock import SystemClock
from dstreams.demo.mock_cluster import PARTITIONS, MockCluster
from dstreams.kafka_io.offsets import TopicPartition
from dstreams.kafka_io.parameters import KafkaParameters
from dstreams.kafka_io.topics import EARLIEST, Selection, Topics
from tests.support.kafka_cluster import KafkaCluster


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


def topics_of(cluster: MockCluster, selection: Selection) -> Topics:
    parameters = KafkaParameters.of({"bootstrap.servers": cluster.brokers}, "test")
    return Topics(parameters, selection, SystemClock(), "test", lambda *_: None)


@pytest.mark.parametrize("selection", [Selection(("words",)), Selection(pattern="w.*")])
def test_partitions_without_ids(cluster: MockCluster, selection: Selection) -> None:
    """Partitions and where they end are found as consumers find them, and topics have no id."""
    KafkaCluster(cluster.brokers).produce("words", ["to", "be"], partition=2)
    topics = topics_of(cluster, selection)
    seen = topics.look()
    assert seen.ids == {}
    assert seen.ends == {TopicPartition("words", n): 2 * (n == 2) for n in range(PARTITIONS)}
    KafkaCluster(cluster.brokers).produce("words", ["or"], partition=0)
    again = topics.look(seen.ends)
    assert again.ends == {**seen.ends, TopicPartition("words", 0): 1}
    assert set(topics.offsets(dict.fromkeys(seen.ends, EARLIEST)).values()) == {0}
    topics.close()
