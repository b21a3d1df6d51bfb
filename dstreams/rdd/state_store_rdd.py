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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from tempfile import SpooledTemporaryFile
from time import perf_counter
from typing import Any, Protocol

from pyspark import RDD, StorageLevel
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
from dstreams.rdd.slots import places
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.stored_version import StoredVersion
from dstreams.rdd.worker import settle_worker

_HANDLE, _ROWS = 1, 0  # labels of frames
_MARK = b"\xff"  # before a handle; no block begins so
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
    """What a task tells the driver."""

    split: int
    committed: CommittedChanges
    metrics: StateMetrics


class StateStoreRDD:
    """The rows of a batch, and the version of the state that its computation makes.

    Args:
        inputs: blocks of pairs, all placed by one partitioner: of :attr:`Side.STATE` the initial
            state, first; of :attr:`Side.BATCH` the records; and :func:`~dstreams.rdd.slots.places`,
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
        partitioner = jvm.partitioner_of(inputs[0])
        if partitioner is None:
            raise ValueError("the input of a state must be placed by a partitioner")
        self.handles = places(inputs[0].context, partitioner)
        others = (frames for frames in inputs[1:] if frames is not self.handles)
        united = jvm.unite_frames(inputs[0], *others, self.handles)
        if united.getNumPartitions() != len(before.references):
            raise ValueError(
                f"the input has {united.getNumPartitions()} partitions, the state "
                f"{len(before.references)}"
            )
        task = _StoreTask(store, before.store_id, before.references, function)
        self._before = before
        self._frames = jvm.LabelledFrames(PipelinedRDD(united, task))
        self._frames.persist(StorageLevel.MEMORY_AND_DISK)

    def force(self) -> StoredVersion:
        """Compute every partition, in one job, and return the version that this made.

        Raises:
            Py4JJavaError: a task failed, in the user's function or in the store.
        """
        found: list[_Handle] = sorted(
            (pickle.loads(frame[1:]) for frame in self._frames.collect(_HANDLE)),
            key=lambda handle: handle.split,
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
        rows: RDD[Any] = PipelinedRDD(self._frames.frames(), _values)
        return rows

    def unpersist(self) -> None:
        """Give up the rows."""
        self._frames.unpersist()


@dataclass(frozen=True)
class _StoreTask:
    """Task: blocks of pairs -> a handle, then blocks of rows, each after its label."""

    store: StateStore
    store_id: StoreId
    references: tuple[Reference, ...]
    function: StoreFunction

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        # The input first, so that a slow shuffle holds no store open.
        inputs = _Inputs(filter(None, frames))
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
        handle = pickle.dumps(_Handle(split, committed, metrics))
        yield from jvm.addressed(_HANDLE, _MARK + handle)
        for frame in held.frames():
            yield from jvm.addressed(_ROWS, frame)


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


def _values(_: int, frames: Iterable[bytes]) -> Iterator[Any]:
    settle_worker()
    rest = iter(frames)
    try:
        for frame in rest:
            if frame[:1] != _MARK:
                yield from decode_block(frame).values()
    finally:
        deque(rest, maxlen=0)  # of ``take``: a worker whose input is left unread is used no more
