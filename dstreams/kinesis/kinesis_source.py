"""A source of Amazon Kinesis: the driver reads ahead, tasks replay sequence numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from pyspark import RDD

from dstreams.errors import RestartError, SourceError
from dstreams.kinesis.kinesis_client import (
    HashRange,
    KinesisClient,
    KinesisConnection,
    producer_records,
)
from dstreams.kinesis.shards import Arrival, ShardReceiver
from dstreams.sources.rate_limit import RateLimit
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader

logger = logging.getLogger(__name__)

_CREATED, _RANGES = "created_ms", "ranges"

# Attempts of boto3: the driver has its own retries, tasks leave them to boto3.
_ATTEMPTS, _ATTEMPTS_OF_TASKS = 2, 12

# A smaller batch is one task: a second task costs more than it saves.
_PARTITION_BYTES = 16 << 10

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class KinesisSource(Source):
    """Records of a Kinesis stream as ``bytes``; aggregated records are split.

    The offset of a batch has a position for each shard. Its begin record also has the first and the
    last sequence number of each shard, so that a restart replays the same records from Kinesis.
    Nothing is written to DynamoDB. A batch fails if its records are older than the retention period
    of the stream.

    Checkpoints do not contain the keys of the connection: after ``getOrCreate``, boto3 finds them
    in its usual places.

    Args:
        connection: location of the stream and credentials.
        initial: position of a new stream: TRIM_HORIZON or LATEST. LATEST is stored as the start
            time until a record is read.
    """

    connection: KinesisConnection
    initial: str

    def __reduce__(self) -> Any:
        return KinesisSource, (self.connection.for_checkpoint(), self.initial)

    @property
    def name(self) -> str:
        return f"KinesisUtils.createStream({self.connection.stream})"

    def open(self, environment: SourceEnvironment) -> KinesisReader:
        return KinesisReader(self, environment)


@dataclass(frozen=True)
class ShardRange:
    """The records of a shard that a batch reads.

    Args:
        shard: name of the shard.
        first: sequence number of the first record.
        last: sequence number of the last record.
        count: number of Kinesis records.
        hashes: hash keys of the shard; None if it was deleted.
    """

    shard: str
    first: str
    last: str
    count: int
    hashes: HashRange | None


class KinesisReader(SourceReader):
    """Plans batches of records that were read ahead; an offset has a position for each shard.

    Raises:
        EnvironmentNotReadyError: boto3 is not installed.
    """

    rate_limit = "receiver"

    def __init__(self, source: KinesisSource, environment: SourceEnvironment) -> None:
        self._source = source
        self._environment = environment
        self._limit = RateLimit(environment.batch_ms)
        self._client = source.connection.open(_ATTEMPTS)
        self._receiver = ShardReceiver(
            source.name,
            self._client,
            environment.clock,
            environment.settings.receiver_max_buffer_bytes,
            environment.report_error,
        )
        self._created_ms = 0
        self._newest: PlannedInput | None = None  # of this run
        # End offset and arrivals of the batches of this run, by batch time.
        self._taken: dict[int, tuple[Any, list[Arrival]]] = {}

    def start(self) -> None:
        """Find the shards and start to read.

        Raises:
            RestartError: the earlier run has read another stream.
            SourceError: the stream does not exist, access is denied, or a shard was deleted.
        """
        described = self._client.described()
        self._created_ms = described.created_ms
        before = self._environment.newest
        if before is None:
            self._receiver.start(None, self._source.initial)
            return
        if before.facts.get(_CREATED, described.created_ms) != described.created_ms:
            raise RestartError(
                f"{self._source.name} cannot resume: the stream was deleted and created again, or "
                "has another name, so its positions are unknown; start with a new checkpoint"
            )
        gone_ms = self._environment.clock.now_ms() - before.time_ms
        if gone_ms > described.retention_hours * _HOUR_MS:
            logger.warning(
                "%s: the newest batch was planned %d hours ago, but the stream keeps records for "
                "%d hours: records in between may be lost",
                self._source.name,
                gone_ms // _HOUR_MS,
                described.retention_hours,
            )
        self._receiver.start(before.end, self._source.initial)

    def update_rate(self, records_per_second: int) -> None:
        self._limit.update(records_per_second)

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        newest = self._newest
        if newest is not None and start == newest.start != newest.end:  # the plan was not begun
            self._receiver.put_back(newest.time_ms, self._taken.pop(newest.time_ms)[1])
        arrivals = self._receiver.take(time_ms, self._limit.most(time_ms))
        ranges: dict[str, list[Any]] = {}
        end = dict(start or {})
        for arrival in arrivals:
            if arrival.position is None:
                end.pop(arrival.shard, None)
                continue
            end[arrival.shard] = arrival.position
            if arrival.records is not None:
                first, _, count = ranges.get(arrival.shard, (arrival.position, None, 0))
                ranges[arrival.shard] = [first, arrival.position, count + 1]
        records = sum(arrival.count for arrival in arrivals)
        size = sum(arrival.size for arrival in arrivals)
        description = f"{records} records of {len(ranges)} shards, {size} bytes"
        facts = {_CREATED: self._created_ms, _RANGES: ranges}
        planned = PlannedInput(time_ms, start, end or None, facts, records, description)
        self._taken[time_ms] = planned.end, arrivals
        self._newest = planned
        return planned

    def read(self, planned: PlannedInput) -> RDD[bytes]:
        """Return the records from memory, or read by tasks from Kinesis again."""
        spark = self._environment.spark
        taken = self._taken.get(planned.time_ms)
        if taken is None:
            ranges = self._ranges(planned.facts)
            if not ranges:
                return spark.emptyRDD()
            again = partial(read_again, self._source.connection, self._source.name)
            return spark.parallelize(ranges, len(ranges)).mapPartitions(again)
        self._receiver.make_room(planned.time_ms)
        blocks = list(_blocks(taken[1]))
        if not blocks:
            return spark.emptyRDD()
        partitions = min(spark.defaultParallelism, len(blocks))
        return spark.parallelize(blocks, partitions).mapPartitions(chain.from_iterable)

    def _ranges(self, facts: Mapping[str, Any]) -> list[ShardRange]:
        ranges: Mapping[str, list[Any]] = facts.get(_RANGES, {})
        return [
            ShardRange(shard, first, last, count, self._receiver.hashes(shard))
            for shard, (first, last, count) in ranges.items()
        ]

    def commit(self, end: Any) -> None:
        # Copied, because another thread may plan a batch.
        taken = tuple(self._taken.items())
        upto_ms = max((time_ms for time_ms, (until, _) in taken if until == end), default=-1)
        for time_ms, _ in taken:
            if time_ms <= upto_ms:
                del self._taken[time_ms]
        self._receiver.make_room(upto_ms)

    def stop_receiving(self) -> None:
        self._receiver.stop()

    def waiting_records(self) -> int:
        return self._receiver.waiting_records()

    def close(self) -> None:
        self._receiver.close()


def read_again(
    connection: KinesisConnection, name: str, ranges: Iterable[ShardRange]
) -> Iterator[bytes]:
    """Yield the records of ranges again, in a task.

    Raises:
        EnvironmentNotReadyError: boto3 is not installed for the workers.
        SourceError: records of a range are missing.
    """
    # All input is read first, so that Spark reuses the worker.
    ranges = list(ranges)
    client = connection.open(_ATTEMPTS_OF_TASKS)
    for one in ranges:
        for data in _records_in(client, name, one):
            yield from producer_records(data, one.hashes or HashRange())


def _records_in(client: KinesisClient, name: str, one: ShardRange) -> Iterator[bytes]:
    """Yield the records of a range; fail if they differ from the plan."""
    iterator: str | None = client.iterator_at(one.shard, one.first)
    last, count = int(one.last), 0
    number = ""
    while iterator is not None:
        fetched = client.fetch(iterator)
        for number, data in fetched.records:
            if (count == 0 and number != one.first) or int(number) > last:
                raise _gone(name, one)
            count += 1
            yield data
            if number == one.last:
                if count != one.count:
                    raise _gone(name, one)
                return
        iterator = fetched.next_iterator
        if not fetched.records and not fetched.behind_ms:
            break
    raise _gone(name, one)


def _gone(name: str, one: ShardRange) -> SourceError:
    return SourceError(
        f"{name}: the {one.count} records of a batch in {one.shard}, from {one.first} to "
        f"{one.last}, are no longer in the stream; raise its retention period, and start with a "
        "new checkpoint"
    )


def _blocks(arrivals: Iterable[Arrival]) -> Iterator[list[bytes]]:
    """Yield blocks of records, each large enough for a task."""
    block: list[bytes] = []
    size = 0
    for arrival in arrivals:
        block += arrival.records or ()
        size += arrival.size
        if size >= _PARTITION_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block
