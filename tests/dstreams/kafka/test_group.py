"""The offsets that a consumer group has committed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException

from dstreams.errors import SourceError
from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.topics import Group
from dstreams.testing import ManualClock

CLICKS = TopicPartition("clicks", 0)


class Answer(NamedTuple):
    topic: str
    partition: int
    offset: int
    error: KafkaError | None = None


def failed(code: int) -> list[Answer]:
    raise KafkaException(KafkaError(code))


class Consumer:
    """Answers one after the other, the last one again and again; polling takes the time it may."""

    def __init__(self, clock: ManualClock, *answers: Callable[[], list[Answer]]) -> None:
        self._clock = clock
        self._answers = list(answers)
        self.asked = 0

    def committed(self, partitions: list[Any], timeout: float) -> list[Answer]:
        self.asked += 1
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return answer()

    def poll(self, timeout: float) -> None:
        self._clock.advance(round(timeout * 1000))


def read(clock: ManualClock, consumer: Consumer) -> dict[TopicPartition, int]:
    return Group("g", lambda: consumer, "stream", clock).committed([CLICKS])


MOVES: list[Callable[[], list[Answer]]] = [
    lambda: failed(KafkaError.NOT_COORDINATOR),
    lambda: failed(KafkaError.COORDINATOR_NOT_AVAILABLE),
    lambda: [Answer("clicks", 0, -1001, KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))],
]


def test_coordinator_that_moves(caplog: pytest.LogCaptureFixture) -> None:
    """Reading is retried while the coordinator is not available; the log says so once."""
    clock = ManualClock(0)
    consumer = Consumer(clock, *MOVES, lambda: [Answer("clicks", 0, 5)])
    with caplog.at_level(logging.WARNING):
        assert read(clock, consumer) == {CLICKS: 5}
    assert consumer.asked == 4
    (record,) = caplog.records
    assert "the offsets of the group 'g' cannot be read" in record.getMessage()
    assert record.getMessage().endswith("(NOT_COORDINATOR); retrying for 60 s")


@pytest.mark.parametrize("moves", MOVES)
def test_coordinator_that_stays_away(moves: Callable[[], list[Answer]]) -> None:
    """After a minute the error is raised."""
    clock = ManualClock(0)
    with pytest.raises(SourceError, match=r"of the group 'g' .*cannot be read: .*COORDINATOR"):
        read(clock, Consumer(clock, moves))
    assert 60_000 <= clock.now_ms() < 62_000


def test_clock_that_stands_still() -> None:
    """The number of retries is bounded also when no time passes."""

    class Instant(Consumer):
        def poll(self, timeout: float) -> None:
            pass

    clock = ManualClock(0)
    consumer = Instant(clock, MOVES[0])
    with pytest.raises(SourceError):
        read(clock, consumer)
    assert 60 < consumer.asked < 100


def test_lasting_refusal() -> None:
    """An error that no waiting heals is raised at once."""
    clock = ManualClock(0)
    consumer = Consumer(clock, lambda: failed(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(SourceError, match="GROUP_AUTHORIZATION_FAILED"):
        read(clock, consumer)
    assert (consumer.asked, clock.now_ms()) == (1, 0)
