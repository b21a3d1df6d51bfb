"""Queries from topics to topics of a real broker: each record is written once, after any crash."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dstreams.cli.drill import steps as drill
from dstreams.common import faults
from dstreams.errors import InvalidStreamError, OutputConflictError
from dstreams.structured import StreamingQuery, StreamingQueryException, StreamSession
from tests.support.kafka_cluster import KafkaCluster, Sent

STEPS = [step.name for step in drill.STEPS if not (step.function or step.in_restart)]


class Copy:
    """A query that writes what it reads, in capitals, restarted at will."""

    def __init__(
        self, session: StreamSession, kafka: KafkaCluster, checkpoint: Path, **options: Any
    ) -> None:
        self._session = session
        self._brokers = {"kafka.bootstrap.servers": kafka.bootstrap}
        self._checkpoint = str(checkpoint)
        self._options = options
        self.source, self.target = kafka.create_topic(2), kafka.create_topic(3)

    def start(self) -> StreamingQuery:
        reader = self._session.readStream.format("kafka").options(**self._brokers)
        reader = reader.option("subscribe", self.source).option("startingOffsets", "earliest")
        rows = reader.load().map(lambda row: {"key": row.key, "value": row.value.upper()})
        writer = rows.writeStream.format("kafka").options(**self._brokers, **self._options)
        writer = writer.option("topic", self.target).trigger(availableNow=True)
        return writer.option("checkpointLocation", self._checkpoint).start()

    def run(self) -> StreamingQuery:
        query = self.start()
        assert query.awaitTermination(300)
        return query


@pytest.fixture
def copy(session: StreamSession, kafka: KafkaCluster, tmp_path: Path) -> Copy:
    return Copy(session, kafka, tmp_path / "checkpoint")


def values(kafka: KafkaCluster, topic: str) -> list[str]:
    return sorted((found.value or b"").decode() for found in kafka.read(topic))


@pytest.mark.deep
def test_rows_are_written(copy: Copy, kafka: KafkaCluster) -> None:
    """Keys, values, headers and partitions come as they are given; the rows are counted."""
    kafka.produce(copy.source, [Sent("a", "k", 0), Sent("b", None, 1)])
    query = copy.run()
    assert values(kafka, copy.target) == ["A", "B"]
    assert {found.key for found in kafka.read(copy.target)} == {b"k", None}
    assert query.lastProgress is not None
    assert query.recentProgress[0].sink.numOutputRows == 2
    assert query.recentProgress[0].sink.description == f"KafkaSink[{copy.target}]"


@pytest.mark.deep
def test_topics_and_partitions_of_rows(
    session: StreamSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Without the option topic each row names its own."""
    one, other = kafka.create_topic(2), kafka.create_topic(1)

    def row(record: tuple[str, int | None, str]) -> dict[str, Any]:
        topic, partition, value = record
        return {"topic": topic, "partition": partition, "value": value, "headers": [("h", b"1")]}

    records = session.memoryStream()
    writer = records.toDS().map(row).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", kafka.bootstrap)
    query = writer.start(checkpointLocation=tmp_path / "checkpoint")
    records.addAll([(one, 1, "x"), (other, None, "y")])
    query.processAllAvailable()
    query.stop()
    (found,) = kafka.read(one)
    assert (found.partition, found.value, found.headers) == (1, b"x", (("h", b"1"),))
    assert values(kafka, other) == ["y"]


