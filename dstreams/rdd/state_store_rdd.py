"""StateStoreRDD: each task opens the store of its partition, changes it, commits, then gives rows.

>>> from dstreams.rdd.shuffle import shuffle_pairs
>>> from dstreams.rdd.state_store_rdd import StateStoreRDD
>>> from dstreams.rdd.stored_version import StoredVersion
>>> class Count:
...     def __call__(self, store, initial, records, metrics):
...         for key, _ in records:
...             store.put(key, (store.get(key) or 0) + 1)
...             yield key, store.get(key)
>>> version = StoredVersion.empty(store_id, partitioner)
>>> batch = shuffle_pairs(spark.parallelize([("a", 1), ("a", 2)]), partitioner)
>>> counted = StateStoreRDD([batch], store, version, Count())
>>> counted.force().version  # one job; the version counts when a commit record names it
1
>>> counted.rows().collect()
[('a', 1), ('a', 2)]

A task's attempt writes under a name of its own, and gives its rows only when that is durable. What
counts is what the caller takes from :meth:`StateStoreRDD.force`: a retry, a speculative twin or a
partition that is computed again after a lost executor changes nothing. Every partition takes part
in every batch, also without records.

Semantics: org.apache.spark.sql.execution.streaming.state.StateStoreRDD (4.3).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from tempfile import SpooledTemporaryFile
from time import perf_counter
from typing import Any, Protocol

from pyspark import RDD, SparkContext, StorageLevel
from pyspark.rdd import PipelinedRDD

from checkpoint.state_store import (
    CommittedChanges,
    Reference,
    StateStore,
    StateWriter,
    StoreId,
    stored_partition,
)
from dstreams.rdd import jvm
from dstreams.rdd.blocks import Block, BlockBuilder, Side, decode_block
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.stored_version import StoredVersion
from dstreams.rdd.worker import settle_worker

_HANDLE = b"\xff"
_LENGTH = struct.Struct("<Q")
_HELD_IN_MEMORY_BYTES = 64 << 20

Pairs = Iterator[tuple[Any, Any]]


class StoreFunction(Protocol):
    """What a task does with the store of its partition."""

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterable[Any]:
        """Return the rows of the partition; all of them are pulled before the store commits.

        Args:
            store: the open store; neither committed nor aborted here.
            initial: pairs of key and state to begin with; read to their end before *records*.
            records: pairs of key and value.
            metrics: counts of the partition; what the store knows is filled in by the caller.
        """
        ...


@dataclass(frozen=True)
class _Handle:
    """What the first frame of a partition holds."""

    split: int
    committed: CommittedChanges
    metrics: StateMetrics


class StateStoreRDD:
    """The rows of a batch, and the version of the state that its computation makes.

    Args:
        inputs: blocks of pairs, all placed by one partitioner: of :attr:`Side.STATE` the initial
            state, first; of :attr:`Side.BATCH` the records; and handles of the version before,
            which make Spark prefer the hosts that have the stores warm.
        store: the stores.
        before: the version to begin with.
        function: what a task does.
    """

    def __init__(
        self,
        inputs: Sequence[RDD[bytes]],
        store: StateStore,
        before: StoredVersion,
        function: StoreFunction,
    ) -> None:
        united = jvm.unite_frames(*inputs)
        if united.getNumPartitions() != len(before.references):
            raise ValueError(
                f"the input has {united.getNumPartitions()} partitions, the state "
                f"{len(before.references)}"
            )
        task = _StoreTask(store, before.store_id, before.references, function)
        computed = PipelinedRDD(united, task, True)
        partitioner = jvm.partitioner_of(united)
        self._before = before
        self._frames = jvm.as_frames(computed, partitioner)
        self._frames.persist(StorageLevel.MEMORY_AND_DISK)
        self.handles = jvm.as_frames(PipelinedRDD(self._frames, _only_handle, True), partitioner)
        self.handles.persist(StorageLevel.MEMORY_AND_DISK)

    def force(self) -> StoredVersion:
        """Compute every partition, in one job, and return the version that this made.

        Raises:
            Py4JJavaError: a task failed, in the user's function or in the store.
        """
        spark: SparkContext = self._frames.context
        found: list[_Handle] = sorted(
            spark.runJob(self.handles, _read_handles), key=lambda handle: handle.split
        )
        total = StateMetrics()
        for handle in found:
            total.add(handle.metrics)
        before = self._before
        return replace(
            before,
            references=tuple(handle.committed.reference for handle in found),
            commits=tuple(stored_partition(handle.committed) for handle in found),
            metrics=total,
            event_time_max_ms=max(before.event_time_max_ms, total.eventTimeMaxMs),
        )

    def rows(self) -> RDD[Any]:
        """Return the rows; reading them computes nothing again while they are in memory."""
        rows: RDD[Any] = PipelinedRDD(self._frames, _only_rows)
        return rows

    def unpersist(self) -> None:
        """Give up the rows and handles."""
        self._frames.unpersist()
        self.handles.unpersist()


@dataclass(frozen=True)
class _StoreTask:
    """Task: blocks of pairs -> a handle, then blocks of rows."""

    store: StateStore
    store_id: StoreId
    references: tuple[Reference, ...]
    function: StoreFunction

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        # The input first, so that a slow shuffle holds no store open.
        inputs = _Inputs(frame for frame in frames if frame[:1] not in (_HANDLE, b""))
        metrics = StateMetrics(numStateStoreInstances=1)
        held = _HeldFrames()
        store_id = replace(self.store_id, partition=split)
        with self.store.writer(store_id, self.references[split]) as writer:
            started = perf_counter()
            builder = BlockBuilder(Side.BATCH)
            for row in self.function(writer, inputs.initial(), inputs.records(), metrics):
                block = builder.add(None, row)
                if block is not None:
                    held.add(block)
            for block in builder.flush():
                held.add(block)
            inputs.drain()
            metrics.allUpdatesTimeMs = _ms_since(started)
            metrics.stateMemory = writer.size_bytes()
            started = perf_counter()
            committed = writer.commit()
            metrics.commitTimeMs = _ms_since(started)
        metrics.numTotalStateRows = committed.count
        yield _HANDLE + pickle.dumps(_Handle(split, committed, metrics))
        yield from held.frames()


def _ms_since(started: float) -> int:
    return round((perf_counter() - started) * 1000)


class _Inputs:
    """The blocks of a task: those of the initial state stand before those of the batch."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        first = next(frames, None)
        self._blocks = map(decode_block, chain(() if first is None else (first,), frames))
        self._next: Block | None = None

    def initial(self) -> Pairs:
        for block in self._blocks:
            if block.side is not Side.STATE:
                self._next = block
                return
            yield from zip(block.keys(), block.values(), strict=True)

    def records(self) -> Pairs:
        begun = () if self._next is None else (self._next,)
        for block in chain(begun, self._blocks):
            yield from zip(block.keys(), block.values(), strict=True)

    def drain(self) -> None:
        """Read what is left: a worker whose input is left unread is not used again."""
        for _ in self._blocks:
            pass


class _HeldFrames:
    """Frames that wait for the commit: in memory, and on the local disk when they are many."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(_HELD_IN_MEMORY_BYTES)  # noqa: SIM115 - closed in frames
        self._count = 0

    def add(self, frame: bytes) -> None:
        self._file.write(_LENGTH.pack(len(frame)))
        self._file.write(frame)
        self._count += 1

    def frames(self) -> Iterator[bytes]:
        with self._file as file:
            file.seek(0)
            for _ in range(self._count):
                (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
                yield file.read(length)


def _only_handle(_: int, frames: Iterable[bytes]) -> Iterator[bytes]:
    settle_worker()
    for frame in frames:
        if frame[:1] == _HANDLE:
            yield frame


def _read_handles(frames: Iterable[bytes]) -> list[_Handle]:
    settle_worker()
    return [pickle.loads(frame[1:]) for frame in frames]


def _only_rows(_: int, frames: Iterable[bytes]) -> Iterator[Any]:
    settle_worker()
    blocks = (decode_block(frame) for frame in frames if frame[:1] != _HANDLE)
    return chain.from_iterable(block.values() for block in blocks)
