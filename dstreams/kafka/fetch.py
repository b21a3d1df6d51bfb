"""Reading ranges of offsets in tasks.

A worker keeps a consumer for each set of parameters, made when its first task needs it. A task
assigns the partition from the first offset of its range, reads up to the last, and unassigns it, so
that no record is fetched between tasks. What stays is the connection, and what is known of the
topics: going on costs a millisecond, beginning somewhere else a few.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from dstreams.errors import SourceError
from dstreams.kafka import client
from dstreams.kafka.decoding import DeadLetter, DecodedBlock
from dstreams.kafka.messages import Messages
from dstreams.kafka.offsets import OffsetRange
from dstreams.spark.function_fingerprint import identity_of
from dstreams.spark.task_reports import TaskReport
from dstreams.spark.worker_gc import settle_worker

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_BEHIND_S = 5.0
"""How long brokers may need to know of a partition, or how far it goes, after they changed."""

BLOCK_RECORDS = 500
"""Messages that are taken from the client at once, at most: few enough for near caches."""

_ASK_TIMEOUT_S = 30

MakeRecords = Callable[[OffsetRange, Messages], DecodedBlock]
"""Makes the records of some messages of a range, in their order."""

_Settings = tuple[tuple[str, Any], ...]

_MOST_IDLE = 16


class _Lent(NamedTuple):
    """A consumer, its settings, and the errors that it reports beside its calls."""

    key: _Settings
    consumer: Any
    errors: client.ClientErrors


_idle: list[_Lent] = []
"""Consumers of this process that no range is read with, the last one that was used first."""


class Rejected(NamedTuple):
    """How many records of a partition could not be decoded and were left out, and the first."""

    records: int
    first: DeadLetter


@dataclass(frozen=True, repr=False)
class Reading:
    """How the ranges of an input are read.

    Args:
        config: of the consumers, in the names of librdkafka, secrets included: it goes to tasks,
            and is in no checkpoint.
        make_records: what is made of messages.
        wait_s: how long a task waits for the next record before it fails, seconds.
        passes_over_lost: whether offsets whose records were deleted are passed over, up to the
            first that is there; else they fail the task.
    """

    config: Mapping[str, Any]
    make_records: MakeRecords
    wait_s: float
    passes_over_lost: bool = False


@dataclass(frozen=True, repr=False)
class FetchTask:
    """Task: the records of the range of its partition, or its dead letters.

    Args:
        reading: how to read.
        ranges: one for each partition of the RDD.
        report: told how many messages a partition had.
        report_rejected: told of those that could not be decoded and were left out; None where they
            are what is wanted.
    """

    reading: Reading
    ranges: tuple[OffsetRange, ...]
    report: TaskReport[int]
    report_rejected: TaskReport[Rejected] | None

    def __call__(self, split: int, _: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        reading, wanted, report_rejected = self.reading, self.ranges[split], self.report_rejected
        count = left_out = 0
        first: DeadLetter | None = None
        with lend_consumer(reading.config) as (consumer, errors):
            passes_over = reading.passes_over_lost
            for messages in read_range(consumer, errors, wanted, reading.wait_s, passes_over):
                count += len(messages)
                records, rejected = reading.make_records(wanted, messages)
                if rejected:
                    left_out += len(rejected)
                    first = first or rejected[0]
                yield from records if report_rejected is not None else rejected
        self.report(split, count, count)
        if first is not None and report_rejected is not None:
            report_rejected(split, count, Rejected(left_out, first))


@contextmanager
def lend_consumer(config: Mapping[str, Any]) -> Iterator[tuple[Any, client.ClientErrors]]:
    """Lend a consumer: one that reads a range is no other's, also when its task breaks off."""
    key = _key(config)
    place = next((i for i, one in enumerate(_idle) if one.key == key), None)
    lent = _made(key, config) if place is None else _idle.pop(place)
    try:
        yield lent.consumer, lent.errors
    finally:
        lent.consumer.unassign()
        _idle.insert(0, lent)
        for longest_idle in _idle[_MOST_IDLE:]:
            longest_idle.consumer.close()
        del _idle[_MOST_IDLE:]


def _key(config: Mapping[str, Any]) -> _Settings:
    """Return equal keys for equal settings: each task unpickles functions of its own."""
    return tuple(
        (name, identity_of(value) if callable(value) else value)
        for name, value in sorted(config.items())
    )


