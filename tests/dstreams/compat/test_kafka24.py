"""``pyspark.streaming.kafka`` of Spark 2.4: names, defaults, errors and what it reads."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext, StorageLevel

from dstreams import DStream, StreamingContext
from dstreams.compat.kafka24 import (
    Broker,
    KafkaDStream24,
    KafkaRDD24,
    KafkaUtils24,
    OffsetRange24,
    TopicAndPartition,
)
from dstreams.compat.kafka24_messages import KafkaMessageAndMetadata
from dstreams.compat.modules import NAMES
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.kafka.decoders import utf8_decoder
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.waiting import wait_for

NOWHERE = {"metadata.broker.list": "127.0.0.1:1"}


@pytest.fixture
def ssc(sc: SparkContext) -> Iterator[StreamingContext]:
    made = StreamingContext(sc, 1)
    yield made
    made.stop(stopSparkContext=False)


def smallest(kafka: KafkaCluster, **more: str) -> dict[str, str]:
    return {"metadata.broker.list": kafka.bootstrap, "auto.offset.reset": "smallest", **more}


def collected(stream: DStream[Any]) -> list[Any]:
    """Return the records of all batches."""
    seen: list[Any] = []
    stream.foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    return seen


def ranges_of(rdd: RDD[Any]) -> list[str]:
    assert isinstance(rdd, KafkaRDD24)
    return [f"{one.partition}: {one.fromOffset}-{one.untilOffset}" for one in rdd.offsetRanges()]


def test_names_of_the_module() -> None:
    """Those of 2.4, in its order."""
    names = NAMES["pyspark.streaming.kafka"]
    assert list(names) == [
        "Broker",
        "KafkaMessageAndMetadata",
        "KafkaUtils",
        "OffsetRange",
        "TopicAndPartition",
        "utf8_decoder",
    ]


@pytest.mark.parametrize(
    ("call", "required", "optional"),
    [
        (
            KafkaUtils24.createStream,
            ["ssc", "zkQuorum", "groupId", "topics"],
            {
                "kafkaParams": None,
                "storageLevel": StorageLevel.MEMORY_AND_DISK_2,
                "keyDecoder": utf8_decoder,
                "valueDecoder": utf8_decoder,
            },
        ),
        (
            KafkaUtils24.createDirectStream,
            ["ssc", "topics", "kafkaParams"],
            {
                "fromOffsets": None,
                "keyDecoder": utf8_decoder,
                "valueDecoder": utf8_decoder,
                "messageHandler": None,
            },
        ),
        (
            KafkaUtils24.createRDD,
            ["sc", "kafkaParams", "offsetRanges"],
            {
                "leaders": None,
                "keyDecoder": utf8_decoder,
                "valueDecoder": utf8_decoder,
                "messageHandler": None,
            },
        ),
    ],
)
def test_signatures(call: Any, required: list[str], optional: dict[str, Any]) -> None:
    """Parameters have the order and defaults of 2.4."""
    parameters = inspect.signature(call).parameters
    assert list(parameters) == [*required, *optional]
    assert {name: parameters[name].default for name in optional} == optional


def test_topic_and_partition() -> None:
    """Equal where topic and partition are."""
    one = TopicAndPartition("a", 0)
    assert (one._topic, one._partition) == ("a", 0)
    assert one == TopicAndPartition("a", 0)
    assert one != TopicAndPartition("a", 1)
    assert one != TopicAndPartition("b", 0)
    assert one != ("a", 0)
    assert len({one, TopicAndPartition("a", 0)}) == 1


def test_offset_range() -> None:
    """Equal where all four are; the text is that of 2.4."""
    one = OffsetRange24("a", 0, 1, 2)
    assert one == OffsetRange24("a", 0, 1, 2)
    assert one != OffsetRange24("a", 0, 1, 3)
    assert one != "a"
    assert str(one) == "OffsetRange(topic: a, partition: 0, range: [1 -> 2]"
    assert repr([one]) == "[OffsetRange(topic: a, partition: 0, range: [1 -> 2])]"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_message() -> None:
    """It is decoded on access, and can be sent to a worker."""
    message = KafkaMessageAndMetadata("a", 0, 7, None, "Käse".encode())
    again = pickle.loads(pickle.dumps(message))
    assert (again.topic, again.partition, again.offset) == ("a", 0, 7)
    assert (again.key, again.message) == (None, "Käse")
    again._set_value_decoder(len)
    assert again.message == 5
    assert str(message) == (
        "KafkaMessageAndMetadata(topic: a, partition: 0, offset: 7, key and message...)"
    )


def takes_two(one: object, two: object) -> None:
    """No decoder."""


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"topics": {"a"}}, TypeError, r"topics must be a list, got set; give \['clicks'\]"),
        ({"kafkaParams": [("a", "b")]}, TypeError, "kafkaParams should be dict, got list"),
        (
            {"ssc": None},
            TypeError,
            "ssc of KafkaUtils.createDirectStream should be a StreamingCon",
        ),
        ({"topics": []}, ValueError, r"topics of KafkaUtils.createDirectStream .* got \[\]"),
        ({"kafkaParams": {}}, ValueError, r"Must specify metadata\.broker\.list or bootstrap\.ser"),
        ({"fromOffsets": {("a", 0): 1}}, TypeError, r"must be TopicAndPartition, got \('a', 0"),
        (
            {"fromOffsets": {TopicAndPartition("a", 0): -1}},
            ValueError,
            r"the offset of TopicAndPartition\('a', 0\) is -1",
        ),
        (
            {"fromOffsets": {TopicAndPartition("b", 0): 1}},
            ValueError,
            "The specified topics: a do not equal to the topic from offsets: b",
        ),
        ({"keyDecoder": None}, ValueError, r"keyDecoder\(bytes or None\) -> key"),
        ({"valueDecoder": takes_two}, ValueError, r"valueDecoder\(bytes or None\) -> value"),
        ({"messageHandler": 7}, ValueError, r"messageHandler\(KafkaMessageAndMetadata\) -> rec"),
    ],
)
def test_what_a_direct_stream_refuses(
    ssc: StreamingContext, changed: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """Errors are raised at the definition, with the classes and messages of 2.4."""
    arguments = {"ssc": ssc, "topics": ["a"], "kafkaParams": NOWHERE, **changed}
    with pytest.raises(InvalidStreamError, match=message) as caught:
        KafkaUtils24.createDirectStream(**arguments)
    assert isinstance(caught.value, kind)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"topics": ["a"]}, TypeError, "topics should be dict, got list"),
        ({"topics": {}}, ValueError, r"topics of KafkaUtils.createStream .* got \[\]"),
        ({"kafkaParams": None}, ValueError, "zkQuorum='zk:2181' names ZooKeeper, which Kafk"),
        (
            {"groupId": ""},
            ValueError,
            "groupId of KafkaUtils.createStream must be a text, got ''",
        ),
    ],
)
def test_what_a_stream_refuses(
    ssc: StreamingContext, changed: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """Errors are raised at the definition."""
    arguments = {
        "ssc": ssc,
        "zkQuorum": "zk:2181",
        "groupId": "group",
        "topics": {"a": 1},
        "kafkaParams": NOWHERE,
        **changed,
    }
    with pytest.raises(InvalidStreamError, match=message) as caught:
        KafkaUtils24.createStream(**arguments)
    assert isinstance(caught.value, kind)


def test_direct_stream(kafka: KafkaCluster, ssc: StreamingContext) -> None:
    """Pairs of decoded key and value; None stays None."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Sent("Käse", "k"), Sent("no key"), Sent(None, "no value")])
    seen = collected(KafkaUtils24.createDirectStream(ssc, [topic], smallest(kafka)))
    ssc.step()
    assert seen == [("k", "Käse"), (None, "no key"), ("no value", None)]
    kafka.produce(topic, ["more"])
    ssc.step()
    assert seen[3:] == [(None, "more")]


