"""Batches in topics: exactly once by transactions, or at least once without.

Exactly once is by one transaction for each batch and partition of its RDD, which holds the records
and a commit that names the batch (:mod:`dstreams.kafka.output_commits`). A task takes these
steps, and a crash is harmless between any two of them:

1. It takes over the transactional id of its partition, which is the same in every run. That fences
   every other writer of the partition, such as an older driver's, and ends what hangs of it.
2. It reads the last commit of its partition. From here on nobody else can commit one. Where the
   batch is there it is left out; what is there of another history is an error.
3. It sends its records and the commit, and commits the transaction.

A worker that was the last to write a partition, as the driver tells it, still has the id and knows
the last commit, and begins with the third step. If it is mistaken, because somebody else has taken
the id over since, its transaction fails, and the task is repeated from the first step.

So of two attempts of one task, or tasks of two drivers, each may take over from the other, and
whoever comes first commits: it is the same batch. The other one finds it.
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
from dstreams.kafka.commit_topic import require_topic
from dstreams.kafka.fetch import lend_consumer
from dstreams.kafka.output_commits import (
    DEFAULT_TOPIC,
    CommitsRead,
    Committed,
    OutputCommits,
)
from dstreams.kafka.producer_parameters import ProducerParameters
from dstreams.kafka.producers import ProducerRecord, keep, lend_producer, plain_producer
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.promise import AT_LEAST_ONCE, DeliveryGuarantee
from dstreams.spark.worker_gc import settle_worker

logger = logging.getLogger(__name__)

_READ_EACH = 100
"""After so many batches the driver reads on, so that no task has more than that to read."""

_HIDDEN_S = 1.0
"""How long a task waits for a transaction that hides commits. If it is one of this output, a task
may end it that waits for this one to make room."""


class Written(NamedTuple):
    """What became of a batch.

    Args:
        records: how many were written by this call.
        partitions: how many of the RDD's partitions had records and were written by it.
        found: how many were there already, of an earlier run of the batch.
    """

    records: int
    partitions: int
    found: int


_EXACTLY_ONCE = DeliveryGuarantee(
    "exactly once",
    "for who reads with isolation.level=read_committed; where an older copy of the checkpoint is "
    "put back, the stream stops",
)


class KafkaOutput:
    """Writes batches of :class:`ProducerRecord` into topics; pickled without what it has learnt.

    Args:
        parameters: of the producers.
        name: tells apart the outputs of one stream.
        exactly_once: False: a batch that runs again, and a task that does, writes its records
            again; it is quicker, as a worker needs one producer and no transaction.
        commit_topic: topic of the commits, which is made where it is missing.
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
        self._log: _Log | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_log": None}

    @property
    def promise(self) -> DeliveryGuarantee:
        """How often readers see a batch."""
        return _EXACTLY_ONCE if self._exactly_once else AT_LEAST_ONCE

    def write(self, batch: OutputBatch, rdd: RDD[Any]) -> Written:
        """Write a batch, or what is missing of it.

        Args:
            batch: which one.
            rdd: its records, as :class:`ProducerRecord` or tuples of the same.

        Raises:
            OutputConflictError: the topics have the batch, or one that this stream has not begun,
                from another history of the checkpoint.
            StreamError: what is there of the batch has another number of partitions, or the brokers
                refuse or do not answer.
        """
        if rdd.getNumPartitions() == 0:
            return Written(0, 0, 0)
        if not self._exactly_once:
            task = _SendTask(
                self._parameters.for_producers(), self._where, self._parameters.delivery_ms / 1000
            )
            counts = rdd.mapPartitions(task).collect()
            return Written(sum(counts), sum(count > 0 for count in counts), 0)
        return self._write_once(batch, rdd)

    def _write_once(self, batch: OutputBatch, rdd: RDD[Any]) -> Written:
        log = self._log
        if log is None or log.commits.stream_id != batch.stream_id:
            commits = OutputCommits(self._commit_topic, self._name, batch.stream_id)
            log = self._log = _Log(self._parameters, commits)
        log.catch_up()
        parts = rdd.getNumPartitions()
        found = log.partitions_with(batch, parts)
        missing = [split for split in range(parts) if split not in found]
        records, written = 0, 0
        for hidden_s in (_HIDDEN_S, self._parameters.transaction_ms / 1000):
            if not missing:
                break
            log.is_stale = True  # until all tasks have said what they did
            task = log.task(batch, parts, hidden_s)
            reports = rdd.context.runJob(rdd.mapPartitionsWithIndex(task), list, missing)
            for report in reports:
                log.learn(report)
            found |= log.partitions_with(batch, parts) & {one.split for one in reports if one.found}
            records += sum(one.records for one in reports)
            written += sum(one.records > 0 for one in reports)
            missing = [one.split for one in reports if one.is_hidden]
            log.is_stale = False
        if missing:
            raise StreamError(
                f"{self._where}: a transaction hides what {len(missing)} partitions of the output "
                f"have, in {self._commit_topic}-{log.commits.partition}, for longer than "
                f"{self._parameters.transaction_ms} ms; look for another writer to that topic that "
                "does not end its transactions"
            )
        if found:
            logger.info(
                "%s: %d of %d partitions of batch %d were there already",
                *(self._where, len(found), parts, batch.batch_id),
            )
        return Written(records, written, len(found))

    @property
    def _where(self) -> str:
        return self._parameters.where


