"""The broker that tests of Kafka use, and what they do with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


def test_records_are_read_as_they_were_produced(kafka: KafkaCluster) -> None:
    """Keys, values, nulls, headers, times and partitions are those of what was sent."""
    topic = kafka.create_topic(partitions=2)
    headers = (("trace", b"1"), ("empty", None))
    sent = [
        Sent("v0", key="k0", partition=1, headers=headers, timestamp_ms=1_700_000_000_000),
        Sent(None, key=b"k1", partition=1),
        Sent("v2", partition=0),
    ]
    assert kafka.produce(topic, sent) == [(1, 0), (1, 1), (0, 0)]
    last, first, second = kafka.read(topic)
    assert (first.key, first.value, first.headers) == (b"k0", b"v0", headers)
    assert first.timestamp_ms == 1_700_000_000_000
    assert (second.key, second.value, second.headers) == (b"k1", None, ())
    assert (last.partition, last.key, last.value) == (0, None, b"v2")


@pytest.mark.deep
def test_aborted_records_are_not_read(kafka: KafkaCluster) -> None:
    """Who reads what is committed sees no aborted record, and ends before an open transaction."""
    topic = kafka.create_topic()
    kafka.produce_committed(topic, ["a", "b"])
    kafka.produce_aborted(topic, ["c"])
    assert kafka.values(topic) == [b"a", b"b"]
    with kafka.transaction(topic, ["d"]) as producer:
        assert kafka.values(topic) == [b"a", b"b"]
        assert kafka.values(topic, "read_uncommitted") == [b"a", b"b", b"c", b"d"]
        producer.commit_transaction()
    # The broker ends a transaction after it has answered.
    wait_for(lambda: kafka.values(topic) == [b"a", b"b", b"d"])
    assert kafka.end_offsets(topic) == {0: 7}  # each transaction ends with a marker


def test_offsets_of_groups_and_of_logs(kafka: KafkaCluster) -> None:
    """Groups have offsets of their own; records that expire take the begin of the log along."""
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, ["a", "b", "c"], partition=1)
    kafka.commit("readers", topic, {1: 2})
    assert kafka.committed("readers", topic) == {1: 2}
    kafka.delete_records(topic, before=2, partition=1)
    assert kafka.begin_offsets(topic) == {0: 0, 1: 2}
    assert kafka.end_offsets(topic) == {0: 0, 1: 3}
    assert kafka.values(topic) == [b"c"]


def test_topics_grow_and_go(kafka: KafkaCluster) -> None:
    """Partitions are added; a topic that is deleted and made again begins at 0."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["old"])
    kafka.add_partitions(topic, 3)
    assert kafka.partitions(topic) == [0, 1, 2]
    kafka.delete_topic(topic)
    kafka.create_topic(name=topic)
    assert kafka.end_offsets(topic) == {0: 0}


@pytest.mark.deep
def test_restarts_keep_what_there_was(kafka_broker: KafkaBroker) -> None:
    """Port and records are the same after a stop, after a kill, and after a pause."""
    broker = kafka_broker
    topic = broker.create_topic()
    address = broker.bootstrap
    broker.produce(topic, ["a"])
    broker.restart()
    broker.produce(topic, ["b"])
    broker.kill()
    assert not broker.is_up(seconds=0.2)
    broker.start()
    broker.produce(topic, ["c"])
    broker.pause()
    wait_for(lambda: not broker.is_up(seconds=0.2))  # an answer may be under way
    broker.resume()
    wait_for(broker.is_up)
    assert broker.values(topic) == [b"a", b"b", b"c"]
    assert broker.bootstrap == address


_USER = """
import sys
from pathlib import Path
from tests.support.kafka_broker import KafkaBroker
broker = KafkaBroker(Path(sys.argv[1]))
broker.start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.deep
@pytest.mark.usefixtures("kafka")  # skips without parts
def test_it_ends_with_its_user(tmp_path: Path) -> None:
    """A broker does not outlive the process that started it, also where that one is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _USER, str(tmp_path / "kafka")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as user:
        assert user.stdout is not None
        started = psutil.Process(int(user.stdout.readline()))
        assert started.is_running()
        user.send_signal(signal.SIGKILL)
    wait_for(lambda: not started.is_running())
