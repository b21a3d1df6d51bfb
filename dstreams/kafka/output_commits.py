"""Which batches an output has, in a compacted topic: written in the transaction of their records.

A record for each partition of the output's RDD says which batch was committed last. Those of one
output are in one partition of the topic, by a hash of its name and stream. So a reader goes through
that one only; and a transaction that hangs holds up none but the few outputs that share it.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dstreams.errors import StreamError
from dstreams.kafka import client
from dstreams.sinks.output_batch import OutputBatch

DEFAULT_TOPIC = "__dstreams_commits"
PARTITIONS = 16
"""Partitions of the topic that are used. More of them change nothing, so none is ever looked for
in the wrong one."""

_AT_ONCE = 1_000
_POLL_S, _PAUSE_S = 0.2, 0.02


class Committed(NamedTuple):
    """The last batch that a partition of an output has.

    Args:
        batch_id: its number.
        beginning: its beginning.
        partitions: how many the RDD of the batch had.
    """

    batch_id: int
    beginning: str
    partitions: int


@dataclass(frozen=True)
class CommitsRead:
    """What was read of the commits of an output.

    Args:
        last: by partition of the output.
        position: where to read on.
        is_whole: False where a transaction that has not ended hides what came after it.
    """

    last: dict[int, Committed]
    position: int
    is_whole: bool


@dataclass(frozen=True)
class OutputCommits:
    """The commits of one output of one stream.

    Args:
        topic: where they are.
        sink: name of the output, unique in its stream.
        stream_id: identity of the stream.
    """

    topic: str
    sink: str
    stream_id: str

    @property
    def partition(self) -> int:
        """That of the topic where they are."""
        return zlib.crc32(json.dumps([self.sink, self.stream_id]).encode()) % PARTITIONS

    def transactional_id(self, split: int) -> str:
        """Return the id by which the writers of a partition fence each other, in every run."""
        return f"dstreams-{self.stream_id}-{self.sink}-{split}"

    def record(self, batch: OutputBatch, split: int, partitions: int) -> tuple[bytes, bytes]:
        """Return key and value that say that a partition has a batch."""
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
            consumer: that reads committed records, and tells of the end of a partition.
            position: None for the beginning.
            hidden_s: how long to wait for transactions that have not ended.
            answer_s: how long to wait for the brokers.

        Raises:
            StreamError: the brokers do not answer, or refuse to, or what is there cannot be read.
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
                # Transactions may have ended since; but only what was there when this began can
                # be of a writer that was fenced before it.
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
                self._take(message, last)
            elif error.name() == "_PARTITION_EOF":
                return CommitsRead(last, message.offset(), False)
            elif not client.may_heal(client.confluent_kafka().KafkaException(error)):
                raise StreamError(f"{self._named} cannot be read: {error.str()} ({error.name()})")
        raise StreamError(
            f"{self._named} cannot be read: the brokers have not answered for {answer_s:g} s; look "
            "at them"
        )

    def _take(self, message: Any, last: dict[int, Committed]) -> None:
        try:
            sink, stream_id, split = json.loads(message.key())
            if (sink, stream_id) != (self.sink, self.stream_id):
                return
            if message.value() is None:
                last.pop(split, None)
                return
            said = json.loads(message.value())
            last[split] = Committed(said["batch"], said["beginning"], said["partitions"])
        except (TypeError, ValueError, KeyError) as error:
            raise StreamError(
                f"{self._named}, has a record at offset {message.offset()} that is no commit of a "
                f"batch ({error!r}); give the sink a commitTopic of its own"
            ) from None

    @property
    def _named(self) -> str:
        return f"{self.topic}-{self.partition}, with the batches that {self.sink!r} has,"


def _messages(consumer: Any, answer_s: float) -> Iterator[Any]:
    """Yield what comes, until nothing has come for so long."""
    heard_s = time.monotonic()
    while time.monotonic() < heard_s + answer_s:
        for message in consumer.consume(_AT_ONCE, _POLL_S):
            if message.error() is None:
                heard_s = time.monotonic()
            yield message
