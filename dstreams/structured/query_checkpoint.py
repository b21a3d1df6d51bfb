"""The checkpoint of a query: opened at the start of a run, and kept small."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass

from checkpoint import CommitRecord, Files, open_files
from checkpoint.state_store import STORE_PREFIX, plan_store_retention
from dstreams.errors import RestartError
from dstreams.structured.logs import (
    OffsetLog,
    OffsetRecord,
    QueryCommit,
    QueryCommitLog,
    claim_epoch,
    newer_run,
    query_id,
)

_CLEAN_EVERY = 10


@dataclass(frozen=True)
class Recovered:
    """What is known of the batches before a run.

    Args:
        committed: the newest batch that ran to its end, None for none.
        commit: what it left behind.
        unfinished: batches that were begun after it, in order: they run again as they were.
    """

    committed: OffsetRecord | None
    commit: QueryCommit | None
    unfinished: tuple[OffsetRecord, ...]

    @property
    def newest(self) -> OffsetRecord | None:
        """The newest batch that was begun."""
        return self.unfinished[-1] if self.unfinished else self.committed


class QueryCheckpoint:
    """Both logs, the id of the query, and the number of this run.

    Args:
        location: path or URL; None for a directory that is gone after the run.
        new_query_id: id of the query if it begins here.
        run_id: identity of this run.
    """

    def __init__(self, location: str | None, new_query_id: str, run_id: str) -> None:
        self._scratch = tempfile.mkdtemp(prefix="dstreams-query-") if location is None else None
        self.location = location or str(self._scratch)
        self.files: Files = open_files(self.location)
        self.query_id = query_id(self.files, new_query_id)
        self.offsets = OffsetLog(self.files)
        self.commits = QueryCommitLog(self.files)
        self._run_id = run_id
        self.epoch = 0

    def claim(self) -> None:
        """Take the checkpoint over: a run before this one cannot begin a batch any more."""
        self.epoch = claim_epoch(self.files, {"runId": self._run_id})

    def recovered(self) -> Recovered:
        """Find out where the runs before stopped.

        Raises:
            RestartError: a log is damaged, or a record that is needed is not there.
        """
        begun, done = self.offsets.ids(), self.commits.ids()
        if not begun:
            if done:
                raise RestartError(
                    f"{self.location} says that batch {done[-1]} was committed, but has no offsets "
                    "of any batch; restore the directory 'offsets', or begin a new checkpoint"
                )
            return Recovered(None, None, ())
        last = done[-1] if done else -1
        unfinished = tuple(self._offsets(number) for number in range(last + 1, begun[-1] + 1))
        if last < 0:
            return Recovered(None, None, unfinished)
        return Recovered(self._offsets(last), self.commits.read(last), unfinished)

    def begin(self, record: OffsetRecord) -> None:
        """Write what a batch is, before anything of it runs.

        Raises:
            RestartError: another run has taken the checkpoint over.
        """
        self._require_newest()
        self.offsets.begin(record)

    def commit(self, record: QueryCommit) -> None:
        """Write what a batch left behind.

        Raises:
            RestartError: another run has taken the checkpoint over.
        """
        self._require_newest()
        self.commits.commit(record)

    def clean(self, batch_id: int, retained: int) -> None:
        """Delete what only batches before the last *retained* ones needed; now and then."""
        oldest = batch_id - retained
        if oldest <= 0 or batch_id % _CLEAN_EVERY:
            return
        self._require_newest()
        self.offsets.purge(oldest)
        records = [
            self._as_commit_record(record)
            for number in self.commits.ids()
            if (record := self.commits.read(number)) is not None
        ]
        names = self.files.list(STORE_PREFIX)
        plan = plan_store_retention(records, names, oldest, self.epoch)
        for name in (*plan.orphans, *plan.snapshots, *plan.commits.state_files):
            self.files.delete(name)
        for number in plan.commits.batch_times_ms:
            self.commits.delete(number)

    def close(self) -> None:
        """Delete a checkpoint that was for this run alone."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _offsets(self, number: int) -> OffsetRecord:
        record = self.offsets.read(number)
        if record is None:
            raise RestartError(
                f"batch {number} doesn't exist: {self.location} has no offsets of it, which the "
                "batches after it need; restore the checkpoint from a copy, or begin a new one"
            )
        return record

    def _require_newest(self) -> None:
        newer = newer_run(self.files, self.epoch)
        if newer is not None:
            raise RestartError(
                f"another run of this query has taken {self.location} over ({newer}); only one may "
                "run on a checkpoint, so this one stops"
            )

    def _as_commit_record(self, record: QueryCommit) -> CommitRecord:
        number = record.batch_id
        return CommitRecord(self.query_id, number, number, self.epoch, {}, {}, record.stores)