def test_direct_stream_from_the_end(kafka: KafkaCluster, ssc: StreamingContext) -> None:
    """By default it starts with new messages, and ignores its group."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["before"])
    kafka.commit(f"of-{topic}", topic, {0: 0})
    parameters = {"metadata.broker.list": kafka.bootstrap, "group.id": f"of-{topic}"}
    seen = collected(KafkaUtils24.createDirectStream(ssc, [topic], parameters))
    ssc.step()
    kafka.produce(topic, ["after"])
    ssc.step()
    assert seen == [(None, "after")]


def test_direct_stream_from_offsets(kafka: KafkaCluster, ssc: StreamingContext) -> None:
    """It reads the partitions that have one, from there, and no others."""
    topic = kafka.create_topic(partitions=3)
    for partition in range(3):
        kafka.produce(topic, [f"{partition}.{n}" for n in range(3)], partition=partition)
    begin = {TopicAndPartition(topic, 0): 1, TopicAndPartition(topic, 2): 3}
    stream = KafkaUtils24.createDirectStream(ssc, [topic], smallest(kafka), begin)
    seen = collected(stream)
    ssc.step()
    kafka.produce(topic, ["2.3"], partition=2)
    kafka.produce(topic, ["1.3"], partition=1)
    ssc.step()
    assert [value for _, value in seen] == ["0.1", "0.2", "2.3"]


def test_ranges_in_foreach(kafka: KafkaCluster, ssc: StreamingContext) -> None:
    """A function of foreachRDD gets a KafkaRDD24, also behind the time, and by partition."""
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, ["a", "b"], partition=1)
    stream = KafkaUtils24.createDirectStream(ssc, [topic], smallest(kafka))
    assert isinstance(stream, KafkaDStream24)
    ranges: list[Any] = []
    stream.foreachRDD(lambda rdd: ranges.append(ranges_of(rdd)))
    stream.foreachRDD(lambda time, rdd: ranges.append((ranges_of(rdd), rdd.count())))

    def by_partition(rdd: Any) -> None:
        found = rdd.offsetRanges()
        counts = rdd.mapPartitionsWithIndex(lambda i, rows: [(i, sum(1 for _ in rows))]).collect()
        ranges.append([(found[i].partition, count) for i, count in counts])

    stream.foreachRDD(by_partition)
    ssc.step()
    assert ranges == [["1: 0-2", "0: 0-0"], (["1: 0-2", "0: 0-0"], 2), [(1, 2)]]


def test_ranges_in_transform(kafka: KafkaCluster, ssc: StreamingContext) -> None:
    """So does a function of transform; behind it, and behind map, the RDD is any RDD."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b"])
    stream = KafkaUtils24.createDirectStream(ssc, [topic], smallest(kafka))
    found: list[Any] = []

    def store(rdd: Any) -> Any:
        found.append(ranges_of(rdd))
        return rdd

    def store_timed(time: Any, rdd: Any) -> Any:
        return store(rdd).map(lambda pair: pair[1])

    stream.transform(store).foreachRDD(lambda rdd: found.append(rdd.count()))
    stream.transform(store_timed).map(str.upper).foreachRDD(lambda rdd: found.append(rdd.collect()))
    stream.map(len).foreachRDD(lambda rdd: found.append(hasattr(rdd, "offsetRanges")))
    ssc.step()
    # All RDDs of a batch are made before its first output runs.
    assert found == [["0: 0-2"], ["0: 0-2"], 2, ["A", "B"], False]


