"""The commits of outputs in a compacted topic, written in the transaction of their records.

Each partition of an output's RDD has a record that names its last committed batch. All records of
an output are in one partition of the topic, chosen by a hash of output and stream: readers read one
partition only, and a hanging transaction delays only the few outputs that share it.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dstreams.errors import InvalidStreamError, StreamError
from dstreams.kafka import client
from dstreams.kafka.parameters import BROKERS, ProducerParameters
from dstreams.sinks.output_batch import OutputBatch

DEFAULT_TOPIC = "__dstreams_commits"
PARTITIONS = 16
"""Number of partitions in use; further partitions of the topic are ignored."""

_AT_ONCE = 1_000
_POLL_S, _PAUSE_S = 0.2, 0.02
_POLICY, _COMPACT = "cleanup.policy", "compact"


class CommittedBatch(NamedTuple):
    """The last committed batch of a partition of an output.

    Args:
        batch_id: its number.
        beginning: its beginning.
        partitions: number of partitions of its RDD.
    """

    batch_id: int
    beginning: str
    partitions: int


@dataclass(frozen=True)
class CommitsRead:
    """The commits of an output up to a position.

    Args:
        last: the last commit, by partition of the output.
        position: where to continue reading.
        is_whole: False if an open transaction hides later commits.
    """

    last: dict[int, CommittedBatch]
    position: int
    is_whole: bool


@dataclass(frozen=True)
class OutputCommits:
    """The commits of one output of one stream.

    Args:
        topic: topic of the commits.
        sink: name of the output, unique in its stream.
        stream_id: identity of the stream.
    """

    topic: str
    sink: str
    stream_id: str

    @property
    def partition(self) -> int:
        """The partition of the topic with these commits."""
        return zlib.crc32(json.dumps([self.sink, self.stream_id]).encode()) % PARTITIONS

    def transactional_id(self, split: int) -> str:
        """Return the id by which the writers of a partition fence each other, in every run."""
        return f"dstreams-{self.stream_id}-{self.sink}-{split}"

    def record(self, batch: OutputBatch, split: int, partitions: int) -> tuple[bytes, bytes]:
        """Return key and value of the commit of a batch by a partition."""
        value = {
            "batch": batch.batch_id,
            "time_ms": batch.time_ms,
            "beginning": batch.batch_token,
            "partitions": partitions,
        }
        return json.dumps([self.sink, self.stream_id, split]).encode(), json.dumps(value).encode()

    def read(
        self, consumer: Any, position: int | None, hidden_s: float, answer_s: float
    ) -> CommitsRead:
        """Read the commits from a position to the end.

        Args:
            consumer: reads committed records, and reports the end of a partition.
            position: None for the beginning.
            hidden_s: seconds to wait for open transactions.
            answer_s: seconds to wait for the brokers.

        Raises:
            StreamError: the brokers refuse or do not answer, or a record cannot be read.
        """
        library = client.confluent_kafka()
        place = library.TopicPartition(self.topic, self.partition)
        found = CommitsRead({}, library.OFFSET_BEGINNING if position is None else position, False)
        target = None
        until_s = time.monotonic() + hidden_s
        try:
            while True:
                place.offset = found.position
                consumer.assign([place])
                found = self._to_the_end(consumer, found, answer_s)
                # Transactions may have ended since; but only commits before the first end can be
                # of a writer that was fenced before this call.
                seen = consumer.get_watermark_offsets(place, cached=True)[1]
                target = max(seen, 0) if target is None else target
                if found.position >= target:
                    return CommitsRead(found.last, found.position, True)
                if time.monotonic() >= until_s:
                    return found
                consumer.poll(_PAUSE_S)
        except library.KafkaException as error:
            raise StreamError(f"{self._named} cannot be read: {client.reason(error)}") from None

    def _to_the_end(self, consumer: Any, before: CommitsRead, answer_s: float) -> CommitsRead:
        last = dict(before.last)
        for message in _messages(consumer, answer_s):
            error = message.error()
            if error is None:
                self._apply(message, last)
            elif error.name() == "_PARTITION_EOF":
                return CommitsRead(last, message.offset(), False)
            elif not client.may_heal(client.confluent_kafka().KafkaException(error)):
                raise StreamError(f"{self._named} cannot be read: {error.str()} ({error.name()})")
        raise StreamError(
            f"{self._named} cannot be read: the brokers have not answered for {answer_s:g} s; "
            "check them"
        )

    def _apply(self, message: Any, last: dict[int, CommittedBatch]) -> None:
        try:
            sink, stream_id, split = json.loads(message.key())
            if (sink, stream_id) != (self.sink, self.stream_id):
                return
            if message.value() is None:
                last.pop(split, None)
                return
            data = json.loads(message.value())
            last[split] = CommittedBatch(data["batch"], data["beginning"], data["partitions"])
        except (TypeError, ValueError, KeyError) as error:
            raise StreamError(
                f"{self._named}, has a record at offset {message.offset()} that is not the commit "
                f"of a batch ({error!r}); give the sink a commitTopic of its own"
            ) from None

    @property
    def _named(self) -> str:
        return f"{self.topic}-{self.partition}, with the commits of {self.sink!r},"


def _messages(consumer: Any, answer_s: float) -> Iterator[Any]:
    """Yield messages until none has come for *answer_s* seconds."""
    heard_s = time.monotonic()
    while time.monotonic() < heard_s + answer_s:
        for message in consumer.consume(_AT_ONCE, _POLL_S):
            if message.error() is None:
                heard_s = time.monotonic()
            yield message


def require_topic(parameters: ProducerParameters, topic: str) -> None:
    """Create the topic of commits if missing, and reject one that cannot keep them.

    Raises:
        StreamError: it cannot be created or used, or the brokers refuse or do not answer.
    """
    admin = _TopicAdmin(parameters, topic)
    partitions = admin.partitions()
    if partitions is None:
        admin.create()
        return
    policy = admin.policy()
    if partitions < PARTITIONS or policy != _COMPACT:
        raise StreamError(
            f"{parameters.where}: the topic {topic} of commits has {partitions} partitions and "
            f"{_POLICY}={policy}; it needs {PARTITIONS} partitions or more, and "
            f"{_POLICY}={_COMPACT}, or commits are lost: change it, or give another commitTopic"
        )


class _TopicAdmin:
    """An admin client for the topic of commits."""

    def __init__(self, parameters: ProducerParameters, topic: str) -> None:
        self._where, self._brokers = parameters.where, parameters.given[BROKERS]
        self._topic = topic
        self._answer_s = parameters.delivery_ms / 1000
        self._errors = client.ClientErrors()
        config = {"log_level": 0, **parameters.for_admin(), "error_cb": self._errors}
        self._library = client.confluent_kafka()
        try:
            self._admin = client.make("AdminClient", config, self._where)
        except StreamError as error:
            raise InvalidStreamError(str(error)) from None

    def partitions(self) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""
        wanted = self._library.TopicCollection([self._topic])
        try:
            return len(self._ask("describe_topics", wanted).partitions)
        except self._library.KafkaException as error:
            if client.is_unknown_topic(error):
                return None
            raise self._failed(error) from None

    def create(self) -> None:
        """Create the topic, unless another client does at the same time."""
        topic = self._library.admin.NewTopic(self._topic, PARTITIONS, config={_POLICY: _COMPACT})
        try:
            self._ask("create_topics", [topic])
        except self._library.KafkaException as error:
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return
            if client.may_heal(error):
                raise self._failed(error) from None
            raise StreamError(
                f"{self._where}: the topic {self._topic} of commits does not exist and cannot be "
                f"created: {client.reason(error)}; create it, with {_POLICY}={_COMPACT} and "
                f"{PARTITIONS} partitions"
            ) from None

    def policy(self) -> str:
        """Return the cleanup policy; without the permission to read it, assume compaction."""
        kinds = self._library.admin.ResourceType
        resource = self._library.admin.ConfigResource(kinds.TOPIC, self._topic)
        try:
            return str(self._ask("describe_configs", [resource])[_POLICY].value)
        except self._library.KafkaException as error:
            if client.may_heal(error):
                raise self._failed(error) from None
            return _COMPACT

    def _ask(self, question: str, about: Any) -> Any:
        answers = getattr(self._admin, question)(about, request_timeout=self._answer_s)
        (answer,) = answers.values()
        return answer.result()

    def _failed(self, error: Exception) -> StreamError:
        self._admin.poll(0)  # delivers the errors of its connections
        lasting, last = self._errors.lasting, self._errors.last
        if lasting is not None:
            return StreamError(client.refused(self._where, self._brokers, lasting))
        why = client.reason(error) if last is None else f"{last.str()} ({last.name()})"
        return StreamError(
            f"{self._where}: no broker of {self._brokers} has answered within {self._answer_s:g} s "
            f"about the topic {self._topic}: {why}; check them, or raise delivery.timeout.ms"
        )
