"""A stream of Amazon Kinesis: read ahead by the driver, and read again by sequence numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from pyspark import RDD

from dstreams.errors import RestartError, SourceError
from dstreams.kinesis.aggregation import HashRange, producer_records
from dstreams.kinesis.client import KinesisClient, KinesisConnection
from dstreams.kinesis.shards import Arrival, ShardReceiver
from dstreams.sources.rate_limit import RateLimit
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader

logger = logging.getLogger(__name__)

_CREATED, _RANGES = "created_ms", "ranges"

# How often boto3 tries a call: the driver waits by itself between calls, tasks leave it to boto3.
_ATTEMPTS, _ATTEMPTS_OF_TASKS = 2, 12

# A batch below this is one task: a second one costs more than it saves.
_PARTITION_BYTES = 16 << 10

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class KinesisSource(Source):
    """Records of a Kinesis stream, as ``bytes``; of aggregated ones those of the producer.

    The offset of a batch has the position in each shard; its begin record also has, of each shard,
    the first and the last sequence number that it reads. So a restart gives the batch the same
    records, which it reads from Kinesis again, and goes on behind them. Nothing is written to
    DynamoDB. Records older than the retention period of the stream are gone: a batch that needs
    them fails by name.

    The keys of the connection are in no checkpoint: after ``getOrCreate`` boto3 finds them, where
    it looks by itself.

    Args:
        connection: where the stream is, and as whom it is read.
        initial: where a first run begins: TRIM_HORIZON or LATEST. An order to begin at the tip is
            kept as the time at which the first run began, until a record was read.
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
    """Records of a shard that a batch reads.

    Args:
        shard: name of the shard.
        first: sequence number of the first one.
        last: that of the last one.
        count: how many records of Kinesis these are.
        hashes: the hash keys of the shard; None where it is gone.
    """

    shard: str
    first: str
    last: str
    count: int
    hashes: HashRange | None


@dataclass(frozen=True)
class TakenArrivals:
    """What a batch of this run reads, and the offset at which it ends."""

    end: Any
    arrivals: list[Arrival]


class KinesisReader(SourceReader):
    """Gives each batch what has been read of the shards; an offset has a position for each.

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
        self._taken: dict[int, TakenArrivals] = {}  # by the time of the batch

    def start(self) -> None:
        """Find the shards, and begin to read.

        Raises:
            RestartError: it is another stream than that of an earlier run.
            SourceError: there is no such stream, it may not be read, or a shard is gone.
        """
        described = self._client.described()
        self._created_ms = described.created_ms
        before = self._environment.newest
        if before is None:
            self._receiver.start(None, self._source.initial)
            return
        if before.facts.get(_CREATED, described.created_ms) != described.created_ms:
            raise RestartError(
                f"{self._source.name} cannot go on: it is another stream than that of the earlier "
                "run, deleted and made again or of another name, so nothing says which of its "
                "records were read; begin a new checkpoint"
            )
        gone_ms = self._environment.clock.now_ms() - before.time_ms
        if gone_ms > described.retention_hours * _HOUR_MS:
            logger.warning(
                "%s: the newest batch was planned %d hours ago, and the stream keeps records for "
                "%d hours: records that came meanwhile may be lost",
                self._source.name,
                gone_ms // _HOUR_MS,
                described.retention_hours,
            )
        self._receiver.start(before.end, self._source.initial)

    def update_rate(self, records_per_second: int) -> None:
        self._limit.update(records_per_second)

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        newest = self._newest
        if newest is not None and start == newest.start != newest.end:  # it was not begun
            self._receiver.put_back(newest.time_ms, self._taken.pop(newest.time_ms).arrivals)
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
        self._taken[time_ms] = TakenArrivals(planned.end, arrivals)
        self._newest = planned
        return planned

    def read(self, planned: PlannedInput) -> RDD[bytes]:
        """Return the records: as they wait here, or in tasks that read them from Kinesis again."""
        spark = self._environment.spark
        taken = self._taken.get(planned.time_ms)
        if taken is None:
            ranges = self._ranges(planned.facts)
            if not ranges:
                return spark.emptyRDD()
            again = partial(read_again, self._source.connection, self._source.name)
            return spark.parallelize(ranges, len(ranges)).mapPartitions(again)
        self._receiver.make_room(planned.time_ms)
        blocks = list(_blocks(taken.arrivals))
        if not blocks:
            return spark.emptyRDD()
        partitions = min(spark.defaultParallelism, len(blocks))
        return spark.parallelize(blocks, partitions).mapPartitions(chain.from_iterable)

    def _ranges(self, facts: Mapping[str, Any]) -> list[ShardRange]:
        said: Mapping[str, list[Any]] = facts.get(_RANGES, {})
        return [
            ShardRange(shard, first, last, count, self._receiver.hashes(shard))
            for shard, (first, last, count) in said.items()
        ]

    def commit(self, end: Any) -> None:
        # A copy: another thread may plan a batch meanwhile.
        taken = tuple(self._taken.items())
        upto_ms = max((time_ms for time_ms, one in taken if one.end == end), default=-1)
        for time_ms, _ in taken:
            if time_ms <= upto_ms:
                del self._taken[time_ms]
        self._receiver.make_room(upto_ms)

    def stop_receiving(self) -> None:
        self._receiver.stop()

    def waiting_records(self) -> int:
        """Records that were read and are in no batch."""
        return self._receiver.waiting_records()

    def close(self) -> None:
        self._receiver.close()


def read_again(
    connection: KinesisConnection, name: str, ranges: Iterable[ShardRange]
) -> Iterator[bytes]:
    """Read what an earlier run has read of shards, in a task.

    Raises:
        EnvironmentNotReadyError: boto3 is not installed for the workers.
        SourceError: not all of the records are there any more.
    """
    # All input is read at once, so that Spark uses the worker again.
    ranges = list(ranges)
    client = connection.open(_ATTEMPTS_OF_TASKS)
    for one in ranges:
        for data in _records_in(client, name, one):
            yield from producer_records(data, one.hashes or HashRange())


def _records_in(client: KinesisClient, name: str, one: ShardRange) -> Iterator[bytes]:
    """Yield the records of a range; say so where they are not the same as when it was planned."""
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
        f"{one.last}, are not in the stream any more, as Kinesis keeps records for its retention "
        "period alone; raise that period, and begin a new checkpoint"
    )


def _blocks(arrivals: Iterable[Arrival]) -> Iterator[list[bytes]]:
    """Put records together into blocks of which each is worth a task."""
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
