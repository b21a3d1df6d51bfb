"""Batches in topics: exactly once by transactions, or at least once without.

Each batch and partition of its RDD is one transaction, with the records and a commit that names the
batch (:mod:`dstreams.kafka.output_commits`). A task does the following; a crash is harmless between
any two steps:

1. Take over the transactional id of its partition, which is the same in every run. This fences all
   other writers of the partition, such as an older driver's, and aborts their transactions.
2. Read the last commit of the partition, which no other task can change now. If it is of the
   batch, skip the partition; if it is of another history, fail.
3. Send the records and the commit, and commit the transaction.

The last writer of a partition starts with step 3. If another writer has taken over the id since,
the transaction fails, and the task is retried from step 1. Two attempts of a task, or tasks of two
drivers, may take over from each other: the first to commit wins, the other finds it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from pyspark import RDD, TaskContext

from dstreams.errors import StreamError
from dstreams.kafka.fetch import lend_consumer
from dstreams.kafka.output_commits import (
    DEFAULT_TOPIC,
    CommitsRead,
    CommittedBatch,
    OutputCommits,
    require_topic,
)
from dstreams.kafka.parameters import ProducerParameters
from dstreams.kafka.producers import ProducerRecord, keep, lend_producer, plain_producer
from dstreams.sinks.output_batch import AT_LEAST_ONCE, DeliveryGuarantee, OutputBatch
from dstreams.spark.worker_gc import settle_worker

logger = logging.getLogger(__name__)

_READ_EACH = 100
"""Number of batches after which the driver reads commits, so that tasks have few to read."""

_HIDDEN_S = 1.0
"""Seconds a task waits for a transaction that hides commits: it may be one that another task ends,
which waits for a core."""


class WrittenBatch(NamedTuple):
    """The result of writing a batch.

    Args:
        records: number of records written.
        partitions: number of partitions with records written.
        found: number of partitions that an earlier run of the batch had written.
    """

    records: int
    partitions: int
    found: int


_EXACTLY_ONCE = DeliveryGuarantee(
    "exactly once",
    "for readers with isolation.level=read_committed; if an older copy of the checkpoint is "
    "restored, the stream stops",
)


class KafkaOutput:
    """Writes batches of :class:`ProducerRecord` into topics; pickled without its cache of commits.

    Args:
        parameters: parameters of the producers.
        name: name of the output, unique in its stream.
        exactly_once: False for at least once, without transactions and with one producer for each
            worker.
        commit_topic: topic of the commits, created if missing.
    """

    def __init__(
        self,
        parameters: ProducerParameters,
        name: str,
        *,
        exactly_once: bool = True,
        commit_topic: str = DEFAULT_TOPIC,
    ) -> None:
        self._parameters = parameters
        self._name = name
        self._exactly_once = exactly_once
        self._commit_topic = commit_topic
        self._cache: _CommitCache | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cache": None}

    @property
    def promise(self) -> DeliveryGuarantee:
        """How often readers see a batch."""
        return _EXACTLY_ONCE if self._exactly_once else AT_LEAST_ONCE

    def write(self, batch: OutputBatch, rdd: RDD[Any]) -> WrittenBatch:
        """Write the partitions of a batch that are not written yet.

        Args:
            batch: the batch.
            rdd: its records, as :class:`ProducerRecord` or such tuples.

        Raises:
            OutputConflictError: the topics have the batch, or a later one, from another history of
                the checkpoint.
            StreamError: the batch was written with another number of partitions, or the brokers
                refuse or do not answer.
        """
        if rdd.getNumPartitions() == 0:
            return WrittenBatch(0, 0, 0)
        if not self._exactly_once:
            task = _SendTask(
                self._parameters.for_producers(), self._where, self._parameters.delivery_ms / 1000
            )
            counts = rdd.mapPartitions(task).collect()
            return WrittenBatch(sum(counts), sum(count > 0 for count in counts), 0)
        return self._write_once(batch, rdd)

    def _write_once(self, batch: OutputBatch, rdd: RDD[Any]) -> WrittenBatch:
        cache = self._cache
        if cache is None or cache.commits.stream_id != batch.stream_id:
            commits = OutputCommits(self._commit_topic, self._name, batch.stream_id)
            cache = self._cache = _CommitCache(self._parameters, commits)
        cache.catch_up()
        parts = rdd.getNumPartitions()
        found = cache.partitions_with(batch, parts)
        missing = [split for split in range(parts) if split not in found]
        records, written = 0, 0
        for hidden_s in (_HIDDEN_S, self._parameters.transaction_ms / 1000):
            if not missing:
                break
            cache.is_stale = True  # until all tasks have reported
            task = cache.task(batch, parts, hidden_s)
            reports = rdd.context.runJob(rdd.mapPartitionsWithIndex(task), list, missing)
            for report in reports:
                cache.learn(report)
            found |= cache.partitions_with(batch, parts) & {
                one.split for one in reports if one.found
            }
            records += sum(one.records for one in reports)
            written += sum(one.records > 0 for one in reports)
            missing = [one.split for one in reports if one.is_hidden]
            cache.is_stale = False
        if missing:
            raise StreamError(
                f"{self._where}: an open transaction hides commits of {len(missing)} partitions in "
                f"{self._commit_topic}-{cache.commits.partition} for longer than "
                f"{self._parameters.transaction_ms} ms; find the writer to that topic that does "
                "not end its transactions"
            )
        if found:
            logger.info(
                "%s: skipped %d of %d partitions of batch %d, which an earlier run has written",
                *(self._where, len(found), parts, batch.batch_id),
            )
        return WrittenBatch(records, written, len(found))

    @property
    def _where(self) -> str:
        return self._parameters.where


@dataclass(frozen=True)
class _Report:
    """The report of a task.

    Args:
        split: the partition.
        owner: the attempt that used the transactional id last, -1 for none.
        records: number of records written.
        last: the last commit of the partition, if known.
        found: whether the partition was skipped because of that commit.
        is_hidden: whether it was skipped because open transactions hide commits.
    """

    split: int
    owner: int = -1
    records: int = 0
    last: CommittedBatch | None = None
    found: bool = False
    is_hidden: bool = False


class _CommitCache:
    """The driver's cache of the commits of an output."""

    def __init__(self, parameters: ProducerParameters, commits: OutputCommits) -> None:
        self.commits = commits
        self.is_stale = True
        self._parameters = parameters
        self._last: dict[int, CommittedBatch] = {}
        self._owners: dict[int, int] = {}
        self._position: int | None = None
        self._batches = 0

    def catch_up(self) -> None:
        """Read new commits, after a failure or every few batches."""
        self._batches += 1
        if not self.is_stale and self._batches % _READ_EACH:
            return
        if self._position is None:
            require_topic(self._parameters, self.commits.topic)
        read = _read(
            self.commits, self._parameters.for_commits(), self._position, 0, self._parameters
        )
        self._position = read.position
        self._last.update(read.last)
        if self.is_stale:
            self._owners.clear()
        self.is_stale = False

    def partitions_with(self, batch: OutputBatch, parts: int) -> set[int]:
        """Return the partitions that have committed a batch.

        Raises:
            OutputConflictError: a commit is of another history of the checkpoint.
            StreamError: the batch was committed with another number of partitions.
        """
        found = set()
        for split, last in sorted(self._last.items()):
            if last.batch_id == batch.batch_id or batch.is_foreign(last.batch_id):
                batch.require_own(
                    f"partition {split} of the sink {self.commits.sink!r}, by its commits in "
                    f"{self.commits.topic},",
                    last.batch_id,
                    last.beginning,
                    "create its topics again, and give the sink another name",
                )
                if last.partitions != parts:
                    raise StreamError(
                        f"batch {batch.batch_id} of the sink {self.commits.sink!r} was written in "
                        f"part with {last.partitions} partitions, by its commits in "
                        f"{self.commits.topic}, and now has {parts}; run it with the original "
                        "program, or create the topics again and give the sink another name"
                    )
            if last.batch_id >= batch.batch_id:
                # After a rewind a later batch is committed, and so are all before it.
                found.add(split)
        return found

    def task(self, batch: OutputBatch, parts: int, hidden_s: float) -> _TransactionTask:
        """Return the task that writes partitions."""
        return _TransactionTask(
            self._parameters, self._parameters.for_transactions(), self._parameters.for_commits(),
            self.commits, batch, parts, dict(self._last), dict(self._owners),
            self._position, hidden_s,
        )  # fmt: skip

    def learn(self, report: _Report) -> None:
        """Update the cache by the report of a task."""
        if report.last is not None:
            self._last[report.split] = report.last
        if report.is_hidden:
            self._owners.pop(report.split, None)  # its producer has not read the commits
        elif report.owner >= 0:
            self._owners[report.split] = report.owner