@dataclass(frozen=True)
class _Report:
    """What a task did with its partition.

    Args:
        split: the partition.
        owner: the attempt that took over its transactional id, or used it, last; -1 for none.
        records: how many it wrote.
        last: the last commit of the partition, None where none is known.
        found: whether that was there, and the partition was left out for it.
        is_hidden: whether it was left out because nobody could tell yet.
    """

    split: int
    owner: int = -1
    records: int = 0
    last: Committed | None = None
    found: bool = False
    is_hidden: bool = False


class _Log:
    """What the driver knows of the commits of an output.

    Args:
        parameters: of the clients.
        commits: those of the output.
    """

    def __init__(self, parameters: ProducerParameters, commits: OutputCommits) -> None:
        self.commits = commits
        self.is_stale = True
        self._parameters = parameters
        self._last: dict[int, Committed] = {}
        self._owners: dict[int, int] = {}
        self._position: int | None = None
        self._batches = 0

    def catch_up(self) -> None:
        """Read what is not known yet; without a fault that is so now and then only."""
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
        """Return the partitions that have a batch.

        Raises:
            OutputConflictError: something there is of another history of the checkpoint.
            StreamError: the batch is there in another number of partitions.
        """
        found = set()
        for split, last in sorted(self._last.items()):
            if last.batch_id == batch.batch_id or batch.is_foreign(last.batch_id):
                batch.require_own(
                    f"partition {split} of the sink {self.commits.sink!r}, by its commits in "
                    f"{self.commits.topic},",
                    last.batch_id,
                    last.beginning,
                    "make the topics that it wrote to anew, and give the sink another name",
                )
                if last.partitions != parts:
                    raise StreamError(
                        f"batch {batch.batch_id} of the sink {self.commits.sink!r} is in its "
                        f"topics in part, by its commits in {self.commits.topic}, of "
                        f"{last.partitions} partitions, and now has {parts}; run it as it was "
                        "before, or make the topics anew and give the sink another name"
                    )
            if last.batch_id >= batch.batch_id:
                # A later one is there after a rewind: the batches up to it were, one by one.
                found.add(split)
        return found

    def task(self, batch: OutputBatch, parts: int, hidden_s: float) -> _TransactionTask:
        """Return the task that writes a partition."""
        return _TransactionTask(
            self._parameters, self._parameters.for_transactions(), self._parameters.for_commits(),
            self.commits, batch, parts, dict(self._last), dict(self._owners),
            self._position, hidden_s,
        )  # fmt: skip

    def learn(self, report: _Report) -> None:
        """Take in what a task has done."""
        if report.last is not None:
            self._last[report.split] = report.last
        if report.is_hidden:
            self._owners.pop(report.split, None)  # none has read the commits
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
    """Task: send the records of a partition, and wait until the brokers have them.

    Args:
        config: of the producer, secrets included: a task is in no checkpoint.
        where: the output, for messages.
        answer_s: how long brokers may take.
    """

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
    """Task: write a partition in a transaction, unless it is there.

    Args:
        parameters: of the clients; without secrets here.
        config: of producers, secrets included: a task is in no checkpoint.
        reading: of the consumer of commits, likewise.
        commits: those of the output.
        batch: which one.
        parts: how many partitions it has.
        last: the last commits that the driver knows, by partition.
        owners: the attempts that wrote partitions last, by partition.
        position: from where on the driver does not know the commits.
        hidden_s: how long to wait for transactions that hide commits.
    """

    parameters: ProducerParameters
    config: Mapping[str, Any]
    reading: Mapping[str, Any]
    commits: OutputCommits
    batch: OutputBatch
    parts: int
    last: Mapping[int, Committed]
    owners: Mapping[int, int]
    position: int | None
    hidden_s: float

    def __call__(self, split: int, records: Iterable[Any]) -> Iterator[_Report]:
        settle_worker()
        remaining = iter(records)
        first = next(remaining, None)
        # A partition without records has no transaction: it has none when it runs again, either.
        report = _Report(split) if first is None else self._write(split, first, remaining)
        deque(remaining, maxlen=0)  # a worker whose input is left unread is not used again
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
            is_there = last is not None and not self._is_before(last)
            if is_there:
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
        done = Committed(self.batch.batch_id, self.batch.batch_token, self.parts)
        return _Report(split, attempt, count, done)

    def _is_before(self, last: Committed) -> bool:
        """Whether the last commit leaves the batch to be written."""
        return last.batch_id < self.batch.batch_id and not self.batch.is_foreign(last.batch_id)
