"""Retention: which commits a stream can never need again.

Planning is a pure function of the records, executing it is a loop. Two things keep it safe:

* State files go first, the record that names them last. A record is the only place where their
  names are written down, so it is also the list of what is left to do: after a crash half way the
  record is still there, the next plan holds it again, and deleting what is gone is fine. The other
  way round a crash would leave files that nothing names and nobody ever deletes. (Deletes are not
  synced: a power loss may bring a file back, which is an orphan at worst.)
* Nobody reads a record that lost files, because a plan drops only records older than the newest
  one that is old enough to restart from, and that one is kept whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint.commit_log import CommitLog, CommitRecord
from checkpoint.errors import ConcurrentWriterError


@dataclass(frozen=True)
class RetentionPlan:
    """What to delete.

    Args:
        batch_times_ms: commit records to drop, oldest first.
        state_files: names that only those records name, sorted.
    """

    batch_times_ms: tuple[int, ...]
    state_files: tuple[str, ...]


def plan_retention(records: Sequence[CommitRecord], oldest_needed_ms: int) -> RetentionPlan:
    """Plan what to delete: all that is older than the newest record up to *oldest_needed_ms*.

    ::

        records            1000   2000   3000   4000
        oldest needed                        ^ 3500
        kept                             3000   4000

    Args:
        records: all committed records, in any order.
        oldest_needed_ms: the earliest batch time whose state may be wanted: to restart from, to
            rewind to, or to read the lost blocks of a state RDD of a living driver again.
    """
    times = sorted(record.batch_time_ms for record in records)
    if not times:
        return RetentionPlan((), ())
    oldest_kept_ms = max((time for time in times if time <= oldest_needed_ms), default=times[0])
    dropped = [record for record in records if record.batch_time_ms < oldest_kept_ms]
    kept = [record for record in records if record.batch_time_ms >= oldest_kept_ms]
    kept_names = frozenset().union(*(record.file_names() for record in kept))
    dropped_names = frozenset().union(*(record.file_names() for record in dropped))
    return RetentionPlan(
        tuple(sorted(record.batch_time_ms for record in dropped)),
        tuple(sorted(dropped_names - kept_names)),
    )


def apply_retention(log: CommitLog, plan: RetentionPlan, epoch: int) -> None:
    """Delete what *plan* says; doing it again, or after a crash half way, is fine.

    Args:
        log: the log that the plan was made of.
        plan: what to delete.
        epoch: epoch of the driver that planned.

    Raises:
        ConcurrentWriterError: a newer driver has committed since; nothing was deleted.
        StorageRefusedError: a file could not be deleted; the rest is still there.
    """
    latest = log.latest()
    if latest is not None and latest.epoch > epoch:
        raise ConcurrentWriterError(
            f"a driver of epoch {latest.epoch} has taken over this checkpoint from epoch {epoch}, "
            "so nothing is deleted; stop this driver",
            epoch,
            latest.epoch,
        )
    for name in plan.state_files:
        log.files.delete(name)
    for batch_time_ms in plan.batch_times_ms:
        log.delete(batch_time_ms)
