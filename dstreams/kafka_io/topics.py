"""Which topics an input reads, as the driver finds them: ids, partitions, and where they end."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dstreams.clock import Clock
from dstreams.errors import SourceError
from dstreams.kafka_io import client
from dstreams.kafka_io.offsets import TopicPartition
from dstreams.kafka_io.parameters import BROKERS, KafkaParameters

logger = logging.getLogger(__name__)

_PATTERN_AGE_MS = 5_000
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


class Topics:
    """Asks the brokers about the topics of an input, from one thread.

    Args:
        parameters: how to reach them.
        selection: which topics.
        clock: the driver's clock.
    """

    def __init__(self, parameters: KafkaParameters, selection: Selection, clock: Clock) -> None:
        self._parameters = parameters
        self._selection = selection
        self._clock = clock
        self._errors = client.ClientErrors()
        self._admin: Any = None
        self._names: tuple[str, ...] | None = None
        self._named_ms = 0
        self._timeout_s = _TIMEOUT_AT_START_S

    @property
    def brokers(self) -> str:
        """Where they are, for messages."""
        return str(self._parameters.given[BROKERS])

    def partitions(self) -> tuple[dict[TopicPartition, None], dict[str, str]]:
        """Return the partitions that there are, and the id of each topic.

        Raises:
            BrokersAwayError: no broker answers.
            SourceError: there is no such topic, or the brokers refuse to say.
        """
        library = client.confluent_kafka()
        names = self._selected()
        if not names:
            return {}, {}
        futures = self._ask("describe_topics", library.TopicCollection(list(names)))
        found: dict[TopicPartition, None] = {}
        ids: dict[str, str] = {}
        for name in names:
            try:
                topic = self._answer(futures[name])
            except SourceError as error:
                if self._selection.pattern is not None and isinstance(error, UnknownTopicError):
                    self._names = None  # it was deleted: who had read it says so
                    continue
                raise
            if topic.topic_id is not None:
                ids[name] = str(topic.topic_id)
            for partition in topic.partitions:
                found[TopicPartition(name, partition.id)] = None
        assigned = self._selection.assigned
        if not assigned:
            return found, ids
        missing = [str(one) for one in assigned if one not in found]
        if missing:
            raise SourceError(
                f"{self._where}: there are no partitions {', '.join(missing)}; assign those that "
                "there are"
            )
        return dict.fromkeys(assigned), ids

    def offsets(
        self, partitions: Iterable[TopicPartition], of: Literal["earliest", "latest"]
    ) -> dict[TopicPartition, int]:
        """Return where partitions begin, or end for who reads them as the parameters say.

        Raises:
            BrokersAwayError: no broker answers.
            SourceError: they refuse to say.
        """
        return self._offsets(dict.fromkeys(partitions, of))

    def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offset of a time or later, -1 where there is none so late."""
        return self._offsets(times_ms)

    def _offsets(self, specs: Mapping[TopicPartition, str | int]) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        library = client.confluent_kafka()
        spec_of = library.admin.OffsetSpec
        by_name = {"earliest": spec_of.earliest(), "latest": spec_of.latest()}
        levels = library.IsolationLevel
        committed = self._parameters.reads_committed
        futures = self._ask(
            "list_offsets",
            {
                library.TopicPartition(*one): by_name[spec]
                if isinstance(spec, str)
                else spec_of.for_timestamp(spec)
                for one, spec in specs.items()
            },
            isolation_level=levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED,
        )
        return {
            TopicPartition(one.topic, one.partition): self._answer(future).offset
            for one, future in futures.items()
        }

    def close(self) -> None:
        """Let go of the client."""
        self._admin = None

    @property
    def _where(self) -> str:
        return f"{self._parameters.where}({self._selection})"

    def _selected(self) -> tuple[str, ...]:
        """The names of the topics; those of a pattern are looked for now and then."""
        if self._selection.pattern is None:
            return self._selection.names(())
        now_ms = self._clock.now_ms()
        if self._names is None or not 0 <= now_ms - self._named_ms < _PATTERN_AGE_MS:
            admin = self._client()
            try:
                there = admin.list_topics(timeout=self._timeout_s).topics
            except client.confluent_kafka().KafkaException as error:
                raise self._failed(error) from error
            self._names, self._named_ms = self._selection.names(there), now_ms
        return self._names

    def _client(self) -> Any:
        if self._admin is None:
            config = {
                "log_level": 0,  # what it would print is told with its errors
                **self._parameters.for_admin(),
                "error_cb": self._errors,
            }
            self._admin = client.make("AdminClient", config, self._where)
        return self._admin

    def _ask(self, question: str, *arguments: Any, **named: Any) -> Any:
        admin = self._client()
        return getattr(admin, question)(*arguments, **named, request_timeout=self._timeout_s)

    def _answer(self, future: Any) -> Any:
        try:
            answer = future.result()
        except client.confluent_kafka().KafkaException as error:
            raise self._failed(error) from error
        self._errors.clear()
        self._timeout_s = _TIMEOUT_S
        return answer

    def _failed(self, error: Exception) -> SourceError:
        """Say what a failure means."""
        self._admin.poll(0)  # calls back with the errors of its connections
        lasting = self._errors.lasting
        if lasting is not None:
            self._errors.clear()
            return SourceError(
                f"{self._where}: the brokers {self.brokers} refuse this client: {lasting.str()} "
                f"({lasting.name()}); look at security.protocol, sasl.* and ssl.* of its parameters"
            )
        if client.is_unknown_topic(error):
            return UnknownTopicError(
                f"{self._where}: the brokers {self.brokers} have no such topic: "
                f"{client.reason(error)}; create it, or give the names that there are"
            )
        if not client.may_heal(error):
            return SourceError(f"{self._where}: asking {self.brokers}: {client.reason(error)}")
        self._timeout_s = _TIMEOUT_WHILE_AWAY_S
        last = self._errors.last
        why = client.reason(error) if last is None else f"{last.str()} ({last.name()})"
        return BrokersAwayError(f"{self._where}: no broker of {self.brokers} answers: {why}")


class UnknownTopicError(SourceError):
    """The brokers know no topic of a name."""
