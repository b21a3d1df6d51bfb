"""Retention: deletes records, and the files they name, that no restart can need again.

Planning is a pure function of the records. State files are deleted before the record that names
them: after a crash half way, the record still lists the rest. A plan drops only records older than
the newest snapshot of every operator that a restart may begin with. A driver that was replaced
deletes nothing: it checks for a newer claim first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from checkpoint.errors import ConcurrentWriterError, StorageRefusedError
from checkpoint.log.batch_records import (
    BEGIN_PREFIX,
    BEGIN_SUFFIX,
    CommitLog,
    CommitRecord,
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
from checkpoint.log.inputs import INPUTS_PREFIX, INPUTS_SUFFIX, input_snapshot_file
from checkpoint.log.lineage import Lineage
from checkpoint.log.record_files import RecordId, record_ids
from checkpoint.log.state_files import STATE_PREFIX, state_file_record

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
        snapshots beyond the newest few and their RDDs, of state files that no record names, and of
        epochs without records, in the order in which to delete them.
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
