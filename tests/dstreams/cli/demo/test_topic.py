"""The topic of the demo, on a real broker and on the mock cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext

from dstreams.cli.demo.brokers import DemoBrokers
from dstreams.cli.demo.counts_topic import CountsTopic
from dstreams.cli.demo.mock_cluster import PARTITIONS, MockCluster
from dstreams.cli.demo.report import BatchProgress
from dstreams.cli.demo.text import END_WORD, count_words
from dstreams.cli.demo.topic import TextTopic
from dstreams.cli.demo.word_count import StreamedCount
from dstreams.common.clock import SystemClock
from dstreams.errors import EnvironmentNotReadyError
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.waiting import wait_for

LINES = b"".join(b"to be or not %d\n\n" % number for number in range(1000))
TEXT = LINES + f"{END_WORD}\n".encode() * PARTITIONS


def brokers_of(kafka: KafkaCluster) -> DemoBrokers:
    return DemoBrokers({"bootstrap.servers": kafka.bootstrap})


def test_topic_of_its_own(kafka: KafkaCluster) -> None:
    """On a broker the topic is made for the demo, has the lines in order, and is deleted."""
    with TextTopic(TEXT, brokers_of(kafka)) as topic:
        wait_for(lambda: sum(kafka.end_offsets(topic.name).values()) == TEXT.count(b"\n"))
        found = kafka.read(topic.name)
        assert topic.sent_bytes == len(TEXT)
        assert topic.lag() == TEXT.count(b"\n")
        assert topic.name in kafka.admin.list_topics(timeout=10).topics
    lines = TEXT.split(b"\n")[:-1]
    for partition in range(PARTITIONS):
        sent = [record.value for record in found if record.partition == partition]
        assert sent == lines[partition::PARTITIONS]
        assert sent[-1] == END_WORD.encode()
    assert topic.name not in kafka.admin.list_topics(timeout=10).topics


def test_counts_every_word(sc: SparkContext, kafka: KafkaCluster, tmp_path: Path) -> None:
    """Words that go through a broker are counted, and at the end no record waits."""
    told: list[BatchProgress] = []
    with TextTopic(TEXT, brokers_of(kafka)) as topic:
        count = StreamedCount(sc, topic, str(tmp_path), told.append, SystemClock())
        assert count.run(120) == count_words(TEXT)
    assert told[-1].lag == 0
    assert told[-1].summary.end_words == PARTITIONS


def test_writes_every_word_once(sc: SparkContext, kafka: KafkaCluster, tmp_path: Path) -> None:
    """The topic of the counts has each word once; it and its commits are deleted at the end."""
    told: list[BatchProgress] = []
    brokers = brokers_of(kafka)
    with TextTopic(TEXT, brokers) as topic, CountsTopic(brokers) as written:
        count = StreamedCount(sc, topic, str(tmp_path), told.append, SystemClock(), written)
        assert count.run(120) == count_words(TEXT)
        made = {written.name, f"{written.name}-commits"}
        assert made <= kafka.admin.list_topics(timeout=10).topics.keys()
        assert written.sums() == count_words(TEXT)
        kafka.produce(written.name, [Sent("1", key="to")])
        assert written.sums()["to"] == count_words(TEXT)["to"] + 1
    wait_for(lambda: not made & kafka.admin.list_topics(timeout=10).topics.keys())


def test_mock_cluster_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mock cluster would forget is sent when batches have read what is there."""
    monkeypatch.setattr("dstreams.cli.demo.topic._MOST_UNREAD", 100)
    with MockCluster() as cluster:
        mock = DemoBrokers({"bootstrap.servers": cluster.brokers}, is_mock=True)
        with TextTopic(TEXT, mock) as topic:
            sent = KafkaCluster(cluster.brokers)
            wait_for(lambda: topic.lag() == 100)
            topic._read[0] = 50
            wait_for(lambda: sum(sent.end_offsets(topic.name).values()) == 150)
            assert topic.lag() == 100


def test_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker the error says where none has answered, and what to do."""
    monkeypatch.setattr("dstreams.cli.demo.brokers._ANSWER_S", 1.0)
    with pytest.raises(EnvironmentNotReadyError, match=r"127.0.0.1:9 do not answer.*is up"):
        TextTopic(TEXT, DemoBrokers({"bootstrap.servers": "127.0.0.1:9"}))
