"""RDDs over state stores: each task updates and commits its store, then emits rows.

>>> from dstreams.spark.placed_pairs import PlacedPairsRDD
>>> from dstreams.spark.shuffle import shuffle_pairs
>>> from dstreams.spark.state_store_rdd import StateStoreRDD
>>> from dstreams.spark.state_version import StateVersion
>>> class Count:
...     def __call__(self, store, initial, records, metrics):
...         for key, _ in records:
...             store.put(key, (store.get(key) or 0) + 1)
...             yield key, store.get(key)
>>> version = StateVersion.empty(store_id, partitioner)
>>> batch = shuffle_pairs(spark.parallelize([("a", 1), ("a", 2)]), partitioner)
>>> counted = StateStoreRDD(PlacedPairsRDD(batch), store, version, Count())
>>> counted.force().version  # one job; a commit record makes the version valid
1
>>> counted.rows().collect()
[('a', 1), ('a', 2)]

Each task attempt writes under a unique name, and emits its rows when these writes are durable. Only
the attempts in the result of :meth:`StateStoreRDD.force` count: a retry, a speculative attempt or a
recomputed partition has no effect. Every partition commits in every batch.

Rows are kept in memory and on the local disk. If an executor is lost, Spark computes its rows
again, and a nondeterministic function may then emit rows that do not match the state. So a reader
checks that the rows come from the committed attempt, or are equal to its rows.

:class:`ReadStateStoreRDD` opens the same stores for reading.

Semantics: org.apache.spark.sql.execution.streaming.state.StateStoreRDD and ReadStateStoreRDD (4.3).
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from pyspark import RDD, StorageLevel
from pyspark.rdd import PipelinedRDD

from checkpoint import PartitionCommit
from checkpoint.state_store import (
    EMPTY,
    MemoryBackend,
    PickleValues,
    StateReader,
    StateStore,
    StateWriter,
    StoreId,
    VersionId,
)
from dstreams.spark import jvm
from dstreams.spark.blocks import Block, BlockBuilder, Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.per_partition import PerPartition
from dstreams.spark.placed_pairs import StateInputs
from dstreams.spark.spilling import FrameBuffer
from dstreams.spark.state_version import StateMetrics, StateVersion
from dstreams.spark.worker_gc import settle_worker

_MADE, _ROWS = 1, 0  # labels of frames

Pairs = Iterator[tuple[Any, Any]]


class StoreFunction(Protocol):
    """A function over the store of a partition."""

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterable[Any]:
        """Return the rows of the partition; all of them are read before the store commits.

        *initial* has pairs of key and initial state. Read all of them before *records*, which can
        be read in columns (:func:`~dstreams.spark.blocks.columns_of`).
        """
        ...


ReadFunction = Callable[[int, StateReader, Iterator[Any]], Iterable[Any]]
"""``(partition, store, rows) -> rows``, over a store that is open for reading."""


class StateStoreRDD:
    """The rows of a batch and the version of the state after it.

    Args:
        data: the input of each partition: any rows, or :class:`StateInputs`. The input is evaluated
            before the store is opened. Pairs of a :class:`PlacedPairsRDD` are computed on the host
            with the replica, if Spark finds a free core there in time.
        store: the stores.
        before: the version before the batch.
        function: called once per partition.

    Raises:
        ValueError: *data* and the state differ in their number of partitions.
    """

    def __init__(
        self, data: RDD[Any], store: StateStore, before: StateVersion, function: StoreFunction
    ) -> None:
        _require_partitions(data, before)
        self.partitioner = jvm.partitioner_of(data) or StablePartitioner(len(before.version_ids))
        task = _StoreTask(store, before, function)
        self._before = before
        self._attempts: list[AttemptRows] = []
        self._read_rows = ReadOutputRows(before.store_id.operator_uid, self._attempts)
        self._frames = jvm.LabelledFrames(PipelinedRDD(data, task))
        self._frames.persist(StorageLevel.MEMORY_AND_DISK_DESER)

    def force(self) -> StateVersion:
        """Compute every partition in one job, and return the new version."""
        frames = self._frames.collect(_MADE)
        found = sorted(map(PartitionResult.from_frame, frames), key=lambda made: made.split)
        total = StateMetrics()
        for made in found:
            total.add(made.metrics)
        self._attempts[:] = [made.rows for made in found]
        before = self._before
        return replace(
            before,
            version_ids=tuple(made.committed.version_id for made in found),
            commits=tuple(made.committed for made in found),
            metrics=total,
            event_time_max_ms=max(before.event_time_max_ms, total.eventTimeMaxMs),
        )

    def rows(self) -> RDD[Any]:
        """Return the rows, which are persisted until :meth:`unpersist`.

        After :meth:`force`, reading raises RowsChangedError if lost rows are computed again and
        differ.
        """
        rows: RDD[Any] = PipelinedRDD(self._frames.frames(), self._read_rows)
        return rows

    def unpersist(self) -> None:
        self._frames.unpersist()


@dataclass(frozen=True)
class _StoreTask:
    """Task: pairs -> its result, then blocks of rows, each after its label."""

    store: StateStore
    before: StateVersion
    function: StoreFunction

    def __call__(self, split: int, data: Iterable[Any] | StateInputs) -> Iterator[bytes]:
        settle_worker()
        initial, records = _sides(data)
        metrics = StateMetrics(numStateStoreInstances=1)
        buffer = FrameBuffer()
        store_id = replace(self.before.store_id, partition=split)
        with self.store.writer(store_id, self.before.version_ids[split]) as writer:
            started = perf_counter()
            builder = BlockBuilder(Side.BATCH)
            rows_out = iter(self.function(writer, initial, records, metrics))
            while chunk := list(islice(rows_out, builder.limit)):
                for block in builder.extend(repeat(None, len(chunk)), chunk):
                    buffer.add(block)
            for block in builder.flush():
                buffer.add(block)
            metrics.allUpdatesTimeMs = _ms_since(started)
            metrics.stateMemory = writer.size_bytes()
            started = perf_counter()
            committed = writer.commit()
            metrics.commitTimeMs = _ms_since(started)
        metrics.numTotalStateRows = committed.count
        rows = AttemptRows(committed.version_id, buffer.digest())
        made = PartitionResult(split, committed, metrics, rows)
        yield from jvm.addressed(_MADE, made.to_frame())
        for frame in buffer.frames():
            yield from jvm.addressed(_ROWS, frame)


def _sides(data: Iterable[Any] | StateInputs) -> tuple[Pairs, Pairs]:
    """Return the initial state, and the records of a batch."""
    if isinstance(data, StateInputs):
        return data.initial(), data.records()
    return iter(()), data if isinstance(data, Iterator) else iter(data)


@dataclass(frozen=True)
class ScratchStoreTask:
    """Task: pairs -> the rows of a function over an empty store, which is discarded."""

    store_id: StoreId
    function: StoreFunction

    def __call__(self, split: int, data: Iterable[Any] | StateInputs) -> Iterator[Any]:
        settle_worker()
        initial, records = _sides(data)
        store = StateStore(MemoryBackend(), PickleValues())  # the writer spills to the disk
        with store.writer(replace(self.store_id, partition=split), EMPTY) as writer:
            yield from self.function(writer, initial, records, StateMetrics())


def _ms_since(started: float) -> int:
    return round((perf_counter() - started) * 1000)


class ReadStateStoreRDD(PipelinedRDD):  # type: ignore[misc]
    """The rows of a function that reads the store of each partition.

    Args:
        data: the rows of each partition.
        store: the stores.
        version: the version to read.
        function: ``(partition, store, rows) -> rows``; the store is open until all its rows are
            read.

    Raises:
        ValueError: *data* and the state differ in their number of partitions.
    """

    def __init__(
        self, data: RDD[Any], store: StateStore, version: StateVersion, function: ReadFunction
    ) -> None:
        _require_partitions(data, version)
        super().__init__(data, _ReadTask(store, version, function), preservesPartitioning=True)


@dataclass(frozen=True)
class _ReadTask:
    """Task: rows -> the rows of a function over a store."""

    store: StateStore
    version: StateVersion
    function: ReadFunction

    def __call__(self, split: int, rows: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        # Open now, before the first row is read: another operator of this task may open the same
        # store for writing by then.
        reader = self.version.open(self.store, split)
        return self._rows(split, reader, iter(rows))

    def _rows(self, split: int, reader: StateReader, rows: Iterator[Any]) -> Iterator[Any]:
        with reader:
            yield from self.function(split, reader, rows)


def _require_partitions(data: RDD[Any], version: StateVersion) -> None:
    placed_by = jvm.partitioner_of(data)  # has the number without a call to the JVM
    found = data.getNumPartitions() if placed_by is None else placed_by.numPartitions
    wanted = len(version.version_ids)
    if found != wanted:
        raise ValueError(
            f"the state of {version.store_id.operator_uid!r}: has {wanted} partitions, but the "
            f"input has {found}; move each key to its partition first, for example by shuffle_pairs"
        )


MARK = b"\xff"
"""The first byte of a frame that is not a block; no block starts with it."""


class RowsChangedError(RuntimeError):
    """Lost rows differed when they were computed again."""


class AttemptRows(NamedTuple):
    """The state version that an attempt wrote, and a digest of its rows."""

    version_id: VersionId
    digest: bytes


@dataclass(frozen=True)
class PartitionResult:
    """The result of a task for the driver; it also precedes the rows of the partition."""

    split: int
    committed: PartitionCommit
    metrics: StateMetrics
    rows: AttemptRows

    def to_frame(self) -> bytes:
        return MARK + pickle.dumps(self)

    @classmethod
    def from_frame(cls, frame: bytes) -> PartitionResult:
        made: PartitionResult = pickle.loads(frame[len(MARK) :])
        return made


@dataclass(frozen=True)
class ReadOutputRows:
    """Task: the frames of a partition -> its rows.

    *attempts* has the committed attempt of each partition, and is empty before the commit.
    """

    operator_uid: str
    attempts: Sequence[AttemptRows]

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadOutputRows, (self.operator_uid, PerPartition(AttemptRows, self.attempts))

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[Any]:
        settle_worker()
        rest = iter(frames)
        try:
            made = PartitionResult.from_frame(next(rest))
            for frame in self._that_count(made, rest):
                yield from Block(frame).values()
        finally:
            deque(rest, maxlen=0)  # Spark does not reuse a worker with unread input

    def _that_count(self, made: PartitionResult, frames: Iterator[bytes]) -> Iterator[bytes]:
        if not self.attempts:
            return frames
        counts = self.attempts[made.split]
        if made.rows.version_id == counts.version_id or made.rows.digest == counts.digest:
            return frames
        raise RowsChangedError(
            f"rows of {self.operator_uid} in partition {made.split}: computed again after they "
            "were lost, and they differ from those that belong to its state, because its function "
            "is not deterministic; make it deterministic: add random or looked-up values to the "
            "records before the stateful operation"
        )
