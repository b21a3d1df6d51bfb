"""The checkpoint of a query: taken over at the start of a run, and kept small.

::

    <checkpoint>/epochs/       who took the query over, and what it builds on
    <checkpoint>/batches/      what each batch reads
    <checkpoint>/commits/      what each batch left behind
    <checkpoint>/graph/        what the query is, for people
    <checkpoint>/stores/       the state
    <checkpoint>/inputs/       what sources have read in batches whose records are deleted

It is the directory of one stream, whose id is that of the query: ``dstreams checkpoint`` shows,
verifies and mends it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from checkpoint import (
    CheckpointError,
    Files,
    GraphSnapshot,
    RecoveryPlan,
    StreamLog,
    open_existing,
    open_files,
    plan_recovery,
    read_log,
    write_graph,
)
from checkpoint.state_store import require_stored_state
from dstreams.engine.recovery.recover import require_no_query_of_spark
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.errors import RestartError
from dstreams.structured.execution.batch_records import QueryBatch, QueryCommit


@dataclass(frozen=True)
class Recovered:
    """What is known of the batches before a run.

    *committed* is the newest batch that ran to its end; *unfinished* were begun after it, and run
    again.
    """

    committed: QueryBatch | None
    commit: QueryCommit | None
    unfinished: tuple[QueryBatch, ...]

    @property
    def newest(self) -> QueryBatch | None:
        """The newest batch that was begun."""
        return self.unfinished[-1] if self.unfinished else self.committed


class QueryCheckpoint:
    """The directory of a query, as it is found, and in the hands of a run that has taken it over.

    Without a location it is deleted after the run; *new_query_id* is the id of a query that begins
    here.

    Raises:
        CheckpointError: the directory cannot hold a checkpoint.
        RestartError: what a restart needs of it is missing or damaged.
    """

    def __init__(self, location: str | None, new_query_id: str, run_id: str) -> None:
        self._scratch = tempfile.mkdtemp(prefix="dstreams-query-") if location is None else None
        self.location = location or str(self._scratch)
        self.files: Files = open_files(self.location)
        self._found: StreamLog | None
        self._found, self._plan = _read(self.files)
        self.query_id = self._plan.stream_id or new_query_id
        self._run_id = run_id
        self._log: StreamCheckpoint | None = None

    @property
    def is_scratch(self) -> bool:
        """Whether it is for this run alone."""
        return self._scratch is not None

    def recovered(self) -> Recovered:
        """Find out where the runs before stopped.

        Raises:
            RestartError: a record that is needed is not there.
        """
        return recovered_of(self._plan, self.location)

    def take_over(self, now_ms: int, description: Mapping[str, object]) -> StreamCheckpoint:
        """Take the checkpoint over: nothing that a run before this one still adds counts.

        *description* says what the query is, as JSON, for people.

        Raises:
            ConcurrentWriterError: another run takes it over at this moment.
            CheckpointError: it cannot be written, or what a restart needs is damaged.
        """
        require_stored_state(self.files, self._plan)
        run = {"run": self._run_id}
        log = StreamCheckpoint.take_over(self.files, self.query_id, now_ms, self._found, facts=run)
        self._log, self._plan, self._found = log, log.plan, None
        at_ms = now_ms if log.plan.last_ms is None else log.plan.last_ms
        graph = GraphSnapshot(self.query_id, at_ms, log.epoch, description, b"")
        write_graph(log.owned.lease, graph)
        log.graph = graph.record_id
        return log

    def close(self) -> None:
        """Say that this run has stopped, and delete a checkpoint that was for it alone."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        elif self._log is not None:
            self._log.release()


def recovered_of(plan: RecoveryPlan, location: str) -> Recovered:
    """Return what a plan of recovery says of a query.

    Raises:
        RestartError: a record that is needed is not there, or it is no checkpoint of a query.
    """
    last = plan.last
    first = 0 if last is None else last.batch_id + 1
    for number, begun in enumerate(plan.in_flight, first):
        if begun.batch_id != number:
            raise _missing(number, location)
    unfinished = tuple(map(QueryBatch, plan.in_flight))
    if last is None:
        return Recovered(None, None, unfinished)
    committed = plan.begins.get(last.batch_time_ms)
    if committed is None:
        raise _missing(last.batch_id, location)
    return Recovered(QueryBatch(committed), QueryCommit(last), unfinished)


def read_checkpoint(location: str) -> tuple[Files, RecoveryPlan] | None:
    """Read the checkpoint of a query and change nothing; None where there is none.

    Raises:
        RestartError: it is damaged, or cannot be read.
    """
    try:
        files = open_existing(location)
    except FileNotFoundError:
        return None
    return files, _read(files)[1]


def time_of_batch(plan: RecoveryPlan, batch_id: int) -> int | None:
    """Return the time that names the records of a committed batch; None where it is not kept."""
    if plan.last is None or not 0 <= plan.last.batch_id - batch_id < len(plan.committed_ms):
        return None
    return plan.committed_ms[batch_id - plan.last.batch_id - 1]


def _read(files: Files) -> tuple[StreamLog, RecoveryPlan]:
    try:
        log = read_log(files)
        plan = plan_recovery(log)
        if plan.stream_id is None and not log.lineage.is_claimed:
            require_no_query_of_spark(files)
    except CheckpointError as error:
        raise RestartError(f"{files.url} cannot be taken up: {error}") from error
    return log, plan


def _missing(batch_id: int, location: str) -> RestartError:
    return RestartError(
        f"batch {batch_id} doesn't exist: {location} has no offsets of it, which the batches after "
        "it need; restore the checkpoint from a copy, or begin a new one"
    )