@pytest.mark.deep
def test_bad_records_go_to_another_topic(
    session: StreamSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """With their offsets, and once, although the query dies when both topics are written."""
    source, good, bad = (kafka.create_topic(1) for _ in range(3))
    brokers = {"kafka.bootstrap.servers": kafka.bootstrap}
    rejected = session.sink("kafka", topic=bad, **brokers)

    def run() -> None:
        rows = (
            session.readStream.format("kafka")
            .options(**brokers, subscribe=source, startingOffsets="earliest")
            .load()
            .map(lambda row: str(int(row.value)), onError=rejected)
        )
        writer = rows.writeStream.format("kafka").options(**brokers, topic=good)
        query = writer.trigger(availableNow=True).start(checkpointLocation=tmp_path / "checkpoint")
        query.awaitTermination(300)

    kafka.produce(source, ["1", "x", "2", "y"])
    faults._faults["out.done"] = faults.Fault(None, "raise")
    with pytest.raises(StreamingQueryException, match="fault at"):
        run()
    run()
    assert values(kafka, good) == ["1", "2"]
    letters = [json.loads(value) for value in values(kafka, bad)]
    assert sorted((one["offset"], one["record"][1]) for one in letters) == [
        ([source, 0, 1], "x"),
        ([source, 0, 3], "y"),
    ]


@pytest.mark.deep
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_each_step(
    session: StreamSession, kafka: KafkaCluster, tmp_path: Path, step: str
) -> None:
    """A query that dies at a step of a batch, and resumes, has written each record once."""
    copy = Copy(session, kafka, tmp_path / "checkpoint")
    kafka.produce(copy.source, ["a", "b", "c"])
    copy.run()
    kafka.produce(copy.source, ["d", "e", "f"])
    faults._faults[step] = faults.Fault(None, "raise")
    query = copy.start()
    try:
        query.awaitTermination(300)
    except StreamingQueryException as error:
        assert "fault at" in str(error)  # noqa: PT017
    else:
        faults._faults.pop(step, None)  # of a step that these batches do not have
    kafka.produce(copy.source, ["g"])
    copy.run()
    assert values(kafka, copy.target) == list("ABCDEFG")


@pytest.mark.deep
def test_an_older_copy_of_the_checkpoint(copy: Copy, kafka: KafkaCluster, tmp_path: Path) -> None:
    """It is refused where the topic has what came after it, and nothing is written twice."""
    kafka.produce(copy.source, ["a"])
    copy.run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    kafka.produce(copy.source, ["b"])
    copy.run()
    kafka.produce(copy.source, ["c"])
    copy._checkpoint = str(tmp_path / "older")
    with pytest.raises((StreamingQueryException, OutputConflictError), match="Another history"):
        copy.run()
    assert values(kafka, copy.target) == ["A", "B"]


@pytest.mark.deep
def test_at_least_once(session: StreamSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    """Without transactions records are there as well, and no commits."""
    copy = Copy(session, kafka, tmp_path / "checkpoint", exactlyOnce="false", commitTopic="none")
    kafka.produce(copy.source, ["a", "b"])
    copy.run()
    assert values(kafka, copy.target) == ["A", "B"]


@pytest.mark.deep
def test_counts_are_written(session: StreamSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    """A query with state writes its updates, each once, over a restart."""
    source, target = kafka.create_topic(), kafka.create_topic()
    brokers = {"kafka.bootstrap.servers": kafka.bootstrap}

    def run() -> None:
        reader = session.readStream.format("kafka").options(**brokers, subscribe=source)
        rows = reader.option("startingOffsets", "earliest").load()
        counts = rows.groupByKey(lambda row: row.value).count()
        texts = counts.map(lambda pair: (pair[0], str(pair[1])))
        writer = texts.writeStream.format("kafka").outputMode("update").options(**brokers)
        writer = writer.option("topic", target).option("checkpointLocation", str(tmp_path / "c"))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    kafka.produce(source, ["a", "b", "a"])
    run()
    kafka.produce(source, ["a"])
    run()
    found = Counter((one.key, one.value) for one in kafka.read(target))
    assert found == Counter([(b"a", b"2"), (b"b", b"1"), (b"a", b"3")])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "KafkaSink[t] needs bootstrap.servers"),
        (
            {"kafka.bootstrap.servers": "h:9", "kafka.value.serializer": "x"},
            "KafkaSink[t] has no option 'kafka.value.serializer': keys and values must be bytes",
        ),
        (
            {"kafka.bootstrap.servers": "h:9", "kafka.transactional.id": "x"},
            "KafkaSink[t]: transactional.id cannot be set",
        ),
        ({"kafka.bootstrap.servers": "h:9"}, "KafkaSink[t] needs a checkpoint; set option('che"),
        ({"exactlyOnce": "perhaps"}, "exactlyOnce of a sink is 'perhaps'; use one of true, false"),
    ],
)
def test_options_that_are_refused(
    session: StreamSession, options: dict[str, str], reason: str
) -> None:
    """A sink that cannot be is refused at start, with what to do."""
    rows = session.memoryStream().toDS()
    with pytest.raises(InvalidStreamError) as error:
        rows.writeStream.format("kafka").option("topic", "t").options(**options).start()
    assert str(error.value).startswith(reason)


def test_options_of_kafka_are_of_no_other_sink(session: StreamSession) -> None:
    """One that has no effect is refused."""
    writer = session.memoryStream().toDS().writeStream.format("noop")
    with pytest.raises(
        InvalidStreamError, match="the sink noop has no option 'topic'; only the sink kafka"
    ):
        writer.option("topic", "t").start()
