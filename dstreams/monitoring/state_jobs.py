"""Queries of the state of a running stream or query; each runs a Spark job."""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import RDD

from checkpoint.state_store import StateReader
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.job_labels import described_jobs
from dstreams.spark.partitioner import StablePartitioner

if TYPE_CHECKING:
    from dstreams.state.state_versions import StateVersions


@dataclass(frozen=True)
class StateOfKey:
    """The state of one key.

    Args:
        uid: identity of the operator.
        batch_time_ms: the batch after which the state was read.
        partition: partition of the key.
        is_there: whether the key has a state; if not, the other fields have no meaning.
        value: the state.
        timeout_ms: when its timer is due; None without one.
    """

    uid: str
    batch_time_ms: int
    partition: int
    is_there: bool
    value: Any = None
    timeout_ms: int | None = None


@dataclass(frozen=True)
class KeySize:
    """A key, its partition, and the pickled size of the key together with its state."""

    key: Any
    partition: int
    size_bytes: int


class StateAccess(Protocol):
    """Queries of the state as of the last commit, as jobs on the calling thread."""

    def look_up(self, uid: str, key: Any) -> StateOfKey:
        """Return the state of a key.

        Raises:
            InvalidStreamError: there is no such operator, it has no state yet, or *key* cannot be a
                key.
            Exception: the job failed.
        """
        ...

    def largest(self, uid: str, count: int) -> tuple[KeySize, ...]:
        """Return the keys with the largest states, largest first. Raises like ``look_up``."""
        ...


@dataclass(frozen=True)
class SnapshotState:
    """A state that is an RDD of pairs.

    Attributes:
        newest: returns batch time and RDD of the newest batch; None before the first.
    """

    newest: Callable[[], tuple[int, RDD[Any]] | None]

    def found(self, key: Any) -> tuple[int, RDD[Any]] | None:
        """Return the batch, and an RDD of (partition, value, timeout) for one key."""
        return self._mapped(partial(_pair_of, key))

    def sizes(self, count: int) -> tuple[int, RDD[Any]] | None:
        """Return the batch, and an RDD of the largest entries of each partition."""
        return self._mapped(partial(_largest, count))

    def _mapped(self, task: Callable[[int, Any], Any]) -> tuple[int, RDD[Any]] | None:
        newest = self.newest()
        if newest is None:
            return None
        batch, pairs = newest
        return batch, pairs.mapPartitionsWithIndex(task, preservesPartitioning=True)


def first_of(row: Any) -> Any:
    """Return the state of a stored row: its first field."""
    return row[0]


@dataclass(frozen=True)
class StoredState:
    """A state in the state store.

    Attributes:
        committed: returns the version number of the newest committed batch.
        value_of: returns the state of a stored row.
        key_of: returns the user's key for a stored key; None if they are the same.
    """

    uid: str
    versions: StateVersions
    committed: Callable[[], int]
    value_of: Callable[[Any], Any] = first_of
    key_of: Callable[[Any], Any] | None = None

    def found(self, key: Any) -> tuple[int, RDD[Any]] | None:
        """Return the batch, and an RDD of (partition, value, timeout) for one key.

        Reads all partitions if keys are stored in another form than the user's.
        """
        read = partial(_entry_of, key, self.value_of)
        if self.key_of is not None:
            read = partial(_entries_of, key, self.value_of, self.key_of)
        looked = self.versions.look(self.uid, self.committed(), read)
        if looked is None or self.key_of is None:
            return looked
        batch, entries = looked
        return batch, entries.map(_same)  # drops the partitioner, which does not fit user keys

    def sizes(self, count: int) -> tuple[int, RDD[Any]] | None:
        """Return the batch, and an RDD of the largest entries of each partition."""
        looked = self.versions.look(self.uid, self.committed(), partial(_shown, self.key_of))
        if looked is None:
            return None
        batch, pairs = looked
        return batch, pairs.mapPartitionsWithIndex(partial(_largest, count))


