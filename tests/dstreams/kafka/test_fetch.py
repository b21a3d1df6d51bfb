"""What a task reads of a range, from a real broker, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dstreams.errors import SourceError
from dstreams.kafka import fetch
from dstreams.kafka.offsets import OffsetRange
from dstreams.kafka.parameters import KafkaParameters
from tests.support.kafka_cluster import KafkaCluster

Read = Callable[..., list[bytes]]


@pytest.fixture
def read(kafka: KafkaCluster) -> Read:
    """Read a range of the only partition of a topic, with the consumer of this process."""

    def values(
        topic: str,
        begin: int,
        end: int,
        *,
        passes_over_lost: bool = False,
        wait_s: float = 60,
        **given: Any,
    ) -> list[bytes]:
        named = {key.replace("_", "."): value for key, value in given.items()}
        parameters = {"bootstrap.servers": kafka.bootstrap, **named}
        config = KafkaParameters.of(parameters, "test").for_tasks()
        wanted = OffsetRange(topic, 0, begin, end)
        with fetch.lend_consumer(config) as (consumer, errors):
            blocks = fetch.read_range(consumer, errors, wanted, wait_s, passes_over_lost)
            return [message.value() for block in blocks for message in block]

    return values


def test_ranges_are_exact(kafka: KafkaCluster, read: Read) -> None:
    """Whatever was read before by the same consumer: the next range, one before, the same again."""
    topic = kafka.create_topic()
    kafka.produce(topic, [b"%d" % number for number in range(10)])
    for begin, end in [(0, 3), (3, 5), (0, 10), (4, 5), (4, 5), (9, 10), (2, 2)]:
        assert read(topic, begin, end) == [b"%d" % number for number in range(begin, end)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_ranges_that_end_in_holes(kafka: KafkaCluster, read: Read, isolation: str) -> None:
    """Markers are no records: a range ends with them, and may have nothing else."""
    topic = kafka.create_topic()
    kafka.produce_committed(topic, ["a"])  # 0, marker 1
    kafka.produce_aborted(topic, ["x", "y"])  # 2 and 3, marker 4
    kafka.produce(topic, ["b"])  # 5
    aborted = [] if isolation == "read_committed" else [b"x", b"y"]
    cases = {(0, 2): [b"a"], (1, 2): [], (2, 5): aborted, (1, 6): [*aborted, b"b"], (4, 5): []}
    for (begin, end), expected in cases.items():
        assert read(topic, begin, end, isolation_level=isolation) == expected


def test_a_range_after_the_end(
    kafka: KafkaCluster, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says where the partition ends; what is there until then was read."""
    monkeypatch.setattr(fetch, "_SETTLE_S", 0.2)
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b"])
    with pytest.raises(SourceError, match=f"{topic}-0, offsets 0 to 3: the partition ends at 2"):
        read(topic, 0, 3)
    with pytest.raises(SourceError, match=f"{topic}-0, offsets 2 to 3: the partition ends at 2"):
        read(topic, 2, 3)
    with pytest.raises(
        SourceError, match="offset 7 is not available any more: the partition has 0 to"
    ):
        read(topic, 7, 8)


def test_a_range_before_the_beginning(kafka: KafkaCluster, read: Read) -> None:
    """Records that were deleted fail the range, or are passed over where that is asked for."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b", "c"])
    kafka.delete_records(topic, before=2)
    with pytest.raises(
        SourceError, match="offset 0 is not available any more: the partition has 2 to"
    ):
        read(topic, 0, 3)
    assert read(topic, 0, 3, passes_over_lost=True) == [b"c"]
    assert read(topic, 0, 2, passes_over_lost=True) == []


def test_a_topic_that_is_not_there(read: Read) -> None:
    """The error says so, by topic and partition."""
    with pytest.raises(SourceError, match=r"no-such-topic-0, offsets 0 to 1: .*does not exist"):
        read("no-such-topic", 0, 1, wait_s=5, topic_metadata_propagation_max_ms=100)


def test_one_consumer_serves_equal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions among them are equal when their code is, as tasks get copies of their own."""
    made: list[Any] = []

    class Consumer:
        def unassign(self) -> None:
            pass

    def make(*_: Any) -> Consumer:
        made.append(Consumer())
        return made[-1]

    monkeypatch.setattr(fetch.client, "make", make)
    monkeypatch.setattr(fetch, "_idle", [])

    def config(text: str) -> dict[str, Any]:
        return {"bootstrap.servers": "a:1", "oauth_cb": lambda _: (text, 1.0)}

    for text in ("x", "x", "y", "x"):
        with fetch.lend_consumer(config(text)):
            pass
    assert len(made) == 2
    with fetch.lend_consumer(config("x")), fetch.lend_consumer(config("x")):
        pass  # one is lent, so there is another
    assert len(made) == 3


def test_few_consumers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were idle for longest are closed: each has threads and connections."""
    closed: list[str] = []

    class Consumer:
        def __init__(self, name: str) -> None:
            self.name = name

        def unassign(self) -> None:
            pass

        def close(self) -> None:
            closed.append(self.name)

    def make(_: str, config: dict[str, Any], __: str) -> Consumer:
        return Consumer(config["bootstrap.servers"])

    monkeypatch.setattr(fetch.client, "make", make)
    monkeypatch.setattr(fetch, "_idle", [])
    monkeypatch.setattr(fetch, "_MOST_IDLE", 2)
    for name in ("a", "b", "a", "c"):
        with fetch.lend_consumer({"bootstrap.servers": name}):
            pass
    assert closed == ["b"]
    assert [lent.consumer.name for lent in fetch._idle] == ["c", "a"]
