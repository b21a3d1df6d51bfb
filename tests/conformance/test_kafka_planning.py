"""Which offsets batches read of Kafka: those that Spark's own stream reads, on random logs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyspark
import pytest
from confluent_kafka import OFFSET_END, IsolationLevel
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import OffsetSpec

from dstreams.common.settings import Settings
from dstreams.engine.rate_control import limit_rates
from dstreams.graph.node import InputDStream
from dstreams.kafka.decoding import AsRecords
from dstreams.kafka.fetch import split
from dstreams.kafka.kafka_source import KafkaReader, KafkaSource
from dstreams.kafka.offsets import OffsetRange, TopicPartition, offsets_of_json
from dstreams.kafka.parameters import KafkaParameters
from dstreams.kafka.topics import TopicSelection
from dstreams.monitoring.events import BatchCompleted, BatchInfo, InputInfo
from tests.conformance.kafka_oracle import KafkaOracle, Ranges
from tests.support.kafka_cluster import KafkaCluster
from tests.support.surroundings import Driven, Surroundings
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.spark,  # the oracle
    pytest.mark.skipif(
        pyspark.__version__ < "4.1", reason="the peer of tests/kafka/pom.xml is made for Spark 4.1"
    ),
]

MAX, MIN = "spark.streaming.kafka.maxRatePerPartition", "spark.streaming.kafka.minRatePerPartition"
BACKPRESSURE = "spark.streaming.backpressure"


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaOracle]:
    process = KafkaOracle(tmp_path_factory.mktemp("oracle"))
    yield process
    process.close()


@dataclass
class Ours:
    """Our reader of the same topics, with what limits it."""

    reader: Driven
    observe: Any

    def plan(self, time_ms: int) -> Ranges:
        planned = self.reader.plan(time_ms)
        start, end = (offsets_of_json(one["offsets"]) for one in (planned.start, planned.end))
        return {tuple(one): (start[one], until) for one, until in end.items()}

    def completed(self, time_ms: int, records: int, delay_ms: int, waited_ms: int) -> None:
        started_ms = time_ms - delay_ms
        batch = BatchInfo(
            batch_id=0,
            batch_time_ms=time_ms,
            records={},
            submitted_ms=started_ms - waited_ms,
            started_ms=started_ms,
            completed_ms=time_ms,
            outputs=(),
            outcome="succeeded",
            failure=None,
            inputs=(InputInfo(0, "kafka", records, ""),),
        )
        self.observe(BatchCompleted(batch))


def ours_of(
    settings: Mapping[str, Any],
    batch_ms: int,
    parameters: Mapping[str, Any],
    selection: TopicSelection,
) -> Ours:
    """A reader that has started."""
    known = Settings.from_conf({key: str(value) for key, value in settings.items()})
    given = KafkaParameters.of(parameters, "createDirectStream")
    source = KafkaSource(given, selection, {}, AsRecords())
    environment = Surroundings().environment(batch_ms=batch_ms)
    reader = KafkaReader(source, replace(environment, settings=known))
    stream = InputDStream(0, source, batch_ms, "kafka")
    control = limit_rates({stream: reader}, known, batch_ms)
    reader.start()
    return Ours(Driven(reader), control.observe)


def random_settings(draw: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if draw.random() < 0.6:
        settings[MAX] = draw.choice([1, 3, 10, 50])
    if draw.random() < 0.4:
        settings[MIN] = draw.choice([1, 2, 7])
    if draw.random() < 0.6:
        settings[f"{BACKPRESSURE}.enabled"] = "true"
        settings[f"{BACKPRESSURE}.pid.minRate"] = draw.choice([1, 5, 100])
        if draw.random() < 0.6:
            settings[f"{BACKPRESSURE}.initialRate"] = draw.choice([1, 10, 200])
    if draw.random() < 0.3:
        settings["spark.streaming.receiver.maxRate"] = draw.choice([1, 20])
    return settings


def append(
    cluster: KafkaCluster, draw: random.Random, topic: str, partitions: int, held: str = ""
) -> None:
    """Let the log of some partitions grow, by transactions where none is open in the topic."""
    for partition in range(partitions):
        records = ["x"] * draw.choice([0, 0, 1, 5, 40])
        if not records:
            continue
        how, end = draw.random(), cluster.end_offsets(topic)[partition]
        if how < 0.7 or topic == held:
            cluster.produce(topic, records, partition=partition)
            continue
        if how < 0.85:
            cluster.produce_committed(topic, records, partition)
        else:
            cluster.produce_aborted(topic, records, partition)
        wait_for_marker(cluster, topic, partition, end + len(records) + 1)


def wait_for_marker(cluster: KafkaCluster, topic: str, partition: int, end: int) -> None:
    """A transaction is at its end before its marker is in the log."""
    place = Place(topic, partition, OFFSET_END)

    def is_there() -> bool:
        found = cluster.admin.list_offsets(
            {place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        return bool(found[place].result().offset == end)

    wait_for(is_there)


class AfterStart:
    """Tells Spark's estimator of batches as dstreams counts them after a start.

    The first batch with records sets no rate, and the delay that it leaves does not count as long
    as it shrinks (listed in "What differs from Spark").
    """

    def __init__(self, oracle: KafkaOracle) -> None:
        self._oracle = oracle
        self._left_ms: int | None = None
        self._is_primed = False

    def __call__(self, time_ms: int, records: int, delay_ms: int, waited_ms: int) -> None:
        if records <= 0 or delay_ms <= 0:
            return
        if self._left_ms is None:
            self._left_ms = delay_ms + waited_ms
            return
        self._left_ms = min(self._left_ms, waited_ms)
        if not self._is_primed:
            self._is_primed = True
            self._oracle.completed(time_ms - 1, records, delay_ms, 0)
        self._oracle.completed(time_ms, records, delay_ms, waited_ms - self._left_ms)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(16))
def test_random_logs(kafka: KafkaCluster, oracle: KafkaOracle, seed: int) -> None:
    """Batch by batch the same ranges: rates, shares by lag, estimates, groups, transactions."""
    draw = random.Random(seed)
    topics = {
        kafka.create_topic(partitions): partitions for partitions in draw.choice([(1,), (3, 2)])
    }
    settings, batch_ms = random_settings(draw), draw.choice([100, 500, 1000, 2500])
    group = f"group-{seed}-{min(topics)}"
    parameters = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": group,
        "auto.offset.reset": draw.choice(["earliest", "latest"]),
        **draw.choice([{}, {"isolation.level": "read_committed"}]),
    }
    for topic, partitions in topics.items():
        append(kafka, draw, topic, partitions)
        if draw.random() < 0.5:
            ends = kafka.end_offsets(topic)
            kafka.commit(group, topic, {0: draw.randint(0, ends[0])})
    places = [(topic, number) for topic, count in topics.items() for number in range(count)]
    assigned = tuple(TopicPartition(*place) for place in places)
    ours = ours_of(settings, batch_ms, parameters, TopicSelection(assigned=assigned))
    oracle.begin(settings, batch_ms, parameters, partitions=places)
    time_ms, told = 1_000_000, f"seed {seed}, {settings}, {batch_ms} ms, {parameters}"
    known_to_spark = AfterStart(oracle)
    held, transaction = draw.choice([min(topics), ""]), ExitStack()
    if held:
        transaction.enter_context(kafka.transaction(held, ["x"], 0))
    for batch in range(8):
        if batch == 5 and held:
            ends = kafka.end_offsets(held)
            transaction.close()
            wait_for_marker(kafka, held, 0, ends[0] + 1)
            held = ""
        time_ms += batch_ms
        planned = ours.plan(time_ms)
        assert planned == oracle.plan(time_ms), f"batch {batch}; {told}"
        if settings.get(f"{BACKPRESSURE}.enabled"):
            records = sum(until - start for start, until in planned.values())
            measured = (time_ms, records, draw.choice([1, 50, batch_ms, 3 * batch_ms]), batch * 10)
            ours.completed(*measured)
            known_to_spark(*measured)
        for topic, partitions in topics.items():
            append(kafka, draw, topic, partitions, held)
    oracle.end()
    ours.reader.close()


@pytest.mark.deep
@pytest.mark.parametrize(("reset", "theirs"), [("earliest", 0), ("latest", 2)])
def test_an_added_partition(
    kafka: KafkaCluster, oracle: KafkaOracle, reset: str, theirs: int
) -> None:
    """It begins at its first record here; in Spark where auto.offset.reset says."""
    topic = kafka.create_topic()
    parameters = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": f"group-of-{topic}",
        "auto.offset.reset": reset,
        "metadata.max.age.ms": "100",
    }
    ours = ours_of({}, 1000, parameters, TopicSelection((topic,)))
    oracle.begin({}, 1000, parameters, topics=[topic])
    assert ours.plan(1000) == oracle.plan(1000) == {(topic, 0): (0, 0)}
    kafka.add_partitions(topic, 2)
    kafka.produce(topic, ["a", "b"], partition=1)
    assert ours.plan(2000) == {(topic, 0): (0, 0), (topic, 1): (0, 2)}
    seen: Ranges = {}
    times = itertools.count(2000, 1000)

    def is_seen() -> bool:
        seen.update(oracle.plan(next(times)))
        return (topic, 1) in seen

    wait_for(is_seen)
    assert seen[topic, 1] == (theirs, 2)
    oracle.end()
    ours.reader.close()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_ranges(oracle: KafkaOracle, seed: int) -> None:
    """minPartitions cuts ranges as it does in Spark's queries."""
    draw = random.Random(seed)
    counts = [draw.choice([0, 1, 3, 10, 97, 1000]) for _ in range(draw.randint(1, 6))]
    least = draw.randint(1, 20)
    ranges = [OffsetRange("t", number, 0, count) for number, count in enumerate(counts)]
    ours = [
        (piece.partition, piece.fromOffset, piece.untilOffset)
        for piece in split(ranges, least)
        if piece.count()
    ]
    assert sorted(ours) == sorted(oracle.cut(counts, least)), (counts, least)
