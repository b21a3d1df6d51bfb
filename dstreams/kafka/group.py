"""Offsets of a consumer group: where a partition begins, and what others are to see."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dstreams.common.clock import Clock, SystemClock
from dstreams.errors import SourceError
from dstreams.kafka import client
from dstreams.kafka.offsets import OffsetRange, TopicPartition

logger = logging.getLogger(__name__)

_POLLS_AT_CLOSE, _POLL_S = 50, 0.1
_TRIED_FOR_MS = 60_000  # default.api.timeout.ms of Java's consumer
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 100, 1000

Committed = Callable[[Mapping[TopicPartition, int], Exception | None], Any]
"""Told what became of a commit: the offsets, and why it failed."""


class GroupCommits:
    """Offsets that wait to be committed to the consumer group; empty where it is unpickled."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[dict[TopicPartition, int], Committed | None]] = deque()

    def add(self, ranges: Iterable[OffsetRange], callback: Committed | None = None) -> None:
        """Let the ends of ranges be committed, from any thread."""
        offsets: dict[TopicPartition, int] = {}
        for one in ranges:
            key = one.topicPartition()
            offsets[key] = max(offsets.get(key, 0), one.untilOffset)
        self._waiting.append((offsets, callback))

    def take(self) -> list[tuple[dict[TopicPartition, int], Committed | None]]:
        """Return what waits, and forget it."""
        found = []
        while self._waiting:
            found.append(self._waiting.popleft())
        return found

    def __reduce__(self) -> Any:
        return GroupCommits, ()


class Group:
    """The consumer group of an input: offsets only, it is no member.

    Args:
        name: of the group, None for none.
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
        self._sent: deque[Committed | None] = deque()

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return what the group has committed, and retry while its coordinator is away or moves.

        Raises:
            SourceError: it cannot be read, or the coordinator was away for a minute.
        """
        wanted = list(partitions)
        if self._name is None or not wanted:
            return {}
        left_ms, pause_ms = _TRIED_FOR_MS, _FIRST_PAUSE_MS
        while True:
            asked_ms = self._clock.now_ms()
            try:
                return self._ask(wanted)
            except SourceError as error:
                if left_ms <= 0 or error.__cause__ is None or not client.may_heal(error.__cause__):
                    raise
                if left_ms == _TRIED_FOR_MS:
                    logger.warning("%s; retrying for %d s", error, _TRIED_FOR_MS // 1000)
            self._consumer().poll(pause_ms / 1000)  # waits, and calls back with its errors
            # At least the pause: a clock that is driven by hand may stand still.
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
        """Send offsets to be committed; never raises: the checkpoint is what counts."""
        library = client.confluent_kafka()
        if self._name is None:
            error = SourceError(f"{self._where}: offsets are committed to a group; give group.id")
            self._tell(callback, offsets, error)
            return
        sent = [library.TopicPartition(*one, at) for one, at in offsets.items()]
        try:
            self._consumer().commit(offsets=sent)
        except library.KafkaException as error:
            self._tell(callback, offsets, error)
        else:
            self._sent.append(callback)

    def answers(self, wait_s: float = 0) -> None:
        """Tell what has become of commits, as far as it is known."""
        if self._sent:
            self._consumer().poll(wait_s)  # calls back

    def close(self) -> None:
        """Wait for the answers that are due, not for long."""
        for _ in range(_POLLS_AT_CLOSE):
            self.answers(_POLL_S)

    def answered(self, error: Any, partitions: Any) -> None:
        """Take the answer to the oldest commit that was sent; the client calls this."""
        offsets = {TopicPartition(one.topic, one.partition): one.offset for one in partitions}
        failure = None if error is None else SourceError(f"{error.str()} ({error.name()})")
        self._tell(self._sent.popleft() if self._sent else None, offsets, failure)

    def _tell(
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
