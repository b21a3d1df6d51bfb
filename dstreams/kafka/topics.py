"""The driver's view of Kafka: topics, partitions, their ends, and the offsets of the group."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dstreams.common.clock import Clock, SystemClock
from dstreams.errors import SourceError
from dstreams.kafka import client
from dstreams.kafka.offsets import OffsetRange, TopicPartition
from dstreams.kafka.parameters import BROKERS, KafkaParameters

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

LATEST, EARLIEST = -1, -2
"""The end and the beginning of a partition, as Kafka's protocol encodes them."""

_Described = tuple[Any, list[int]]
"""The id of a topic, None if the brokers have no ids, and the numbers of its partitions."""

_PATTERN_AGE_MS = 5_000
_ASK_S = 0.5
_NEW_S, _RETRY_S = 1.0, 0.1
_REFUSED_S = 3.0
_TRIES_OF_A_CLIENT = 10
"""Failures in a row after which a new client is made. A starting broker may answer that there are
no brokers; the client then asks none again (librdkafka issue 5301)."""
_TIMEOUT_S, _TIMEOUT_WHILE_AWAY_S, _TIMEOUT_AT_START_S = 10.0, 1.0, 30.0
_POLLS_AT_CLOSE, _POLL_S = 50, 0.1
_GROUP_TIMEOUT_MS = 60_000  # default.api.timeout.ms of Java's consumer
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 100, 1000

Committed = Callable[[Mapping[TopicPartition, int], Exception | None], Any]
"""Receives committed offsets, and the error if they were not committed."""


