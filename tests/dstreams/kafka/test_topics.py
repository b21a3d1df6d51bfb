"""Topics of a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dstreams.errors import SourceError
from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.parameters import KafkaParameters
from dstreams.kafka.topics import EARLIEST, LATEST, Topics, TopicSelection, UnknownTopicError
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.surroundings import HandClock
from tests.support.waiting import wait_for

MakeTopics = Callable[..., Topics]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def make(kafka: KafkaCluster, clock: HandClock) -> Iterator[MakeTopics]:
    """Ask about a selection of topics; the clients are closed at the end."""
    made: list[Topics] = []

    def make(*topics: str, isolation: str | None = None, **chosen: Any) -> Topics:
        given = {"bootstrap.servers": kafka.bootstrap, "isolation.level": isolation}
        parameters = KafkaParameters.of(given, "test")
        selection = TopicSelection(topics, **chosen)
        made.append(Topics(parameters, selection, clock, "test", lambda *_: None))
        return made[-1]

    yield make
    for topics in made:
        topics.close()


def test_what_there_is(kafka: KafkaCluster, make: MakeTopics) -> None:
    """Partitions, where they end, and the id of each topic."""
    one, other = kafka.create_topic(2), kafka.create_topic()
    kafka.produce(one, ["a", "b"], partition=1)
    seen = make(one, other).state()
    assert seen.ends == {(one, 0): 0, (one, 1): 2, (other, 0): 0}
    assert seen.ids.keys() == {one, other}
    assert len(set(seen.ids.values())) == 2


def test_what_has_changed(kafka: KafkaCluster, make: MakeTopics) -> None:
    """A client that knows a topic finds its new partitions, and that it is another one now."""
    topic = kafka.create_topic()
    topics = make(topic)
    first = topics.state()
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, ["a"], partition=2)
    grown = topics.state(first.ends)
    assert grown.ends == {(topic, 0): 0, (topic, 1): 0, (topic, 2): 1}
    assert grown.ids == first.ids
    kafka.delete_topic(topic)
    with pytest.raises(
        UnknownTopicError, match=r"have no such topic.*create it, or correct the name"
    ):
        topics.state(grown.ends)
    kafka.create_topic(name=topic)
    again = topics.state(grown.ends)
    assert again.ends == {(topic, 0): 0}
    assert again.ids[topic] != first.ids[topic]


def test_a_pattern(kafka: KafkaCluster, make: MakeTopics, clock: HandClock) -> None:
    """Topics that are made and deleted are found within some seconds, by the driver's clock."""
    names = [kafka.create_topic(name=f"{kafka.create_topic()}-{number}") for number in (1, 2)]
    prefix = names[0][:-2]
    topics = make(pattern=f"{prefix}-[0-9]|{names[1]}")
    assert topics.state().ids.keys() == set(names)
    added = kafka.create_topic(name=f"{prefix}-3")
    clock.time_ms += 4999
    assert topics.state().ids.keys() == set(names)
    clock.time_ms += 1
    assert topics.state().ids.keys() == {*names, added}
    kafka.delete_topic(added)
    assert topics.state().ids.keys() == set(names)


def test_assigned_partitions(kafka: KafkaCluster, make: MakeTopics) -> None:
    """Those alone; one that is not there is named."""
    topic = kafka.create_topic(3)
    chosen = TopicPartition(topic, 1)
    assert make(assigned=(chosen,)).state().ends == {chosen: 0}
    with pytest.raises(SourceError, match=f"unknown partitions {topic}-7; assign existing"):
        make(assigned=(chosen, TopicPartition(topic, 7))).state()


@pytest.mark.parametrize(
    ("isolation", "end"), [("read_committed", 3), ("read_uncommitted", 4), (None, 4)]
)
def test_ends_for_who_reads(
    kafka: KafkaCluster, make: MakeTopics, isolation: str | None, end: int
) -> None:
    """read_committed ends before the first open transaction; other isolation does not."""
    topic = kafka.create_topic()
    kafka.produce_committed(topic, ["a", "b"])
    wait_for(lambda: kafka.end_offsets(topic)[0] == 3)
    with kafka.transaction(topic, ["c"]):
        assert make(topic, isolation=isolation).state().ends == {(topic, 0): end}


def test_offsets_of_times(kafka: KafkaCluster, make: MakeTopics) -> None:
    """The first record of a time or later, where a partition begins, and where it ends."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Sent("x", timestamp_ms=ms) for ms in (1000, 2000, 3000)])
    kafka.delete_records(topic, before=1)
    only = TopicPartition(topic, 0)
    topics = make(topic)
    found = {spec: topics.offsets({only: spec})[only] for spec in (1500, 2000, 2001, 9000)}
    assert found == {1500: 1, 2000: 1, 2001: 2, 9000: -1}
    assert topics.offsets({only: EARLIEST}) == {only: 1}
    assert topics.offsets({only: LATEST}) == {only: 3}
    with pytest.raises(UnknownTopicError):
        topics.offsets({TopicPartition(topic, 1): LATEST})
