"""An RDD of ranges of offsets, and the tasks that read them.

A worker keeps a consumer for each set of parameters. A task assigns the partition at the first
offset of its range and unassigns it after the last, so nothing is fetched between tasks. Kept
connections and metadata make the next read take a millisecond, or a few at another position.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.errors import SourceError
from dstreams.kafka import client
from dstreams.kafka.decoding import DeadLetter, MakeRecords, Messages, require_dead_letters
from dstreams.kafka.offsets import OffsetRange
from dstreams.spark.counting import RecordCount
from dstreams.spark.function_fingerprint import identity_of
from dstreams.spark.task_reports import TaskReport, TaskReports
from dstreams.spark.worker_gc import settle_worker

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_SETTLE_S = 5.0
"""Time brokers may need to learn about a partition, or its end, after a change."""

BLOCK_RECORDS = 500
"""Maximal number of messages taken from the client at once, few enough for CPU caches."""

_ASK_TIMEOUT_S = 30
_MOST_IDLE = 16

_Settings = tuple[tuple[str, Any], ...]


class _Consumer(NamedTuple):
    key: _Settings
    consumer: Any
    errors: client.ClientErrors


_idle: list[_Consumer] = []
"""Unused consumers of this process, most recently used first."""


class Rejected(NamedTuple):
    """The number of records of a partition that could not be decoded and were skipped."""

    records: int
    first: DeadLetter


@dataclass(frozen=True, repr=False)
class FetchConfig:
    """The configuration of tasks that read an input.

    Args:
        config: of the consumers, in librdkafka's names, with secrets: never in a checkpoint.
        make_records: makes records of messages.
        wait_s: seconds to wait for the next record before the task fails.
        skips_lost: whether to skip offsets whose records were deleted; else they fail the task.
    """

    config: Mapping[str, Any]
    make_records: MakeRecords
    wait_s: float
    skips_lost: bool = False


@dataclass(frozen=True, repr=False)
class FetchTask:
    """A task that reads the records of the range of its partition, or its dead letters.

    Args:
        fetch: the configuration.
        ranges: one for each partition of the RDD.
        report: receives the number of messages of a partition.
        report_rejected: receives the skipped records; None if the task returns these.
    """

    fetch: FetchConfig
    ranges: tuple[OffsetRange, ...]
    report: TaskReport[int]
    report_rejected: TaskReport[Rejected] | None

    def __call__(self, split: int, _: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        fetch, wanted, report_rejected = self.fetch, self.ranges[split], self.report_rejected
        count = skipped = 0
        first: DeadLetter | None = None
        with lend_consumer(fetch.config) as (consumer, errors):
            blocks = read_range(consumer, errors, wanted, fetch.wait_s, fetch.skips_lost)
            for messages in blocks:
                count += len(messages)
                records, rejected = fetch.make_records(wanted, messages)
                if rejected:
                    skipped += len(rejected)
                    first = first or rejected[0]
                yield from records if report_rejected is not None else rejected
        self.report(split, count, count)
        if first is not None and report_rejected is not None:
            report_rejected(split, count, Rejected(skipped, first))


@contextmanager
def lend_consumer(config: Mapping[str, Any]) -> Iterator[tuple[Any, client.ClientErrors]]:
    """Lend a consumer for exclusive use, even if the task is abandoned.

    One that has failed is closed: it may have lost its brokers for good (librdkafka issue 5301).
    """
    key = _key(config)
    place = next((i for i, one in enumerate(_idle) if one.key == key), None)
    lent = _make_consumer(key, config) if place is None else _idle.pop(place)
    has_failed = False
    try:
        yield lent.consumer, lent.errors
    except Exception:
        has_failed = True
        raise
    finally:
        lent.consumer.unassign()
        if has_failed:
            lent.consumer.close()
        else:
            _idle.insert(0, lent)
        for longest_idle in _idle[_MOST_IDLE:]:
            longest_idle.consumer.close()
        del _idle[_MOST_IDLE:]


def _key(config: Mapping[str, Any]) -> _Settings:
    """Return equal keys for equal settings, although each task unpickles its own functions."""
    return tuple(
        (name, identity_of(value) if callable(value) else value)
        for name, value in sorted(config.items())
    )


def _make_consumer(key: _Settings, config: Mapping[str, Any]) -> _Consumer:
    errors = client.ClientErrors()
    settings = {"log_level": 0, **config, "error_cb": errors}
    return _Consumer(key, client.make("Consumer", settings, "reading Kafka"), errors)


def read_range(
    consumer: Any,
    errors: client.ClientErrors,
    wanted: OffsetRange,
    wait_s: float,
    skips_lost: bool = False,
) -> Iterator[Messages]:
    """Yield the messages of a range in blocks, in order.

    The last offset of a range may have no record, after a transaction or compaction: the range ends
    with the first record after it, or at the end of the partition.

    Raises:
        SourceError: a record does not arrive in time or was deleted, or the brokers refuse.
    """
    partition = client.confluent_kafka().TopicPartition(wanted.topic, wanted.partition)
    until = wanted.untilOffset
    position = wanted.fromOffset
    while position < until:
        partition.offset = position
        consumer.assign([partition])
        try:
            for messages in _from_position(consumer, errors, wanted, position, wait_s):
                last = messages[-1].offset()
                if last >= until:
                    kept = [message for message in messages if message.offset() < until]
                    if kept:
                        yield kept
                    return
                yield messages
                position = last + 1
                if position >= until:
                    return
            return
        except _OutOfRangeError as error:
            position = _first_available(consumer, wanted, position, skips_lost, error)


class _OutOfRangeError(Exception):
    """The broker does not have the record of an offset, and never will."""


def _from_position(
    consumer: Any, errors: client.ClientErrors, wanted: OffsetRange, position: int, wait_s: float
) -> Iterator[Messages]:
    """Yield the messages of a partition, up to its end at most."""
    until = wanted.untilOffset
    trouble: str | None = None
    while True:
        messages = consumer.consume(min(BLOCK_RECORDS, until - position), 0)
        if not messages:
            message = _wait(consumer, errors, min(wait_s, _SETTLE_S) if trouble else wait_s)
            if message is None and trouble is not None:
                raise SourceError(
                    f"{_named(wanted)}: {trouble}; give an existing range, and check whether the "
                    "brokers have lost records"
                )
            if message is None:
                why = "" if errors.last is None else f" ({errors.last.str()})"
                raise SourceError(
                    f"{_named(wanted)}: no record came for {wait_s:g} s after offset {position}; "
                    f"the brokers cannot be reached, or answer slowly{why}: check them, or wait "
                    "longer by spark.streaming.kafka.consumer.poll.ms"
                )
            errors.answered()
            messages = [message, *consumer.consume(BLOCK_RECORDS, 0)]
        failed = next((i for i, message in enumerate(messages) if message.error()), None)
        if failed is None:
            yield messages
            position, trouble = messages[-1].offset() + 1, None
            continue
        if failed:
            yield messages[:failed]
            position = messages[failed - 1].offset() + 1
        if _is_end(wanted, messages[failed]):
            return
        trouble = _trouble(messages[failed])


def _wait(consumer: Any, errors: client.ClientErrors, wait_s: float) -> Any:
    """Wait for a message, but not after the brokers have refused; None if none comes."""
    left_s = wait_s
    while left_s > 0:
        message = consumer.poll(min(left_s, _POLL_S))  # also delivers errors of connections
        if message is not None:
            return message
        if errors.refusal is not None:
            raise SourceError(
                f"the brokers refuse this worker: {client.reason_of(errors.refusal)} of the "
                "parameters, and the files they name, which each worker needs"
            )
        left_s -= _POLL_S
    return None


def _is_end(wanted: OffsetRange, message: Any) -> bool:
    """Return whether the partition ends after the range; raise lasting errors."""
    error = message.error()
    name = error.name()
    if name == "_PARTITION_EOF":
        return bool(message.offset() >= wanted.untilOffset)
    if name in ("OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"):
        raise _OutOfRangeError(error.str())
    if error.retriable() or name in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"):
        return False
    raise SourceError(f"{_named(wanted)} cannot be read: {error.str()} ({name})")


def _trouble(message: Any) -> str | None:
    """Return the error to raise if it lasts; None if it ends when the brokers are back."""
    error = message.error()
    if error.name() == "_PARTITION_EOF":
        return f"the partition ends at {message.offset()}"
    return error.str() if client.is_unknown(error) else None


def _first_available(
    consumer: Any, wanted: OffsetRange, position: int, skips_lost: bool, error: Exception
) -> int:
    """Return the first readable offset of a range whose beginning has expired."""
    low, high = consumer.get_watermark_offsets(
        client.confluent_kafka().TopicPartition(wanted.topic, wanted.partition), _ASK_TIMEOUT_S
    )
    available = f"the partition has {low} to {high} now"
    if not skips_lost:
        raise SourceError(
            f"{_named(wanted)}: offset {position} is not available any more: {available} "
            f"({error}). Its records were deleted before they were read: raise the retention of "
            "the topic, or skip them with spark.dstreams.kafka.failOnDataLoss=false"
        )
    if low <= position:
        raise SourceError(
            f"{_named(wanted)}: offset {position} cannot be read: {available} ({error})"
        )
    logger.warning(
        "%s: skipping offsets %d to %d, which have expired", _named(wanted), position, low
    )
    return int(low)


def _named(wanted: OffsetRange) -> str:
    return f"{wanted.topic}-{wanted.partition}, offsets {wanted.fromOffset} to {wanted.untilOffset}"


class KafkaRDD(PipelinedRDD):  # type: ignore[misc]
    """The records of a batch, or of given ranges.

    Attributes:
        offsetRanges: list of :class:`OffsetRange`. A task reads
            ``offsetRanges[TaskContext.get().partitionId()]``; empty ranges at the end have no task.
        record_count: number of records, known once they were read.
        rejected: records that could not be decoded and were skipped, likewise.

    Semantics: org.apache.spark.streaming.kafka010.KafkaRDD and HasOffsetRanges.
    """

    def __init__(
        self,
        spark: SparkContext,
        ranges: Sequence[OffsetRange],
        fetch: FetchConfig,
        *,
        is_of_dead_letters: bool = False,
    ) -> None:
        tasks = max((number for number, one in enumerate(ranges, 1) if one.count()), default=0)
        counts: TaskReports[int] = TaskReports(spark)
        self.rejected: TaskReports[Rejected] = TaskReports(spark)
        report_rejected = None if is_of_dead_letters else self.rejected.task
        task = FetchTask(fetch, tuple(ranges[:tasks]), counts.task, report_rejected)
        numbers = spark.parallelize(range(tasks), tasks) if tasks else spark.emptyRDD()
        super().__init__(numbers, task)
        self.offsetRanges = list(ranges)
        self.record_count = RecordCount(self, counts)
        self._fetch = fetch

    def rejectedRecords(self) -> int:
        """Return the number of records read so far that were skipped as undecodable."""
        return sum(one.records for one in self.rejected.facts())

    def deadLetters(self) -> KafkaRDD:
        """Return the records of the same ranges that could not be decoded.

        Each is a :class:`~dstreams.kafka.DeadLetter`. This reads the ranges again.

        Raises:
            InvalidStreamError: such records fail the batch instead of being skipped.
        """
        require_dead_letters(self._fetch.make_records)
        return KafkaRDD(self.context, self.offsetRanges, self._fetch, is_of_dead_letters=True)


def split(ranges: Iterable[OffsetRange], least: int) -> tuple[OffsetRange, ...]:
    """Split ranges into about *least* pieces of about equal size.

    Semantics: org.apache.spark.sql.kafka010.KafkaOffsetRangeCalculator.
    """
    whole = tuple(ranges)
    full = [one for one in whole if one.count()]
    if not full or len(full) >= least:
        return whole
    total = sum(one.count() for one in full)
    small = {one for one in full if _parts(one, total, least) == 1}
    cut_total = total - sum(one.count() for one in small)
    cut_least = max(least - len(small), 1)
    pieces = [
        piece
        for one in full
        for piece in _cut(one, 1 if one in small else _parts(one, cut_total, cut_least))
    ]
    return (*pieces, *(one for one in whole if not one.count()))


def _parts(one: OffsetRange, total: int, least: int) -> int:
    """Return how many of *least* pieces of *total* offsets a range gets, rounded half up."""
    return max((2 * one.count() * least + total) // (2 * total), 1)


def _cut(one: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    """Yield non-empty pieces of a range whose sizes differ by at most one."""
    begin = one.fromOffset
    for left in range(min(parts, one.count()), 0, -1):
        end = begin + (one.untilOffset - begin) // left
        yield OffsetRange(one.topic, one.partition, begin, end)
        begin = end
