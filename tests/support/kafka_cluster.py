"""What tests do with a Kafka cluster beside the code they test: topics, records in, records out."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pytest

from dstreams.kafka.client import is_of_new_leader
from tests.support.waiting import wait_for

pytest.importorskip(
    "confluent_kafka", reason="tests of Kafka need confluent-kafka: pip install -e '.[dev]'"
)
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

_T = TypeVar("_T")

_TIMEOUT_S = 180
_NUMBERS = itertools.count(1)

_NOT_YET = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
}
"""What brokers answer of a topic or group that they have just been told to have."""

# Clients that are told of a dead broker on standard error say nothing a test could use.
_QUIET = {"log_level": 0, "socket.timeout.ms": 10_000}


@dataclass(frozen=True)
class Sent:
    """A record to be produced: text is sent as UTF-8, and None as null.

    Args:
        partition: None leaves it to the partitioner of the producer.
        timestamp_ms: None for the time of the producer.
    """

    value: bytes | str | None
    key: bytes | str | None = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Found:
    """A record as it stands in a topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class KafkaCluster:
    """A cluster, as its clients reach it without authentication.

    Args:
        bootstrap: host and port of a broker.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @cached_property
    def admin(self) -> AdminClient:
        """A client that is made on first use."""
        return AdminClient({"bootstrap.servers": self.bootstrap, **_QUIET})

    def close(self) -> None:
        """Forget the client."""
        self.__dict__.pop("admin", None)

    def is_up(self, seconds: float = 1) -> bool:
        """Whether the cluster answers within *seconds*."""
        try:
            return bool(self.admin.list_topics(timeout=seconds).brokers)
        except KafkaException:
            return False

    def create_topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Create a topic, and return its name when it can be written to.

        Args:
            partitions: number of them.
            name: None for one that no other test has.
            config: of the topic, with ``_`` for ``.``: ``cleanup_policy="compact"``.
        """
        name = name or f"topic-{next(_NUMBERS)}-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): text for key, text in config.items()}
        new = NewTopic(name, partitions, 1, config=settings)
        _results(self.admin.create_topics([new], request_timeout=_TIMEOUT_S))
        self._wait_for_leaders(name, partitions)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and return when the cluster does not know it any more."""
        _results(self.admin.delete_topics([name], request_timeout=_TIMEOUT_S))
        wait_for(lambda: name not in self.admin.list_topics(timeout=_TIMEOUT_S).topics)

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have *total* partitions from now on."""
        more = [NewPartitions(topic, total)]
        _results(self.admin.create_partitions(more, request_timeout=_TIMEOUT_S))
        self._wait_for_leaders(topic, total)

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        wait_for(lambda: self._led_partitions(topic) == partitions)
        self.end_offsets(topic)  # a leader that is known may not know it yet

    def _led_partitions(self, topic: str) -> int:
        found = self.admin.list_topics(timeout=_TIMEOUT_S).topics.get(topic)
        partitions = found.partitions.values() if found is not None else ()
        return sum(partition.leader >= 0 for partition in partitions)

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions."""

        def ask() -> list[int]:
            found = self.admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            _require(found.error)
            return sorted(found.partitions)

        return _answered(ask)

    def produce(
        self,
        topic: str,
        records: Iterable[Sent | bytes | str | None],
        partition: int | None = None,
        **config: Any,
    ) -> list[tuple[int, int]]:
        """Produce records, and return partition and offset of each when all are in the topic.

        Args:
            topic: where to.
            records: a value stands for a record without a key.
            partition: of records that name none.
            config: of the producer, with ``_`` for ``.``.
        """
        producer = self.producer(**config)
        return _produce(producer, topic, records, partition)

    def producer(self, **config: Any) -> Producer:
        """Return a producer; parameters of the client have ``_`` for ``.``."""
        settings = {key.replace("_", "."): setting for key, setting in config.items()}
        return Producer({"bootstrap.servers": self.bootstrap, **_QUIET, **settings})

    @contextmanager
    def transaction(
        self,
        topic: str,
        records: Iterable[Sent | bytes | str | None],
        partition: int | None = None,
        transactional_id: str | None = None,
    ) -> Iterator[Producer]:
        """Produce records in a transaction that is open within the block.

        The block may commit it (``commit_transaction()``); else it is aborted at its end.
        """
        name = transactional_id or f"transaction-{uuid.uuid4().hex[:8]}"
        producer = self.producer(transactional_id=name)
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
        _produce(producer, topic, records, partition)
        try:
            yield producer
        finally:
            try:
                producer.abort_transaction(_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:  # it has ended
                    raise

    def produce_committed(
        self,
        topic: str,
        records: Iterable[Sent | bytes | str | None],
        partition: int | None = None,
    ) -> None:
        """Produce records in a transaction, and commit it."""
        with (
            self._with_markers(topic),
            self.transaction(topic, records, partition) as producer,
        ):
            producer.commit_transaction(_TIMEOUT_S)

    def produce_aborted(
        self,
        topic: str,
        records: Iterable[Sent | bytes | str | None],
        partition: int | None = None,
    ) -> None:
        """Produce records in a transaction, and abort it."""
        with self._with_markers(topic), self.transaction(topic, records, partition):
            pass

    @contextmanager
    def _with_markers(self, topic: str) -> Iterator[None]:
        """Wait at the end for the marker that follows a transaction, unless another one is open.

        Brokers write it after their answer, perhaps behind records that follow.
        """

        def are_written() -> bool:
            stable = self._offsets(topic, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
            return stable == self.end_offsets(topic)

        waits = are_written()
        yield
        if waits:
            wait_for(are_written)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Found]:
        """Return the records of a topic, by partition and offset, up to its end of now.

        With ``read_committed`` the end is where the first open transaction begins.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"reader-{os.getpid()}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 10,
                **_QUIET,
            }
        )
        try:
            partitions = self.partitions(topic)
            consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in partitions])
            return sorted(_to_the_end(consumer, len(partitions)), key=_place)
        finally:
            consumer.close()

    def values(self, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
        """Return the values of the records of a topic, as ``read`` does."""
        return [record.value for record in self.read(topic, isolation)]

    def begin_offsets(self, topic: str) -> dict[int, int]:
        """Return the first offset that each partition still has."""
        return self._offsets(topic, OffsetSpec.earliest())

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the offset after the last record of each partition, committed or not."""
        return self._offsets(topic, OffsetSpec.latest())

    def _offsets(
        self,
        topic: str,
        which: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[int, int]:
        asked = {TopicPartition(topic, part): which for part in self.partitions(topic)}

        def ask() -> dict[int, int]:
            found = self.admin.list_offsets(
                asked, isolation_level=isolation, request_timeout=_TIMEOUT_S
            )
            return {place.partition: future.result().offset for place, future in found.items()}

        return _answered(ask)

    def delete_records(self, topic: str, before: int = OFFSET_END, partition: int = 0) -> None:
        """Let the records of a partition before an offset expire, by default all of them."""
        place = TopicPartition(topic, partition, before)
        _answered(lambda: _results(self.admin.delete_records([place], request_timeout=_TIMEOUT_S)))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets that a group has committed, of the partitions where it has any."""
        consumer = self._member(group)
        try:
            places = [TopicPartition(topic, part) for part in self.partitions(topic)]
            found = _answered(lambda: _good(consumer.committed(places, timeout=_TIMEOUT_S)))
            return {place.partition: place.offset for place in found if place.offset >= 0}
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commit offsets for a group, by partition."""
        consumer = self._member(group)
        try:
            places = [TopicPartition(topic, part, offset) for part, offset in offsets.items()]
            _answered(lambda: _good(consumer.commit(offsets=places, asynchronous=False)))
        finally:
            consumer.close()

    def _member(self, group: str) -> Consumer:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": group, **_QUIET}
        return Consumer({**settings, "enable.auto.commit": False})


def _produce(
    producer: Producer,
    topic: str,
    records: Iterable[Sent | bytes | str | None],
    partition: int | None,
) -> list[tuple[int, int]]:
    failures: list[KafkaError] = []
    places: dict[int, tuple[int, int]] = {}

    def deliver(number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
            return
        part, offset = message.partition(), message.offset()
        assert part is not None
        assert offset is not None
        places[number] = (part, offset)

    for number, given in enumerate(records):
        record = given if isinstance(given, Sent) else Sent(given)
        where = record.partition if record.partition is not None else partition
        chosen: dict[str, Any] = {} if where is None else {"partition": where}
        if record.timestamp_ms is not None:
            chosen["timestamp"] = record.timestamp_ms
        headers = list(record.headers)

        def delivered(error: Any, message: Any, number: int = number) -> None:
            deliver(number, error, message)

        while True:
            try:
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=headers,
                    on_delivery=delivered,
                    **chosen,
                )
                break
            except BufferError:  # the queue is full
                producer.poll(1)
        producer.poll(0)
    assert producer.flush(_TIMEOUT_S) == 0, f"records are not in {topic} after {_TIMEOUT_S} s"
    assert not failures, failures
    return [places[number] for number in range(len(places))]


def _to_the_end(consumer: Consumer, partitions: int) -> list[Found]:
    found: list[Found] = []
    ended: set[int] = set()

    def ends() -> bool:
        for message in consumer.consume(10_000, timeout=0.1):
            error, partition = message.error(), message.partition()
            if error is None:
                found.append(_found(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                assert partition is not None
                ended.add(partition)
            elif not error.retriable():
                raise KafkaException(error)
        return len(ended) == partitions

    wait_for(ends)
    return found


def _found(message: Message) -> Found:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Found(
        partition,
        offset,
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def _place(record: Found) -> tuple[int, int]:
    return record.partition, record.offset


def _results(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(_TIMEOUT_S)


def _good(places: list[TopicPartition]) -> list[TopicPartition]:
    for place in places:
        _require(place.error)
    return places


def _require(error: KafkaError | None) -> None:
    if error is not None:
        raise KafkaException(error)


def _answered(ask: Callable[[], _T]) -> _T:
    """Return the answer of the brokers, asked again while they have not yet what they are to."""
    answers: list[_T] = []

    def is_answered() -> bool:
        try:
            answers.append(ask())
        except KafkaException as error:
            is_known = error.args[0].retriable() or error.args[0].code() in _NOT_YET
            if not (is_known or is_of_new_leader(error)):
                raise
        return bool(answers)

    wait_for(is_answered)
    return answers[0]
