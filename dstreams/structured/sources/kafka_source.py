"""Topics of Kafka as rows, by the names of Spark's source ``kafka``."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

from dstreams.common.clock import SystemClock
from dstreams.common.settings import Settings
from dstreams.errors import SourceError
from dstreams.kafka.fetch import Reading
from dstreams.kafka.kafka_rdd import KafkaRDD, split
from dstreams.kafka.offsets import (
    Offsets,
    Position,
    TopicPartition,
    offsets_to_json,
    ranges_between,
)
from dstreams.kafka.parameters import GROUP
from dstreams.kafka.rows import AsRows, KafkaRow, KafkaRowWithHeaders
from dstreams.kafka.source import KafkaReader, KafkaSource, lags_of
from dstreams.kafka.topics import Selection, Topics
from dstreams.monitoring.events import OffsetProgress
from dstreams.sources.source import PlannedInput, SourceEnvironment
from dstreams.structured.sources.kafka_bounds import TriggerLimits
from dstreams.structured.sources.kafka_options import KafkaOptions


@dataclass(frozen=True)
class KafkaStreamSource:
    """Rows :class:`KafkaRow` of topics.

    Semantics: the source ``kafka`` of Spark 4.3 (KafkaMicroBatchStream).

    Args:
        options: what the program has said.
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


def _strategy(selection: Selection) -> str:
    """Return which partitions are read, as Spark says it."""
    if selection.pattern is not None:
        return f"SubscribePattern[{selection.pattern}]"
    if selection.topics:
        return f"Subscribe[{', '.join(selection.topics)}]"
    return f"Assign[{', '.join(map(str, selection.assigned))}]"


class KafkaRowReader(KafkaReader):
    """Begins where the options say, and lets a trigger have as much as they say."""

    def __init__(self, options: KafkaOptions, environment: SourceEnvironment) -> None:
        super().__init__(_source_of(options), environment)
        self._options = options
        self._limits = TriggerLimits(options.least, options.most, options.delay_ms)
        self._pinned: Offsets | None = None
        self._in_one_batch = False
        if options.wait_ms is not None:
            self._wait_s = options.wait_ms / 1000

    def _how_to_read(self) -> Reading:
        return _reading(self._options, self._wait_s)

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._pinned = self._topics.look().ends
        self._in_one_batch = in_one_batch

    def _beginning(self) -> Position:
        seen = self._topics.look()
        lost = self._lost_one
        return Position(self._options.starting.resolve(self._topics, seen, lost), seen.ids)

    def _lost_one(self, what: str) -> None:
        self._lost([what])

    def _until(self, begin: Offsets, ends: Offsets, time_ms: int) -> dict[TopicPartition, int]:
        if self._pinned is None:
            return self._limits.until(begin, ends, time_ms)
        # What a run that ends by itself was to read is read, however little it is.
        upto = {
            one: max(at, min(self._pinned.get(one, at), ends[one])) for one, at in begin.items()
        }
        return upto if self._in_one_batch else self._limits.at_most(begin, upto)

    def _wait_for_brokers(self, error: SourceError) -> None:
        if self._pinned is not None:
            raise error
        super()._wait_for_brokers(error)

    def told(self, planned: PlannedInput) -> OffsetProgress:
        """Say what Spark says of a batch: its offsets, where partitions end, and how far behind."""
        start, end = Position.of_json(planned.start).offsets, Position.of_json(planned.end).offsets
        lags = lags_of(planned)
        latest = {one: at + lags.get(one, 0) for one, at in end.items()}
        behind = [lags.get(one, 0) for one in end]
        return OffsetProgress(
            offsets_to_json(start), offsets_to_json(end), offsets_to_json(latest), _metrics(behind)
        )


def _metrics(behind: list[int]) -> dict[str, str]:
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(float(statistics.mean(behind))),
    }


def kafka_rows(spark: SparkContext, settings: Settings, options: KafkaOptions) -> KafkaRDD:
    """Return the rows of a part of topics, as they are now.

    Raises:
        SourceError: the brokers do not answer, or have not what the options ask for.
    """
    topics = Topics(
        options.parameters, options.selection, SystemClock(), "read of source kafka", _nobody
    )

    def lost(what: str) -> None:
        if options.fails_on_data_loss:
            raise SourceError(
                f"read of source kafka: {what}; to read what is there set the option "
                "failOnDataLoss=false"
            )

    try:
        seen = topics.look()
        start = options.starting.resolve(topics, seen, lost)
        end = options.ending.resolve(topics, seen, lost)
    finally:
        topics.close()
    ranges = ranges_between(start, {one: max(at, start[one]) for one, at in end.items()})
    if options.least_partitions is not None:
        ranges = split(ranges, options.least_partitions)
    wait_ms = settings.kafka_poll_ms if options.wait_ms is None else options.wait_ms
    return KafkaRDD(spark, ranges, _reading(options, wait_ms / 1000))


def _source_of(options: KafkaOptions) -> KafkaSource:
    return KafkaSource(
        options.parameters,
        options.selection,
        {},
        AsRows(options.has_headers),
        options.least_partitions,
        options.fails_on_data_loss,
    )


def _reading(options: KafkaOptions, wait_s: float) -> Reading:
    """Return how tasks read: as consumers of the group that the options name, unchanged."""
    config = {**options.parameters.for_tasks(), GROUP: options.parameters.group}
    return Reading(config, AsRows(options.has_headers), wait_s, not options.fails_on_data_loss)


def _nobody(*_: Any) -> None:
    """No offset is committed."""
