"""``dstreams kafka``, on checkpoints of streams and queries and on a real broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import Settings, StreamingContext, StreamingListener
from dstreams.cli.main import main
from dstreams.kafka import (
    ConsumerStrategies,
    KafkaUtils,
    LocationStrategies,
    TopicPartition,
    topics,
)
from dstreams.listener import BatchEvent
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import wait_for


class Lags(StreamingListener):
    """The lags of each batch, by topic and partition."""

    def __init__(self) -> None:
        self.seen: list[dict[TopicPartition, int]] = []

    def onBatchCompleted(self, batchCompleted: BatchEvent) -> None:
        (read,) = batchCompleted.batchInfo().streamIdToInputInfo().values()
        self.seen.append(read.metadata()["lag"])


def run_stream(
    sc: SparkContext, kafka: KafkaCluster, topic: str, directory: Path, batches: int
) -> Lags:
    """Run a stream that reads two records of each partition in a batch."""
    lags = Lags()
    clock, settings = ManualClock(), Settings(kafka_max_rate=2)
    ssc = StreamingContext(sc, 1, clock=clock, settings=settings)
    ssc.checkpoint(str(directory))
    ssc.addStreamingListener(lags)
    parameters = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
    strategy = ConsumerStrategies.Subscribe([topic], parameters)
    records = KafkaUtils.createDirectStream(
        ssc, LocationStrategies.PreferConsistent, strategy, uid="clicks"
    )
    records.foreachRDD(lambda rdd: rdd.count())
    try:
        ssc.step(batches)
        wait_for(lambda: len(lags.seen) == batches)
    finally:
        ssc.stop(stopSparkContext=False)
    return lags


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main(["kafka", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_stream(
    sc: SparkContext, kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offsets and lag by partition and in sum; a listener has seen the same lag."""
    topic = kafka.create_topic(2)
    kafka.produce(topic, [str(number) for number in range(7)], 0)
    kafka.produce(topic, ["a"], 1)
    lags = run_stream(sc, kafka, topic, tmp_path, 2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert lags.seen == [{zero: 5, one: 0}, {zero: 3, one: 0}]

    status, answer = shown(capsys, str(tmp_path), "--bootstrap-server", kafka.bootstrap)
    assert status == 0
    assert answer["last_batch_ms"] == 2000
    (found,) = answer["inputs"]
    fields = {"topic": topic, "first": 0, "problem": None}
    assert found == {
        "uid": "clicks",
        "lag": 3,
        "partitions": [
            {**fields, "partition": 0, "committed": 4, "begun": 4, "end": 7, "lag": 3},
            {**fields, "partition": 1, "committed": 1, "begun": 1, "end": 1, "lag": 0},
        ],
    }

    assert main(["kafka", str(tmp_path), "--bootstrap-server", kafka.bootstrap]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["input", "clicks"],
        ["topic", "partition", "committed", "begun", "first", "end", "lag"],
        [topic, "0", "4", "4", "0", "7", "3"],
        [topic, "1", "1", "1", "0", "1", "0"],
        ["total", "lag:", "3"],
    ]


def test_without_brokers(
    sc: SparkContext, kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint's side alone needs no broker and no client."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    run_stream(sc, kafka, topic, tmp_path, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "confluent_kafka", None)
        status, answer = shown(capsys, str(tmp_path))
    assert status == 0
    (found,) = answer["inputs"]
    assert found["lag"] is None
    assert found["partitions"][0]["committed"] == 1


def test_topic_made_again(
    sc: SparkContext, kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic of the same name and another id, and one that is gone, are flagged: status 1."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    run_stream(sc, kafka, topic, tmp_path, 1)
    kafka.delete_topic(topic)
    status, answer = shown(capsys, str(tmp_path), "--bootstrap-server", kafka.bootstrap)
    assert status == 1
    assert answer["inputs"][0]["partitions"][0]["problem"] == "the topic does not exist"
    kafka.create_topic(name=topic)
    assert main(["kafka", str(tmp_path), "--bootstrap-server", kafka.bootstrap]) == 1
    assert "! the topic was deleted and created again: its id was " in capsys.readouterr().out


def test_expired_offsets(
    sc: SparkContext, kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records that are gone before they were read are flagged, by how many they are."""
    topic = kafka.create_topic()
    kafka.produce(topic, [str(number) for number in range(9)])
    run_stream(sc, kafka, topic, tmp_path, 1)
    kafka.delete_records(topic, 6)
    status, answer = shown(capsys, str(tmp_path), "--bootstrap-server", kafka.bootstrap)
    assert status == 1
    (found,) = answer["inputs"][0]["partitions"]
    assert found["problem"] == "4 offsets expired before they were read"


def test_query(
    sc: SparkContext, kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint of a query works too, and a file may have the brokers."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b"])
    session = StreamSession(sc)
    reader = session.readStream.format("kafka").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
    rows = reader.option("startingOffsets", "earliest").load()
    writer = rows.writeStream.format("memory").queryName("q")
    writer = writer.option("checkpointLocation", str(tmp_path / "query"))
    assert writer.trigger(availableNow=True).start().awaitTermination(60)
    session.stop()
    kafka.produce(topic, ["c"])
    config = tmp_path / "client.properties"
    config.write_text(f"# of this test\n\nbootstrap.servers = {kafka.bootstrap}\n")
    status, answer = shown(capsys, str(tmp_path / "query"), "--config", str(config))
    assert status == 0
    (found,) = answer["inputs"]
    assert (found["uid"], found["lag"]) == ("source-0", 1)


def test_no_broker_answers(
    sc: SparkContext,
    kafka: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If no broker answers, the command fails without showing secrets."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    run_stream(sc, kafka, topic, tmp_path, 1)
    config = tmp_path / "client.properties"
    config.write_text("sasl.username=me\nsasl.password=hidden\n")
    words = [str(tmp_path), "--bootstrap-server", "127.0.0.1:9", "--config", str(config)]
    monkeypatch.setattr(topics, "_TIMEOUT_AT_START_S", 1.0)
    assert main(["kafka", *words]) == 1
    error = capsys.readouterr().err
    assert "no broker of 127.0.0.1:9 answers" in error
    assert "hidden" not in error


def test_what_is_not_there(
    sc: SparkContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No directory, no stream, no input of Kafka and no such stream are wrong use: status 2."""
    assert main(["kafka", str(tmp_path / "missing")]) == 2
    assert "is not a directory; give the location of a checkpoint" in capsys.readouterr().err
    assert main(["kafka", str(tmp_path)]) == 2
    assert "holds no stream; is it a checkpoint?" in capsys.readouterr().err
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    ssc.rateStream(1).foreachRDD(lambda rdd: rdd.count())
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert main(["kafka", str(tmp_path)]) == 2
    assert "has no batch that reads Kafka" in capsys.readouterr().err
    assert main(["kafka", str(tmp_path), "--stream", "stream-1-a"]) == 2
    assert "has no stream 'stream-1-a'; it has stream-" in capsys.readouterr().err


def test_bad_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid line is reported by its number, because it may be a secret."""
    config = tmp_path / "client.properties"
    config.write_text("bootstrap.servers=b:9092\nhidden\n")
    assert main(["kafka", str(tmp_path), "--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert f"line 2 of {config} is not a setting; write name=value" in error
    assert "hidden" not in error
    config.write_text("client.id=me\n")
    assert main(["kafka", str(tmp_path), "--config", str(config)]) == 2
    assert "needs bootstrap.servers" in capsys.readouterr().err
