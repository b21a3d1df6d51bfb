"""Queries on topics of a real broker: rows, where they begin, how much a batch has, restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dstreams.common.durations import batch_datetime
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.kafka import topics as topics_of_inputs
from dstreams.kafka.decoding import KafkaRow, KafkaRowWithHeaders
from dstreams.structured import StreamingQuery, StreamingQueryException, StreamSession
from dstreams.testing import ManualClock
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.kafka_broker import KafkaBroker

TIME_MS = 1_700_000_000_000


class TopicRun:
    """A query from Kafka into a memory sink, restarted at will."""

    def __init__(
        self, session: StreamSession, kafka: KafkaCluster, checkpoint: Path, **options: Any
    ) -> None:
        self.session = session
        self._kafka = kafka
        self._checkpoint = str(checkpoint)
        self.options = {"startingOffsets": "earliest", **options}

    def start(self, make: Callable[..., Any] | None = None, **trigger: Any) -> StreamingQuery:
        reader = self.session.readStream.format("kafka").options(**self.options)
        rows = reader.option("kafka.bootstrap.servers", self._kafka.bootstrap).load()
        writer = (rows if make is None else make(rows)).writeStream.format("memory")
        writer = writer.queryName("run").option("checkpointLocation", self._checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def values(self) -> list[list[bytes | None]]:
        """Values of each batch, sorted."""
        batches = self.session.tableBatches("run")
        return [
            sorted((row.value for row in rows), key=repr) for _, rows in sorted(batches.items())
        ]

    def run(self, **trigger: Any) -> StreamingQuery:
        """Let a run process what there is."""
        query = self.start(**(trigger or {"availableNow": True}))
        assert query.awaitTermination(300)
        return query


@pytest.fixture
def run(session: StreamSession, kafka: KafkaCluster, tmp_path: Path) -> Callable[..., TopicRun]:
    """Make runs on one checkpoint."""
    return lambda **options: TopicRun(session, kafka, tmp_path / "checkpoint", **options)


def test_rows(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """A row has Spark's fields, and headers on request; nulls are None."""
    topic = kafka.create_topic()
    sent = Sent("v", "k", 0, (("a", b"1"), ("a", None)), TIME_MS + 123)
    kafka.produce(topic, [sent, Sent(None, None, 0, (), TIME_MS)])
    topics = run(subscribe=topic, includeHeaders="true")
    topics.run()
    moment = batch_datetime(TIME_MS)
    assert topics.session.table("run") == [
        KafkaRowWithHeaders(
            b"k", b"v", topic, 0, 0, moment.replace(microsecond=123_000), 0,
            (("a", b"1"), ("a", None)),
        ),
        KafkaRowWithHeaders(None, None, topic, 0, 1, moment, 0, None),
    ]  # fmt: skip
    assert KafkaRow._fields == (
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
    )  # fmt: skip
    assert KafkaRowWithHeaders._fields == (*KafkaRow._fields, "headers")


def test_progress(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """Offsets are reported as in Spark, with the lag of the query."""
    topic = kafka.create_topic(2)
    kafka.produce(topic, ["a", "b", "c"], partition=0)
    kafka.produce(topic, ["x"], partition=1)
    topics = run(subscribe=topic, maxOffsetsPerTrigger=2)
    query = topics.run()
    first, second, *_ = [progress.sources[0] for progress in query.recentProgress]
    assert first.description == f"KafkaV2[Subscribe[{topic}]]"
    assert first.startOffset == {topic: {"0": 0, "1": 0}}
    assert first.endOffset == second.startOffset == {topic: {"0": 1, "1": 1}}
    assert first.latestOffset == {topic: {"0": 3, "1": 1}}
    assert first.metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "2",
        "avgOffsetsBehindLatest": "1.0",
    }
    assert first.numInputRows == 2
    assert second.endOffset == second.latestOffset == {topic: {"0": 3, "1": 1}}
    assert json.loads(first.json)["endOffset"] == {topic: {"0": 1, "1": 1}}


