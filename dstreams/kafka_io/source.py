"""Kafka as a source of batches: ranges of offsets, planned on the driver and read in tasks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dstreams.errors import SourceError
from dstreams.kafka_io import client
from dstreams.kafka_io.fetch import MakeRecords
from dstreams.kafka_io.kafka_rdd import KafkaRDD, split
from dstreams.kafka_io.offsets import (
    OffsetRange,
    TopicPartition,
    described,
    offsets_of_json,
    offsets_to_json,
    ranges_between,
)
from dstreams.kafka_io.parameters import KafkaParameters
from dstreams.kafka_io.rates import PartitionRates
from dstreams.kafka_io.topics import BrokersAwayError, Selection, Topics
from dstreams.kernel.source import (
    InputDescription,
    PlannedInput,
    SourceEnvironment,
    SourceReader,
)
from dstreams.sources.repeated_warning import RepeatedWarning

logger = logging.getLogger(__name__)

Committed = Callable[[Mapping[TopicPartition, int], Exception | None], Any]
"""Told what became of a commit: the offsets, and why it failed."""

_TOPIC_IDS, _LAG = "topicIds", "lag"
_EARLIEST_AGE_MS = 60_000


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


@dataclass(frozen=True)
class KafkaSource:
    """Topics of Kafka, read by offsets.

    Args:
        parameters: of the clients.
        selection: which partitions.
        begin: offsets at which partitions begin, for those that it names; the others begin where
            the group has committed, else as ``auto.offset.reset`` says.
        make_records: what tasks make of messages.
        least_partitions: of the RDD of a batch; partitions of a topic are cut where it has less.
        max_rate: by partition, records a second; None for the setting.
        commits: what programs want to be committed.
    """

    parameters: KafkaParameters
    selection: Selection
    begin: Mapping[TopicPartition, int]
    make_records: MakeRecords
    least_partitions: int | None = None
    commits: GroupCommits = field(default_factory=GroupCommits, compare=False)

    @property
    def name(self) -> str:
        return f"{self.parameters.where}({self.selection})"

    def open(self, environment: SourceEnvironment) -> KafkaReader:
        return KafkaReader(self, environment)


class KafkaReader(SourceReader):
    """Plans by what the brokers say; an offset is, for each partition, the first one to be read.

    A topic is known by its id: one that was deleted and made again under its name is another, and
    its offsets mean nothing for what was read before.
    """

    def __init__(self, source: KafkaSource, environment: SourceEnvironment) -> None:
        settings = environment.settings
        self._source = source
        self._spark = environment.spark
        self._topics = Topics(source.parameters, source.selection, environment.clock)
        self._group = _Group(source.parameters, source.name)
        self._rates = PartitionRates(
            environment.batch_ms, settings.kafka_max_rate or 0, settings.kafka_min_rate
        )
        self._resets: bool = settings.kafka_expired_offsets == "reset"
        self._wait_s: float = settings.kafka_poll_ms / 1000
        self._rate: int | None = None
        self._begin: dict[TopicPartition, int] | None = None
        self._ids: dict[str, str] = dict(
            {} if environment.newest is None else environment.newest.facts.get(_TOPIC_IDS, {})
        )
        self._is_known = environment.newest is not None
        self._expiry_seen_ms: int | None = None
        self._config: Mapping[str, Any] = {}
        self._away = RepeatedWarning(
            logger,
            environment.clock,
            "%s: batches wait for its brokers and have none of its records; %d batches so far",
            source.name,
        )

    def update_rate(self, records_per_second: int) -> None:
        self._rate = records_per_second

    def start(self) -> None:
        client.confluent_kafka()
        self._config = self._source.parameters.for_tasks()
        if not self._is_known:
            self._begin = self._beginning()

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        self._commit_what_waits()
        known = offsets_of_json(start) if start is not None else dict(self._begin or {})
        try:
            latest = self._look(known, time_ms)
        except BrokersAwayError as error:
            self._away.add(1)
            end = offsets_to_json(known)
            return PlannedInput(time_ms, end, end, self._facts({}), description=str(error))
        until = self._rates.until(known, latest, self._rate)
        return self._planned(time_ms, known, until, latest)

    def _planned(
        self,
        time_ms: int,
        start: Mapping[TopicPartition, int],
        until: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
    ) -> PlannedInput:
        lag = {one: latest[one] - end for one, end in until.items() if latest[one] > end}
        ranges = ranges_between(start, until)
        return PlannedInput(
            time_ms,
            offsets_to_json(start),
            offsets_to_json(until),
            self._facts(lag),
            sum(one.count() for one in ranges),
        )

    def _facts(self, lag: Mapping[TopicPartition, int]) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        if self._ids:
            facts[_TOPIC_IDS] = dict(self._ids)
        if lag:
            facts[_LAG] = offsets_to_json(lag)
        return facts

    def _look(self, known: dict[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
        """Return where the partitions end; those that are new are added to what is known."""
        there, ids = self._topics.partitions()
        self._require_same_topics(known, there, ids)
        added = [one for one in there if one not in known]
        first = self._expiry_seen_ms is None
        if first or not 0 <= time_ms - (self._expiry_seen_ms or 0) < _EARLIEST_AGE_MS:
            earliest = self._topics.offsets(there, "earliest")
            self._require_there(known, earliest)
            self._expiry_seen_ms = time_ms
        else:
            earliest = self._topics.offsets(added, "earliest")
        for one in added:
            # It was made after the input began: whatever it has is new.
            known[one] = earliest[one]
            logger.info("%s: partition %s is new, read from %d", self._where, one, known[one])
        latest = self._topics.offsets(there, "latest")
        self._require_behind(known, latest)
        self._ids.update(ids)
        return latest

    def _beginning(self) -> dict[TopicPartition, int]:
        """Decide where an input begins of which no batch has read anything."""
        there, self._ids = self._topics.partitions()
        begin = {one: offset for one, offset in self._source.begin.items() if one in there}
        unknown = [one for one in there if one not in begin]
        begin.update(self._group.committed(unknown))
        unknown = [one for one in there if one not in begin]
        reset = self._source.parameters.reset
        if unknown and reset == "none":
            raise SourceError(
                f"{self._where}: nothing says where {_some(unknown)} begins: the group "
                f"{self._source.parameters.group!r} has no offset of it, and auto.offset.reset is "
                "none; give offsets, or auto.offset.reset=earliest or latest"
            )
        of: Literal["earliest", "latest"] = "earliest" if reset == "earliest" else "latest"
        begin.update(self._topics.offsets(unknown, of))
        return begin

    def _require_same_topics(
        self,
        known: Mapping[TopicPartition, int],
        there: Mapping[TopicPartition, None],
        ids: Mapping[str, str],
    ) -> None:
        gone = [one for one in known if one not in there]
        if gone:
            raise SourceError(
                f"{self._where}: {_some(gone)} was deleted; what was not read of it is lost. Make "
                "the stream anew without it, from a new checkpoint directory, or with "
                "StreamingContext.restore and another uid for this input"
            )
        for name, known_id in self._ids.items():
            if ids.get(name, known_id) != known_id:
                raise SourceError(
                    f"{self._where}: the topic {name} was deleted and made again (its id was "
                    f"{known_id} and is {ids[name]}): the offsets that batches have read are of "
                    "the old one, so nothing of the new one is read. To read it from its "
                    "beginning, give this input another uid with StreamingContext.restore, or "
                    "begin with a new checkpoint directory"
                )

    def _require_there(
        self, known: dict[TopicPartition, int], earliest: Mapping[TopicPartition, int]
    ) -> None:
        """Refuse or pass over offsets whose records were deleted before they were read."""
        expired = {one: at for one, at in known.items() if at < earliest.get(one, 0)}
        if not expired:
            return
        told = ", ".join(f"{one}: {at} to {earliest[one]}" for one, at in expired.items())
        if not self._resets:
            raise SourceError(
                f"{self._where}: offsets have expired before they were read ({told}): their "
                "records are lost. Let the topic keep them longer, or go on without them with "
                "spark.dstreams.kafka.expiredOffsets=reset"
            )
        logger.warning("%s: offsets have expired and are passed over: %s", self._where, told)
        if self._source.parameters.reset == "latest":
            known.update(self._topics.offsets(expired, "latest"))
        else:
            known.update({one: earliest[one] for one in expired})

    def _require_behind(
        self, known: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
    ) -> None:
        ahead = {one: at for one, at in known.items() if at > latest.get(one, at)}
        if ahead:
            told = ", ".join(f"{one}: {at}, ends at {latest[one]}" for one, at in ahead.items())
            raise SourceError(
                f"{self._where}: batches have read further than the partition goes ({told}): "
                "records were lost by the brokers, or the topic was made again. Look at the topic; "
                "to read what it has now, give this input another uid with "
                "StreamingContext.restore, or begin with a new checkpoint directory"
            )

    def describe(self, planned: PlannedInput) -> InputDescription:
        """Say what Spark says of a batch, and how far behind the partitions' ends it stays."""
        ranges = _ranges(planned)
        lags = offsets_of_json(planned.facts.get(_LAG))
        return InputDescription(
            planned.description or described(ranges),
            {
                "offsets": list(ranges),
                "lag": {one: lags.get(one, 0) for one in sorted(offsets_of_json(planned.end))},
            },
        )

    def read(self, planned: PlannedInput) -> KafkaRDD:
        ranges = _ranges(planned)
        if self._source.least_partitions is not None:
            ranges = split(ranges, self._source.least_partitions)
        return KafkaRDD(
            self._spark,
            ranges,
            self._config,
            self._source.make_records,
            self._wait_s,
            resets=self._resets,
        )

    def commit(self, end: Any) -> None:
        if self._source.parameters.commits_batches:
            self._group.commit(offsets_of_json(end), None)

    def _commit_what_waits(self) -> None:
        self._group.answers()
        for offsets, callback in self._source.commits.take():
            self._group.commit(offsets, callback)

    @property
    def _where(self) -> str:
        return self._source.name

    def close(self) -> None:
        self._commit_what_waits()
        self._away.flush()
        self._group.close()
        self._topics.close()


