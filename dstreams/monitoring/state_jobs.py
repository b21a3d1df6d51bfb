"""Jobs that look into the state of something that runs; see :class:`StateAccess`."""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import RDD

from checkpoint.state_store import StateReader
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.state_access import KeySize, StateOfKey
from dstreams.spark.blocks import shorten
from dstreams.spark.job_labels import described_jobs
from dstreams.spark.partitioner import StablePartitioner

if TYPE_CHECKING:
    from dstreams.state.state_versions import StateVersions


@dataclass(frozen=True)
class SnapshotState:
    """A state that is an RDD of pairs.

    Attributes:
        newest: returns the batch time and the RDD of the newest batch; None before the first.
    """

    newest: Callable[[], tuple[int, RDD[Any]] | None]

    def found(self, key: Any) -> tuple[int, RDD[Any]] | None:
        """Return the batch and the RDD of (partition, value, timeout) for one key."""
        return self._mapped(partial(_pair_of, key))

    def sizes(self, count: int) -> tuple[int, RDD[Any]] | None:
        """Return the batch and the RDD of the largest entries of each partition."""
        return self._mapped(partial(_largest, count))

    def _mapped(self, task: Callable[[int, Any], Any]) -> tuple[int, RDD[Any]] | None:
        newest = self.newest()
        if newest is None:
            return None
        batch, pairs = newest
        return batch, pairs.mapPartitionsWithIndex(task, preservesPartitioning=True)


def first_of(row: Any) -> Any:
    """Return the state of a stored row, which begins with it."""
    return row[0]


@dataclass(frozen=True)
class StoredState:
    """A state in the state store.

    Attributes:
        committed: returns the newest committed batch, by the number that versions have.
        value_of: returns the state in a stored row.
        key_of: returns the key that people know of the one that is stored; None where that is it.
    """

    uid: str
    versions: StateVersions
    committed: Callable[[], int]
    value_of: Callable[[Any], Any] = first_of
    key_of: Callable[[Any], Any] | None = None

    def found(self, key: Any) -> tuple[int, RDD[Any]] | None:
        """Return the batch and the RDD of (partition, value, timeout) for one key.

        Keys that are stored in another form are looked for in all partitions.
        """
        read = partial(_entry_of, key, self.value_of)
        if self.key_of is not None:
            read = partial(_entries_of, key, self.value_of, self.key_of)
        looked = self.versions.look(self.uid, self.committed(), read)
        if looked is None or self.key_of is None:
            return looked
        batch, entries = looked
        return batch, entries.map(_same)  # which are in no place that their keys say

    def sizes(self, count: int) -> tuple[int, RDD[Any]] | None:
        """Return the batch and the RDD of the largest entries of each partition."""
        looked = self.versions.look(self.uid, self.committed(), partial(_shown, self.key_of))
        if looked is None:
            return None
        batch, pairs = looked
        return batch, pairs.mapPartitionsWithIndex(partial(_largest, count))


@dataclass(frozen=True)
class StateJobs:
    """Looks into the states of a stream or query.

    Attributes:
        states: each state, by the uid of its operator.
        time_of: returns the batch time for the number that a state knows a batch by.
    """

    states: Mapping[str, SnapshotState | StoredState]
    time_of: Callable[[int], int] = int

    def look_up(self, uid: str, key: Any) -> StateOfKey:
        """Return what there is for a key; in a job of one partition, where keys have a place."""
        batch, entries = self._looked(uid, self._state(uid).found(key))
        place = _place(entries, uid, key)
        splits = None if place is None else [place]
        with described_jobs(entries.context, f"state of one key of {uid}, asked for on the page"):
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
        with described_jobs(entries.context, f"largest states of {uid}, asked for on the page"):
            found = entries.collect()
        sizes = (KeySize(key, partition, size) for size, partition, key in found)
        return tuple(heapq.nlargest(count, sizes, key=lambda one: one.size_bytes))

    def _state(self, uid: str) -> SnapshotState | StoredState:
        if uid not in self.states:
            known = ", ".join(sorted(self.states)) or "none"
            raise InvalidStreamError(
                f"no operator with state has the uid {uid!r}; there are {known}"
            )
        return self.states[uid]

    def _looked(self, uid: str, found: tuple[int, RDD[Any]] | None) -> tuple[int, RDD[Any]]:
        if found is None:
            raise InvalidStreamError(
                f"{uid} has no state yet; look again when a batch has been committed"
            )
        return found


def _place(entries: RDD[Any], uid: str, key: Any) -> int | None:
    """Return the partition of a key; None where keys are in no place that is known."""
    partitioner = entries.partitioner
    if not isinstance(partitioner, StablePartitioner):
        return None
    try:
        [place] = partitioner.partitions_of([key])
    except TypeError as error:
        raise InvalidStreamError(f"{uid} can have no state for {shorten(key)}: {error}") from error
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
