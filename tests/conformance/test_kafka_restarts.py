"""Streams of Kafka over restarts: every record once, by the offsets that the checkpoint has."""

from __future__ import annotations

import itertools
from functools import partial
from operator import add as plus
from operator import sub as minus
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint.log.batch_records import BatchLog
from checkpoint.storage.local_files import LocalFiles
from dstreams import Settings, StreamingContext
from dstreams.errors import BatchFailedError
from dstreams.kafka import (
    ConsumerRecord,
    ConsumerStrategies,
    KafkaDStream,
)
from dstreams.testing import ManualClock
from tests.conformance.kafka_streams import parameters, stream_of, value_of
from tests.conformance.restarts import (
    crash,
    crash_in,
    recover,
    seen,
    times_of,
    total,
    values_of,
    watch,
)
from tests.conformance.restarts import stream_of as stream_directory
from tests.support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.usefixtures("notebook")

committed: list[Any] = []
"""What commits have told, in all runs."""


def to_a(value: str) -> tuple[str, int]:
    return "a", int(value)


def begin(
    sc: SparkContext, cluster: KafkaCluster, directory: Path, *topics: str, **settings: Any
) -> tuple[StreamingContext, KafkaDStream[ConsumerRecord]]:
    """A context of batches of a second from zero on, and a stream of all that topics have."""
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(**settings))
    ssc.checkpoint(str(directory))
    return ssc, topics_of(ssc, cluster, *topics)


def topics_of(
    ssc: StreamingContext, cluster: KafkaCluster, *topics: str, uid: str | None = None, **more: Any
) -> KafkaDStream[ConsumerRecord]:
    given = parameters(cluster, group_id=f"group-of-{topics[0]}", **more)
    return stream_of(ssc, ConsumerStrategies.Subscribe(topics, given), uid=uid)


def produce(cluster: KafkaCluster, topic: str, *numbers: int) -> None:
    cluster.produce(topic, [str(number) for number in numbers], partition=0)