def test_decoders_and_handler(kafka: KafkaCluster, ssc: StreamingContext) -> None:
    """Decoders are given bytes or None; the handler is given messages that use them."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Sent('{"n": 1}', b"\x07"), Sent('{"n": 2}')])

    def key(data: Any) -> Any:
        return None if data is None else data[0]

    def handle(m: Any) -> Any:
        return m.topic, m.partition, m.offset, m.key, m.message["n"]

    pairs = collected(
        KafkaUtils24.createDirectStream(
            ssc, [topic], smallest(kafka), keyDecoder=key, valueDecoder=json.loads
        )
    )
    handled = collected(
        KafkaUtils24.createDirectStream(
            ssc, [topic], smallest(kafka), None, key, json.loads, messageHandler=handle
        )
    )
    ssc.step()
    assert pairs == [(7, {"n": 1}), (None, {"n": 2})]
    assert handled == [(topic, 0, 0, 7, 1), (topic, 0, 1, None, 2)]


def test_persisted_and_windowed(kafka: KafkaCluster, ssc: StreamingContext) -> None:
    """It is a stream like others."""
    topic = kafka.create_topic()
    stream = KafkaUtils24.createDirectStream(ssc, [topic], smallest(kafka)).persist()
    seen: list[int] = []
    stream.window(2).count().foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    for count in (1, 2, 3):
        kafka.produce(topic, ["x"] * count)
        ssc.step()
    assert seen == [1, 3, 5]


@pytest.mark.deep
def test_restart(kafka: KafkaCluster, sc: SparkContext, tmp_path: Path) -> None:
    """A stream restored from its checkpoint continues, with decoders and ranges."""
    topic = kafka.create_topic()
    out = tmp_path / "out"

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, 1)

        def write(rdd: Any) -> None:
            with out.open("a") as file:
                for one in rdd.offsetRanges():
                    print(one.fromOffset, one.untilOffset, rdd.collect(), file=file)

        KafkaUtils24.createDirectStream(
            ssc, [topic], smallest(kafka), messageHandler=lambda m: m.message
        ).foreachRDD(write)
        return ssc

    for values in (["a", "b"], ["c"]):
        kafka.produce(topic, values)
        ssc = StreamingContext.getOrCreate(str(tmp_path / "checkpoint"), setup)
        ssc.step()
        ssc.stop(stopSparkContext=False)
    assert out.read_text().splitlines() == ["0 2 ['a', 'b']", "2 3 ['c']"]


def test_stream_of_a_group(kafka: KafkaCluster, sc: SparkContext) -> None:
    """It starts at the offsets of the group, and commits those of batches."""
    topic, group = kafka.create_topic(partitions=2), "of-a-stream"
    kafka.produce(topic, ["0", "1", "2"], partition=0)
    kafka.commit(group, topic, {0: 1})
    for expected in ([(None, "1"), (None, "2")], []):
        ssc = StreamingContext(sc, 1)
        seen = collected(
            KafkaUtils24.createStream(ssc, "zk:2181", group, {topic: 2}, smallest(kafka))
        )
        ssc.step(2)
        ssc.stop(stopSparkContext=False)
        assert seen == expected
        wait_for(lambda: kafka.committed(group, topic)[0] == 3)


def test_streams_of_one_group(kafka: KafkaCluster, ssc: StreamingContext) -> None:
    """Several receivers of a group get each message once."""
    first, second = kafka.create_topic(partitions=2), kafka.create_topic()
    kafka.produce(first, ["a", "b"])
    kafka.produce(second, ["c"])

    def of(group: str, *topics: str) -> DStream[Any]:
        names = dict.fromkeys(topics, 1)
        return KafkaUtils24.createStream(ssc, "zk:2181", group, names, smallest(kafka))

    group = f"of-{first}"
    united = collected(ssc.union(of(group, first), of(group, first, second), of(group, first)))
    other = collected(of(f"another-{group}", first))
    ssc.step()
    assert sorted(value for _, value in united) == ["a", "b", "c"]
    assert sorted(value for _, value in other) == ["a", "b"]


def test_rdd(kafka: KafkaCluster, sc: SparkContext) -> None:
    """The messages of ranges, each as a partition; leaders are taken and not needed."""
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [Sent(f"m{n}", f"k{n}") for n in range(4)], partition=0)
    kafka.produce(topic, [Sent(f"n{n}", f"k{n}") for n in range(4)], partition=1)
    ranges = [OffsetRange24(topic, 0, 1, 3), OffsetRange24(topic, 1, 0, 1)]
    leaders = {TopicAndPartition(topic, 0): Broker("localhost", 9092)}
    rdd = KafkaUtils24.createRDD(sc, smallest(kafka), ranges, leaders)
    assert rdd.collect() == [("k1", "m1"), ("k2", "m2"), ("k0", "n0")]
    assert rdd.getNumPartitions() == 2
    assert rdd.offsetRanges() == ranges
    handled = KafkaUtils24.createRDD(
        sc, smallest(kafka), ranges, messageHandler=lambda m: (m.partition, m.offset, m.message)
    )
    assert handled.collect() == [(0, 1, "m1"), (0, 2, "m2"), (1, 0, "n0")]
    assert KafkaUtils24.createRDD(sc, smallest(kafka), []).collect() == []


@pytest.mark.parametrize(("begin", "end"), [(0, 3), (1, 5)])
def test_an_rdd_of_what_is_not_there(
    kafka: KafkaCluster, sc: SparkContext, begin: int, end: int
) -> None:
    """Offsets before the first or behind the last are refused, before a task waits for them."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b", "c", "d"])
    kafka.delete_records(topic, before=1)
    wanted = f"Offsets not available on leader: {topic}-0 from {begin} until {end}, where it has 1 "
    with pytest.raises(SourceError, match=wanted):
        KafkaUtils24.createRDD(sc, smallest(kafka), [OffsetRange24(topic, 0, begin, end)])


@pytest.mark.parametrize(
    ("parameters", "ranges", "message"),
    [
        ([], [], "kafkaParams should be dict, got list"),
        (NOWHERE, {}, "offsetRanges should be list, got dict"),
    ],
)
def test_what_an_rdd_refuses(sc: SparkContext, parameters: Any, ranges: Any, message: str) -> None:
    """The kinds and words are those of 2.4."""
    with pytest.raises(TypeError, match=message):
        KafkaUtils24.createRDD(sc, parameters, ranges)
