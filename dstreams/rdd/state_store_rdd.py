"""StateStoreRDD: each task opens the store of its partition, changes it, commits, then gives rows.

>>> from dstreams.rdd.shuffle import shuffle_pairs
>>> from dstreams.rdd.state_store_rdd import StateStoreRDD
>>> from dstreams.rdd.state_version import StateVersion
>>> class Count:
...     def __call__(self, store, initial, records, metrics):
...         for key, _ in records:
...             store.put(key, (store.get(key) or 0) + 1)
...             yield key, store.get(key)
>>> version = StateVersion.empty(store_id, partitioner)
>>> batch = shuffle_pairs(spark.parallelize([("a", 1), ("a", 2)]), partitioner)
>>> counted = StateStoreRDD([batch], store, version, Count())
>>> counted.force().version  # one job; the version counts when a commit record names it
1
>>> counted.rows().collect()
[('a', 1), ('a', 2)]

An attempt of a task writes under a name of its own, and gives its rows when that is durable. The
attempts that :meth:`StateStoreRDD.force` returns count: a retry, a speculative twin or a partition
that is computed again changes nothing. Every partition takes part in every batch.

Semantics: org.apache.spark.sql.execution.streaming.state.StateStoreRDD (4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from time import perf_counter
from typing import Any, Protocol

from pyspark import RDD, StorageLevel
from pyspark.rdd import PipelinedRDD

from checkpoint.state_store import (
    StateStore,
    StateWriter,
    StoreId,
    VersionId,
)
from dstreams.rdd import jvm
from dstreams.rdd.blocks import Block, BlockBuilder, Side
from dstreams.rdd.empty_partitions import pinned_partitions
from dstreams.rdd.ordered_frames import in_order
from dstreams.rdd.output_rows import AttemptRows, PartitionResult, ReadOutputRows
from dstreams.rdd.pair_columns import Columns, PairColumns
from dstreams.rdd.spill_buffer import FrameBuffer
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.state_version import StateVersion
from dstreams.rdd.worker_gc import settle_worker

_MADE, _ROWS = 1, 0  # labels of frames

Pairs = Iterator[tuple[Any, Any]]


class StoreFunction(Protocol):
    """What a task does with the store of its partition."""

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterable[Any]:
        """Return the rows of the partition; all of them are pulled before the store commits.

        *initial* has pairs of key and state to begin with, and is read to its end before *records*,
        which can be had in columns (:func:`~dstreams.rdd.pair_columns.columns_of`).
        """
        ...


class StateStoreRDD:
    """The rows of a batch, and the version of the state that its computation makes.

    Its tasks run where those of the batch before did, as far as Spark can.

    Args:
        inputs: blocks of pairs, at least one RDD, all placed by one partitioner: those of
            :attr:`Side.STATE`, the initial state, come first.
        store: the stores.
        before: the version to begin with.
        function: what a task does.
    """

    def __init__(
        self,
        inputs: Sequence[RDD[bytes]],
        store: StateStore,
        before: StateVersion,
        function: StoreFunction,
    ) -> None:
        partitioner = jvm.partitioner_of(inputs[0])
        if partitioner is None:
            raise ValueError("the input of a state must be placed by a partitioner")
        self.partitioner = partitioner
        united = jvm.unite_frames(*inputs, pinned_partitions(inputs[0].context, partitioner))
        if partitioner.numPartitions != len(before.version_ids):
            raise ValueError(
                f"the input has {partitioner.numPartitions} partitions, the state "
                f"{len(before.version_ids)}"
            )
        task = _StoreTask(store, before.store_id, before.version_ids, function)
        self._before = before
        self._attempts: list[AttemptRows] = []
        self._read_rows = ReadOutputRows(before.store_id.operator_uid, self._attempts)
        self._frames = jvm.LabelledFrames(PipelinedRDD(united, task))
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

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        # All of the input first, so that a slow shuffle holds no store open.
        inputs = _Inputs(filter(None, frames))
        metrics = StateMetrics(numStateStoreInstances=1)
        buffer = FrameBuffer()
        store_id = replace(self.store_id, partition=split)
        with self.store.writer(store_id, self.version_ids[split]) as writer:
            started = perf_counter()
            builder = BlockBuilder(Side.BATCH)
            rows_out = iter(self.function(writer, inputs.initial(), inputs.records(), metrics))
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


class _Inputs:
    """The blocks of a task: those of the initial state stand before those of the batch."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self._blocks = in_order(frames)
        self._next: Block | None = None

    def initial(self) -> Pairs:
        for block in self._blocks:
            if block.side is not Side.STATE:
                self._next = block
                return
            yield from zip(block.keys(), block.values(), strict=True)

    def records(self) -> PairColumns:
        return PairColumns(self._columns())

    def _columns(self) -> Iterator[Columns]:
        begun = () if self._next is None else (self._next,)
        for block in chain(begun, self._blocks):
            yield block.keys(), block.column()