def _made(key: _Settings, config: Mapping[str, Any]) -> _Lent:
    errors = client.ClientErrors()
    settings = {"log_level": 0, **config, "error_cb": errors}
    return _Lent(key, client.make("Consumer", settings, "reading Kafka"), errors)


def read_range(
    consumer: Any,
    errors: client.ClientErrors,
    wanted: OffsetRange,
    wait_s: float,
    passes_over_lost: bool = False,
) -> Iterator[Messages]:
    """Yield the messages of a range, in blocks, in order.

    The last offset of a range may be a hole, of a transaction's end or a compacted record: the
    range is at its end with the first record after it, or where the partition ends.

    Raises:
        SourceError: a record did not come in time, is there no more, or the brokers refuse to give
            it.
    """
    partition = client.confluent_kafka().TopicPartition(wanted.topic, wanted.partition)
    until = wanted.untilOffset
    position = wanted.fromOffset
    while position < until:
        partition.offset = position
        consumer.assign([partition])
        try:
            for messages in _from_here(consumer, errors, wanted, position, wait_s):
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
            position = _first_there(consumer, wanted, position, passes_over_lost, error)


class _OutOfRangeError(Exception):
    """The broker has no record of an offset, neither now nor later."""


def _from_here(
    consumer: Any, errors: client.ClientErrors, wanted: OffsetRange, position: int, wait_s: float
) -> Iterator[Messages]:
    """Yield what comes of a partition, to its end at most."""
    until = wanted.untilOffset
    trouble: str | None = None
    while True:
        messages = consumer.consume(min(BLOCK_RECORDS, until - position), 0)
        if not messages:
            message = _waited(consumer, errors, min(wait_s, _BEHIND_S) if trouble else wait_s)
            if message is None and trouble is not None:
                raise SourceError(
                    f"{_named(wanted)}: {trouble}; give a range that is there, and look whether "
                    "the brokers have lost records"
                )
            if message is None:
                why = "" if errors.last is None else f" ({errors.last.str()})"
                raise SourceError(
                    f"{_named(wanted)}: no record came for {wait_s:g} s after offset {position}; "
                    f"the brokers cannot be reached, or answer slowly{why}: look at them, or wait "
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


def _waited(consumer: Any, errors: client.ClientErrors, wait_s: float) -> Any:
    """Wait for a message, and no longer once the brokers refuse to give any; None for none."""
    left_s = wait_s
    while left_s > 0:
        message = consumer.poll(min(left_s, _LOOK_S))  # calls back with the errors of connections
        if message is not None:
            return message
        if errors.refusal is not None:
            raise SourceError(
                f"the brokers refuse this worker: {errors.refusal.str()} "
                f"({errors.refusal.name()}); look at security.protocol, sasl.* and ssl.* of the "
                "parameters, and at the files that they name, which each worker needs"
            )
        left_s -= _LOOK_S
    return None


def _is_end(wanted: OffsetRange, message: Any) -> bool:
    """Whether the partition ends after the range; an error of the partition is raised."""
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
    """Say what is wrong for good, if it lasts; None for what passes when the brokers are back."""
    error = message.error()
    if error.name() == "_PARTITION_EOF":
        return f"the partition ends at {message.offset()}"
    return error.str() if client.is_unknown(error) else None


def _first_there(
    consumer: Any, wanted: OffsetRange, position: int, passes_over_lost: bool, error: Exception
) -> int:
    """Return from where a range can be read whose beginning has expired."""
    low, high = consumer.get_watermark_offsets(
        client.confluent_kafka().TopicPartition(wanted.topic, wanted.partition), _ASK_TIMEOUT_S
    )
    there = f"the partition has {low} to {high} now"
    if not passes_over_lost:
        raise SourceError(
            f"{_named(wanted)}: offset {position} is not there any more: {there} ({error}). Its "
            "records were deleted before they were read: let the topic keep them longer, or go on "
            "without them with spark.dstreams.kafka.failOnDataLoss=false"
        )
    if low <= position:
        raise SourceError(f"{_named(wanted)}: offset {position} cannot be read: {there} ({error})")
    logger.warning(
        "%s: offsets %d to %d have expired and are passed over", _named(wanted), position, low
    )
    return int(low)


def _named(wanted: OffsetRange) -> str:
    return f"{wanted.topic}-{wanted.partition}, offsets {wanted.fromOffset} to {wanted.untilOffset}"
