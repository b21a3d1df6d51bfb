"""Which topics an input reads, as the driver finds them: ids, partitions, and where they end."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dstreams.common.clock import Clock
from dstreams.errors import SourceError
from dstreams.kafka import client
from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.parameters import BROKERS, KafkaParameters

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

LATEST, EARLIEST = -1, -2
"""Where a partition ends and begins, as the protocol of Kafka says it in the place of a time."""

_Described = tuple[Any, list[int]]
"""The id of a topic, None where the brokers tell none, and the numbers of its partitions."""

_PATTERN_AGE_MS = 5_000
_LOOK_S = 0.5
_NEW_S, _AGAIN_S = 1.0, 0.1
_TIMEOUT_S, _TIMEOUT_WHILE_AWAY_S, _TIMEOUT_AT_START_S = 10.0, 1.0, 30.0


@dataclass(frozen=True)
class Selection:
    """Which partitions an input reads: of named topics, of those of a name, or just some."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics like {self.pattern}"
        return ", ".join(self.topics or [str(one) for one in self.assigned])

    def names(self, there: Iterable[str]) -> tuple[str, ...]:
        """Return the topics to read, of those that are *there* where a pattern chooses."""
        if self.pattern is not None:
            matches = re.compile(self.pattern).fullmatch
            return tuple(sorted(name for name in there if matches(name)))
        return self.topics or tuple(sorted({one.topic for one in self.assigned}))


class BrokersAwayError(SourceError):
    """No broker has answered, and one may yet."""


class UnknownTopicError(SourceError):
    """The brokers know no topic of a name."""


@dataclass(frozen=True)
class Seen:
    """What the brokers say of the topics of an input.

    Args:
        ids: of the topics, by name; those of brokers that have none are not there.
        ends: where each partition ends for who reads as the parameters say.
    """

    ids: Mapping[str, str]
    ends: Mapping[TopicPartition, int]