def _read(
    commits: OutputCommits,
    config: Mapping[str, Any],
    position: int | None,
    hidden_s: float,
    parameters: ProducerParameters,
) -> CommitsRead:
    with lend_consumer(config) as (consumer, _):
        return commits.read(consumer, position, hidden_s, parameters.delivery_ms / 1000)


@dataclass(frozen=True)
class _SendTask:
    """A task that sends the records of a partition and waits for their delivery."""

    config: Mapping[str, Any]
    where: str
    answer_s: float

    def __call__(self, records: Iterable[Any]) -> Iterator[int]:
        settle_worker()
        remaining = iter(records)
        first = next(remaining, None)
        if first is None:
            return iter([0])
        producer = plain_producer(self.config, self.where, self.answer_s)
        count = producer.send(chain([first], remaining))
        producer.flush()
        keep(self.config, None, producer)
        return iter([count])


@dataclass(frozen=True)
class _TransactionTask:
    """A task that writes a partition in a transaction, unless it is committed.

    Args:
        parameters: parameters of the clients, without secrets in tasks.
        config: settings of producers, with secrets: never in a checkpoint.
        reading: settings of the consumer of commits, likewise.
        commits: the commits of the output.
        batch: the batch.
        parts: its number of partitions.
        last: the last known commits, by partition.
        owners: the attempts that wrote partitions last, by partition.
        position: where the commits unknown to the driver begin.
        hidden_s: seconds to wait for open transactions that hide commits.
    """

    parameters: ProducerParameters
    config: Mapping[str, Any]
    reading: Mapping[str, Any]
    commits: OutputCommits
    batch: OutputBatch
    parts: int
    last: Mapping[int, CommittedBatch]
    owners: Mapping[int, int]
    position: int | None
    hidden_s: float

    def __call__(self, split: int, records: Iterable[Any]) -> Iterator[_Report]:
        settle_worker()
        remaining = iter(records)
        first = next(remaining, None)
        # A partition without records needs no transaction, also when it runs again.
        report = _Report(split) if first is None else self._write(split, first, remaining)
        deque(remaining, maxlen=0)  # Spark does not reuse a worker with unread input
        return iter([report])

    def _write(self, split: int, first: Any, remaining: Iterator[Any]) -> _Report:
        context = TaskContext.get()
        attempt = -1 if context is None else context.taskAttemptId()
        is_first = context is None or context.attemptNumber() == 0
        name = self.commits.transactional_id(split)
        producer, is_new = lend_producer(
            self.config,
            name,
            self.parameters.where,
            self.parameters.delivery_ms / 1000,
            self.owners.get(split, -1) if is_first else -1,
        )
        producer.owner = attempt
        if is_new:
            read = _read(self.commits, self.reading, self.position, self.hidden_s, self.parameters)
            last = read.last.get(split, self.last.get(split))
            if last is not None and not self._is_before(last):
                keep(self.config, name, producer)
                return _Report(split, attempt, 0, last, found=True)
            if not read.is_whole:
                return _Report(split, is_hidden=True)
        try:
            producer.begin()
            count = producer.send(chain([first], remaining))
            key, value = self.commits.record(self.batch, split, self.parts)
            place = (self.commits.topic, self.commits.partition)
            producer.send([ProducerRecord(*place, key, value)])
            producer.commit()
        except BaseException:
            producer.abort()
            raise
        keep(self.config, name, producer)
        done = CommittedBatch(self.batch.batch_id, self.batch.batch_token, self.parts)
        return _Report(split, attempt, count, done)

    def _is_before(self, last: CommittedBatch) -> bool:
        """Return whether the batch comes after the last commit."""
        return last.batch_id < self.batch.batch_id and not self.batch.is_foreign(last.batch_id)
