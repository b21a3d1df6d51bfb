"""Kafka as a source: batches are ranges of offsets, planned on the driver and read in tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpoint import INPUT_END
from dstreams.errors import SourceError
from dstreams.kafka import client
from dstreams.kafka.decoding import MakeRecords
from dstreams.kafka.fetch import FetchConfig, KafkaRDD, Rejected, split
from dstreams.kafka.offsets import (
    OfAllPartitions,
    OffsetRange,
    Offsets,
    PartitionRates,
    PerPartitionConfig,
    Position,
    TopicPartition,
    describe_ranges,
    offsets_of_json,
    offsets_to_json,
    ranges_between,
)
from dstreams.kafka.parameters import RESET, KafkaParameters
from dstreams.kafka.topics import (
    EARLIEST,
    LATEST,
    BrokersAwayError,
    Group,
    GroupCommits,
    Topics,
    TopicSelection,
    TopicState,
)
from dstreams.sources.file_reader import some_names
from dstreams.sources.source import (
    InputDescription,
    PlannedInput,
    Source,
    SourceEnvironment,
    SourceReader,
)
from dstreams.spark.task_reports import TaskReports, skipped

logger = logging.getLogger(__name__)

_LAG = "lag"
_EARLIEST_AGE_MS = 60_000


@dataclass(frozen=True)
class KafkaSource(Source):
    """Topics of Kafka, read by offsets.

    Args:
        parameters: parameters of the clients.
        selection: partitions to read.
        begin: starting offsets; other partitions begin at the offset of the group, else by
            ``auto.offset.reset``.
        make_records: makes records of messages.
        least_partitions: minimal number of partitions of a batch's RDD, by splitting ranges.
        fails_on_data_loss: whether records that were deleted unread are an error; None for the
            setting.
        limits: limits of partitions; None for the settings.
        commits: offsets that the program commits.
    """

    parameters: KafkaParameters
    selection: TopicSelection
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
    """Plans batches by the offsets that the brokers have.

    A topic is identified by its id: if it was deleted and created again, its offsets are void.

    Subclasses may override four methods: ``fetch_config`` returns how tasks read,
    ``first_position`` where a new input begins, ``batch_end`` where a batch ends, and
    ``brokers_lost`` handles a batch that cannot be planned because no broker answers.
    """

    rate_limit = "backpressure"

    def __init__(self, source: KafkaSource, environment: SourceEnvironment) -> None:
        settings = environment.settings
        parameters = source.parameters
        self.topics = Topics(
            parameters,
            source.selection,
            environment.clock,
            source.name,
            self._committed,
        )
        self.wait_s: float = settings.kafka_poll_ms / 1000
        fails = source.fails_on_data_loss
        self.fails: bool = settings.kafka_fail_on_data_loss if fails is None else fails
        self._source = source
        self._where = source.name
        self._spark = environment.spark
        self._past = environment.past
        self._is_pickled = environment.batch_ms > 0 and environment.storage is not None
        self._group = Group(parameters.group, self.topics.consumer, source.name, environment.clock)
        limits = OfAllPartitions(settings.kafka_max_rate, settings.kafka_min_rate)
        self._rates = PartitionRates(environment.batch_ms, source.limits or limits)
        self._rate: int | None = None
        self._fetch: FetchConfig | None = None
        self._rejected: dict[int, TaskReports[Rejected]] = {}
        self._is_new = environment.newest is None
        self._has_planned = False
        self._ids_at_restart: Mapping[str, str] | None = None
        self._begin: Position | None = None
        self._expiry_checked_ms: int | None = None
        self._connection = client.ConnectionState(source.name, environment.clock)

    def fetch_config(self) -> FetchConfig:
        """Return how tasks read."""
        config = self._source.parameters.for_tasks()
        return FetchConfig(config, self._source.make_records, self.wait_s, not self.fails)

    def first_position(self) -> Position:
        """Return where the input begins if no batch has read it."""
        state = self.topics.state()
        given = self._source.begin
        begin = {one: given[one] for one in state.ends if one in given}
        begin.update(self._group.committed(one for one in state.ends if one not in begin))
        unknown = [one for one in state.ends if one not in begin]
        reset = self._source.parameters.reset
        if unknown and reset == "none":
            raise SourceError(
                f"{self._where}: no starting offset for {some_names(list(map(str, unknown)))}: "
                f"the group {self._source.parameters.group!r} has none, and auto.offset.reset is "
                "none; give offsets, or auto.offset.reset=earliest or latest"
            )
        spec = EARLIEST if reset == "earliest" else LATEST
        begin.update(self.topics.offsets(dict.fromkeys(unknown, spec)))
        logger.info("%s begins at %s", self._where, _described(begin))
        return Position(begin, state.ids)

    def batch_end(self, begin: Offsets, ends: Offsets, time_ms: int) -> dict[TopicPartition, int]:
        """Return the offsets at which the next batch ends."""
        return self._rates.until(begin, ends, self._rate)

    def brokers_lost(self, error: SourceError) -> None:
        """Log that a batch has no records because no broker answers, or raise *error*."""
        self._connection.lost(error)

    def update_rate(self, records_per_second: int) -> None:
        self._rate = records_per_second

    def start(self) -> None:
        client.confluent_kafka()
        self._fetch = self.fetch_config()
        if self._is_new:
            self._warn_of_secrets()
            facts = self._past().facts or {}  # of an earlier run that planned no batch
            begun = Position.of_json(facts[INPUT_END]) if INPUT_END in facts else None
            self._begin = begun or self.first_position()

    def _warn_of_secrets(self) -> None:
        unkept = self._source.parameters.unkept
        if unkept and self._is_pickled:
            logger.warning(
                "%s: the checkpoint does not have %s, which is secret: a restart fails unless it "
                "gets it from the environment (${env:NAME}) or from StreamingContext.restore",
                self._where,
                ", ".join(unkept),
            )

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        self._commit_waiting()
        self._has_planned = True
        known = (self._begin if start is None else None) or Position.of_json(start)
        try:
            state = self.topics.state(known.offsets)
            begin = self._begin_of(known, state, time_ms)
        except BrokersAwayError as error:
            self.brokers_lost(error)
            end = known.to_json()
            return PlannedInput(time_ms, end, end, description=str(error))
        self._connection.restored()
        until = self.batch_end(begin, state.ends, time_ms)
        lags = {one: state.ends[one] - end for one, end in until.items() if state.ends[one] > end}
        return PlannedInput(
            time_ms,
            Position(begin, state.ids).to_json(),
            Position(until, state.ids).to_json(),
            {_LAG: offsets_to_json(lags)} if lags else {},
            sum(until.values()) - sum(begin.values()),
        )

    def _begin_of(
        self, known: Position, state: TopicState, time_ms: int
    ) -> dict[TopicPartition, int]:
        """Return where the next batch begins: at the known position, unless records were lost.

        New partitions were created after the input began, and are read from their first record.
        """
        earliest = self._earliest(known.offsets, state, time_ms)
        losses: list[str] = []
        begin: dict[TopicPartition, int] = {}
        for one, at in known.offsets.items():
            end = state.ends.get(one)
            if end is None:
                losses.append(f"{one} was deleted, or is not selected any more, read up to {at}")
            elif known.is_of_old_topic(one.topic, state.ids):
                losses.append(f"the topic of {one} was deleted and made again, read up to {at}")
            elif at > end:
                losses.append(f"{one} ends at {end} and was read up to {at}")
            elif at < earliest.get(one, 0):
                losses.append(f"{one} begins at {earliest[one]} and was read up to {at}")
            else:
                begin[one] = at
        if losses:
            self.report_loss(losses)
        self._expiry_checked_ms = time_ms if earliest else self._expiry_checked_ms
        added = [one for one in state.ends if one not in begin]
        if added:
            first = self.topics.offsets({one: self._reset(one, known) for one in added})
            begin.update(first)
            logger.info(
                "%s: partitions were added, and begin at %s", self._where, _described(first)
            )
        return begin

    def _earliest(
        self, known: Mapping[TopicPartition, int], state: TopicState, time_ms: int
    ) -> Mapping[TopicPartition, int]:
        """Return the first offsets of partitions once a minute: records expire slowly."""
        last_ms = self._expiry_checked_ms
        if last_ms is not None and 0 <= time_ms - last_ms < _EARLIEST_AGE_MS:
            return {}
        return self.topics.offsets({one: EARLIEST for one in known if one in state.ends})

    def _reset(self, one: TopicPartition, known: Position) -> int:
        """Return where a new partition begins, or one whose position was lost."""
        given = RESET in self._source.parameters.given
        is_latest = one in known.offsets and given and self._source.parameters.reset == "latest"
        return LATEST if is_latest else EARLIEST

    def report_loss(self, losses: list[str]) -> None:
        """Raise an error for records that were deleted unread, or log it."""
        if self.fails:
            raise SourceError(
                f"{self._where}: records were deleted before they were read: {some_names(losses)}. "
                "Raise the retention of the topic; to skip the lost records set "
                "spark.dstreams.kafka.failOnDataLoss=false (in queries the option failOnDataLoss)"
            )
        logger.warning(
            "%s: skipping records that were deleted before they were read: %s",
            self._where,
            some_names(losses),
        )

    def describe(self, planned: PlannedInput) -> InputDescription:
        """Describe a batch as Spark does, with the lag of each partition after it."""
        ranges = _ranges(planned)
        lags = planned_lags(planned)
        metadata: dict[str, Any] = {"offsets": list(ranges)}
        if planned.description:  # no broker has answered
            return InputDescription(planned.description, metadata)
        metadata["lag"] = {
            one: lags.get(one, 0) for one in (each.topicPartition() for each in ranges)
        }
        return InputDescription(describe_ranges(ranges), metadata)

    def read(self, planned: PlannedInput) -> KafkaRDD:
        self._fetch = self._fetch or self.fetch_config()
        ranges = _ranges(planned)
        if not self._has_planned:
            ranges = self._of_same_topics(ranges, planned)
        if self._source.least_partitions is not None:
            ranges = split(ranges, self._source.least_partitions)
        rdd = KafkaRDD(self._spark, ranges, self._fetch)
        self._rejected[planned.time_ms] = rdd.rejected
        return rdd

    def require_records(self, plans: Sequence[PlannedInput]) -> None:
        first: dict[TopicPartition, int] = {}
        for planned in plans:
            for one in self._of_same_topics(_ranges(planned), planned):
                at = first.setdefault(one.topicPartition(), one.fromOffset)
                first[one.topicPartition()] = min(at, one.fromOffset)
        earliest = self.topics.offsets(dict.fromkeys(first, EARLIEST))
        losses = [
            f"{one} begins at {earliest[one]}, and offset {at} is needed"
            for one, at in first.items()
            if at < earliest[one]
        ]
        if losses:
            raise SourceError(
                f"{self._where}: records were deleted: {some_names(losses)}; begin with a later "
                "batch, and raise the retention of the topic to keep more"
            )

    def _of_same_topics(
        self, ranges: tuple[OffsetRange, ...], planned: PlannedInput
    ) -> tuple[OffsetRange, ...]:
        """Return the ranges of an earlier run without topics that were created again since."""
        if self._ids_at_restart is None:
            self._ids_at_restart = self.topics.state().ids
        known, found = Position.of_json(planned.end), self._ids_at_restart
        lost = {one.topic for one in ranges if known.is_of_old_topic(one.topic, found)}
        losses = [
            f"the topic of {one.topicPartition()} was deleted and made again, and the batch at "
            f"{planned.time_ms} ms reads {one.fromOffset} to {one.untilOffset}"
            for one in ranges
            if one.topic in lost
        ]
        if losses:
            self.report_loss(losses)
        return tuple(one for one in ranges if one.topic not in lost)

    def after_batch_info(self, planned: PlannedInput) -> InputDescription:
        """Return the number of records that were skipped as undecodable."""
        reports = self._rejected.get(planned.time_ms)
        for time_ms in [one for one in self._rejected if one <= planned.time_ms]:
            del self._rejected[time_ms]
        rejected = [] if reports is None else reports.facts()
        if not rejected:
            return InputDescription()
        count, first = sum(one.records for one in rejected), rejected[0].first
        text = skipped(count, "could not be decoded")
        logger.warning(
            "%s: batch at %d ms: %s, such as %s-%d, offset %d, its %s: %s",
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
        """Return where the next batch begins: a restart needs it before a batch is planned."""
        if end is None and self._begin is not None:
            end = self._begin.to_json()
        return {} if end is None else {INPUT_END: end}

    def commit(self, end: Any) -> None:
        if self._source.parameters.commits_batches:
            self._group.commit(Position.of_json(end).offsets, None)

    def _committed(self, error: Any, partitions: Any) -> None:
        self._group.answered(error, partitions)

    def _commit_waiting(self) -> None:
        self._group.answers()
        for offsets, callback in self._source.commits.take():
            self._group.commit(offsets, callback)

    def close(self) -> None:
        self._commit_waiting()
        self._group.close()
        self.topics.close()


def planned_lags(planned: PlannedInput) -> dict[TopicPartition, int]:
    """Return the number of offsets that a batch leaves unread, of partitions where it is not 0."""
    return offsets_of_json(planned.facts.get(_LAG))


def _ranges(planned: PlannedInput) -> tuple[OffsetRange, ...]:
    start, end = Position.of_json(planned.start), Position.of_json(planned.end)
    return ranges_between(start.offsets, end.offsets)


def _described(offsets: Offsets) -> str:
    return some_names([f"{one}: {offset}" for one, offset in offsets.items()])
