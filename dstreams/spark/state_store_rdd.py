"""StateStoreRDD: each task opens the store of its partition, changes it, commits, then gives rows.

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
>>> counted.force().version  # one job; the version counts when a commit record names it
1
>>> counted.rows().collect()
[('a', 1), ('a', 2)]

An attempt of a task writes under a name of its own, and gives its rows when that is durable. The
attempts that :meth:`StateStoreRDD.force` returns count: a retry, a speculative twin or a partition
that is computed again changes nothing. Every partition takes part in every batch.

:class:`ReadStateStoreRDD` opens the same stores for reading only.

Semantics: org.apache.spark.sql.execution.streaming.state.StateStoreRDD and ReadStateStoreRDD (4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, repeat
from time import perf_counter
from typing import Any, Protocol

from pyspark import RDD, StorageLevel
from pyspark.rdd import PipelinedRDD

from checkpoint.state_store import (
    StateReader,
    StateStore,
    StateWriter,
    StoreId,
    VersionId,
)
from dstreams.spark import jvm
from dstreams.spark.blocks import BlockBuilder, Side
from dstreams.spark.output_rows import AttemptRows, PartitionResult, ReadOutputRows
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import StateInputs
from dstreams.spark.spill_buffer import FrameBuffer
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.state_version import StateVersion
from dstreams.spark.worker_gc import settle_worker

_MADE, _ROWS = 1, 0  # labels of frames

Pairs = Iterator[tuple[Any, Any]]


class StoreFunction(Protocol):
    """What a task does with the store of its partition."""

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterable[Any]:
        """Return the rows of the partition; all of them are pulled before the store commits.

        *initial* has pairs of key and state to begin with, and is read to its end before *records*,
        which can be had in columns (:func:`~dstreams.spark.pair_columns.columns_of`).
        """
        ...


ReadFunction = Callable[[int, StateReader, Iterator[Any]], Iterable[Any]]
"""``(partition, store, rows) -> rows``, over a store that is open for reading."""


class StateStoreRDD:
    """The rows of a batch, and the version of the state that its computation makes.

    Args:
        data: the input of each partition: any rows, or :class:`StateInputs`. The input is evaluated
            before the store is opened. Pairs of a :class:`PlacedPairsRDD` are computed on the host
            that has the replica, if Spark finds a free core there in time.
        store: the stores.
        before: the version to begin with.
        function: what a task does.

    Raises:
        ValueError: *data* has another number of partitions than the state.
    """

    def __init__(
        self,
        data: RDD[Any],
        store: StateStore,
        before: StateVersion,
        function: StoreFunction,
    ) -> None:
        _require_partitions(data, before)
        self.partitioner = jvm.partitioner_of(data) or StablePartitioner(len(before.version_ids))
        task = _StoreTask(store, before.store_id, before.version_ids, function)
        self._before = before
        self._attempts: list[AttemptRows] = []
        self._read_rows = ReadOutputRows(before.store_id.operator_uid, self._attempts)
        self._frames = jvm.LabelledFrames(PipelinedRDD(data, task))
        self._frames.persist(StorageLevel.MEMORY_AND_DISK_DESER)

    def force(self) -> StateVersion:
        """Compute every partition, in one job, and return the version that this made."""
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
        """Return the rows; reading them computes nothing again while they are kept.

        After :meth:`force`, reading fails if lost rows come out otherwise when they are computed
        again.
        """
        rows: RDD[Any] = PipelinedRDD(self._frames.frames(), self._read_rows)
        return rows

    def unpersist(self) -> None:
        self._frames.unpersist()


@dataclass(frozen=True)
class _StoreTask:
    """Task: blocks of pairs -> its result, then blocks of rows, each after its label."""

    store: StateStore
    store_id: StoreId
    version_ids: tuple[VersionId, ...]
    function: StoreFunction

    def __call__(self, split: int, data: Iterable[Any] | StateInputs) -> Iterator[bytes]:
        settle_worker()
        initial: Pairs = iter(())
        if isinstance(data, StateInputs):
            initial, data = data.initial(), data.records()
        records = data if isinstance(data, Iterator) else iter(data)
        metrics = StateMetrics(numStateStoreInstances=1)
        buffer = FrameBuffer()
        store_id = replace(self.store_id, partition=split)
        with self.store.writer(store_id, self.version_ids[split]) as writer:
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


def _ms_since(started: float) -> int:
    return round((perf_counter() - started) * 1000)


class ReadStateStoreRDD(PipelinedRDD):  # type: ignore[misc]
    """The rows of a function that reads the store of each partition, and changes nothing.

    Args:
        data: the rows of each partition.
        store: the stores.
        version: the version to read.
        function: ``(partition, store, rows) -> rows``; it is called when the store is open, and the
            store is closed when its rows were pulled.

    Raises:
        ValueError: *data* has another number of partitions than the state.
    """

    def __init__(
        self,
        data: RDD[Any],
        store: StateStore,
        version: StateVersion,
        function: ReadFunction,
    ) -> None:
        _require_partitions(data, version)
        super().__init__(data, _ReadTask(store, version, function), preservesPartitioning=True)


@dataclass(frozen=True)
class _ReadTask:
    """Task: rows -> the rows of a function over a store that is open for reading."""

    store: StateStore
    version: StateVersion
    function: ReadFunction

    def __call__(self, split: int, rows: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        # Now, not when the first row is pulled: another operator of this task may open the same
        # store for writing by then.
        reader = self.version.open(self.store, split)
        return self._rows(split, reader, iter(rows))

    def _rows(self, split: int, reader: StateReader, rows: Iterator[Any]) -> Iterator[Any]:
        with reader:
            yield from self.function(split, reader, rows)


def _require_partitions(data: RDD[Any], version: StateVersion) -> None:
    placed_by = jvm.partitioner_of(data)  # which knows the number without a call of the JVM
    found = data.getNumPartitions() if placed_by is None else placed_by.numPartitions
    wanted = len(version.version_ids)
    if found != wanted:
        raise ValueError(
            f"the input has {found} partitions, the state of {version.store_id.operator_uid!r} has "
            f"{wanted}; bring each key to its partition first, for example by shuffle_pairs"
        )