@dataclass(frozen=True)
class TopicSelection:
    """The partitions of an input: of named topics, of topics that match a pattern, or assigned."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics like {self.pattern}"
        return ", ".join(self.topics or [str(one) for one in self.assigned])

    def names(self, existing: Iterable[str]) -> tuple[str, ...]:
        """Return the topics to read; a pattern selects from those that exist."""
        if self.pattern is not None:
            matches = re.compile(self.pattern).fullmatch
            return tuple(sorted(name for name in existing if matches(name)))
        return self.topics or tuple(sorted({one.topic for one in self.assigned}))


class BrokersAwayError(SourceError):
    """No broker answers at present."""


class UnknownTopicError(SourceError):
    """A topic does not exist."""


@dataclass(frozen=True)
class TopicState:
    """The current state of the topics of an input.

    Args:
        ids: ids of the topics by name, if the brokers have ids.
        ends: end of each partition at the isolation level of the parameters.
    """

    ids: Mapping[str, str]
    ends: Mapping[TopicPartition, int]


class Topics:
    """A client for the topics of an input; used by one thread.

    Args:
        parameters: parameters of the clients.
        selection: topics to read.
        clock: the driver's clock.
        where: the input, for messages.
        on_commit: called with the answer to a commit of offsets; None if nothing is committed.
    """

    def __init__(
        self,
        parameters: KafkaParameters,
        selection: TopicSelection,
        clock: Clock,
        where: str,
        on_commit: Callable[[Any, Any], None] | None = None,
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
        self._failures = 0

    def state(self, known: Collection[TopicPartition] = ()) -> TopicState:
        """Return the current state; faster if the partitions are *known*.

        Raises:
            BrokersAwayError: no broker answers.
            UnknownTopicError: a topic or partition does not exist.
            SourceError: the brokers refuse the request.
        """
        return self._retry_unknown(lambda: self._state(known))

    def _state(self, known: Collection[TopicPartition]) -> TopicState:
        names = self._selected()
        described = self._describe(names)
        try:
            ends = self._offsets(dict.fromkeys(known, LATEST))
        except UnknownTopicError:
            ends = {}  # the partitions are checked below
        ids: dict[str, str] = {}
        existing: dict[TopicPartition, None] = {}
        for name in names:
            try:
                topic_id, partitions = self._answer(described[name])
            except UnknownTopicError:
                if self._selection.pattern is None:
                    raise
                self._names = None  # a topic was deleted since the pattern was matched
                continue
            if topic_id is not None:
                ids[name] = str(topic_id)
            existing.update(dict.fromkeys(TopicPartition(name, one) for one in partitions))
        if self._selection.assigned:
            self._require(existing)
            existing = dict.fromkeys(self._selection.assigned)
        ends = {one: end for one, end in ends.items() if one in existing}
        ends.update(self._offsets({one: LATEST for one in existing if one not in ends}))
        return TopicState(ids, ends)

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return an offset of each partition.

        Args:
            wanted: by partition :data:`EARLIEST`, :data:`LATEST`, or a time in milliseconds since
                the epoch, for the first record of that time or later; its offset is -1 if missing.

        Raises:
            BrokersAwayError: no broker answers.
            UnknownTopicError: a partition does not exist.
            SourceError: the brokers refuse the request.
        """
        return self._retry_unknown(lambda: self._offsets(wanted))

    def _retry_unknown(self, ask: Callable[[], _T]) -> _T:
        """Retry for a moment: other brokers learn of a new topic later."""
        until_s = time.monotonic() + _NEW_S
        while True:
            try:
                return ask()
            except UnknownTopicError:
                if time.monotonic() >= until_s:
                    raise
            self.consumer().poll(_RETRY_S)

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        partition = client.confluent_kafka().TopicPartition
        asked = [partition(*one, spec) for one, spec in wanted.items()]
        try:
            found = self._answer(lambda: self._of_leaders(asked))
        except UnknownTopicError:
            # The client's metadata may be too old to have all partitions.
            for topic in {one.topic for one in wanted}:
                self._answer(partial(self._metadata, topic))
            found = self._answer(lambda: self._of_leaders(asked))
        return {TopicPartition(one.topic, one.partition): one.offset for one in found}

    def _of_leaders(self, asked: list[Any]) -> list[Any]:
        """Request offsets; retry if a new leader does not know yet that it leads a partition."""
        until_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._of_leaders_now(asked)
            except client.confluent_kafka().KafkaException as error:
                if not client.is_of_new_leader(error) or time.monotonic() >= until_s:
                    raise
            self.consumer().poll(_RETRY_S)

    def _of_leaders_now(self, asked: list[Any]) -> list[Any]:
        found: list[Any] = self.consumer().offsets_for_times(asked, timeout=self._timeout_s)
        for one in found:
            if one.error is not None:
                raise client.confluent_kafka().KafkaException(one.error)
        return found

    def consumer(self) -> Any:
        """Return the driver's consumer, which joins no group and reads nothing."""
        if self._consumer is None:
            config = {"log_level": 0, **self._parameters.for_group(), "error_cb": self._errors}
            if self._on_commit is not None:
                config["on_commit"] = self._on_commit
            self._consumer = client.make("Consumer", config, self._where)
        return self._consumer

    def close(self) -> None:
        """Close the clients; the next request makes new ones. May be called twice."""
        self._admin = None
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            consumer.close()

    def _selected(self) -> tuple[str, ...]:
        """Return the names of the topics; a pattern is matched again every few seconds."""
        if self._selection.pattern is None:
            return self._selection.names(())
        now_ms = self._clock.now_ms()
        if self._names is None or not 0 <= now_ms - self._named_ms < _PATTERN_AGE_MS:
            existing = self._answer(self._metadata).topics
            self._names, self._named_ms = self._selection.names(existing), now_ms
        return self._names

    def _describe(self, names: tuple[str, ...]) -> Mapping[str, Callable[[], _Described]]:
        """Request descriptions of topics; the returned functions wait for the answer."""
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
        """Return the partitions of a topic; librdkafka's mock cluster does not describe topics."""
        topic = self._metadata(name).topics[name]
        if topic.error is not None:
            raise client.confluent_kafka().KafkaException(topic.error)
        return None, list(topic.partitions)

    def _metadata(self, *topic: str) -> Any:
        """Request metadata, and stop waiting if the brokers refuse this client."""
        consumer = self.consumer()
        wait_s, waited_s = _ASK_S, 0.0
        while True:
            try:
                return consumer.list_topics(*topic, timeout=wait_s)
            except client.confluent_kafka().KafkaException as error:
                consumer.poll(0)  # delivers the errors of its connections
                waited_s += wait_s
                limit_s = self._timeout_s
                if self._errors.has_no_listener:
                    limit_s = min(limit_s, _REFUSED_S)
                left_s = limit_s - waited_s
                if left_s <= 0 or self._errors.refusal is not None or not client.may_heal(error):
                    raise
                wait_s = min(2 * wait_s, left_s)  # an answer about many topics may take long

    def _answer(self, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except client.confluent_kafka().KafkaException as error:
            raise self._failed(error) from error
        self._errors.answered()
        self._timeout_s, self._failures = _TIMEOUT_S, 0
        return answer

    def _failed(self, error: Exception) -> SourceError:
        """Return the error of a failure."""
        self.consumer().poll(0)  # delivers the errors of its connections
        if self._errors.lasting is not None:
            return self._refused(self._errors.lasting)
        if client.is_unknown_topic(error):
            return UnknownTopicError(
                f"{self._where}: the brokers {self._brokers} have no such topic: "
                f"{client.reason(error)}; create it, or correct the name"
            )
        if not client.may_heal(error):
            return SourceError(f"{self._where}: asking {self._brokers}: {client.reason(error)}")
        self._timeout_s = _TIMEOUT_WHILE_AWAY_S
        self._failures += 1
        if self._failures % _TRIES_OF_A_CLIENT == 0:
            self.close()
        last = self._errors.last
        why = client.reason(error) if last is None else f"{last.str()} ({last.name()})"
        if not self._errors.has_answered:
            why += (
                "; is a broker running there? If it expects TLS or a login, set security.protocol"
            )
        return BrokersAwayError(f"{self._where}: no broker of {self._brokers} answers: {why}")

    def _refused(self, error: Any) -> SourceError:
        self._errors.forget()
        return SourceError(client.refused(self._where, self._brokers, error))

    def _require(self, existing: Mapping[TopicPartition, None]) -> None:
        missing = [str(one) for one in self._selection.assigned if one not in existing]
        if missing:
            raise UnknownTopicError(
                f"{self._where}: unknown partitions {', '.join(missing)}; assign existing ones"
            )


def _with_id(future: Any) -> _Described:
    topic = future.result()
    return topic.topic_id, [one.id for one in topic.partitions]


class GroupCommits:
    """Offsets to commit to the consumer group; thread-safe, and pickled as empty."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[dict[TopicPartition, int], Committed | None]] = deque()

    def add(self, ranges: Iterable[OffsetRange], callback: Committed | None = None) -> None:
        """Add the ends of ranges."""
        offsets: dict[TopicPartition, int] = {}
        for one in ranges:
            key = one.topicPartition()
            offsets[key] = max(offsets.get(key, 0), one.untilOffset)
        self._waiting.append((offsets, callback))

    def take(self) -> list[tuple[dict[TopicPartition, int], Committed | None]]:
        """Remove and return all offsets."""
        found = []
        while self._waiting:
            found.append(self._waiting.popleft())
        return found

    def __reduce__(self) -> Any:
        return GroupCommits, ()


class Group:
    """The offsets of the consumer group of an input, which has no members.

    Args:
        name: name of the group, or None.
        consumer: returns the driver's consumer.
        where: the input, for messages.
        clock: the driver's clock.
    """

    def __init__(
        self,
        name: str | None,
        consumer: Callable[[], Any],
        where: str,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._consumer = consumer
        self._where = where
        self._clock = clock or SystemClock()
        self._sender: Any = None
        self._sent: deque[tuple[Mapping[TopicPartition, int], Committed | None]] = deque()

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets; retry while the coordinator is unavailable or moves.

        Raises:
            SourceError: they cannot be read, or the coordinator was unavailable for a minute.
        """
        wanted = list(partitions)
        if self._name is None or not wanted:
            return {}
        left_ms, pause_ms = _GROUP_TIMEOUT_MS, _FIRST_PAUSE_MS
        while True:
            asked_ms = self._clock.now_ms()
            try:
                return self._ask(wanted)
            except SourceError as error:
                if left_ms <= 0 or error.__cause__ is None or not client.may_heal(error.__cause__):
                    raise
                if left_ms == _GROUP_TIMEOUT_MS:
                    logger.warning("%s; retrying for %d s", error, _GROUP_TIMEOUT_MS // 1000)
            self._consumer().poll(pause_ms / 1000)  # waits, and delivers errors
            # At least the pause: a manual clock may not advance.
            left_ms -= max(pause_ms, self._clock.now_ms() - asked_ms)
            pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)

    def _ask(self, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        library = client.confluent_kafka()
        try:
            found = self._consumer().committed(
                [library.TopicPartition(*one) for one in wanted], timeout=30
            )
        except library.KafkaException as error:
            raise SourceError(
                f"{self._where}: the offsets of the group {self._name!r} cannot be "
                f"read: {client.reason(error)}"
            ) from error
        for one in found:
            if one.error is not None:
                raise SourceError(
                    f"{self._where}: the offset of the group {self._name!r} for {one.topic}-"
                    f"{one.partition} cannot be read: {one.error.str()} ({one.error.name()})"
                ) from library.KafkaException(one.error)
        return {
            TopicPartition(one.topic, one.partition): one.offset for one in found if one.offset >= 0
        }

    def commit(self, offsets: Mapping[TopicPartition, int], callback: Committed | None) -> None:
        """Send offsets to be committed; never raises, as only the checkpoint matters."""
        library = client.confluent_kafka()
        if self._name is None:
            error = SourceError(f"{self._where}: offsets are committed to a group; give group.id")
            self._notify(callback, offsets, error)
            return
        sent = [library.TopicPartition(*one, at) for one, at in offsets.items()]
        try:
            self._current().commit(offsets=sent)
        except library.KafkaException as error:
            self._notify(callback, offsets, error)
        else:
            self._sent.append((offsets, callback))

    def answers(self, wait_s: float = 0) -> None:
        """Deliver the answers to commits that have arrived."""
        if self._sent:
            self._current().poll(wait_s)  # calls back

    def _current(self) -> Any:
        """Return the driver's consumer; a new one gets no answers to commits of the one before."""
        consumer = self._consumer()
        if consumer is not self._sender:
            self._sender = consumer
            while self._sent:
                offsets, callback = self._sent.popleft()
                error = SourceError("no broker answered")
                self._notify(callback, offsets, error)
        return consumer

    def close(self) -> None:
        """Wait a few seconds for outstanding answers."""
        for _ in range(_POLLS_AT_CLOSE):
            self.answers(_POLL_S)

    def answered(self, error: Any, partitions: Any) -> None:
        """Handle the answer to the oldest commit that was sent; called by the client."""
        offsets = {TopicPartition(one.topic, one.partition): one.offset for one in partitions}
        failure = None if error is None else SourceError(f"{error.str()} ({error.name()})")
        callback = self._sent.popleft()[1] if self._sent else None
        self._notify(callback, offsets, failure)

    def _notify(
        self,
        callback: Committed | None,
        offsets: Mapping[TopicPartition, int],
        error: Exception | None,
    ) -> None:
        if error is not None:
            logger.warning("%s: offsets were not committed: %s", self._where, error)
        if callback is not None:
            try:
                callback(offsets, error)
            except Exception:
                logger.warning("%s: the callback of a commit failed", self._where, exc_info=True)
