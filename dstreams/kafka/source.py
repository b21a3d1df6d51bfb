"""Kafka as a source of batches: ranges of offsets, planned on the driver and read in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint import INPUT_END
from dstreams.errors import SourceError
from dstreams.kafka import client
from dstreams.kafka.fetch import MakeRecords, Reading, Rejected
from dstreams.kafka.group import Group, GroupCommits
from dstreams.kafka.kafka_rdd import KafkaRDD, split
from dstreams.kafka.offsets import (
    OffsetRange,
    Offsets,
    Position,
    TopicPartition,
    described,
    offsets_of_json,
    offsets_to_json,
    ranges_between,
)
from dstreams.kafka.outage import Outage
from dstreams.kafka.parameters import RESET, KafkaParameters
from dstreams.kafka.rates import OfAllPartitions, PartitionRates, PerPartitionConfig
from dstreams.kafka.topics import EARLIEST, LATEST, BrokersAwayError, Seen, Selection, Topics
from dstreams.sources.file_reader import some_names
from dstreams.sources.source import (
    InputDescription,
    PlannedInput,
    SourceEnvironment,
    SourceReader,
)
from dstreams.spark.task_reports import TaskReports

logger = logging.getLogger(__name__)

_LAG = "lag"
_EARLIEST_AGE_MS = 60_000


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
        fails_on_data_loss: whether records that were deleted before they were read are an error;
            None for the setting.
        limits: of partitions, None for those of the settings.
        commits: what programs want to be committed.
    """

    parameters: KafkaParameters
    selection: Selection
    begin: Mapping[TopicPartition, int]
    make_records: MakeRecords
    least_partitions: int | None = None
    fails_on_data_loss: bool | None = None
    limits: PerPartitionConfig | None = None
    commits: GroupCommits = field(default_factory=GroupCommits, compare=False)

    @property
    def name(self) -> str:
        return f"{self.parameters.where}({self.selection})"

    def open(self, environment: SourceEnvironment) -> KafkaReader:
        return KafkaReader(self, environment)


