"""Brokers that are away, and topics that are not what they were: waited for, or named."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dstreams import StreamingContext
from dstreams.common.clock import SystemClock
from dstreams.errors import BatchFailedError, SourceError
from dstreams.kafka import ConsumerStrategies, KafkaDStream, KafkaUtils, LocationStrategies, topics
from dstreams.kafka.parameters import KafkaParameters
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import wait_for

MakeContext = Callable[..., StreamingContext]

NOBODY = "127.0.0.1:9"  # the port of discard, where nothing listens


def stream_of(ssc: StreamingContext, bootstrap: str, topic: str, **given: Any) -> KafkaDStream[Any]:
    parameters = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", **given}
    strategy = ConsumerStrategies.Subscribe([topic], parameters)
    return KafkaUtils.createDirectStream(ssc, LocationStrategies.PreferConsistent, strategy)


def values_of(stream: KafkaDStream[Any]) -> list[bytes]:
    """Return the list to which each batch adds its values."""
    found: list[bytes] = []
    values = stream.map(lambda record: record.value)
    values.foreachRDD(lambda rdd: found.extend(rdd.collect()))
    return found


def test_no_broker_at_the_start(ssc: StreamingContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start fails with the address and the reason."""
    pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    monkeypatch.setattr(topics, "_TIMEOUT_AT_START_S", 1.0)
    stream_of(ssc, NOBODY, "clicks").pprint()
    with pytest.raises(SourceError) as raised:
        ssc.step()
    said = str(raised.value)
    assert said.startswith(f"createDirectStream(clicks): no broker of {NOBODY} answers: ")
    assert "Connection refused" in said
    assert "is a broker running there" in said


def test_a_client_that_finds_no_broker_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some failures there is another one, and commits of the first one count as failed."""
    kafka = pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    made: list[Consumer] = []

    class Consumer:
        def __init__(self) -> None:
            self.is_lost, self.is_closed = not made, False
            made.append(self)

        def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
            if self.is_lost:
                raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._DESTROY_BROKER))
            return [kafka.TopicPartition(one.topic, one.partition, 7) for one in asked]

        def commit(self, offsets: list[Any]) -> None:
            pass

        def poll(self, timeout: float) -> None:
            pass

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr(topics.client, "make", lambda *_: Consumer())
    parameters = KafkaParameters.of({"bootstrap.servers": "a:1"}, "test")
    clicks = topics.TopicPartition("clicks", 0)
    asked = topics.Topics(parameters, topics.TopicSelection(("clicks",)), SystemClock(), "test")
    group = topics.Group("g", asked.consumer, "test")
    answers: list[Any] = []
    group.commit({clicks: 3}, lambda *answer: answers.append(answer))
    for _ in range(topics._TRIES_OF_A_CLIENT):
        with pytest.raises(topics.BrokersAwayError, match="_DESTROY_BROKER"):
            asked.offsets({clicks: topics.LATEST})
    assert asked.offsets({clicks: topics.LATEST}) == {clicks: 7}
    assert [one.is_closed for one in made] == [True, False]
    group.answers()
    ((offsets, error),) = answers
    assert (offsets, str(error)) == ({clicks: 3}, "no broker answered")


@pytest.mark.deep
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_broker_that_goes_away(
    ssc: StreamingContext,
    kafka_broker: KafkaBroker,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    """Batches continue without its records; after its return none is lost or repeated."""
    topic = kafka_broker.create_topic()
    found = values_of(stream_of(ssc, kafka_broker.bootstrap, topic))
    kafka_broker.produce(topic, ["a"])
    ssc.step()
    kafka_broker.produce(topic, ["b"])
    if how == "kill":
        kafka_broker.kill()
    else:
        kafka_broker.pause()
    (info,) = ssc.step()
    assert sum(info.records.values()) == 0
    assert found == [b"a"]
    (line,) = [one.getMessage() for one in caplog.records if "answers: " in one.getMessage()]
    assert line.startswith(f"createDirectStream({topic}): no broker of {kafka_broker.bootstrap} ")
    assert line.endswith("; batches run without its records until a broker answers")
    (described,) = info.inputs
    assert f"no broker of {kafka_broker.bootstrap} answers" in described.description
    if how == "kill":
        kafka_broker.start()
    else:
        kafka_broker.resume()
    kafka_broker.produce(topic, ["c"])

    def has_all() -> bool:
        ssc.step()
        return len(found) >= 3

    wait_for(has_all)
    assert found == [b"a", b"b", b"c"]
    assert "its brokers answer again, after " in caplog.text


@pytest.mark.deep
def test_a_broker_that_goes_away_while_tasks_read(
    ssc: StreamingContext, kafka_broker: KafkaBroker
) -> None:
    """Tasks wait until it is back, and have the records of the plan."""
    topic = kafka_broker.create_topic(3)
    for partition in range(3):
        kafka_broker.produce(topic, ["a"] * 1000, partition=partition)
    counts: list[int] = []
    tracker = ssc.sparkContext.statusTracker()

    def start_again() -> None:
        wait_for(tracker.getActiveJobsIds)
        kafka_broker.start()

    def count(rdd: Any) -> None:
        kafka_broker.kill()
        helper = threading.Thread(target=start_again)
        helper.start()
        counts.append(rdd.count())
        helper.join()

    stream_of(ssc, kafka_broker.bootstrap, topic).foreachRDD(count)
    ssc.step()
    assert counts == [3000]


@pytest.mark.deep
def test_a_broker_that_stays_away_while_tasks_read(
    make_ssc: MakeContext, kafka_broker: KafkaBroker
) -> None:
    """The batch fails by topic, partition and offset when its tasks have waited long enough."""
    topic = kafka_broker.create_topic()
    kafka_broker.produce(topic, ["a"])
    ssc = make_ssc(kafka_poll_ms=200)

    def count(rdd: Any) -> None:
        kafka_broker.kill()
        rdd.count()

    stream_of(ssc, kafka_broker.bootstrap, topic).foreachRDD(count)
    with pytest.raises(
        BatchFailedError, match=f"{topic}-0, offsets 0 to 1: no record came for 0.2"
    ):
        ssc.step()


# Topics -------------------------------------------------------------------------------------


def failure(ssc: StreamingContext) -> str:
    with pytest.raises(BatchFailedError) as raised:
        ssc.step()
    return str(raised.value)


def test_a_topic_that_is_not_there(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """The start fails, with its name."""
    stream_of(ssc, kafka.bootstrap, "no-such-topic").pprint()
    with pytest.raises(SourceError, match=r"have no such topic: .*create it, or correct the name"):
        ssc.step()


def test_a_topic_that_is_deleted(ssc: StreamingContext, kafka: KafkaCluster) -> None:
    """The next batch fails, with its name."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    found = values_of(stream_of(ssc, kafka.bootstrap, topic))
    ssc.step()
    kafka.delete_topic(topic)
    assert f"{topic}" in failure(ssc)
    assert found == [b"a"]


