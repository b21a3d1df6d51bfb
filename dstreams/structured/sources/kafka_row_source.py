"""Topics of Kafka as rows: Spark's source ``kafka``."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from pyspark import SparkContext

from dstreams.common.clock import SystemClock
from dstreams.common.settings import Settings
from dstreams.errors import SourceError
from dstreams.kafka.decoding import AsRows, KafkaRow, KafkaRowWithHeaders
from dstreams.kafka.fetch import FetchConfig, KafkaRDD, split
from dstreams.kafka.kafka_source import KafkaReader, KafkaSource, planned_lags
from dstreams.kafka.offsets import (
    Offsets,
    Position,
    TopicPartition,
    TriggerLimits,
    offsets_to_json,
    ranges_between,
)
from dstreams.kafka.parameters import GROUP
from dstreams.kafka.topics import Topics, TopicSelection
from dstreams.monitoring.events import OffsetProgress
from dstreams.sources.source import InputDescription, PlannedInput, Source, SourceEnvironment
from dstreams.structured.sources.kafka_options import KafkaOptions

_READ = "read of source kafka"


@dataclass(frozen=True)
class KafkaRowSource(Source):
    """Rows :class:`KafkaRow` of topics.

    Semantics: the source ``kafka`` of Spark 4.3 (KafkaMicroBatchStream).
    """

    options: KafkaOptions

    @property
    def name(self) -> str:
        return f"KafkaV2[{_strategy(self.options.selection)}]"

    @property
    def fields(self) -> tuple[str, ...]:
        return KafkaRowWithHeaders._fields if self.options.has_headers else KafkaRow._fields

    def open(self, environment: SourceEnvironment) -> KafkaRowReader:
        return KafkaRowReader(self.options, environment)


def _strategy(selection: TopicSelection) -> str:
    """Return Spark's description of a selection."""
    if selection.pattern is not None:
        return f"SubscribePattern[{selection.pattern}]"
    if selection.topics:
        return f"Subscribe[{', '.join(selection.topics)}]"
    return f"Assign[{', '.join(map(str, selection.assigned))}]"


class KafkaRowReader(KafkaReader):
    """Overrides where reading begins and ends, and how tasks read, by the options of a query."""

    def __init__(self, options: KafkaOptions, environment: SourceEnvironment) -> None:
        source = KafkaSource(
            options.parameters,
            options.selection,
            {},
            AsRows(options.has_headers),
            options.least_partitions,
            options.fails_on_data_loss,
        )
        super().__init__(source, environment)
        self._options = options
        self._limits = TriggerLimits(options.least, options.most, options.delay_ms)
        self._pinned: Offsets | None = None
        self._in_one_batch = False
        if options.wait_ms is not None:
            self.wait_s = options.wait_ms / 1000

    def fetch_config(self) -> FetchConfig:
        return _fetch_config(self._options, self.wait_s)

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._pinned = self.topics.state().ends
        self._in_one_batch = in_one_batch

    def first_position(self) -> Position:
        state = self.topics.state()
        start = self._options.starting.resolve(
            self.topics, state, lambda loss: self.report_loss([loss])
        )
        return Position(start, state.ids)

    def batch_end(self, begin: Offsets, ends: Offsets, time_ms: int) -> dict[TopicPartition, int]:
        if self._pinned is None:
            return self._limits.until(begin, ends, time_ms)
        # A run that ends by itself does not wait for a minimal number of records.
        upto = {
            one: max(at, min(self._pinned.get(one, at), ends[one])) for one, at in begin.items()
        }
        return upto if self._in_one_batch else self._limits.at_most(begin, upto)

    def brokers_lost(self, error: SourceError) -> None:
        if self._pinned is not None:
            raise error
        super().brokers_lost(error)

    def describe(self, planned: PlannedInput) -> InputDescription:
        """Describe a batch as Spark does, with the offsets and lag of its partitions."""
        start, end = Position.of_json(planned.start).offsets, Position.of_json(planned.end).offsets
        lags = planned_lags(planned)
        latest = {one: at + lags.get(one, 0) for one, at in end.items()}
        behind = [lags.get(one, 0) for one in end]
        metrics = (
            {
                "minOffsetsBehindLatest": str(min(behind)),
                "maxOffsetsBehindLatest": str(max(behind)),
                "avgOffsetsBehindLatest": str(float(statistics.mean(behind))),
            }
            if behind
            else {}
        )
        progress = OffsetProgress(
            offsets_to_json(start), offsets_to_json(end), offsets_to_json(latest), metrics
        )
        return replace(super().describe(planned), progress=progress)


def kafka_rows(spark: SparkContext, settings: Settings, options: KafkaOptions) -> KafkaRDD:
    """Return the current rows of a part of topics, or raise SourceError if they are missing."""

    def report_loss(loss: str) -> None:
        if options.fails_on_data_loss:
            raise SourceError(
                f"{_READ}: {loss}; to read the available records set the option "
                "failOnDataLoss=false"
            )

    topics = Topics(options.parameters, options.selection, SystemClock(), _READ)
    try:
        state = topics.state()
        start = options.starting.resolve(topics, state, report_loss)
        end = options.ending.resolve(topics, state, report_loss)
    finally:
        topics.close()
    ranges = ranges_between(start, {one: max(at, start[one]) for one, at in end.items()})
    if options.least_partitions is not None:
        ranges = split(ranges, options.least_partitions)
    wait_ms = settings.kafka_poll_ms if options.wait_ms is None else options.wait_ms
    return KafkaRDD(spark, ranges, _fetch_config(options, wait_ms / 1000))


def _fetch_config(options: KafkaOptions, wait_s: float) -> FetchConfig:
    """Return how tasks read: in the group that the options name."""
    config = {**options.parameters.for_tasks(), GROUP: options.parameters.group}
    return FetchConfig(config, AsRows(options.has_headers), wait_s, not options.fails_on_data_loss)
