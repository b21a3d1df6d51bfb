"""The versions of stored state: which there are, and the one place where a new one is made."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from checkpoint import (
    CheckpointError,
    CommitLog,
)
from checkpoint.state_store import (
    LmdbBases,
    Reference,
    SnapshotRule,
    StateStore,
    StoreId,
)
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.events import StateOperatorInfo
from dstreams.graph.node import Node
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.slots import places, slots
from dstreams.rdd.state_store_rdd import StateStoreRDD, StoreFunction
from dstreams.rdd.state_stores import StoreUpkeep, maintain_stores
from dstreams.rdd.stored_version import NO_EVENT_TIME, StoredVersion
from dstreams.rdd.worker import settle_worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Made:
    """A version, the RDD that made it, and where its stores are warm; None if another run did."""

    version: StoredVersion
    rdd: StateStoreRDD | None
    warm: RDD[bytes] | None


@dataclass
class StoredStates:
    """Remembers, for each stream with stored state, the versions that batches made.

    A restart puts back the versions that commit records name (:meth:`restore`), and the batches go
    on from there.

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
    _upkeep: defaultdict[Node, StoreUpkeep] = field(
        default_factory=lambda: defaultdict(StoreUpkeep)
    )
    _passing: list[tuple[Node, int, StoredVersion]] = field(default_factory=list)
    # Who looks at a state from a notebook does so in another thread than that of the batches.
    _lock: Lock = field(default_factory=Lock)

    def before(self, node: Node, time_ms: int, partitioner: StablePartitioner) -> StoredVersion:
        """Return the version that the batch at *time_ms* begins with.

        Raises:
            RestartError: it was restored, and its keys are placed otherwise than now.
        """
        made = self._at(node, time_ms - node.slide_ms)
        if made is not None:
            _require_placed(node, made.version, partitioner)
            return made.version
        if time_ms - node.slide_ms > self.zero_ms:
            raise LookupError(
                f"the state of {node.operation} at {time_ms - node.slide_ms} ms was not made, so "
                f"that of {time_ms} ms cannot be"
            )
        return self.empty(node, partitioner)

    def empty(
        self, node: Node, partitioner: StablePartitioner, store: str = "default"
    ) -> StoredVersion:
        """Return the state of a stream before its first batch.

        Args:
            node: the stream.
            partitioner: where keys belong.
            store: name of the store.
        """
        count = partitioner.numPartitions
        store_id = StoreId(self.stream_id, self.uids[node], store, 0, count)
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
        delay_ms: int | None = None,
    ) -> RDD[Any]:
        """Make the version of a batch, in one job, and return the batch's rows.

        Where the version was restored, the rows are made again and the version stays what it is.

        Args:
            delay_ms: how far the watermark is behind the latest event time, None for no watermark.

        Raises:
            Py4JJavaError: a task failed; the version before stays the newest.
        """
        warm = places(spark, partitioner)
        rdd = StateStoreRDD([*inputs, warm], self.store, before, function)
        try:
            version = rdd.force()
        except BaseException:
            rdd.unpersist()
            raise
        if delay_ms is not None:
            reached_ms = max(version.watermark_ms, version.event_time_max_ms - delay_ms, 0)
            version = replace(version, watermark_ms=reached_ms)
        known = self.at(node, time_ms)
        with self._lock:
            made = _Made(version if known is None else known, rdd, warm)
            self._made.setdefault(node, {})[time_ms] = made
        if known is None:
            self._upkeep[node].made(version)
        return rdd.rows()

    def restore(
        self, node: Node, time_ms: int, version: StoredVersion, *, is_passing: bool = False
    ) -> None:
        """Say which version the batch at *time_ms* of an earlier run made.

        The next batch of *node* is the one after it. Rows of restored batches are not there; who
        needs them restores the version before as well and asks the node for the batch again.

        Args:
            node: the stream.
            time_ms: the batch.
            version: the version.
            is_passing: whether its stores are for such rows alone, and are deleted when these are
                forgotten.
        """
        with self._lock:
            if is_passing:
                self._passing.append((node, time_ms, version))
            self._made.setdefault(node, {})[time_ms] = _Made(version, None, None)

    def watermarks(self, upto_ms: int | None = None) -> dict[str, int]:
        """Return what a commit record keeps of event time.

        Args:
            upto_ms: as in :meth:`newest`.

        Returns:
            By the name of each stream with a watermark, that of its next batch, in milliseconds
            since the epoch. A batch after a restart has no earlier one.
        """
        newest = self.newest(upto_ms).items()
        reached = {self.uids[node]: version.watermark_ms for node, version in newest}
        return {uid: time_ms for uid, time_ms in reached.items() if time_ms != NO_EVENT_TIME}

    def told(self, time_ms: int) -> tuple[StateOperatorInfo, ...]:
        """Return what is told of the versions that the batch at *time_ms* made."""
        return tuple(
            StateOperatorInfo(
                uid,
                node.operation,
                len(version.references),
                version.metrics.as_dict(),
                None if version.watermark_ms == NO_EVENT_TIME else version.watermark_ms,
            )
            for node, uid in self.uids.items()
            if (version := self.at(node, time_ms)) is not None and version.metrics is not None
        )

    def at(self, node: Node, time_ms: int) -> StoredVersion | None:
        """Return the version that the batch at *time_ms* made, None if it made none."""
        made = self._at(node, time_ms)
        return None if made is None else made.version

    def newest_ms(self, node: Node, upto_ms: int | None = None) -> int:
        """Return the time of the newest version of a stream, zero time for the empty state.

        Args:
            node: the stream.
            upto_ms: as in :meth:`newest`.
        """
        with self._lock:
            times = self._made.get(node, ())
            known = (time_ms for time_ms in times if upto_ms is None or time_ms <= upto_ms)
            return max(known, default=self.zero_ms)

    def carry(self, node: Node, made_ms: int, time_ms: int) -> None:
        """Let the version of one batch stand for that of a later one, before which none ran."""
        with self._lock:
            made = self._made.get(node, {})
            if made_ms in made and time_ms not in made:
                made[time_ms] = _Made(made[made_ms].version, None, None)
                passing = self._forget_passing(node, made_ms, made_ms)
                self._passing += [(node, time_ms, version) for _, _, version in passing]

    def pairs(
        self, node: Node, time_ms: int, spark: SparkContext, partitioner: StablePartitioner
    ) -> RDD[Any]:
        """Return the RDD of all keys and values of a version."""
        version = self._made[node][time_ms].version
        task = _ReadStore(self.store, version.store_id, version.references)
        pairs: RDD[Any] = PipelinedRDD(slots(spark, partitioner), task, True)
        return pairs

    def entries(
        self, node: Node, spark: SparkContext, time_ms: int | None = None
    ) -> RDD[Any] | None:
        """Return the RDD of (key, value, timeout in ms) of a version, None for none.

        Args:
            node: the stream.
            spark: the context.
            time_ms: the batch after which the state is wanted, None for the newest version.

        Raises:
            InvalidStreamError: the state after that batch is not kept.
        """
        made = self._at(node, self.newest_ms(node) if time_ms is None else time_ms)
        if made is None and time_ms is not None:
            made = _Made(self._committed(node, time_ms), None, None)
        if made is None:
            return None
        version, warm = made.version, made.warm
        task = _ReadStore(self.store, version.store_id, version.references, with_timeouts=True)
        if warm is None:
            warm = slots(spark, StablePartitioner(len(version.references)))
        entries: RDD[Any] = PipelinedRDD(warm, task)
        return entries

    def _committed(self, node: Node, time_ms: int) -> StoredVersion:
        """Read the version that the commit record of a batch names."""
        bases = self.store.bases
        log = CommitLog(bases.files) if isinstance(bases, LmdbBases) else None
        times = [] if log is None else log.times()
        if log is not None and time_ms in times:
            record = log.read(time_ms)
            for commit in record.stores:
                if commit.operator_uid == self.uids[node]:
                    return StoredVersion.committed(record.stream_id, commit)
        kept = f"those of the batches from {times[0]} to {times[-1]} ms are" if times else "none is"
        raise InvalidStreamError(
            f"the state of {node.operation} after the batch at {time_ms} ms is not kept; {kept}"
        )

    def newest(self, upto_ms: int | None = None) -> dict[Node, StoredVersion]:
        """Return the newest version of each stream that has one, in a fixed order.

        Args:
            upto_ms: up to which batch; None for all. One that was cut off may have made a version
                that is not to be committed without it.
        """
        return {node: version for node, (_, version) in self.newest_made(upto_ms).items()}

    def newest_made(self, upto_ms: int | None = None) -> dict[Node, tuple[int, StoredVersion]]:
        """Return :meth:`newest`, each with the time of the batch that made it."""
        found: dict[Node, tuple[int, StoredVersion]] = {}
        with self._lock:
            for node, made in self._made.items():
                times = [time_ms for time_ms in made if upto_ms is None or time_ms <= upto_ms]
                if times:
                    found[node] = max(times), made[max(times)].version
        return found

    def maintain(self, rule: SnapshotRule | None = None) -> int:
        """Do what is due for each partition: snapshots of newest versions, smaller local copies.

        One job for each stream that has something due, on the hosts that have the stores warm; for
        between two batches.

        Args:
            rule: when a snapshot is due, None for the usual.

        Returns:
            How many snapshots were written.
        """
        newest = {node: made[max(made)] for node, made in self._made.items() if made}
        return sum(
            maintain_stores(self.store, made.version, made.warm, rule, self._upkeep[node])
            for node, made in newest.items()
            if made.warm is not None and (rule is not None or self._upkeep[node].is_due())
        )

    def forget(self, node: Node, upto_ms: int) -> None:
        """Give up the rows of batches up to *upto_ms*, the newest version excepted."""
        with self._lock:
            made = self._made.get(node, {})
            old = [time_ms for time_ms in sorted(made)[:-1] if time_ms <= upto_ms]
            forgotten = [made.pop(time_ms).rdd for time_ms in old]
            # The rows of the batch after it are made from it, also when they are lost.
            passed = self._forget_passing(node, 0, upto_ms - node.slide_ms)
        for rdd in forgotten:
            if rdd is not None:
                rdd.unpersist()
        for _, _, version in passed:
            self._delete_stores(version)

    def _forget_passing(
        self, node: Node, since_ms: int, upto_ms: int
    ) -> list[tuple[Node, int, StoredVersion]]:
        """Take the versions that pass with the rows of batches from the list of those that do."""
        passed = [
            kept for kept in self._passing if kept[0] is node and since_ms <= kept[1] <= upto_ms
        ]
        self._passing = [kept for kept in self._passing if kept not in passed]
        return passed

    def close(self) -> None:
        """Delete what was for rows of this run alone."""
        with self._lock:
            passed, self._passing = self._passing, []
        for _, _, version in passed:
            self._delete_stores(version)

    def _delete_stores(self, version: StoredVersion) -> None:
        """Delete the stores of a version, which has them for itself."""
        bases = self.store.bases
        if not isinstance(bases, LmdbBases):
            return
        try:
            for commit in version.commits:
                if commit.file is not None:
                    for name in bases.files.list(f"{commit.file.name.rpartition('/')[0]}/"):
                        bases.files.delete(name)
        except CheckpointError as error:
            logger.warning("state of an earlier batch could not be deleted: %s", error)

    def _at(self, node: Node, time_ms: int) -> _Made | None:
        with self._lock:
            return self._made.get(node, {}).get(time_ms)


def _require_placed(node: Node, version: StoredVersion, partitioner: StablePartitioner) -> None:
    """Refuse a restored version of which the keys are in other partitions than the batch's."""
    was, now = (version.partitioner, len(version.references)), partitioner
    if was != (now.name, now.numPartitions):
        raise RestartError(
            f"the state of {node.operation} was written in {was[1]} partitions by {was[0]}, but "
            f"now its keys are placed in {now.numPartitions} by {now.name}; start with the number "
            "of partitions and the partition function of then"
        )


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