@pytest.mark.parametrize("records", [["x"], ["x", "y", "z"]], ids=["shorter", "longer"])
def test_a_topic_that_is_made_again(
    ssc: StreamingContext, kafka: KafkaCluster, records: list[str]
) -> None:
    """The next batch fails and says so, however long the new topic is; none of it is read."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b"])
    found = values_of(stream_of(ssc, kafka.bootstrap, topic))
    ssc.step()
    kafka.delete_topic(topic)
    kafka.create_topic(name=topic)
    kafka.produce(topic, records)
    said = failure(ssc)
    assert f"the topic of {topic}-0 was deleted and made again, read up to 2" in said
    assert found == [b"a", b"b"]


def test_a_topic_that_is_made_again_is_read_if_told_so(
    make_ssc: MakeContext, kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnDataLoss=false the new topic is read from its beginning, and the log says why."""
    ssc = make_ssc(kafka_fail_on_data_loss=False)
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b"])
    found = values_of(stream_of(ssc, kafka.bootstrap, topic))
    ssc.step()
    kafka.delete_topic(topic)
    kafka.create_topic(name=topic)
    kafka.produce(topic, ["x", "y", "z"])
    ssc.step()
    assert found == [b"a", b"b", b"x", b"y", b"z"]
    with caplog.at_level(logging.WARNING):
        assert f"the topic of {topic}-0 was deleted and made again" in caplog.text


@pytest.mark.deep
@pytest.mark.parametrize("made_again", [False, True])
def test_a_topic_that_is_deleted_while_no_driver_runs(
    make_ssc: MakeContext, kafka: KafkaCluster, tmp_path: Any, made_again: bool
) -> None:
    """The restart finds out, by the id of the topic in the checkpoint."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b"])
    ssc = make_ssc()
    ssc.checkpoint(str(tmp_path))
    stream_of(ssc, kafka.bootstrap, topic).pprint()
    ssc.step()
    ssc.stop(stopSparkContext=False)
    kafka.delete_topic(topic)
    if made_again:
        kafka.create_topic(name=topic)
        kafka.produce(topic, ["x", "y", "z"])
    restarted = StreamingContext.getOrCreate(str(tmp_path), make_ssc)
    try:
        said = failure(restarted)
    finally:
        restarted.stop(stopSparkContext=False)
    assert topic in said
    assert ("was deleted and made again, read up to 2" in said) == made_again