class KafkaReader(SourceReader):
    """Plans by what the brokers say; an offset is, for each partition, the first one to be read.

    A topic is known by its id: one that was deleted and made again under its name is another, and
    offsets of the first mean nothing in it.
    """

    limited_as_receiver = False

    def __init__(self, source: KafkaSource, environment: SourceEnvironment) -> None:
        settings = environment.settings
        parameters = source.parameters
        self._source = source
        self._where = source.name
        self._spark = environment.spark
        self._past = environment.past
        self._is_pickled = environment.batch_ms > 0 and environment.open_files is not None
        self._topics = Topics(
            parameters, source.selection, environment.clock, source.name, self._answered
        )
        self._group = Group(parameters.group, self._topics.consumer, source.name, environment.clock)
        limits = OfAllPartitions(settings.kafka_max_rate, settings.kafka_min_rate)
        self._rates = PartitionRates(environment.batch_ms, source.limits or limits)
        self._rate: int | None = None
        fails = source.fails_on_data_loss
        self._fails: bool = settings.kafka_fail_on_data_loss if fails is None else fails
        self._wait_s: float = settings.kafka_poll_ms / 1000
        self._reading: Reading | None = None
        self._rejected: dict[int, TaskReports[Rejected]] = {}
        self._is_new = environment.newest is None
        self._begin: Position | None = None
        self._expiry_seen_ms: int | None = None
        self._outage = Outage(source.name, environment.clock)

    def update_rate(self, records_per_second: int) -> None:
        self._rate = records_per_second

    def start(self) -> None:
        client.confluent_kafka()
        self._reading = self._how_to_read()
        if self._is_new:
            self._warn_of_unkept()
            self._begin = self._begun_before() or self._beginning()

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        self._commit_what_waits()
        known = (self._begin if start is None else None) or Position.of_json(start)
        try:
            seen = self._topics.look(known.offsets)
            begin = self._begin_of(known, seen, time_ms)
        except BrokersAwayError as error:
            self._wait_for_brokers(error)
            end = known.to_json()
            return PlannedInput(time_ms, end, end, description=str(error))
        self._outage.ends()
        until = self._until(begin, seen.ends, time_ms)
        lags = {one: seen.ends[one] - end for one, end in until.items() if seen.ends[one] > end}
        return PlannedInput(
            time_ms,
            Position(begin, seen.ids).to_json(),
            Position(until, seen.ids).to_json(),
            {_LAG: offsets_to_json(lags)} if lags else {},
            sum(until.values()) - sum(begin.values()),
        )

    def _warn_of_unkept(self) -> None:
        """Say in time that a restart will need the program for its secrets."""
        unkept = self._source.parameters.unkept
        if unkept and self._is_pickled:
            logger.warning(
                "%s: the checkpoint does not have %s, which is secret: a restart is refused that "
                "does not get it from the environment (${env:NAME}) or from StreamingContext."
                "restore",
                self._where,
                ", ".join(unkept),
            )

    def _until(self, begin: Offsets, ends: Offsets, time_ms: int) -> dict[TopicPartition, int]:
        """Return up to where the next batch reads."""
        return self._rates.until(begin, ends, self._rate)

    def _wait_for_brokers(self, error: SourceError) -> None:
        """Take note that a batch goes without records, as no broker answers."""
        self._outage.goes_on(error)

    def _begun_before(self) -> Position | None:
        """Return where an earlier run began that planned no batch, None for no such run."""
        facts = self._past().facts or {}
        return Position.of_json(facts[INPUT_END]) if INPUT_END in facts else None

    def _beginning(self) -> Position:
        """Decide where an input begins of which no batch has read anything."""
        seen = self._topics.look()
        given = self._source.begin
        begin = {one: given[one] for one in seen.ends if one in given}
        begin.update(self._group.committed(one for one in seen.ends if one not in begin))
        unknown = [one for one in seen.ends if one not in begin]
        reset = self._source.parameters.reset
        if unknown and reset == "none":
            raise SourceError(
                f"{self._where}: nothing says where {_some(unknown)} begins: the group "
                f"{self._source.parameters.group!r} has no offset of it, and auto.offset.reset is "
                "none; give offsets, or auto.offset.reset=earliest or latest"
            )
        spec = EARLIEST if reset == "earliest" else LATEST
        begin.update(self._topics.offsets(dict.fromkeys(unknown, spec)))
        logger.info("%s begins at %s", self._where, _told(begin))
        return Position(begin, seen.ids)

    def _begin_of(self, known: Position, seen: Seen, time_ms: int) -> dict[TopicPartition, int]:
        """Return where the next batch begins: after the one before, if that is still there.

        A partition that was not known was made after the input began: all that it has is new.
        """
        earliest = self._earliest(known.offsets, seen, time_ms)
        losses: list[str] = []
        begin: dict[TopicPartition, int] = {}
        for one, at in known.offsets.items():
            end, known_id = seen.ends.get(one), known.topic_ids.get(one.topic)
            if end is None:
                losses.append(f"{one} was deleted, or is no more among the topics, read up to {at}")
            elif known_id is not None and seen.ids.get(one.topic, known_id) != known_id:
                losses.append(f"the topic of {one} was deleted and made again, read up to {at}")
            elif at > end:
                losses.append(f"{one} ends at {end} and was read up to {at}")
            elif at < earliest.get(one, 0):
                losses.append(f"{one} begins at {earliest[one]} and was read up to {at}")
            else:
                begin[one] = at
        if losses:
            self._lost(losses)
        self._expiry_seen_ms = time_ms if earliest else self._expiry_seen_ms
        added = [one for one in seen.ends if one not in begin]
        if added:
            first = self._topics.offsets({one: self._reset(one, known) for one in added})
            begin.update(first)
            logger.info("%s: partitions are added, and begin at %s", self._where, _told(first))
        return begin

    def _earliest(
        self, known: Mapping[TopicPartition, int], seen: Seen, time_ms: int
    ) -> Mapping[TopicPartition, int]:
        """Return where partitions begin, now and then: records expire slowly, if at all."""
        last_ms = self._expiry_seen_ms
        if last_ms is not None and 0 <= time_ms - last_ms < _EARLIEST_AGE_MS:
            return {}
        return self._topics.offsets({one: EARLIEST for one in known if one in seen.ends})

    def _reset(self, one: TopicPartition, known: Position) -> int:
        """Return where a partition begins that cannot go on where it was."""
        given = RESET in self._source.parameters.given
        is_latest = one in known.offsets and given and self._source.parameters.reset == "latest"
        return LATEST if is_latest else EARLIEST

    def _lost(self, losses: list[str]) -> None:
        told = some_names(losses)
        if self._fails:
            raise SourceError(
                f"{self._where}: records were deleted before they were read, so they are lost: "
                f"{told}. Let the topic keep records longer; to go on with what is there set "
                "spark.dstreams.kafka.failOnDataLoss=false (in queries the option failOnDataLoss)"
            )
        logger.warning(
            "%s: records were deleted before they were read, and are lost: %s", self._where, told
        )

    def describe(self, planned: PlannedInput) -> InputDescription:
        """Say what Spark says of a batch, and how far behind the ends of partitions it stays."""
        ranges = _ranges(planned)
        lags = lags_of(planned)
        metadata: dict[str, Any] = {"offsets": list(ranges)}
        if planned.description:  # no broker has said where the partitions end
            return InputDescription(planned.description, metadata)
        places = [one.topicPartition() for one in ranges]
        metadata["lag"] = {one: lags.get(one, 0) for one in places}
        return InputDescription(described(ranges), metadata)

    def read(self, planned: PlannedInput) -> KafkaRDD:
        self._reading = self._reading or self._how_to_read()
        ranges = _ranges(planned)
        if self._source.least_partitions is not None:
            ranges = split(ranges, self._source.least_partitions)
        rdd = KafkaRDD(self._spark, ranges, self._reading)
        self._rejected[planned.time_ms] = rdd.rejected
        return rdd

    def _how_to_read(self) -> Reading:
        config = self._source.parameters.for_tasks()
        return Reading(config, self._source.make_records, self._wait_s, not self._fails)

    def noticed(self, planned: PlannedInput) -> InputDescription:
        """Say how many records were left out because they could not be decoded."""
        reports = self._rejected.get(planned.time_ms)
        for time_ms in [one for one in self._rejected if one <= planned.time_ms]:
            del self._rejected[time_ms]
        rejected = [] if reports is None else reports.facts()
        if not rejected:
            return InputDescription()
        count, first = sum(one.records for one in rejected), rejected[0].first
        text = f"{count} could not be decoded and were left out"
        logger.warning(
            "%s: of the records of the batch at %d ms %s, such as %s-%d, offset %d, its %s: %s",
            self._where,
            planned.time_ms,
            text,
            *first[:3],
            first.part,
            first.reason,
        )
        return InputDescription(f"; {text}", {"rejected": count})

    def snapshot_size(self) -> int:
        return 1

    def snapshot(self, end: Any) -> Mapping[str, Any]:
        """Say where the next batch begins: a restart has to know it before one is planned."""
        if end is None and self._begin is not None:
            end = self._begin.to_json()
        return {} if end is None else {INPUT_END: end}

    def retire(self, end: Any) -> None:
        """Nothing is kept here of what batches have read."""

    def commit(self, end: Any) -> None:
        if self._source.parameters.commits_batches:
            self._group.commit(Position.of_json(end).offsets, None)

    def _commit_what_waits(self) -> None:
        self._group.answers()
        for offsets, callback in self._source.commits.take():
            self._group.commit(offsets, callback)

    def _answered(self, error: Any, partitions: Any) -> None:
        self._group.answered(error, partitions)

    def close(self) -> None:
        self._commit_what_waits()
        self._group.close()
        self._topics.close()


def lags_of(planned: PlannedInput) -> dict[TopicPartition, int]:
    """Return how many offsets a batch leaves unread, of partitions where it leaves any."""
    return offsets_of_json(planned.facts.get(_LAG))


def _ranges(planned: PlannedInput) -> tuple[OffsetRange, ...]:
    start, end = Position.of_json(planned.start), Position.of_json(planned.end)
    return ranges_between(start.offsets, end.offsets)


def _some(partitions: Iterable[TopicPartition]) -> str:
    return some_names([str(one) for one in partitions])


def _told(offsets: Offsets) -> str:
    return some_names([f"{one}: {offset}" for one, offset in offsets.items()])