def test_a_restart_goes_on(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """Each record is in one batch, over restarts; what there was is read before what came since."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b"])
    topics = run(subscribe=topic)
    topics.run()
    kafka.produce(topic, ["c"])
    topics.run()
    topics.run()
    assert topics.values() == [[b"a", b"b"], [b"c"]]


def test_latest_is_kept(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """The end at the first start is where a restart begins, though no record was there to read."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["old"])
    topics = run(subscribe=topic, startingOffsets="latest")
    topics.run()
    kafka.produce(topic, ["new"])
    topics.run()
    assert [row.value for row in topics.session.table("run")] == [b"new"]


def test_offsets_as_json(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """Each partition begins where it is said, at its end (-1) or its beginning (-2)."""
    topic = kafka.create_topic(3)
    for partition in range(3):
        kafka.produce(topic, [f"{partition}-{number}" for number in range(3)], partition)
    offsets = json.dumps({topic: {"0": 1, "1": -1, "2": -2}})
    topics = run(subscribe=topic, startingOffsets=offsets)
    topics.run()
    assert topics.values() == [[b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"]]


@pytest.mark.parametrize("by", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_beginning_at_a_time(run: Callable[..., TopicRun], kafka: KafkaCluster, by: str) -> None:
    """The first record of that time or later is the first that is read."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Sent(f"{second}", None, 0, (), TIME_MS + second) for second in range(4)])
    time = TIME_MS + 2
    said = time if by == "startingTimestamp" else json.dumps({topic: {"0": time}})
    topics = run(subscribe=topic, **{by: said})
    topics.run()
    assert topics.values() == [[b"2", b"3"]]


def test_a_time_that_no_record_has(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """It is an error, or the end of the partition."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Sent("old", None, 0, (), TIME_MS)])
    topics = run(subscribe=topic, startingTimestamp=TIME_MS + 1)
    with pytest.raises(SourceError) as error:
        topics.start()
    assert str(error.value) == (
        f"startingTimestamp of source kafka: {topic}-0 has no record of the time {TIME_MS + 1} ms "
        "or later; give an earlier one, or startingOffsetsByTimestampStrategy=latest to begin at "
        "its end"
    )
    topics.options["startingOffsetsByTimestampStrategy"] = "latest"
    topics.run()
    kafka.produce(topic, ["new"])
    topics.run()
    assert [row.value for row in topics.session.table("run")] == [b"new"]


def test_partitions_that_are_not_named(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """Offsets have to name each partition, or a start would pass over some."""
    topic = kafka.create_topic(2)
    topics = run(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 0}}))
    with pytest.raises(SourceError) as error:
        topics.start()
    assert str(error.value) == (
        f"startingOffsets of source kafka has {topic}-0, and the topics have {topic}-0, {topic}-1; "
        "name each partition; -1 is its end and -2 its beginning"
    )


def test_offsets_that_are_not_there(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """They are lost data: an error, or the beginning of the partition."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    topics = run(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 7}}))
    with pytest.raises(SourceError, match=f"{topic}-0 has offsets 0 to 1, and startingOffsets sa"):
        topics.start()
    topics.options["failOnDataLoss"] = "false"
    topics.run()
    assert topics.values() == [[b"a"]]


def test_added_partitions(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """They are read from their beginning, though the query began at the end of the others."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["old"])
    topics = run(subscribe=topic, startingOffsets="latest")
    topics.run()
    kafka.add_partitions(topic, 2)
    kafka.produce(topic, ["first of the second"], partition=1)
    topics.run()
    assert [row.value for row in topics.session.table("run")] == [b"first of the second"]


def test_topics_by_pattern_and_partitions_by_name(
    run: Callable[..., TopicRun], kafka: KafkaCluster
) -> None:
    """subscribePattern has whole names, assign some partitions."""
    topic = kafka.create_topic(2)
    other = kafka.create_topic(name=f"{topic}-other")
    kafka.produce(topic, ["zero"], partition=0)
    kafka.produce(topic, ["one"], partition=1)
    kafka.produce(other, ["other"])
    read = run().session.read
    reader = read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    by_pattern = reader.option("subscribePattern", f"{topic}(-other)?").load()
    assert sorted(row.value for row in by_pattern.collect()) == [b"one", b"other", b"zero"]
    assigned = reader.option("assign", json.dumps({topic: [1]})).load()
    assert [row.value for row in assigned.collect()] == [b"one"]


def test_at_most_so_many_in_a_batch(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """They are shared by what partitions have; a run that ends by itself makes several batches."""
    topic = kafka.create_topic(2)
    kafka.produce(topic, ["a", "b", "c", "d", "e"], partition=0)
    kafka.produce(topic, ["x"], partition=1)
    topics = run(subscribe=topic, maxOffsetsPerTrigger="3")
    topics.run()
    assert topics.values() == [[b"a", b"b", b"x"], [b"c", b"d", b"e"]]


def test_once_has_all_in_one_batch(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """Limits are for triggers that come again."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b", "c"])
    topics = run(subscribe=topic, maxOffsetsPerTrigger="1")
    topics.run(once=True)
    assert topics.values() == [[b"a", b"b", b"c"]]


def test_a_batch_waits_for_records(
    run: Callable[..., TopicRun], kafka: KafkaCluster, clock: ManualClock
) -> None:
    """With minOffsetsPerTrigger a batch comes when it is worth it, or the delay has passed."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    topics = run(subscribe=topic, minOffsetsPerTrigger=3, maxTriggerDelay="1 minute")
    query = topics.start()
    query.processAllAvailable()
    kafka.produce(topic, ["b"])
    query.processAllAvailable()
    assert topics.values() == [[b"a"]]
    kafka.produce(topic, ["c", "d"])
    query.processAllAvailable()
    assert topics.values()[1:] == [[b"b", b"c", b"d"]]
    kafka.produce(topic, ["e"])
    query.processAllAvailable()
    assert len(topics.values()) == 2
    clock.advance(60_000)
    query.processAllAvailable()
    assert topics.values()[2:] == [[b"e"]]
    query.stop()


def test_a_run_that_ends_waits_for_nothing(
    run: Callable[..., TopicRun], kafka: KafkaCluster
) -> None:
    """Available records are read, however few, because no more may arrive."""
    topic = kafka.create_topic()
    topics = run(subscribe=topic, minOffsetsPerTrigger=100)
    for value in ("a", "b"):
        kafka.produce(topic, [value])
        topics.run()
    assert topics.values() == [[b"a"], [b"b"]]


def test_records_that_were_deleted(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """Records that were deleted before they were read fail the query, or are passed over."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    topics = run(subscribe=topic)
    topics.run()
    kafka.produce(topic, ["b", "c"])
    kafka.delete_records(topic, 2)
    with pytest.raises(StreamingQueryException, match=f"{topic}-0 begins at 2 and was read up to"):
        topics.run()
    topics.options["failOnDataLoss"] = "false"
    topics.run()
    assert topics.values() == [[b"a"], [b"c"]]


def test_committed_records_only(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """kafka.isolation.level applies to the consumers; transaction markers are not rows."""
    topic = kafka.create_topic()
    kafka.produce_committed(topic, ["a"])
    kafka.produce_aborted(topic, ["no"])
    kafka.produce_committed(topic, ["b"])
    options = {"kafka.isolation.level": "read_committed"}
    topics = run(subscribe=topic, **options)
    query = topics.run()
    assert topics.values() == [[b"a", b"b"]]
    assert query.recentProgress[0].numInputRows == 2


def test_event_times(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """The timestamp of a record is an event time like that of other sources."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Sent("a", None, 0, (), TIME_MS + ms) for ms in (0, 5_000, 60_000)])
    topics = run(subscribe=topic)
    query = topics.start(lambda rows: rows.withWatermark("timestamp", "10 seconds"))
    query.processAllAvailable()
    assert query.recentProgress[0].eventTime["max"] == "2023-11-14T22:14:20.000Z"
    query.stop()


def test_a_batch_read(session: StreamSession, kafka: KafkaCluster) -> None:
    """read has what is there between two offsets."""
    topic = kafka.create_topic(2)
    kafka.produce(topic, ["a", "b", "c"], partition=0)
    kafka.produce(topic, [Sent("x", None, 1, (), TIME_MS), Sent("y", None, 1, (), TIME_MS + 5)])
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("subscribe", topic)
    assert sorted(row.value for row in reader.load().collect()) == [b"a", b"b", b"c", b"x", b"y"]
    some = reader.options(
        startingOffsets={topic: {"0": 1, "1": -2}}, endingOffsets={topic: {"0": 2, "1": -1}}
    )
    assert sorted(row.value for row in some.load().collect()) == [b"b", b"x", b"y"]
    timed = reader.options(
        startingOffsets={topic: {"0": -2, "1": -2}},
        endingOffsetsByTimestamp={topic: {"0": TIME_MS, "1": TIME_MS + 5}},
    )
    assert sorted(row.value for row in timed.load().collect()) == [b"x"]
    assert reader.option("minPartitions", 4).load().rdd.getNumPartitions() >= 4


def test_a_topic_that_is_made_again(run: Callable[..., TopicRun], kafka: KafkaCluster) -> None:
    """It is another topic: its records are not taken for what comes after those of the first."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a"])
    topics = run(subscribe=topic)
    topics.run()
    kafka.delete_topic(topic)
    kafka.create_topic(name=topic)
    kafka.produce(topic, ["x", "y"])
    with pytest.raises(StreamingQueryException, match="was deleted and made again, read up to 1"):
        topics.run()
    topics.options["failOnDataLoss"] = "false"
    topics.run()
    assert topics.values() == [[b"a"], [b"x", b"y"]]


@pytest.mark.deep
def test_a_broker_that_goes_away(
    session: StreamSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """A running query continues when its broker is back; one that ends by itself fails."""
    topic = kafka_broker.create_topic()
    kafka_broker.produce(topic, ["a"])
    topics = TopicRun(session, kafka_broker, tmp_path / "checkpoint", subscribe=topic)
    query = topics.start()
    query.processAllAvailable()
    kafka_broker.stop()
    query.processAllAvailable()
    kafka_broker.start()
    kafka_broker.produce(topic, ["b"])
    wait_for(lambda: len(session.table("run")) == 2 or query.exception() is not None)
    query.stop()
    assert topics.values() == [[b"a"], [b"b"]]


def test_no_broker(run: Callable[..., TopicRun], monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without a reachable broker does not start, and the error names the broker."""
    monkeypatch.setattr(topics_of_inputs, "_TIMEOUT_AT_START_S", 1.0)
    topics = run(subscribe="t")
    topics._kafka = KafkaCluster("127.0.0.1:9")
    with pytest.raises(SourceError, match=r"source kafka\(t\): no broker of 127.0.0.1:9 answers"):
        topics.start()


def test_a_topic_that_there_is_not(run: Callable[..., TopicRun]) -> None:
    """It is an error at the start."""
    with pytest.raises(SourceError, match="have no such topic"):
        run(subscribe="there-is-no-such-topic").start()


def test_the_source_is_refused_without_options(session: StreamSession) -> None:
    """load says what is missing."""
    with pytest.raises(InvalidStreamError, match=r"needs option 'kafka.bootstrap.servers'"):
        session.readStream.format("kafka").option("subscribe", "t").load()
