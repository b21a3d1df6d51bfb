"""The versions of stored state: which there are, and the one place where a new one is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from checkpoint.state_store import (
    LmdbBases,
    Reference,
    SnapshotRule,
    StateStore,
    StoreId,
    snapshot_if_due,
)
from dstreams.graph.node import Node
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.slots import slots
from dstreams.rdd.state_store_rdd import StateStoreRDD, StoreFunction
from dstreams.rdd.stored_version import StoredVersion
from dstreams.rdd.worker import settle_worker


@dataclass(frozen=True)
class _Made:
    version: StoredVersion
    rdd: StateStoreRDD


@dataclass
class StoredStates:
    """Remembers, for each stream with stored state, the versions that batches made.

    Args:
        store: the stores.
        stream_id: identity of the run.
        uids: name of each stream in durable files.
        zero_ms: batch time of the empty state.
    """

    store: StateStore
    stream_id: str
    uids: Mapping[Node, str]
    zero_ms: int
    _made: dict[Node, dict[int, _Made]] = field(default_factory=dict)

    def before(self, node: Node, time_ms: int, partitioner: StablePartitioner) -> StoredVersion:
        """Return the version that the batch at *time_ms* begins with."""
        made = self._made.get(node, {}).get(time_ms - node.slide_ms)
        if made is not None:
            return made.version
        if time_ms - node.slide_ms > self.zero_ms:
            raise LookupError(
                f"the state of {node.operation} at {time_ms - node.slide_ms} ms was not made, so "
                f"that of {time_ms} ms cannot be"
            )
        count = partitioner.numPartitions
        store_id = StoreId(self.stream_id, self.uids[node], "default", 0, count)
        return StoredVersion.empty(store_id, partitioner)

    def advance(
        self,
        node: Node,
        time_ms: int,
        inputs: Sequence[RDD[bytes]],
        before: StoredVersion,
        function: StoreFunction,
        spark: SparkContext,
        partitioner: StablePartitioner,
    ) -> RDD[Any]:
        """Make the version of a batch, in one job, and return the batch's rows.

        Raises:
            Py4JJavaError: a task failed; the version before stays the newest.
        """
        previous = self._made.get(node, {}).get(time_ms - node.slide_ms)
        warm = [slots(spark, partitioner)] if previous is None else [previous.rdd.handles]
        rdd = StateStoreRDD([*inputs, *warm], self.store, before, function)
        try:
            version = rdd.force()
        except BaseException:
            rdd.unpersist()
            raise
        self._made.setdefault(node, {})[time_ms] = _Made(version, rdd)
        return rdd.rows()

    def at(self, node: Node, time_ms: int) -> StoredVersion | None:
        """Return the version that the batch at *time_ms* made, None if it made none."""
        made = self._made.get(node, {}).get(time_ms)
        return None if made is None else made.version

    def pairs(
        self, node: Node, time_ms: int, spark: SparkContext, partitioner: StablePartitioner
    ) -> RDD[Any]:
        """Return the RDD of all keys and values of a version."""
        version = self._made[node][time_ms].version
        task = _ReadStore(self.store, version.store_id, version.references)
        pairs: RDD[Any] = PipelinedRDD(slots(spark, partitioner), task, True)
        return pairs

    def entries(self, node: Node) -> RDD[Any] | None:
        """Return the RDD of (key, value, timeout in ms) of the newest version, None for none."""
        made = self._made.get(node)
        if not made:
            return None
        newest = made[max(made)]
        version = newest.version
        task = _ReadStore(self.store, version.store_id, version.references, with_timeouts=True)
        entries: RDD[Any] = PipelinedRDD(newest.rdd.handles, task)
        return entries

    def newest(self) -> dict[Node, StoredVersion]:
        """Return the newest version of each stream that has one, in a fixed order."""
        return {node: made[max(made)].version for node, made in self._made.items() if made}

    def take_snapshots(self, rule: SnapshotRule | None = None) -> int:
        """Write a snapshot of each partition of which the newest version is due for one.

        One job for each stream, on the hosts that have the stores warm; for between two batches.

        Args:
            rule: when a snapshot is due, None for the usual.

        Returns:
            How many were written.
        """
        bases = self.store.bases
        if not isinstance(bases, LmdbBases):
            return 0
        written = 0
        for made in self._made.values():
            newest = made[max(made)]
            references = newest.version.references
            task = _TakeSnapshot(bases, newest.version.store_id, references, rule)
            written += sum(PipelinedRDD(newest.rdd.handles, task).collect())
        return written

    def forget(self, node: Node, upto_ms: int) -> None:
        """Give up the rows of batches up to *upto_ms*, the newest version excepted."""
        made = self._made.get(node, {})
        for time_ms in sorted(made)[:-1]:
            if time_ms <= upto_ms:
                made.pop(time_ms).rdd.unpersist()


@dataclass(frozen=True)
class _TakeSnapshot:
    """Task: a snapshot of the store of a partition, if it is time; yields how many it wrote."""

    bases: LmdbBases
    store_id: StoreId
    references: tuple[Reference, ...]
    rule: SnapshotRule | None

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[int]:
        settle_worker()
        for _ in frames:  # a worker whose input is left unread is not used again
            pass
        store_id = replace(self.store_id, partition=split)
        size_bytes = snapshot_if_due(self.bases, store_id, self.references[split], self.rule)
        yield int(size_bytes is not None)


@dataclass(frozen=True)
class _ReadStore:
    """Task: all pairs of the store of a partition, with the timeouts of the keys if asked for."""

    store: StateStore
    store_id: StoreId
    references: tuple[Reference, ...]
    with_timeouts: bool = False

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        settle_worker()
        for _ in frames:  # a worker whose input is left unread is not used again
            pass
        store_id = replace(self.store_id, partition=split)
        with self.store.reader(store_id, self.references[split]) as reader:
            if self.with_timeouts:
                yield from ((key, row, reader.timeout_ms(key)) for key, row in reader.items())
            else:
                yield from reader.items()
