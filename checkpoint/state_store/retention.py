"""Retention: deletes files that neither a restart nor a later batch can need.

Planning is a pure function of the records. State files are deleted before the record that names
them: after a crash half way, the record still lists the rest. A plan drops only records older than
the newest snapshot of every operator that a restart may begin with. A driver that was replaced
deletes nothing: it checks for a newer claim first.

Of stores, the oldest needed version decides::

    versions      1   2   3   4   5   6   7   8   9
    changelogs    x   x   x   x   x   o   o   o   o
    snapshots             x       o           o
    oldest needed                                 ^     kept_snapshots = 2

Every version from the oldest needed one on stays readable, even if the newest snapshot before it is
damaged. Commit records decide; a listing adds snapshots, and files of attempts that no record
names. Such an orphan is deleted if its epoch is not later than the current one, and its batch was
committed by another attempt.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from checkpoint.errors import ConcurrentWriterError, StorageRefusedError
from checkpoint.log.batch_records import (
    BEGIN_PREFIX,
    BEGIN_SUFFIX,
    INPUTS_PREFIX,
    STORE_PREFIX,
    CommitLog,
    CommitRecord,
    StoreId,
    VersionId,
    begin_file,
)
from checkpoint.log.fencing import EPOCH_PREFIX, epoch_of_file, require_newest
from checkpoint.log.graph_record import (
    GRAPH_PREFIX,
    GRAPH_SUFFIX,
    KEPT_GRAPHS,
    RDDS_PREFIX,
    graph_file,
    rdds_of_no_graph,
)
from checkpoint.log.input_offsets import INPUTS_SUFFIX, input_snapshot_file
from checkpoint.log.lineage import Lineage
from checkpoint.log.record_files import RecordId, record_ids
from checkpoint.log.recovery import OwnedStream
from checkpoint.log.state_files import STATE_PREFIX, state_file_record
from checkpoint.state_store.static_files import static_of_no_batch
from checkpoint.state_store.store_files import (
    StoredKind,
    directory_of,
    epoch_of,
    parse_file_name,
)

LISTED_PREFIXES = (
    BEGIN_PREFIX,
    GRAPH_PREFIX,
    RDDS_PREFIX,
    EPOCH_PREFIX,
    STATE_PREFIX,
    INPUTS_PREFIX,
)
"""Prefixes of the names that :func:`plan_leftovers` needs."""

_log = logging.getLogger("checkpoint")
KEPT_SNAPSHOTS = 2
ORPHAN_VERSIONS = 2
LISTED_EVERY = 10


@dataclass(frozen=True)
class RetentionPlan:
    """The files to delete.

    Args:
        commits: commit records to drop, oldest first.
        files: state files that no kept record names; they are deleted before the records.
        others: begin records, graph snapshots, epochs and orphans, in order.
    """

    commits: tuple[RecordId, ...]
    files: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def batch_times_ms(self) -> tuple[int, ...]:
        """Times of the batches whose commit records are dropped, oldest first."""
        return tuple(record_id.time_ms for record_id in self.commits)


def plan_retention(
    records: Sequence[CommitRecord],
    oldest_needed_ms: int,
    operators: Collection[str] | None = None,
) -> RetentionPlan:
    """Plan which commit records, and which files they name, to delete.

    Kept are the newest snapshot of each operator at or before the oldest needed time, and every
    record since the oldest of these::

        records                 1000   2000   3000   4000   5000   6000
        snapshots of operator a   a             a             a
        snapshots of operator b          b                           b
        oldest needed                                    ^ 4500
        kept                           2000   3000   4000   5000   6000
    """
    needed = [record for record in records if record.batch_time_ms <= oldest_needed_ms]
    if not needed:
        return RetentionPlan((), ())
    newest: dict[str, int] = {}
    for record in needed:
        for uid in (*record.snapshots, *record.without_state):
            newest[uid] = max(newest.get(uid, 0), record.batch_time_ms)
    kept_copies = [ms for uid, ms in newest.items() if operators is None or uid in operators]
    oldest_kept_ms = min((max(record.batch_time_ms for record in needed), *kept_copies))
    dropped = [record for record in records if record.batch_time_ms < oldest_kept_ms]
    kept = [record for record in records if record.batch_time_ms >= oldest_kept_ms]
    kept_names = frozenset().union(*(record.file_names() for record in kept))
    dropped_names = frozenset().union(*(record.file_names() for record in dropped))
    return RetentionPlan(
        tuple(sorted(record.record_id for record in dropped)),
        tuple(sorted(dropped_names - kept_names)),
    )


def plan_leftovers(
    lineage: Lineage,
    names: Iterable[str],
    records: Sequence[CommitRecord],
    plan: RetentionPlan,
    oldest_input_ms: int | None = None,
) -> tuple[str, ...]:
    """Plan which other files to delete with *plan*: those that only the dropped batches needed.

    Args:
        lineage: the takeovers.
        names: the files below :data:`LISTED_PREFIXES`, listed after the records were read.
        records: all commit records that count.
        plan: the records to drop.
        oldest_input_ms: the earliest batch whose begin record may be needed, for windows that reach
            back before the oldest snapshot, or because no snapshot of inputs covers it; None for
            the oldest record that is kept.

    Returns:
        Names of begin records, of snapshots of inputs before the one that replaces them, of graph
        snapshots beyond the newest few and their RDDs, of static data, of state files that no
        record names, and of epochs without records, in the order in which to delete them.
    """
    dropped = set(plan.commits)
    kept = sorted(record.record_id for record in records if record.record_id not in dropped)
    if not kept:
        return ()
    listed = list(names)
    kept_ms = kept[0].time_ms
    begin_ms = kept_ms if oldest_input_ms is None else min(kept_ms, oldest_input_ms)
    begins = record_ids(listed, BEGIN_PREFIX, BEGIN_SUFFIX)
    old_begins = [begun for begun in begins if begun.time_ms < begin_ms]
    inputs = record_ids(listed, INPUTS_PREFIX, INPUTS_SUFFIX)
    standing = [one for one in lineage.snapshots(inputs) if one.time_ms < begin_ms]
    old_inputs = [one for one in inputs if standing and one < max(standing)]
    graphs = record_ids(listed, GRAPH_PREFIX, GRAPH_SUFFIX)
    old_graphs = _old_graphs(lineage.snapshots(graphs), kept_ms)
    there = {*kept, *begins, *inputs, *graphs}
    left = [one.epoch for one in there.difference(old_begins, old_inputs, old_graphs)]
    named = frozenset().union(*(record.file_names() for record in records))
    return (
        *(begin_file(begun) for begun in old_begins),
        *map(input_snapshot_file, old_inputs),
        *(graph_file(graph) for graph in old_graphs),
        *rdds_of_no_graph(listed, set(graphs).difference(old_graphs), lineage.head),
        *static_of_no_batch(listed, set(begins).difference(old_begins), lineage.head),
        *_orphans(listed, named, kept_ms, lineage.head),
        *_old_epochs(listed, left, lineage),
    )


def apply_retention(log: CommitLog, plan: RetentionPlan, epoch: int) -> list[str]:
    """Delete the files in *plan*, and return the names of those that could not be deleted.

    It can be repeated, also after a crash half way. If a file cannot be deleted, the records are
    kept for the next time. Raises ConcurrentWriterError or StorageRefusedError before anything is
    deleted.
    """
    newest = max((record_id.epoch for record_id in log.ids()), default=0)
    require_newest(log.files, epoch)
    if newest > epoch:  # in a directory without claims
        raise ConcurrentWriterError(
            f"a driver of epoch {newest} has taken over this checkpoint from epoch {epoch}, so "
            "nothing is deleted; stop this driver",
            epoch,
            newest,
        )
    failed = [name for name in plan.files if not _delete(log, name)]
    if not failed:
        try:
            for record_id in plan.commits:
                log.delete(record_id)
            for name in plan.others:
                log.files.delete(name)
        except StorageRefusedError as error:
            _log.warning("failed to delete records, which will be retried later: %s", error)
    return failed


def _delete(log: CommitLog, name: str) -> bool:
    try:
        log.files.delete(name)
    except StorageRefusedError as error:
        _log.warning("failed to delete a file, which will be retried later: %s", error)
        return False
    return True


def _old_graphs(newest_first: Sequence[RecordId], kept_ms: int) -> list[RecordId]:
    """Return the graphs except the newest few and that of the oldest kept batch."""
    older = newest_first[KEPT_GRAPHS:]
    before = next((graph for graph in newest_first if graph.time_ms <= kept_ms), None)
    return sorted(graph for graph in older if graph != before)


def _orphans(
    names: Iterable[str], named: Collection[str], kept_ms: int, epoch: int
) -> Iterator[str]:
    """Yield the state files that no record names, now or later."""
    for name in names:
        record_id = state_file_record(name)
        is_past = record_id is not None and record_id.time_ms < kept_ms
        if is_past and record_id is not None and record_id.epoch <= epoch and name not in named:
            yield name


def _old_epochs(names: Iterable[str], left: Iterable[int], lineage: Lineage) -> Iterator[str]:
    """Yield the files of epochs before the oldest one with a record, oldest first."""
    oldest = min(*left, lineage.head)
    for name in sorted(names):
        epoch = epoch_of_file(name)
        if epoch is not None and epoch < oldest:
            yield name


@dataclass(frozen=True)
class _Chain:
    """The versions of one partition that records name."""

    version_ids: Set[VersionId]
    latest_version: int

    @property
    def oldest_version(self) -> int:
        return min(version_id.version for version_id in self.version_ids)

    def names_version(self, version: int) -> bool:
        return any(version_id.version == version for version_id in self.version_ids)


def plan_store_retention(
    records: Sequence[CommitRecord],
    names: Iterable[str],
    oldest_needed_ms: int,
    epoch: int,
    kept_snapshots: int = KEPT_SNAPSHOTS,
    operators: Collection[str] | None = None,
) -> RetentionPlan:
    """Plan the deletion of stored state, and of the records and state files that belong to it.

    *names* are the files of all stores, listed after the records were read. Each store keeps
    *kept_snapshots* snapshots up to the oldest needed version.
    """
    if kept_snapshots < 1:
        raise ValueError(f"kept_snapshots must be at least 1, got {kept_snapshots}")
    chains = _chains(records)
    by_directory: dict[str, list[tuple[str, VersionId, StoredKind]]] = {}
    for name in names:
        found = parse_file_name(name)
        if found is not None and found[0] in chains:  # other stores are kept
            by_directory.setdefault(found[0], []).append((name, *found[1:]))
    snapshots = {
        directory: sorted(
            version_id.version
            for _, version_id, kind in stored
            if kind is StoredKind.SNAPSHOT and version_id in chains[directory].version_ids
        )
        for directory, stored in by_directory.items()
    }
    commits = plan_retention(
        records, _anchor_ms(records, snapshots, oldest_needed_ms, kept_snapshots), operators
    )
    dropped = set(commits.batch_times_ms)
    kept = chains
    if dropped:
        kept = _chains(record for record in records if record.batch_time_ms not in dropped)
    old, orphans = [], []
    for directory, stored in by_directory.items():
        oldest_kept = kept[directory].oldest_version if directory in kept else sys.maxsize
        chain = chains[directory]
        for name, version_id, kind in stored:
            if version_id not in chain.version_ids:
                if _is_orphan(version_id, chain, oldest_kept, epoch):
                    orphans.append(name)
            elif kind is StoredKind.SNAPSHOT and version_id.version < oldest_kept:
                old.append(name)
    return replace(commits, files=(*sorted(orphans), *sorted(old), *commits.files))


class StreamRetention:
    """Deletes files that a stream cannot need again, on behalf of its driver.

    It works from the records that this driver has read and written. It lists storage the first
    time, to find the files of previous drivers; after tasks wrote snapshots; and every tenth time,
    to find the files of lost attempts.
    """

    def __init__(self, owned: OwnedStream) -> None:
        self._commits = owned.commits
        self._epoch = owned.epoch
        self._lineage = owned.lineage
        self._stores: set[str] = set()
        self._others: set[str] = set()
        self._times = 0
        self._has_snapshots = False

    def expect_snapshots(self) -> None:
        """Note that tasks wrote snapshots."""
        self._has_snapshots = True

    def retire(
        self,
        oldest_needed_ms: int,
        oldest_input_ms: int | None = None,
        retire_inputs: Callable[[int, int], RecordId | None] | None = None,
    ) -> list[str]:
        """Delete files that neither a restart nor a later batch can need.

        Args:
            oldest_needed_ms: the earliest batch whose state may be needed.
            oldest_input_ms: the earliest batch whose begin record may be needed, as in
                :func:`checkpoint.state_store.retention.plan_leftovers`.
            retire_inputs: called with the time up to which no begin record is needed, and their
                number; returns the snapshot of inputs that replaces the deletable records
                (:meth:`checkpoint.log.input_offsets.InputSnapshots.retire`).

        Returns:
            Names of the files that could not be deleted; the next call tries again.

        Raises CheckpointError.
        """
        records = self._commits.records()
        self._look(records)
        operators, epoch = self._commits.operators, self._epoch
        plan = plan_store_retention(
            records, self._stores, oldest_needed_ms, epoch, operators=operators
        )
        if retire_inputs is not None:
            oldest_ms = _oldest_kept_ms(records, plan, oldest_input_ms)
            begun = record_ids(self._others, BEGIN_PREFIX, BEGIN_SUFFIX)
            batches = sum(record_id.time_ms < oldest_ms for record_id in begun)
            snapshot = retire_inputs(oldest_ms - 1, batches)
            oldest_input_ms = 0 if snapshot is None else min(oldest_ms, snapshot.time_ms + 1)
            self._others |= set() if snapshot is None else {input_snapshot_file(snapshot)}
        others = plan_leftovers(self._lineage, self._others, records, plan, oldest_input_ms)
        failed = apply_retention(self._commits, replace(plan, others=others), epoch)
        # The next listing finds records that could not be deleted.
        gone = {*plan.files, *others}
        self._stores -= gone.difference(failed)
        self._others -= gone.difference(failed, others if failed else ())
        return failed

    def _look(self, records: Iterable[CommitRecord]) -> None:
        """List files that this driver did not write, after the records were read."""
        files = self._commits.files
        is_turn = self._times % LISTED_EVERY == 0
        if is_turn:
            self._others = {name for prefix in LISTED_PREFIXES for name in files.list(prefix)}
        if is_turn or self._has_snapshots:
            self._has_snapshots = False
            self._stores = set(files.list(STORE_PREFIX))
        self._times += 1
        self._others.update(begin_file(record.record_id) for record in records)


def _oldest_kept_ms(
    records: Sequence[CommitRecord], plan: RetentionPlan, oldest_input_ms: int | None
) -> int:
    """Return the earliest batch whose begin record may be needed."""
    dropped = set(plan.commits)
    kept_ms = [one.batch_time_ms for one in records if one.record_id not in dropped]
    return min([*kept_ms, *([] if oldest_input_ms is None else [oldest_input_ms])], default=0)


def _chains(records: Iterable[CommitRecord]) -> dict[str, _Chain]:
    """Return the versions that *records* name, by directory."""
    version_ids: dict[str, set[VersionId]] = defaultdict(set)
    latest: dict[str, int] = {}
    for record in sorted(records, key=lambda record: record.batch_time_ms):
        for directory, version_id in _named(record):
            version_ids[directory].add(version_id)
            latest[directory] = version_id.version
    return {
        directory: _Chain(version_ids[directory], latest[directory]) for directory in version_ids
    }


def _named(record: CommitRecord) -> Iterator[tuple[str, VersionId]]:
    """Yield (directory, version) of all partitions of all stores."""
    for commit in record.stores:
        directories = _directories(commit.operator_uid, commit.store, len(commit.partitions))
        for directory, stored in zip(directories, commit.partitions, strict=True):
            yield directory, stored.version_id


@functools.lru_cache(maxsize=256)
def _directories(operator_uid: str, store: str, count: int) -> tuple[str, ...]:
    """Return the directory of each partition: the same strings for each record."""
    ids = (StoreId("any stream", operator_uid, store, number, count) for number in range(count))
    return tuple(map(directory_of, ids))


def _anchor_ms(
    records: Sequence[CommitRecord],
    snapshots: dict[str, list[int]],
    oldest_needed_ms: int,
    kept_snapshots: int,
) -> int:
    """Return the batch time up to which no partition needs anything.

    At that record every partition can be restored from a kept snapshot, or its needed chains begin
    later.
    """
    needed = [record for record in records if record.batch_time_ms <= oldest_needed_ms]
    if not needed:
        return oldest_needed_ms
    newest_needed = max(needed, key=lambda record: record.batch_time_ms)
    limits = {}
    for directory, version_id in _named(newest_needed):
        usable = [v for v in snapshots.get(directory, []) if v <= version_id.version]
        has_enough = len(usable) >= kept_snapshots
        limits[directory] = usable[-kept_snapshots] if has_enough else 0
    times = [
        record.batch_time_ms
        for record in needed
        if all(
            version_id.version <= limits.get(directory, version_id.version)
            for directory, version_id in _named(record)
        )
    ]
    return max(times, default=-1)


def _is_orphan(version_id: VersionId, chain: _Chain, oldest_kept: int, epoch: int) -> bool:
    """Return whether a file that no record names is useless.

    An old version is not enough, because a record may have been lost: another attempt must be named
    for that version, or nothing that old may be needed.
    """
    written_in = epoch_of(version_id.uid)
    is_past = version_id.version <= chain.latest_version - ORPHAN_VERSIONS
    is_settled = version_id.version < oldest_kept or chain.names_version(version_id.version)
    return is_past and is_settled and written_in is not None and written_in <= epoch