class Topics:
    """Asks the brokers about the topics of an input, from one thread.

    Args:
        parameters: how to reach them.
        selection: which topics.
        clock: the driver's clock.
        where: the input, for messages.
        on_commit: called with the answer to offsets that the consumer has committed.
    """

    def __init__(
        self,
        parameters: KafkaParameters,
        selection: Selection,
        clock: Clock,
        where: str,
        on_commit: Callable[[Any, Any], None],
    ) -> None:
        self._parameters = parameters
        self._selection = selection
        self._clock = clock
        self._where = where
        self._on_commit = on_commit
        self._brokers = parameters.given[BROKERS]
        self._errors = client.ClientErrors()
        self._admin: Any = None
        self._consumer: Any = None
        self._names: tuple[str, ...] | None = None
        self._named_ms = 0
        self._timeout_s = _TIMEOUT_AT_START_S
        self._has_ids: bool | None = None

    def look(self, known: Collection[TopicPartition] = ()) -> Seen:
        """Return what there is now; it is quicker for partitions that are known.

        Raises:
            BrokersAwayError: no broker answers.
            UnknownTopicError: there is no such topic or partition.
            SourceError: the brokers refuse to say.
        """
        return self._though_new(lambda: self._look(known))

    def _look(self, known: Collection[TopicPartition]) -> Seen:
        names = self._selected()
        described = self._describe(names)
        try:
            ends = self._offsets(dict.fromkeys(known, LATEST))
        except UnknownTopicError:
            ends = {}  # which ones are there is said below
        ids: dict[str, str] = {}
        there: dict[TopicPartition, None] = {}
        for name in names:
            try:
                topic_id, partitions = self._answer(described[name])
            except UnknownTopicError:
                if self._selection.pattern is None:
                    raise
                self._names = None  # it was deleted since they were looked for
                continue
            if topic_id is not None:
                ids[name] = str(topic_id)
            there.update(dict.fromkeys(TopicPartition(name, one) for one in partitions))
        if self._selection.assigned:
            self._require(there)
            there = dict.fromkeys(self._selection.assigned)
        ends = {one: end for one, end in ends.items() if one in there}
        ends.update(self._offsets({one: LATEST for one in there if one not in ends}))
        return Seen(ids, ends)

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return an offset of each partition.

        Args:
            wanted: by partition :data:`EARLIEST`, :data:`LATEST`, or a time in milliseconds since
                the epoch: of the first record of that time or later, -1 where there is none.

        Raises:
            BrokersAwayError: no broker answers.
            UnknownTopicError: there is no such partition.
            SourceError: the brokers refuse to say.
        """
        return self._though_new(lambda: self._offsets(wanted))

    def _though_new(self, ask: Callable[[], _T]) -> _T:
        """Ask again for a moment of what is not there: brokers hear later of what one has made."""
        until_s = time.monotonic() + _NEW_S
        while True:
            try:
                return ask()
            except UnknownTopicError:
                if time.monotonic() >= until_s:
                    raise
            self.consumer().poll(_AGAIN_S)

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        partition = client.confluent_kafka().TopicPartition
        asked = [partition(*one, spec) for one, spec in wanted.items()]
        try:
            found = self._answer(lambda: self._of_leaders(asked))
        except UnknownTopicError:
            # The client knows topics as it saw them last, and some may have more partitions now.
            for topic in {one.topic for one in wanted}:
                self._answer(partial(self._metadata, topic))
            found = self._answer(lambda: self._of_leaders(asked))
        return {TopicPartition(one.topic, one.partition): one.offset for one in found}

    def _of_leaders(self, asked: list[Any]) -> list[Any]:
        """Ask for offsets; a broker that leads a partition since a moment may not know it yet."""
        until_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._of_leaders_now(asked)
            except client.confluent_kafka().KafkaException as error:
                if not client.is_of_new_leader(error) or time.monotonic() >= until_s:
                    raise
            self.consumer().poll(_AGAIN_S)

    def _of_leaders_now(self, asked: list[Any]) -> list[Any]:
        found: list[Any] = self.consumer().offsets_for_times(asked, timeout=self._timeout_s)
        for one in found:
            if one.error is not None:
                raise client.confluent_kafka().KafkaException(one.error)
        return found

    def consumer(self) -> Any:
        """Return the driver's consumer, which is in no group and reads nothing."""
        if self._consumer is None:
            config = {
                "log_level": 0,  # what it would print is told with its errors
                **self._parameters.for_group(),
                "error_cb": self._errors,
                "on_commit": self._on_commit,
            }
            self._consumer = client.make("Consumer", config, self._where)
        return self._consumer

    def close(self) -> None:
        """Let go of the clients; may be called twice."""
        self._admin = None
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            consumer.close()

    def _selected(self) -> tuple[str, ...]:
        """The names of the topics; those of a pattern are looked for now and then."""
        if self._selection.pattern is None:
            return self._selection.names(())
        now_ms = self._clock.now_ms()
        if self._names is None or not 0 <= now_ms - self._named_ms < _PATTERN_AGE_MS:
            there = self._answer(self._metadata).topics
            self._names, self._named_ms = self._selection.names(there), now_ms
        return self._names

    def _describe(self, names: tuple[str, ...]) -> Mapping[str, Callable[[], _Described]]:
        """Ask for topics; what is returned waits for the answer of each."""
        if not names:
            return {}
        if self._has_ids is None:
            cluster = self._answer(lambda: self._metadata(names[0]))
            self._has_ids = cluster.controller_id in {-1, *cluster.brokers}
        if not self._has_ids:
            return {name: partial(self._without_id, name) for name in names}
        if self._admin is None:
            config = {"log_level": 0, **self._parameters.for_admin()}
            self._admin = client.make("AdminClient", config, self._where)
        collection = client.confluent_kafka().TopicCollection(list(names))
        futures: Mapping[str, Any] = self._admin.describe_topics(
            collection, request_timeout=self._timeout_s
        )
        return {name: partial(_with_id, future) for name, future in futures.items()}

    def _without_id(self, name: str) -> _Described:
        """Ask for a topic as consumers do: librdkafka's mock cluster describes none."""
        topic = self._metadata(name).topics[name]
        if topic.error is not None:
            raise client.confluent_kafka().KafkaException(topic.error)
        return None, list(topic.partitions)

    def _metadata(self, *topic: str) -> Any:
        """Ask for topics as consumers do, and no longer once the brokers refuse this client."""
        consumer = self.consumer()
        wait_s, left_s = _LOOK_S, self._timeout_s
        while True:
            try:
                return consumer.list_topics(*topic, timeout=min(wait_s, left_s))
            except client.confluent_kafka().KafkaException as error:
                consumer.poll(0)  # calls back with the errors of its connections
                left_s -= wait_s
                if left_s <= 0 or self._errors.refusal is not None or not client.may_heal(error):
                    raise
                wait_s *= 2  # an answer about many topics may take a while

    def _answer(self, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except client.confluent_kafka().KafkaException as error:
            raise self._failed(error) from error
        self._errors.answered()
        self._timeout_s = _TIMEOUT_S
        return answer

    def _failed(self, error: Exception) -> SourceError:
        """Say what a failure means."""
        self.consumer().poll(0)  # calls back with the errors of its connections
        if self._errors.lasting is not None:
            return self._refused(self._errors.lasting)
        if client.is_unknown_topic(error):
            return UnknownTopicError(
                f"{self._where}: the brokers {self._brokers} have no such topic: "
                f"{client.reason(error)}; create it, or give the names that there are"
            )
        if not client.may_heal(error):
            return SourceError(f"{self._where}: asking {self._brokers}: {client.reason(error)}")
        self._timeout_s = _TIMEOUT_WHILE_AWAY_S
        last = self._errors.last
        why = client.reason(error) if last is None else f"{last.str()} ({last.name()})"
        if not self._errors.has_answered:
            why += (
                "; look at bootstrap.servers, and give security.protocol where the brokers ask for "
                "TLS or for who it is"
            )
        return BrokersAwayError(f"{self._where}: no broker of {self._brokers} answers: {why}")

    def _refused(self, error: Any) -> SourceError:
        self._errors.forget()
        return SourceError(client.refused(self._where, self._brokers, error))

    def _require(self, there: Mapping[TopicPartition, None]) -> None:
        missing = [str(one) for one in self._selection.assigned if one not in there]
        if missing:
            raise UnknownTopicError(
                f"{self._where}: there are no partitions {', '.join(missing)}; assign those that "
                "there are"
            )


def _with_id(future: Any) -> _Described:
    topic = future.result()
    return topic.topic_id, [one.id for one in topic.partitions]
