"""Tasks that read ranges of offsets, and their RDD."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.errors import SourceError
from dstreams.kafka import fetch
from dstreams.kafka.fetch import split
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
    """The consumer may have read an earlier, a later or the same range before."""
    topic = kafka.create_topic()
    kafka.produce(topic, [b"%d" % number for number in range(10)])
    for begin, end in [(0, 3), (3, 5), (0, 10), (4, 5), (4, 5), (9, 10), (2, 2)]:
        assert read(topic, begin, end) == [b"%d" % number for number in range(begin, end)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_ranges_that_end_in_holes(kafka: KafkaCluster, read: Read, isolation: str) -> None:
    """Markers are not records: a range may end with them, or have nothing else."""
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
    """Deleted records fail the range, or are skipped if configured."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a", "b", "c"])
    kafka.delete_records(topic, before=2)
    with pytest.raises(
        SourceError, match="offset 0 is not available any more: the partition has 2 to"
    ):
        read(topic, 0, 3)
    assert read(topic, 0, 3, passes_over_lost=True) == [b"c"]
    assert read(topic, 0, 2, passes_over_lost=True) == []


@pytest.mark.deep
def test_a_topic_that_is_not_there(read: Read) -> None:
    """The error says so, by topic and partition."""
    with pytest.raises(SourceError, match=r"no-such-topic-0, offsets 0 to 1: .*does not exist"):
        read("no-such-topic", 0, 1, topic_metadata_propagation_max_ms=100)


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


def test_a_consumer_that_failed_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost its brokers for good; one whose records were not all read is kept."""
    closed: list[Consumer] = []

    class Consumer:
        def unassign(self) -> None:
            pass

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(fetch.client, "make", lambda *_: Consumer())
    monkeypatch.setattr(fetch, "_idle", [])

    def read() -> Iterator[int]:
        with fetch.lend_consumer({"bootstrap.servers": "a"}):
            yield from range(3)

    abandoned = read()
    next(abandoned)
    abandoned.close()
    (kept,) = fetch._idle
    with pytest.raises(TimeoutError), fetch.lend_consumer({"bootstrap.servers": "a"}):
        raise TimeoutError
    assert closed == [kept.consumer]
    assert fetch._idle == []


sizes = st.lists(st.integers(0, 10**6), min_size=1, max_size=8)


def ranges_of(counts: list[int]) -> list[OffsetRange]:
    return [OffsetRange("t", number, 10, 10 + count) for number, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("rule", "counts", "least", "pieces"),
    [
        ("enough", [5, 5], 2, [5, 5]),
        ("one is cut", [10], 3, [3, 3, 4]),
        ("each by its size", [9, 3], 4, [3, 3, 3, 3]),
        ("small ones stay whole, the others are cut", [100, 1, 1], 4, [50, 50, 1, 1]),
        ("half a piece is one", [5, 3], 4, [1, 2, 2, 1, 2]),
        ("never more than there are offsets", [2], 5, [1, 1]),
        ("without records nothing is cut", [0, 0], 4, [0, 0]),
        ("those without records come last", [0, 8], 2, [4, 4, 0]),
    ],
)
def test_pieces(rule: str, counts: list[int], least: int, pieces: list[int]) -> None:
    """As Spark's KafkaOffsetRangeCalculator cuts for minPartitions."""
    assert [one.count() for one in split(ranges_of(counts), least)] == pieces, rule


@given(sizes, st.integers(1, 200))
def test_pieces_are_the_ranges(counts: list[int], least: int) -> None:
    """All offsets, once and in order, in pieces that differ by one offset within a partition."""
    ranges = ranges_of(counts)
    pieces = split(ranges, least)
    for one in ranges:
        own = [piece for piece in pieces if piece.partition == one.partition]
        assert own[0].fromOffset == one.fromOffset
        assert own[-1].untilOffset == one.untilOffset
        assert all(a.untilOffset == b.fromOffset for a, b in itertools.pairwise(own))
        found = {piece.count() for piece in own}
        assert max(found) - min(found) <= 1
    assert len(pieces) >= min(least, sum(counts), len(pieces))