@dataclass(frozen=True)
class StateJobs:
    """The :class:`StateAccess` of a stream or query.

    Attributes:
        states: each state, by the uid of its operator.
        time_of: returns the batch time of a version number.
    """

    states: Mapping[str, SnapshotState | StoredState]
    time_of: Callable[[int], int] = int

    def look_up(self, uid: str, key: Any) -> StateOfKey:
        """Return the state of a key; reads one partition if the key determines it."""
        batch, entries = self._looked(uid, self._state(uid).found(key))
        place = _place(entries, uid, key)
        splits = None if place is None else [place]
        with described_jobs(entries.context, f"state of one key of {uid}, queried on the page"):
            found = entries.context.runJob(entries, list, splits)
        batch_ms = self.time_of(batch)
        if not found:
            return StateOfKey(uid, batch_ms, -1 if place is None else place, is_there=False)
        (partition, value, timeout_ms) = found[0]
        at = partition if place is None else place
        return StateOfKey(uid, batch_ms, at, is_there=True, value=value, timeout_ms=timeout_ms)

    def largest(self, uid: str, count: int) -> tuple[KeySize, ...]:
        """Return the keys with the largest states, the largest first."""
        _, entries = self._looked(uid, self._state(uid).sizes(count))
        with described_jobs(entries.context, f"largest states of {uid}, queried on the page"):
            found = entries.collect()
        sizes = (KeySize(key, partition, size) for size, partition, key in found)
        return tuple(heapq.nlargest(count, sizes, key=lambda one: one.size_bytes))

    def _state(self, uid: str) -> SnapshotState | StoredState:
        if uid not in self.states:
            known = ", ".join(sorted(self.states)) or "none"
            raise InvalidStreamError(
                f"no stateful operator has the uid {uid!r}; known uids: {known}"
            )
        return self.states[uid]

    def _looked(self, uid: str, found: tuple[int, RDD[Any]] | None) -> tuple[int, RDD[Any]]:
        if found is None:
            raise InvalidStreamError(
                f"{uid} has no state yet; try again after the next committed batch"
            )
        return found


def _place(entries: RDD[Any], uid: str, key: Any) -> int | None:
    """Return the partition of a key; None if the partitioner is not known."""
    partitioner = entries.partitioner
    if not isinstance(partitioner, StablePartitioner):
        return None
    try:
        [place] = partitioner.partitions_of([key])
    except TypeError as error:
        raise InvalidStreamError(f"{uid}: {shorten(key)} cannot be a key: {error}") from error
    return place


def _pair_of(key: Any, split: int, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, ...]]:
    return ((split, value, None) for other, value in pairs if other == key)


def _entry_of(
    key: Any, value_of: Callable[[Any], Any], reader: StateReader
) -> Iterator[tuple[Any, ...]]:
    row = reader.get(key)
    if row is not None:
        yield reader.store.partition, value_of(row), reader.timeout_ms(key)


def _entries_of(
    key: Any,
    value_of: Callable[[Any], Any],
    key_of: Callable[[Any], Any],
    reader: StateReader,
) -> Iterator[tuple[Any, ...]]:
    for stored, row in reader.items():
        if key_of(stored) == key:
            yield reader.store.partition, value_of(row), reader.timeout_ms(stored)


def _shown(key_of: Callable[[Any], Any] | None, reader: StateReader) -> Iterator[tuple[Any, Any]]:
    return ((key if key_of is None else key_of(key), row) for key, row in reader.items())


def _same(entry: Any) -> Any:
    return entry


def _largest(count: int, split: int, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, ...]]:
    sizes = ((_size((key, value)), split, key) for key, value in pairs)
    return heapq.nlargest(count, sizes, key=lambda entry: entry[0])


def _size(entry: tuple[Any, Any]) -> int:
    return len(pickle.dumps(entry, pickle.HIGHEST_PROTOCOL))