@pytest.mark.deep
def test_a_restart_goes_on_where_it_was(
    sc: SparkContext, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """States, windows and inputs are as without it; what came meanwhile is in the next batch."""
    produce(cluster, topic, 1, 2)
    ssc, stream = begin(sc, cluster, tmp_path, topic)
    numbers = stream.map(value_of)
    watch(numbers)
    watch(numbers.map(to_a).updateStateByKey(total).checkpoint(20), "sums")
    watch(numbers.map(to_a).reduceByKeyAndWindow(plus, minus, 3).checkpoint(20), "window")
    ssc.step()
    produce(cluster, topic, 3)
    ssc.step()
    crash(ssc)
    produce(cluster, topic, 4, 5)
    ssc = recover(tmp_path)
    ssc.step()
    produce(cluster, topic, 6)
    ssc.step()
    assert values_of() == [["1", "2"], ["3"], ["4", "5"], ["6"]]
    assert values_of("sums") == [[("a", total)] for total in (3, 6, 15, 21)]
    assert values_of("window") == [[("a", total)] for total in (3, 6, 15, 18)]


def test_a_beginning_is_durable_before_the_first_batch(
    sc: SparkContext,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes after the start is read, though the driver dies before it begins a batch."""
    produce(cluster, topic, 1)
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    watch(topics_of(ssc, cluster, topic, auto_offset_reset="latest").map(value_of))
    crash_in(ssc, monkeypatch, "plan.start", 0)
    produce(cluster, topic, 2)
    ssc = recover(tmp_path)
    crash_in(ssc, monkeypatch, "plan.start", 0)
    produce(cluster, topic, 3)
    ssc = recover(tmp_path)
    ssc.step(1)
    crash(ssc)
    produce(cluster, topic, 4)
    recover(tmp_path).step(1)
    assert values_of() == [["2", "3"], ["4"]]


def test_a_batch_runs_again_with_its_records(
    sc: SparkContext,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has those of then, not those that came since, which the next one has."""
    produce(cluster, topic, 1)
    ssc, stream = begin(sc, cluster, tmp_path, topic)
    watch(stream.map(value_of))
    ssc.step()
    produce(cluster, topic, 2)
    crash_in(ssc, monkeypatch, "out.done", 1)
    produce(cluster, topic, 3)
    recover(tmp_path).step(2)
    assert [(time, records) for _, time, records in seen] == [
        (1, ["1"]),
        (2, ["2"]),
        (2, ["2"]),
        (3, ["3"]),
    ]


@pytest.mark.parametrize(
    ("policy", "steps", "batches"),
    [
        ("all", 4, [(1, ["1"]), (2, ["2", "3"]), (3, []), (4, []), (5, [])]),
        ("merge", 1, [(1, ["1"]), (5, ["2", "3"])]),
        ("skip", 1, [(1, ["1"]), (5, ["2", "3"])]),
    ],
)
def test_missed_batches(
    sc: SparkContext,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    policy: Any,
    steps: int,
    batches: list[Any],
) -> None:
    """The first batch after a down time has all that came: brokers have kept it."""
    produce(cluster, topic, 1)
    ssc, stream = begin(sc, cluster, tmp_path, topic, catch_up=policy)
    watch(stream.map(value_of))
    ssc.step()
    crash(ssc)
    produce(cluster, topic, 2, 3)
    ssc = recover(tmp_path)
    ssc._clock = ManualClock(5000)
    ssc.step(steps)
    assert list(zip(times_of(), values_of(), strict=True)) == batches


def answered(offsets: Any, error: Exception | None) -> None:
    committed.append((dict(offsets), error))


def commit(stream: KafkaDStream[Any], rdd: RDD[Any]) -> None:
    stream.commitAsync(rdd.offsetRanges, answered)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_forget_commits")
def test_commits_of_programs(
    sc: SparkContext, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """commitAsync is called where the program has its ranges: also by a stream in a checkpoint."""
    produce(cluster, topic, 1, 2)
    ssc, stream = begin(sc, cluster, tmp_path, topic)
    stream.foreachRDD(partial(commit, stream))
    group = f"group-of-{topic}"
    ssc.step(2)
    ssc.stop(stopSparkContext=False)
    assert cluster.committed(group, topic)[0] == 2
    produce(cluster, topic, 3)
    ssc = recover(tmp_path)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert cluster.committed(group, topic)[0] == 3
    assert all(error is None for _, error in committed)
    assert [offsets[topic, 0] for offsets, _ in committed] == [2, 2, 3]


@pytest.fixture
def _forget_commits() -> None:
    committed.clear()


def test_the_group_is_not_asked_again(
    sc: SparkContext, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """Where a stream goes on is in its checkpoint, whatever others commit for its group."""
    produce(cluster, topic, 1, 2, 3)
    ssc, stream = begin(sc, cluster, tmp_path, topic)
    watch(stream.map(value_of))
    ssc.step()
    crash(ssc)
    cluster.commit(f"group-of-{topic}", topic, {0: 1})
    produce(cluster, topic, 4)
    recover(tmp_path).step()
    assert values_of() == [["1", "2", "3"], ["4"]]


def test_a_changed_program(
    sc: SparkContext, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """An input is found by its uid; one that is added begins, and a topic that is added too."""
    produce(cluster, topic, 1)
    produce(cluster, f"{topic}-2", 20)
    produce(cluster, f"{topic}-3", 30)
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    watch(topics_of(ssc, cluster, topic, uid="numbers").map(value_of))
    ssc.step()
    ssc.stop(stopSparkContext=False)
    produce(cluster, topic, 2)

    def changed() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        watch(topics_of(ssc, cluster, f"{topic}-3", uid="added").map(value_of), "added")
        numbers = topics_of(ssc, cluster, topic, f"{topic}-2", uid="numbers")
        watch(numbers.map(value_of))
        return ssc

    ssc = StreamingContext.restore(str(tmp_path), changed)
    ssc.step()
    assert values_of() == [["1"], ["2", "20"]]
    assert values_of("added") == [["30"]]
    ssc.stop(stopSparkContext=False)


def test_a_topic_is_not_left_silently(
    sc: SparkContext, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """A program that reads another topic under the same uid is told what is not read any more."""
    produce(cluster, topic, 1)
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    watch(topics_of(ssc, cluster, topic, uid="numbers").map(value_of))
    ssc.step()
    ssc.stop(stopSparkContext=False)

    def changed() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        watch(topics_of(ssc, cluster, f"{topic}-2", uid="numbers").map(value_of))
        return ssc

    produce(cluster, f"{topic}-2", 20)
    ssc = StreamingContext.restore(str(tmp_path), changed)
    told = f"{topic}-0 was deleted, or is not selected any more, read up to 1"
    with pytest.raises(BatchFailedError, match=told):
        ssc.step()
    ssc.stop(stopSparkContext=False)


@pytest.mark.deep
def test_many_batches(sc: SparkContext, cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """A hundred of them, with a restart after each thirty: each record in one, in order."""
    produce(cluster, topic, *range(200))
    ssc, stream = begin(sc, cluster, tmp_path, topic, kafka_max_rate=2)
    watch(stream.map(value_of))
    for _ in range(3):
        ssc.step(30)
        crash(ssc)
        ssc = recover(tmp_path)
    ssc.step(10)
    ssc.stop(stopSparkContext=False)
    assert sorted(itertools.chain(*values_of()), key=int) == [str(n) for n in range(200)]
    assert len(values_of()) == 100


def test_begin_records(sc: SparkContext, cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """They have the offsets as Spark writes them, what is left behind, and no other parameter."""
    produce(cluster, topic, 1, 2, 3)
    ssc, stream = begin(sc, cluster, tmp_path, topic, kafka_max_rate=2)
    watch(stream.map(value_of))
    ssc.step()
    ssc.stop(stopSparkContext=False)
    [begun] = BatchLog(LocalFiles(str(stream_directory(tmp_path)))).read(1000).inputs.values()
    none = {"1": 0, "2": 0, "3": 0}
    assert begun == {
        "start": {"offsets": {topic: {"0": 0, **none}}, "topicIds": {}},
        "end": {"offsets": {topic: {"0": 2, **none}}, "topicIds": {}},
        "records": 2,
        "lag": {topic: {"0": 1}},
    }
