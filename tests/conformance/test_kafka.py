"""Streams and RDDs of Kafka: what programs see, on librdkafka's mock cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import SparkContext, TaskContext

from dstreams import Settings, StreamingContext, StreamingListener
from dstreams.cli.demo import PARTITIONS
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.kafka import (
    ConsumerRecord,
    ConsumerStrategies,
    KafkaUtils,
    LocationStrategies,
    OffsetRange,
    PerPartitionConfig,
    TopicPartition,
)
from dstreams.testing import ManualClock
from tests.conformance.kafka_streams import parameters, stream_of, value_of
from tests.support.kafka_cluster import KafkaCluster, Sent

MakeContext = Callable[..., StreamingContext]
Subscribe = ConsumerStrategies.Subscribe


@pytest.fixture
def make_ssc(sc: SparkContext) -> Iterator[MakeContext]:
    """Make contexts of batches of a second from zero on, and stop them when the test ends."""
    contexts: list[StreamingContext] = []

    def make(**settings: Any) -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(**settings))
        contexts.append(ssc)
        return ssc

    yield make
    for ssc in contexts:
        ssc.stop(stopSparkContext=False)


def collected(stream: Any) -> list[list[Any]]:
    """The sorted records of each batch, as they come."""
    seen: list[list[Any]] = []
    stream.foreachRDD(lambda rdd: seen.append(sorted(rdd.collect())))
    return seen


def numbers(first: int, count: int) -> list[str]:
    return [f"{number:04}" for number in range(first, first + count)]


def test_an_rdd(sc: SparkContext, cluster: KafkaCluster, topic: str) -> None:
    """Each record of the ranges has all that was sent: nulls, headers, times, places."""
    headers = (("trace", b"1"), ("trace", None))
    cluster.produce(
        topic,
        [
            Sent("left out", partition=0),
            Sent("v", key="k", partition=0, headers=headers, timestamp_ms=1_700_000_000_000),
            Sent(None, key="gone", partition=0, timestamp_ms=1),
            Sent("", partition=2, timestamp_ms=2),
        ],
    )
    ranges = [
        OffsetRange(topic, 2, 0, 0),
        OffsetRange(topic, 0, 1, 3),
        OffsetRange.create(topic, 2, 0, 1),
        OffsetRange(topic, 1, 0, 0),
    ]
    rdd = KafkaUtils.createRDD(sc, parameters(cluster), ranges, LocationStrategies.PreferConsistent)
    assert rdd.offsetRanges == ranges
    assert rdd.glom().collect() == [
        [],
        [
            ConsumerRecord(topic, 0, 1, 1_700_000_000_000, 0, headers, b"k", b"v"),
            ConsumerRecord(topic, 0, 2, 1, 0, (), b"gone", None),
        ],
        [ConsumerRecord(topic, 2, 0, 2, 0, (), None, b"")],
    ]
    assert rdd.filter(lambda record: record.key is not None).count() == 2
    nothing = KafkaUtils.createRDD(sc, parameters(cluster), [], LocationStrategies.PreferConsistent)
    assert nothing.collect() == []


def test_an_rdd_of_what_is_none(sc: SparkContext, cluster: KafkaCluster) -> None:
    """Ranges are ranges, and parameters say where the brokers are."""
    where = LocationStrategies.PreferConsistent
    with pytest.raises(InvalidStreamError, match="createRDD takes OffsetRange values, got"):
        KafkaUtils.createRDD(sc, parameters(cluster), [("t", 0, 0, 1)], where)  # type: ignore[list-item]
    with pytest.raises(InvalidStreamError, match=r"needs bootstrap\.servers"):
        KafkaUtils.createRDD(sc, {}, [], where)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["t"],), "createDirectStream takes one of ConsumerStrategies, such as Subscribe, got"),
        (
            (Subscribe("t", {"bootstrap.servers": "b"}), 5),
            "takes a dstreams.kafka.PerPartitionConf",
        ),
    ],
)
def test_a_stream_of_what_is_none(
    make_ssc: MakeContext, arguments: tuple[Any, ...], message: str
) -> None:
    """Strategies and limits are of their kinds."""
    with pytest.raises(InvalidStreamError, match=message):
        stream_of(make_ssc(), *arguments)


@pytest.mark.deep
def test_topics(make_ssc: MakeContext, cluster: KafkaCluster, topic: str) -> None:
    """Several of them, batch by batch, each record once; a batch without any is an empty one."""
    ssc = make_ssc()
    other = f"{topic}-2"
    cluster.produce(topic, numbers(0, 20))
    cluster.produce(other, numbers(100, 20))
    seen = collected(stream_of(ssc, Subscribe([topic, other], parameters(cluster))).map(value_of))
    ssc.step()
    cluster.produce(other, numbers(200, 5), partition=3)
    ssc.step(2)
    assert seen == [numbers(0, 20) + numbers(100, 20), numbers(200, 5), []]


def test_records_after_the_start(make_ssc: MakeContext, cluster: KafkaCluster, topic: str) -> None:
    """By default a stream begins with what comes after its start."""
    cluster.produce(topic, ["old"])
    ssc = make_ssc()
    given = {"bootstrap.servers": cluster.bootstrap}
    seen = collected(stream_of(ssc, Subscribe(topic, given)).map(value_of))
    ssc.step()
    cluster.produce(topic, ["new"])
    ssc.step()
    assert seen == [[], ["new"]]


def test_a_pattern(make_ssc: MakeContext, cluster: KafkaCluster, topic: str) -> None:
    """A topic that is made later is found within some seconds, and read from its beginning."""
    ssc = make_ssc()
    given = {"bootstrap.servers": cluster.bootstrap}  # also where others begin with the latest
    strategy = ConsumerStrategies.SubscribePattern(rf"{topic}-\d", given)
    seen = collected(stream_of(ssc, strategy).map(value_of))
    cluster.produce(f"{topic}-x", ["of another"])
    ssc.step()
    cluster.produce(f"{topic}-1", ["a", "b"])
    ssc.step()
    ssc._clock.advance(6000)  # type: ignore[attr-defined]
    ssc.step()
    cluster.produce(f"{topic}-1", ["c"])
    ssc.step()
    assert [batch for batch in seen if batch] == [["a", "b"], ["c"]]


def test_assigned_partitions(make_ssc: MakeContext, cluster: KafkaCluster, topic: str) -> None:
    """Some partitions, from given offsets on."""
    for partition in range(PARTITIONS):
        cluster.produce(topic, numbers(100 * partition, 5), partition=partition)
    ssc = make_ssc()
    places = [TopicPartition(topic, 0), (topic, 2)]
    offsets = {TopicPartition(topic, 2): 3}
    strategy = ConsumerStrategies.Assign(places, parameters(cluster), offsets)
    seen = collected(stream_of(ssc, strategy).map(value_of))
    ssc.step()
    assert seen == [numbers(0, 5) + numbers(203, 2)]


def own_range(ranges: list[OffsetRange]) -> Callable[[Any], list[Any]]:
    def check(records: Any) -> list[Any]:
        mine = ranges[TaskContext.get().partitionId()]  # type: ignore[union-attr]
        offsets = [(record.topic, record.partition, record.offset) for record in records]
        expected = range(mine.fromOffset, mine.untilOffset)
        return [(offsets == [(mine.topic, mine.partition, at) for at in expected], len(offsets))]

    return check


@pytest.mark.deep
@pytest.mark.parametrize(("least", "sizes"), [(None, [5, 30]), (7, [5, 5, 5, 5, 5, 5, 5])])
def test_ranges_of_tasks(
    make_ssc: MakeContext, cluster: KafkaCluster, topic: str, least: int | None, sizes: list[int]
) -> None:
    """A task finds its range by the number of its partition, also where ranges are cut."""
    cluster.produce(topic, numbers(0, 5), partition=1)
    cluster.produce(topic, numbers(0, 30), partition=3)
    ssc = make_ssc()
    stream = stream_of(ssc, Subscribe(topic, parameters(cluster)), minPartitions=least)
    seen: list[Any] = []

    def look(rdd: Any) -> None:
        seen.append(rdd.mapPartitions(own_range(rdd.offsetRanges)).collect())

    stream.foreachRDD(look)
    ssc.step(2)
    assert seen == [[(True, size) for size in sizes], []]


def test_transform_knows_ranges(make_ssc: MakeContext, cluster: KafkaCluster, topic: str) -> None:
    """As in Scala: the RDDs that transform of the stream itself gets."""
    cluster.produce(topic, numbers(0, 3), partition=1)
    ssc = make_ssc()
    ranges: list[OffsetRange] = []

    def note(rdd: Any) -> Any:
        ranges.extend(one for one in rdd.offsetRanges if one.count())
        return rdd.map(value_of)

    stream = stream_of(ssc, Subscribe(topic, parameters(cluster)))
    seen = collected(stream.transform(note))
    ssc.step()
    assert (seen, ranges) == ([numbers(0, 3)], [OffsetRange(topic, 1, 0, 3)])


@pytest.mark.deep
def test_tasks_that_end_early(make_ssc: MakeContext, cluster: KafkaCluster, topic: str) -> None:
    """What take and first leave unread disturbs neither the next job nor the next batch."""
    for partition in range(PARTITIONS):
        cluster.produce(topic, numbers(20_000 * partition, 20_000), partition=partition)
    ssc = make_ssc(kafka_max_rate=15_000)
    stream = stream_of(ssc, Subscribe(topic, parameters(cluster))).map(value_of)
    seen: list[Any] = []
    stream.foreachRDD(lambda rdd: seen.append((rdd.first(), rdd.take(2), rdd.count())))
    ssc.step(2)
    assert seen == [
        ("0000", ["0000", "0001"], 60_000),
        ("15000", ["15000", "15001"], 20_000),
    ]


@pytest.mark.deep
def test_two_streams(make_ssc: MakeContext, cluster: KafkaCluster, topic: str) -> None:
    """Of one topic and of another, in the same workers, and their union: each has its own."""
    other = f"{topic}-2"
    cluster.produce(topic, numbers(0, 50))
    cluster.produce(other, numbers(100, 50))
    ssc = make_ssc(kafka_max_rate=10)
    first = stream_of(ssc, Subscribe(topic, parameters(cluster))).map(value_of)
    second = stream_of(ssc, Subscribe(other, parameters(cluster))).map(value_of)
    again = stream_of(ssc, Subscribe(topic, parameters(cluster)), minPartitions=8).map(value_of)
    seen, both = collected(first), collected(first.union(second).union(again))
    ssc.step(5)
    assert sorted(itertools.chain(*seen)) == numbers(0, 50)
    assert sorted(itertools.chain(*both)) == sorted(numbers(0, 50) * 2 + numbers(100, 50))


@pytest.mark.deep
def test_a_window(make_ssc: MakeContext, cluster: KafkaCluster, topic: str) -> None:
    """Batches of a window are there again, kept in memory or read again."""
    for persists in (False, True):
        name = f"{topic}-{persists}"
        ssc = make_ssc()
        cluster.produce(name, ["a"])
        stream = stream_of(ssc, Subscribe(name, parameters(cluster))).map(value_of)
        seen = collected(stream.cache().window(2) if persists else stream.window(2))
        for letter in "bcd":
            ssc.step()
            cluster.produce(name, [letter])
        assert seen == [["a"], ["a", "b"], ["b", "c"]]
        ssc.stop(stopSparkContext=False)


class OfFirst(PerPartitionConfig):
    """Limits the first partition."""

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return 2 if topicPartition.partition == 0 else 7


def sizes_of(stream: Any) -> list[dict[int, int]]:
    """How many records each batch has of each partition."""
    seen: list[dict[int, int]] = []
    partition = lambda record: record.partition  # noqa: E731
    stream.map(partition).countByValue().foreachRDD(lambda rdd: seen.append(dict(rdd.collect())))
    return seen


@pytest.mark.deep
@pytest.mark.parametrize(
    ("settings", "limits", "sizes"),
    [
        ({"kafka_max_rate": 4}, None, [{0: 4, 1: 4}, {0: 4, 1: 4}, {0: 4, 1: 2}]),
        ({"kafka_max_rate": 4}, OfFirst(), [{0: 2, 1: 7}, {0: 2, 1: 3}, {0: 2}]),
        # The rate is shared by lag: 90 to 10, then 72 to 8.
        ({"backpressure": True, "backpressure_initial_rate": 20}, None, [{0: 18, 1: 2}] * 3),
        ({"receiver_max_rate": 5}, None, [{0: 90, 1: 10}, {}, {}]),
    ],
)
def test_rates(
    make_ssc: MakeContext,
    cluster: KafkaCluster,
    topic: str,
    settings: dict[str, Any],
    limits: PerPartitionConfig | None,
    sizes: list[dict[int, int]],
) -> None:
    """Limits hold from the first batch on."""
    cluster.produce(topic, numbers(0, 90), partition=0)
    cluster.produce(topic, numbers(0, 10), partition=1)
    ssc = make_ssc(**settings)
    seen = sizes_of(stream_of(ssc, Subscribe(topic, parameters(cluster)), limits))
    ssc.step(3)
    assert seen == sizes


class Notes(StreamingListener):
    """Notes the inputs of batches that ran."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def onBatchCompleted(self, batchCompleted: Any) -> None:
        [info] = batchCompleted.batchInfo().streamIdToInputInfo().values()
        self.seen.append((info.numRecords(), info.metadata(), info.metadataDescription()))


