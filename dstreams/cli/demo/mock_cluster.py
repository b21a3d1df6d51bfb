"""A Kafka cluster inside this process: librdkafka's mock, which needs nothing and keeps little."""

from __future__ import annotations

from typing import Any

from dstreams.kafka import client

_ANSWER_S = 10.0

PARTITIONS = 4
"""Of a topic, which is made when it is first asked for."""

KEPT_RECORDS, KEPT_BYTES = 100_000, 5 << 20
"""What a partition keeps: where there is more, the oldest records are gone."""


class MockCluster:
    """A cluster that lives as long as it is open; other processes reach it by TCP.

    It is for plain reading and writing: transactions of librdkafka's mock are not those of Kafka.

    >>> with MockCluster() as cluster:
    ...     parameters = {"bootstrap.servers": cluster.brokers}

    Raises:
        EnvironmentNotReadyError: confluent-kafka is not installed.
    """

    def __init__(self) -> None:
        config = {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0}
        self._owner: Any = client.make("Producer", config, "the mock cluster")
        found = self._owner.list_topics(timeout=_ANSWER_S).brokers.values()
        self.brokers = ",".join(f"{broker.host}:{broker.port}" for broker in found)

    def close(self) -> None:
        """End the cluster, with all it has."""
        self._owner = None

    def __enter__(self) -> MockCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
