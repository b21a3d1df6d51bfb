"""Queries of the state of a running stream or query, as of its last commit.

Stored state is read in the driver, through replicas on its host. Other queries run a job.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from pyspark import RDD

from checkpoint import CheckpointError
from checkpoint.state_store import StateReader, is_between
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.job_labels import described_jobs
from dstreams.spark.partitioner import StablePartitioner

if TYPE_CHECKING:
    from dstreams.spark.state_version import StateVersion

_T = TypeVar("_T")
_REFUSALS = (TypeError, ValueError)  # of keys that cannot be encoded or placed

RANGE_LIMIT = 1000
"""Default number of keys of a range."""

Entry = tuple[Any, "int | None"]
"""A state, and when its timer is due."""


class Found(NamedTuple):
    """The result of a look-up: a version number, the partition of the key, and its state."""

    batch: int
    partition: int = -1  # -1 if it is not known
    entry: Entry | None = None


class Versions(Protocol):
    """State versions, as :class:`dstreams.state.state_versions.StateVersions` keeps them."""

    def read_here(
        self,
        uid: str,
        committed: Callable[[], int],
        splits: Callable[[StateVersion], Iterable[int]],
        read: Callable[[StateReader], _T],
    ) -> tuple[int, list[_T]] | None: ...

    def read_newest(
        self, uid: str, upto: int, read: Callable[[StateReader], Iterator[tuple[Any, ...]]]
    ) -> tuple[int, RDD[Any]] | None: ...


class Queryable(Protocol):
    """The state of an operator."""

    def look_up(self, key: Any) -> Found | None:
        """Return the state of a key; None if no version is known."""
        ...

    def range(self, wanted: KeysInRange) -> tuple[int, list[tuple[Any, Any]]] | None:
        """Return the version number, and the pairs of the first keys of a range."""
        ...

    def sizes(self, count: int) -> tuple[int, RDD[Any]] | None:
        """Return the version number, and an RDD of the largest entries of each partition."""
        ...


@dataclass(frozen=True)
class StateOfKey:
    """The state of one key."""

    uid: str  # identity of the operator
    batch_time_ms: int  # the batch after which the state was read
    partition: int  # partition of the key
    is_there: bool  # whether the key has a state; if not, the other fields have no meaning
    value: Any = None  # the state
    timeout_ms: int | None = None  # when its timer is due; None without one


@dataclass(frozen=True)
class KeySize:
    """A key, its partition, and the pickled size of the key together with its state."""

    key: Any
    partition: int
    size_bytes: int


@dataclass(frozen=True)
class SnapshotState:
    """A state that is an RDD of pairs."""

    newest: Callable[[], tuple[int, RDD[Any]] | None]
    """Returns batch time and RDD of the newest batch; None before the first."""

    def look_up(self, key: Any) -> Found | None:
        """Return the state of a key; reads one partition if the key determines it."""
        looked = self._mapped(partial(_pair_of, key))
        return None if looked is None else _found_by_job(*looked, key)

    def sizes(self, count: int) -> tuple[int, RDD[Any]] | None:
        """Return the batch, and an RDD of the largest entries of each partition."""
        return self._mapped(partial(_largest, count))

    def range(self, wanted: KeysInRange) -> tuple[int, list[tuple[Any, Any]]] | None:
        """Return the batch, and the pairs of the first keys of a range."""
        looked = self._mapped(wanted.of_pairs)
        return None if looked is None else (looked[0], _run(looked[1]))

    def _mapped(self, task: Callable[[int, Any], Any]) -> tuple[int, RDD[Any]] | None:
        newest = self.newest()
        if newest is None:
            return None
        batch, pairs = newest
        return batch, pairs.mapPartitionsWithIndex(task, preservesPartitioning=True)


@dataclass(frozen=True)
class KeysInRange:
    """The first *limit* keys from *start* to before *stop*; None for no bound."""

    start: Any
    stop: Any
    limit: int

    def of_pairs(self, split: int, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the pairs of a partition in an RDD."""
        start, stop = self.start, self.stop
        return self.first(pair for pair in pairs if is_between(pair[0], start, stop))

    def of_store(self, reader: StateReader) -> list[tuple[Any, Any]]:
        """Return the pairs of a partition in a store, whose keys are in order."""
        is_whole = self.start is None and self.stop is None
        found = reader.items() if is_whole else reader.range(self.start, self.stop)
        return list(islice(found, self.limit))

    def first(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the first pairs by their keys; by type and text if keys have no common order."""
        found = list(pairs)
        try:
            return heapq.nsmallest(self.limit, found, key=lambda pair: pair[0])
        except TypeError:
            return heapq.nsmallest(self.limit, found, key=lambda pair: _order(pair[0]))


def _order(key: Any) -> tuple[str, str]:
    return type(key).__name__, repr(key)


class OwnEntries(Protocol):
    """An operator that keeps several entries for a key."""

    def key(self, given: Any) -> Any:
        """Return the key by which records are placed."""
        ...

    def entry(self, key: Any, reader: StateReader) -> Entry | None:
        """Return the state of a key; None without one."""
        ...


def first_of(row: Any) -> Any:
    """Return the state of a stored row: its first field."""
    return row[0]


@dataclass(frozen=True)
class ReadableState:
    """A state in the state store."""

    uid: str
    versions: Versions
    committed: Callable[[], int]  # returns the version number of the newest committed batch
    value_of: Callable[[Any], Any] = first_of  # returns the state of a stored row
    key_of: Callable[[Any], Any] | None = None
    """Returns the user's key for a stored key; None if they are the same."""
    stored_of: Callable[[Any], Any] | None = None
    """Returns the stored key for a user's key; None if it does not follow from that."""
    partitioner: StablePartitioner | None = None  # of the stored keys; None if it is not known
    own: OwnEntries | None = None
    runs_jobs: bool = True  # to read all partitions

    def look_up(self, key: Any) -> Found | None:
        """Return the state of a key; runs a job if its stored key is not known."""
        if self.key_of is not None and self._is_sought and self.runs_jobs:
            read = partial(_entries_of, key, self.value_of, self.key_of)
            by_job = self.versions.read_newest(self.uid, self.committed(), read)
            # The map drops the partitioner, which does not fit the keys of users.
            return None if by_job is None else _found_by_job(by_job[0], by_job[1].map(_same), key)
        place = key if self.stored_of is None else self.stored_of(key)
        if self.own is not None:
            place = self.own.key(key)
        looked = self.versions.read_here(
            self.uid, self.committed, partial(self._splits, place), partial(self._entry, place)
        )
        if looked is None:
            return None
        batch, parts = looked
        held = [part for part in parts if part[1] is not None] or (parts if len(parts) == 1 else [])
        return Found(batch, *held[0]) if held else Found(batch)

    @property
    def _is_sought(self) -> bool:
        """True if only the stored keys tell the user's keys."""
        return self.key_of is not None and self.stored_of is None

    def range(self, wanted: KeysInRange) -> tuple[int, list[tuple[Any, Any]]] | None:
        """Return the batch, and the pairs of the first keys of a range."""
        if self.own is not None:
            raise InvalidStreamError(
                f"{self.uid} has several entries for a key, and no ranges of keys; look up keys "
                "one by one"
            )
        if self.key_of is not None and self.runs_jobs:
            shown = partial(_shown_states, self.key_of, self.value_of)
            looked = self.versions.read_newest(self.uid, self.committed(), shown)
            if looked is None:
                return None
            batch, pairs = looked
            return batch, _run(pairs.mapPartitionsWithIndex(wanted.of_pairs))
        found = self.versions.read_here(
            self.uid, self.committed, _all_splits, partial(self._range, wanted)
        )
        if found is None:
            return None
        batch, parts = found
        return batch, [pair for part in parts for pair in part]

    def _range(self, wanted: KeysInRange, reader: StateReader) -> list[tuple[Any, Any]]:
        if self.key_of is not None:
            return wanted.of_pairs(0, _shown_states(self.key_of, self.value_of, reader))
        return [(key, self.value_of(row)) for key, row in wanted.of_store(reader)]

    def _splits(self, key: Any, version: StateVersion) -> Iterable[int]:
        partitioner = self.partitioner
        is_placed = partitioner is not None and version.is_placed_by(partitioner)
        if partitioner is None or not is_placed or self._is_sought:
            return _all_splits(version)
        return partitioner.partitions_of([key])

    def _entry(self, key: Any, reader: StateReader) -> tuple[int, Entry | None]:
        if self.own is not None:
            return reader.store.partition, self.own.entry(key, reader)
        if self.key_of is not None and self._is_sought:
            entries = _entries_of(key, self.value_of, self.key_of, reader)
            return reader.store.partition, next((entry[1:] for entry in entries), None)
        row = reader.get(key)
        found = None if row is None else (self.value_of(row), reader.timeout_ms(key))
        return reader.store.partition, found

    def sizes(self, count: int) -> tuple[int, RDD[Any]] | None:
        """Return the batch, and an RDD of the largest entries of each partition."""
        looked = self.versions.read_newest(self.uid, self.committed(), partial(_shown, self.key_of))
        if looked is None:
            return None
        batch, pairs = looked
        return batch, pairs.mapPartitionsWithIndex(partial(_largest, count))


def _all_splits(version: StateVersion) -> Iterable[int]:
    return range(len(version.version_ids))


def _run(pairs: RDD[Any]) -> list[Any]:
    """Return all pairs, in a job."""
    with described_jobs(pairs.context, "look-up of a range of keys"):
        found: list[Any] = pairs.collect()
    return found


@dataclass(frozen=True)
class StateQueries:
    """Queries of the state as of the last commit, on the calling thread."""

    states: Mapping[str, Queryable]  # each state, by the uid of its operator
    time_of: Callable[[int], int] = int  # returns the batch time of a version number

    def look_up(self, uid: str, key: Any) -> StateOfKey:
        """Return the state of a key; reads one partition if the key determines it.

        Raises:
            InvalidStreamError: the operator is unknown or has no state yet, or *key* cannot be a
                key.
            Exception: a job failed, or the state cannot be read.
        """
        state = self._state(uid)
        try:
            looked = state.look_up(key)
        except _REFUSALS as error:
            if isinstance(error, (CheckpointError, InvalidStreamError)):
                raise
            raise InvalidStreamError(f"{uid}: {shorten(key)} cannot be a key: {error}") from error
        batch, split, entry = self._looked(uid, looked)
        if entry is None:
            return StateOfKey(uid, self.time_of(batch), split, is_there=False)
        return StateOfKey(uid, self.time_of(batch), split, True, *entry)

    def range(
        self, uid: str, start: Any = None, stop: Any = None, limit: int = RANGE_LIMIT
    ) -> tuple[int, list[tuple[Any, Any]]]:
        """Return the batch time, and (key, state) of the first keys of a range, in order.

        Args:
            uid: the operator.
            start: the first key; None for no bound.
            stop: the key after the last one, of the same kind; None for no bound.
            limit: the most pairs to return.

        Raises:
            InvalidStreamError: as of :meth:`look_up`, or the keys have no order.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidStreamError(f"limit of a range must be at least 1, got {limit!r}")
        state, wanted = self._state(uid), KeysInRange(start, stop, limit)
        try:
            found = state.range(wanted)
        except _REFUSALS as error:
            if isinstance(error, (CheckpointError, InvalidStreamError)):
                raise
            raise InvalidStreamError(
                f"{uid}: no range from {shorten(start)} to {shorten(stop)}: {error}"
            ) from error
        batch, pairs = self._looked(uid, found)
        return self.time_of(batch), wanted.first(pairs)

    def state(self, uid: str | None = None) -> LiveState:
        """Return the state of an operator; *uid* may be None if there is only one.

        Raises:
            InvalidStreamError: the operator is unknown.
        """
        if uid is None and len(self.states) == 1:
            uid = next(iter(self.states))
        if uid is None:
            known = ", ".join(sorted(self.states))
            raise InvalidStreamError(f"several operators have state; give the uid of one: {known}")
        self._state(uid)
        return LiveState(self, uid)

    def largest(self, uid: str, count: int) -> tuple[KeySize, ...]:
        """Return the keys with the largest states, largest first. Raises like ``look_up``."""
        _, entries = self._looked(uid, self._state(uid).sizes(count))
        with described_jobs(entries.context, f"largest states of {uid}, queried on the page"):
            found = entries.collect()
        sizes = (KeySize(key, partition, size) for size, partition, key in found)
        return tuple(heapq.nlargest(count, sizes, key=lambda one: one.size_bytes))

    def _state(self, uid: str) -> Queryable:
        if uid not in self.states:
            known = ", ".join(sorted(self.states)) or "none"
            raise InvalidStreamError(
                f"no stateful operator has the uid {uid!r}; known uids: {known}"
            )
        return self.states[uid]

    def _looked(self, uid: str, found: _T | None) -> _T:
        if found is None:
            raise InvalidStreamError(
                f"{uid} has no state yet; try again after the next committed batch"
            )
        return found


@dataclass(frozen=True)
class LiveState:
    """The state of one operator of a running stream or query, read-only.

    Look-ups are as of the last committed batch, on any thread, and batches do not wait for them.
    Stored state is read in the driver, without a job. The first look-up in a partition may take
    longer on a cluster: it copies the partition to the driver's host. The state of
    ``updateStateByKey`` and of windows is read in a small job.

    A processor's state is a dict of its variables: a row, a list of rows, or a dict of rows. The
    key of a window is its end in milliseconds, before the rest of the key.

    Get one from :meth:`dstreams.StreamingContext.state` or
    :meth:`dstreams.structured.StreamingQuery.state`.
    """

    queries: StateQueries
    uid: str

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the state of a key.

        Args:
            key: the key.
            default: returned if the key has no state.

        Raises:
            InvalidStreamError: no batch has made a state yet, or *key* cannot be a key.
        """
        found = self.look_up(key)
        return found.value if found.is_there else default

    def look_up(self, key: Any) -> StateOfKey:
        """Return the state of a key, its timer, and the batch that it is from.

        Raises as :meth:`get`.
        """
        return self.queries.look_up(self.uid, key)

    def range(
        self, start: Any = None, stop: Any = None, limit: int = RANGE_LIMIT
    ) -> list[tuple[Any, Any]]:
        """Return pairs of key and state from one version, in the order of the keys.

        Args:
            start: the first key; None for no bound.
            stop: the key after the last one, of the kind of *start*; None for no bound.
            limit: the most pairs to return.

        Raises:
            InvalidStreamError: no batch has made a state yet, the keys have no order, or the
                operator has no ranges of keys.
        """
        return self.queries.range(self.uid, start, stop, limit)[1]

    def __repr__(self) -> str:
        return f"<state of {self.uid}>"


def _found_by_job(batch: int, entries: RDD[Any], key: Any) -> Found:
    """Return the first of (partition, value, timeout) for a key, in a job."""
    partitioner = entries.partitioner
    splits = None
    if isinstance(partitioner, StablePartitioner):
        splits = partitioner.partitions_of([key])
    with described_jobs(entries.context, "look-up of a key"):
        found = entries.context.runJob(entries, list, splits)
    if not found:
        return Found(batch) if splits is None else Found(batch, splits[0])
    partition, *entry = found[0]
    return Found(batch, partition if splits is None else splits[0], tuple(entry))


def _pair_of(key: Any, split: int, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, ...]]:
    return ((split, value, None) for other, value in pairs if other == key)


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


def _shown_states(
    key_of: Callable[[Any], Any], value_of: Callable[[Any], Any], reader: StateReader
) -> Iterator[tuple[Any, Any]]:
    return ((key_of(key), value_of(row)) for key, row in reader.items())


def _same(entry: Any) -> Any:
    return entry


def _largest(count: int, split: int, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, ...]]:
    sizes = ((_size((key, value)), split, key) for key, value in pairs)
    return heapq.nlargest(count, sizes, key=lambda entry: entry[0])


def _size(entry: tuple[Any, Any]) -> int:
    return len(pickle.dumps(entry, pickle.HIGHEST_PROTOCOL))