def test_listeners_see_ranges_and_lag(
    make_ssc: MakeContext, cluster: KafkaCluster, topic: str
) -> None:
    """Of each batch: records, ranges in Spark's words and as values, and what is left behind."""
    cluster.produce(topic, numbers(0, 9), partition=1)
    ssc = make_ssc(kafka_max_rate=4)
    notes = Notes()
    ssc.addStreamingListener(notes)
    collected(stream_of(ssc, Subscribe(topic, parameters(cluster))))
    ssc.step()
    ssc.stop(stopSparkContext=False)
    [(records, metadata, text)] = notes.seen
    assert records == 4
    assert text == f"topic: {topic}\tpartition: 1\toffsets: 0 to 4\tcount: 4"
    assert metadata["offsets"][0] == OffsetRange(topic, 1, 0, 4)
    lags = {TopicPartition(topic, number): 5 * (number == 1) for number in range(PARTITIONS)}
    assert metadata["lag"] == lags


def test_a_partition_that_is_absent(
    make_ssc: MakeContext, cluster: KafkaCluster, topic: str
) -> None:
    """It is named when the stream starts."""
    cluster.produce(topic, ["a"])
    ssc = make_ssc()
    collected(stream_of(ssc, ConsumerStrategies.Assign([(topic, 99)], parameters(cluster))))
    with pytest.raises(SourceError, match=f"unknown partitions {topic}-99; assign existing"):
        ssc.step()
