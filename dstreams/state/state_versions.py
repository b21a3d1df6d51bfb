"""The state versions of a stream or a query, by operator and batch.

A :class:`StateUpdate` describes the change of an operator's state in a batch.
:meth:`StateVersions.make` makes a version of it in one job, before its rows are used. A version is
committed when a commit record names it, and a restart begins with the newest committed one
(:meth:`StateVersions.restore`).

Batches have increasing numbers: the batch time of a stream, the batch id of a query.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from checkpoint import CheckpointError, CommitLog
from checkpoint.state_store import (
    LmdbBackend,
    ReplicaIsAheadError,
    SnapshotRule,
    StateReader,
    StateStore,
    StateWriter,
    StoreId,
    delete_local,
)
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import Side
from dstreams.spark.job_labels import label_jobs
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.partitions import empty_partitions, pinned_partitions
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.state_store_rdd import Pairs, StateStoreRDD, StoreFunction
from dstreams.spark.state_version import StateMetrics, StateVersion
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.store_maintenance import StoreUpkeep, maintain_stores, moved_store

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_IN_PLACE_READS = 5
"""Attempts to read a version before later ones replace it in the local replicas."""

ReadStore = Callable[[StateReader], Iterator[tuple[Any, ...]]]
"""Reads rows from the store of a partition."""


@dataclass(frozen=True)
class StateUpdate:
    """The change of an operator's state in a batch.

    *delay_ms* is the delay of the watermark, None without one.
    """

    before: StateVersion
    data: RDD[Any]
    function: StoreFunction
    delay_ms: int | None = None


class _Known(NamedTuple):
    """A version, and the RDD that made it; None if an earlier run made it."""

    version: StateVersion
    rdd: StateStoreRDD | None = None


class _Temporary(NamedTuple):
    """A version that no record names; its stores are deleted with the rows made from it."""

    uid: str
    batch: int
    version: StateVersion


class StateVersions:
    """The state versions of the operators of a stream or a query, by uid and batch.

    *is_local_temporary* means that local replicas are in the default temporary directory.
    """

    def __init__(
        self,
        spark: SparkContext,
        store: StateStore,
        stream_id: str = "stream",
        *,
        is_local_temporary: bool = False,
    ) -> None:
        self.store = store
        self._spark = spark
        self._stream_id = stream_id
        self._is_local_temporary = is_local_temporary
        self._known: dict[str, dict[int, _Known]] = {}
        self._upkeep: defaultdict[str, StoreUpkeep] = defaultdict(StoreUpkeep)
        self._temporary: list[_Temporary] = []
        # A notebook reads state in another thread than that of the batches.
        self._lock = Lock()
        # A replica that another thread has open cannot grow, and would be copied.
        self._reading = Lock()

    @property
    def local_directory(self) -> str | None:
        """The path of the replicas on each host; None if they are not on disk."""
        backend = self.store.backend
        return backend.local_directory if isinstance(backend, LmdbBackend) else None

    def empty(
        self, uid: str, partitioner: StablePartitioner, store: str = "default"
    ) -> StateVersion:
        """Return the state of an operator before its first batch, in the store of a name."""
        store_id = StoreId(self._stream_id, uid, store, 0, partitioner.numPartitions)
        return StateVersion.empty(store_id, partitioner)

    def make(self, uid: str, batch: int, update: StateUpdate) -> RDD[Any]:
        """Make the version of a batch, in one job, and return the batch's rows.

        If the version was restored, only the rows are made again.
        """
        rdd = StateStoreRDD(update.data, self.store, update.before, update.function)
        try:
            version = rdd.force()
        except BaseException:
            _unpersist([rdd])
            raise
        if update.delay_ms is not None:
            latest_ms = version.event_time_max_ms - update.delay_ms
            version = replace(version, watermark_ms=max(version.watermark_ms, latest_ms, 0))
        with self._lock:
            known = self._known.setdefault(uid, {})
            is_restored = batch in known and known[batch].rdd is None
            known[batch] = _Known(known[batch].version if is_restored else version, rdd)
        if not is_restored:
            self._upkeep[uid].made(version)
        return rdd.rows()

    def restore(
        self, uid: str, batch: int, version: StateVersion, *, is_temporary: bool = False
    ) -> None:
        """Set the version that a batch of an earlier run made; its rows are missing.

        No record names a version that *is_temporary*. Its stores are deleted when the rows of the
        next batch, which are made from it, are evicted.
        """
        with self._lock:
            if is_temporary:
                self._temporary.append(_Temporary(uid, batch, version))
            self._known.setdefault(uid, {})[batch] = _Known(version)

    def reuse(self, uid: str, made: int, batch: int) -> None:
        """Use the version of one batch for a later one; no batch ran in between."""
        with self._lock:
            known = self._known.get(uid, {})
            if made in known and batch not in known:
                known[batch] = _Known(known[made].version)
                self._temporary = [
                    kept._replace(batch=batch) if kept[:2] == (uid, made) else kept
                    for kept in self._temporary
                ]

    def at(self, uid: str, batch: int) -> StateVersion | None:
        """Return the version that a batch made, None if it made none."""
        with self._lock:
            known = self._known.get(uid, {}).get(batch)
        return None if known is None else known.version

    def newest(self, upto: int | None = None) -> dict[str, tuple[int, StateVersion]]:
        """Return the newest version of each operator that has one, with the batch that made it.

        Batches after *upto* are ignored: an interrupted batch may have made a version.
        """
        found: dict[str, tuple[int, StateVersion]] = {}
        with self._lock:
            for uid, known in self._known.items():
                batches = [batch for batch in known if upto is None or batch <= upto]
                if batches:
                    found[uid] = max(batches), known[max(batches)].version
        return found

    def entries(self, uid: str, operation: str, batch: int | None = None) -> RDD[Any] | None:
        """Return the RDD of (key, value, timeout in ms) after a batch, by default the newest.

        None if no version is known.

        Raises:
            InvalidStreamError: the state after that batch is not kept.
        """
        with self._lock:
            known = self._known.get(uid, {})
            wanted = max(known, default=None) if batch is None else batch
            found = None if wanted is None else known.get(wanted)
        if found is None and batch is not None:
            found = _Known(self._committed(uid, operation, batch))
        return None if found is None else self._read(found, _entries)

    def read_newest(self, uid: str, upto: int, read: ReadStore) -> tuple[int, RDD[Any]] | None:
        """Return the batch of the newest version up to *upto*, and the RDD of what *read* reads.

        The RDD has the partitioner of the keys if this run knows it. None if no version is known.
        """
        with self._lock:
            known = self._known.get(uid, {})
            batch = max((each for each in known if each <= upto), default=None)
            found = None if batch is None else known[batch]
        return None if batch is None or found is None else (batch, self._read(found, read))

    def read_here(
        self,
        uid: str,
        committed: Callable[[], int],
        splits: Callable[[StateVersion], Iterable[int]],
        read: Callable[[StateReader], _T],
    ) -> tuple[int, list[_T]] | None:
        """Return the batch of the newest version, and what *read* returns of its partitions.

        No job runs: the stores of *splits* are read through the replicas of this host, for one
        caller at a time. Tasks take the replicas on, so the newest version that *committed* allows
        is determined again if that happens. None if no version is known.

        Raises:
            CheckpointError: the version cannot be read.
        """
        backend = self.store.backend
        in_place = self.store
        if isinstance(backend, LmdbBackend):
            in_place = replace(in_place, backend=replace(backend, builds_apart=False))
        with self._reading:
            for attempt in range(_IN_PLACE_READS + 1):
                store = self.store if attempt == _IN_PLACE_READS else in_place
                found = self.newest(committed()).get(uid)
                if found is None:
                    return None
                batch, version = found
                try:
                    parts: list[_T] = []
                    for split in splits(version):
                        with version.open(store, split) as reader:
                            parts.append(read(reader))
                    return batch, parts
                except ReplicaIsAheadError:
                    pass
        raise AssertionError("the last attempt builds the version apart")

    def _read(self, known: _Known, read: ReadStore) -> RDD[Any]:
        version, made_by = known
        if made_by is None:
            partitions = empty_partitions(self._spark, StablePartitioner(len(version.version_ids)))
        else:
            partitions = pinned_partitions(self._spark, made_by.partitioner)
        placed_by = partitions.partitioner
        is_placed = isinstance(placed_by, StablePartitioner) and version.is_placed_by(placed_by)
        rdd: RDD[Any] = PipelinedRDD(partitions, _ReadState(self.store, version, read), is_placed)
        return rdd

    def pairs(self, uid: str, batch: int, partitioner: StablePartitioner) -> RDD[Any]:
        """Return the RDD of all keys and values of a version, which *partitioner* has placed."""
        task = _ReadState(self.store, self._known[uid][batch].version, StateReader.items)
        pairs: RDD[Any] = PipelinedRDD(empty_partitions(self._spark, partitioner), task, True)
        return pairs

    def maintain(self, rule: SnapshotRule | None = None) -> int:
        """Write snapshots that are due, shrink local replicas, and return the number of snapshots.

        It runs between two batches: one job for each operator with work that is due, on the hosts
        of its replicas.
        """
        newest = {uid: known[max(known)] for uid, known in self._known.items() if known}
        label_jobs("state maintenance")
        return sum(
            maintain_stores(
                self.store,
                version,
                pinned_partitions(self._spark, rdd.partitioner),
                self._upkeep[uid],
                rule,
            )
            for uid, (version, rdd) in newest.items()
            if rdd is not None and (rule is not None or self._upkeep[uid].is_due())
        )

    def evict(self, uid: str, upto: int) -> None:
        """Drop the rows and versions of batches up to *upto*, except the newest version."""
        with self._lock:
            known = self._known.get(uid, {})
            batches = sorted(known)
            passed = [
                kept
                for kept in self._temporary
                if kept.uid == uid and any(kept.batch < after <= upto for after in batches)
            ]
            self._temporary = [kept for kept in self._temporary if kept not in passed]
            evicted = [known.pop(batch).rdd for batch in batches[:-1] if batch <= upto]
        _unpersist(evicted)
        self._delete(passed)

    def close(self, *, is_scratch: bool = False, in_order: bool = False) -> None:
        """Delete the temporary versions, and local replicas that the next run need not find.

        These are the replicas of a scratch checkpoint and, if the run ended *in_order*, those in a
        temporary directory, which is often small; the next run makes them again.
        """
        with self._lock:
            passed, self._temporary = self._temporary, []
        self._delete(passed)
        is_passed = is_scratch or (in_order and self._is_local_temporary)
        if is_passed and isinstance(self.store.backend, LmdbBackend):
            delete_local(self.store.backend, self._stream_id)

    def release(self) -> None:
        """Unpersist the rows of all batches."""
        with self._lock:
            known = [known for batches in self._known.values() for known in batches.values()]
        _unpersist(one.rdd for one in known)

    def _committed(self, uid: str, operation: str, batch: int) -> StateVersion:
        """Read the version that the commit record of a batch names."""
        backend = self.store.backend
        log = CommitLog(backend.files) if isinstance(backend, LmdbBackend) else None
        times = [] if log is None else log.times()
        if log is not None and batch in times:
            record = log.read(batch)
            for commit in record.stores:
                if commit.operator_uid == uid:
                    return StateVersion.committed(record.stream_id, commit)
        kept = f"from {times[0]} to {times[-1]} ms" if times else "none"
        raise InvalidStreamError(
            f"the state of {operation} after the batch at {batch} ms is not kept; "
            f"kept batches: {kept}"
        )

    def _delete(self, passed: Iterable[_Temporary]) -> None:
        """Delete the stores of temporary versions, which share them with no other version."""
        backend = self.store.backend
        if not isinstance(backend, LmdbBackend):
            return
        try:
            for commit in (commit for kept in passed for commit in kept.version.commits):
                if commit.file is not None:
                    for name in backend.files.list(f"{commit.file.name.rpartition('/')[0]}/"):
                        backend.files.delete(name)
        except CheckpointError as error:
            logger.warning("failed to delete the state of an earlier batch: %s", error)


def _unpersist(rdds: Iterable[StateStoreRDD | None]) -> None:
    """Unpersist RDDs; after Spark has stopped, nothing is left to unpersist."""
    with suppress(Py4JError, OSError):
        for rdd in rdds:
            if rdd is not None:
                rdd.unpersist()


@dataclass(frozen=True)
class _ReadState:
    """Task: yields what *read* reads from the store of a partition."""

    store: StateStore
    version: StateVersion
    read: ReadStore

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        settle_worker()
        for _ in frames:  # Spark reuses a worker only after it has read its input
            pass
        with self.version.open(self.store, split) as reader:
            yield from self.read(reader)


def _entries(reader: StateReader) -> Iterator[tuple[Any, ...]]:
    return ((key, value, reader.timeout_ms(key)) for key, value in reader.items())


def repartition(
    states: StateVersions,
    uid: str,
    operation: str,
    partitioner: StablePartitioner,
    epoch: int,
    time_ms: int,
    pair_key: Callable[[Any], Any] | None = None,
    new_key: Callable[[Any], Any] | None = None,
) -> StateVersion | None:
    """Write the version of a batch into new stores, in one job; None if it is unknown.

    Entries are placed by their keys, or by those that *pair_key* returns for them. They keep their
    keys, or get those that *new_key* returns.

    The old stores stay unchanged. The new ones, which have *epoch* in their names, count once a
    commit record names them.

    Raises:
        Py4JJavaError: a task failed.
    """
    version = states.at(uid, time_ms)
    entries = states.entries(uid, operation, time_ms)
    if version is None or entries is None:
        return version
    keyed = entries.map(partial(_keyed, pair_key, new_key))
    store = moved_store(epoch, time_ms)
    written = load(states, uid, operation, partitioner, store, keyed)
    return replace(
        written,
        watermark_ms=version.watermark_ms,
        event_time_max_ms=version.event_time_max_ms,
    )


def load(
    states: StateVersions,
    uid: str,
    operation: str,
    partitioner: StablePartitioner,
    store: str,
    entries: RDD[tuple[Any, tuple[Any, Any, int | None]]],
) -> StateVersion:
    """Write entries into the empty store of a name, in one job.

    An entry is (key to place by, (key in the store, None if it is the same; row; timeout)).

    Raises:
        Py4JJavaError: a task failed.
    """
    blocks = shuffle_pairs(entries, partitioner, Side.STATE, operation)
    empty = states.empty(uid, partitioner, store)
    rdd = StateStoreRDD(state_inputs(blocks), states.store, empty, _load)
    try:
        written = rdd.force()
    finally:
        rdd.unpersist()
    return replace(written, metrics=None)


def _keyed(
    pair_key: Callable[[Any], Any] | None,
    new_key: Callable[[Any], Any] | None,
    entry: tuple[Any, Any, int | None],
) -> tuple[Any, tuple[Any, Any, int | None]]:
    """Return (key to place by, (key in the store, None if it is the same; row; timeout))."""
    key, row, timeout_ms = entry
    if pair_key is None:
        assert new_key is None, "a new key would not be where its old one is placed"
        return key, (None, row, timeout_ms)
    return pair_key(key), (key if new_key is None else new_key(key), row, timeout_ms)


def _load(
    store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
) -> Iterable[Any]:
    """Put rows, with their timeouts, into an empty store."""
    for key, (stored, row, timeout_ms) in initial:
        store.put(key if stored is None else stored, row, timeout_ms)
    return []