class _Group:
    """The consumer group of an input: offsets only, it is no member.

    Args:
        parameters: of the client.
        where: the input, for messages.
    """

    def __init__(self, parameters: KafkaParameters, where: str) -> None:
        self._parameters = parameters
        self._where = where
        self._consumer: Any = None
        self._sent: deque[Committed | None] = deque()

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return what the group has committed."""
        wanted = list(partitions)
        if self._parameters.group is None or not wanted:
            return {}
        library = client.confluent_kafka()
        try:
            found = self._client().committed(
                [library.TopicPartition(*one) for one in wanted], timeout=30
            )
        except library.KafkaException as error:
            raise SourceError(
                f"{self._where}: the offsets of the group {self._parameters.group!r} cannot be "
                f"read: {client.reason(error)}"
            ) from error
        return {
            TopicPartition(one.topic, one.partition): one.offset
            for one in found
            if one.error is None and one.offset >= 0
        }

    def commit(self, offsets: Mapping[TopicPartition, int], callback: Committed | None) -> None:
        """Send offsets to be committed; never raises: the checkpoint is what counts."""
        library = client.confluent_kafka()
        if self._parameters.group is None:
            error = SourceError(f"{self._where}: offsets are committed to a group; give group.id")
            self._tell(callback, offsets, error)
            return
        try:
            consumer = self._client()
            sent = [library.TopicPartition(*one, at) for one, at in offsets.items()]
            consumer.commit(offsets=sent)
        except (library.KafkaException, SourceError) as error:
            self._tell(callback, offsets, error)
        else:
            self._sent.append(callback)

    def answers(self) -> None:
        """Tell what has become of commits."""
        if self._sent:
            self._consumer.poll(0)  # calls back

    def _answered(self, error: Any, partitions: Any) -> None:
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

    def _client(self) -> Any:
        if self._consumer is None:
            config = {
                "log_level": 0,
                **self._parameters.for_group(),
                "on_commit": self._answered,
            }
            self._consumer = client.make("Consumer", config, self._where)
        return self._consumer

    def close(self) -> None:
        """Let go of the client; what was sent is answered before."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            consumer.close()


def _ranges(planned: PlannedInput) -> tuple[OffsetRange, ...]:
    return ranges_between(offsets_of_json(planned.start), offsets_of_json(planned.end))


def _some(partitions: Iterable[TopicPartition]) -> str:
    named = [str(one) for one in partitions]
    return ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
