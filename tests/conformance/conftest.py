"""What the conformance tests share: a process with pyspark.streaming, and a notebook of outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from dstreams.cli.demo import MockCluster
from tests.conformance import restarts
from tests.conformance.oracle import Oracle
from tests.conformance.recording import RECORD, Recording

if TYPE_CHECKING:
    from tests.support.kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """The real pyspark.streaming, started when the first test asks for it."""
    process = Oracle(tmp_path_factory.mktemp("oracle"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def recording(request: pytest.FixtureRequest) -> Iterator[Recording]:
    """What pyspark.streaming made of the programs when they were recorded."""
    found = Recording(lambda: request.getfixturevalue("oracle"))
    yield found
    if RECORD in os.environ:
        found.save()


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Librdkafka's mock cluster, of one file."""
    from tests.support.kafka_cluster import KafkaCluster  # noqa: PLC0415 - needs its client

    with MockCluster() as mock:
        cluster = KafkaCluster(mock.brokers)
        yield cluster
        cluster.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of one test alone; it is there when it is first written to."""
    return re.sub(r"\W+", "-", request.node.name)


@pytest.fixture
def notebook(active_stopped: None) -> None:
    """What outputs of restarted streams have seen."""
    restarts.seen.clear()
    restarts.failing.clear()
