"""The checkpoint of a query, which a run takes over when it starts.

It is a directory of one stream, whose id is the query id, so ``dstreams checkpoint`` works on it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark import SparkContext

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
from checkpoint.state_store import Classes, StoredClassError, require_stored_state
from dstreams.engine.recovery.recover import require_no_query_of_spark
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.errors import RestartError, StreamLifecycleError
from dstreams.sources.file_listing import local_path
from dstreams.spark.encryption import require_encrypted_files
from dstreams.spark.worker_python import require_shared
from dstreams.state.state_versions import StateVersions
from dstreams.state.store_maintenance import (
    delete_abandoned,
    open_store,
    require_trusted_values,
)
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.query_records import QueryBatch, QueryCommit

_lock = threading.Lock()
_active: list[ActiveCheckpoint] = []


@dataclass(frozen=True)
class Recovered:
    """The batches of earlier runs: the newest *committed* one, and the later *unfinished* ones."""

    committed: QueryBatch | None
    commit: QueryCommit | None
    unfinished: tuple[QueryBatch, ...]

    @property
    def newest(self) -> QueryBatch | None:
        """The newest begun batch."""
        return self.unfinished[-1] if self.unfinished else self.committed


class QueryCheckpoint:
    """The directory of a query, before and after a run takes it over.

    Without a location it is temporary and deleted after the run; *new_query_id* is the id of a
    query without earlier runs.
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
        """True for the temporary checkpoint of one run."""
        return self._scratch is not None

    def recovered(self) -> Recovered:
        """Return the batches of earlier runs, or raise RestartError if a record is missing."""
        return recovered_of(self._plan, self.location)

    def take_over(
        self, now_ms: int, description: Mapping[str, object] | None, classes: Classes | None = None
    ) -> StreamCheckpoint:
        """Take the checkpoint over: from now on, anything an earlier run writes is ignored.

        Without a *description*, that of the newest committed batch stays.
        Raises RestartError before that if *classes* cannot restore instances of the state.
        """
        assert self._found is not None, "a checkpoint is taken over once"
        try:
            require_stored_state(self._found.files, self._plan, classes=classes)
        except StoredClassError as error:
            raise RestartError(f"this query cannot resume from the checkpoint: {error}") from error
        run = {"run": self._run_id}
        log = StreamCheckpoint.take_over(self.files, self.query_id, now_ms, self._found, facts=run)
        self._log, self._plan, self._found = log, log.plan, None
        last_ms = log.plan.last_ms
        if description is not None:
            at_ms = now_ms if last_ms is None else last_ms
            graph = GraphSnapshot(self.query_id, at_ms, log.epoch, description, b"")
            write_graph(log.owned.lease, graph)
            log.graph = graph.record_id
        elif last_ms is not None and last_ms in log.plan.begins:
            log.graph = log.plan.begins[last_ms].graph
        log.fence.wait()
        return log

    def close(self) -> None:
        """Record that this run has stopped, and delete a temporary checkpoint."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        elif self._log is not None:
            self._log.release()


def recovered_of(plan: RecoveryPlan, location: str) -> Recovered:
    """Return the batches of a query from a recovery plan; raise RestartError if one is missing."""
    last = plan.last
    unfinished = tuple(map(QueryBatch, plan.in_flight))
    first = 0 if last is None else last.batch_id + 1
    if last is None and unfinished and unfinished[0].adopts is not None:
        first = unfinished[0].batch_id
    for number, begun in enumerate(plan.in_flight, first):
        if begun.batch_id != number:
            raise _missing(number, location)
    if last is None:
        return Recovered(None, None, unfinished)
    committed = plan.begins.get(last.batch_time_ms)
    if committed is None:
        raise _missing(last.batch_id, location)
    return Recovered(QueryBatch(committed), QueryCommit(last), unfinished)


def read_checkpoint(location: str) -> tuple[Files, RecoveryPlan] | None:
    """Read the checkpoint of a query without changes; return None if it does not exist."""
    try:
        files = open_existing(location)
    except FileNotFoundError:
        return None
    return files, _read(files)[1]


def time_of_batch(plan: RecoveryPlan, batch_id: int) -> int | None:
    """Return the batch time of a committed batch, None if it is not retained."""
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
        raise RestartError(f"cannot resume from checkpoint {files.url}: {error}") from error
    return log, plan


def _missing(batch_id: int, location: str) -> RestartError:
    return RestartError(
        f"batch {batch_id} doesn't exist: {location} has no begin record of it, which later "
        "batches need; restore the checkpoint from a copy, or start a new one"
    )


class ActiveCheckpoint:
    """A checkpoint that is in use by a starting or running query."""

    def __init__(self, location: str | None, who: str) -> None:
        self.who = who
        self.location = location
        self._key = None if location is None else _key_of(location)
        self._query_id: str | None = None

    def claim_id(self, query_id: str) -> None:
        """Claim the query id of the checkpoint, or raise StreamLifecycleError for a copy."""
        with _lock:
            for other in _active:
                if other is not self and other._query_id == query_id:
                    raise StreamLifecycleError(
                        f"{other.who} is already running on {other.location}, and {self.location} "
                        f"is a copy of it: both are query {query_id}; stop it first, or start a "
                        "new checkpoint"
                    )
            self._query_id = query_id

    def release(self) -> None:
        """Release the checkpoint; idempotent."""
        with _lock:
            if self in _active:
                _active.remove(self)


def claim_checkpoint(location: str | None, who: str) -> ActiveCheckpoint:
    """Claim a checkpoint for a query, or raise StreamLifecycleError if another one uses it."""
    claimed = ActiveCheckpoint(location, who)
    with _lock:
        for other in _active:
            if claimed._key is not None and claimed._key == other._key:
                raise StreamLifecycleError(
                    f"{other.who} is already running on {location}; stop it first, or use another "
                    "checkpointLocation"
                )
        _active.append(claimed)
    return claimed


def take_over_state(
    spark: SparkContext, checkpoint: QueryCheckpoint, conf: QueryConf, now_ms: int, classes: Classes
) -> tuple[StreamCheckpoint, StateVersions]:
    """Take a checkpoint over, for a batch that changes the state without a query."""
    require_encrypted_files(spark, conf)
    files = require_trusted_values(checkpoint.files, conf)
    require_shared(spark, files)
    log = checkpoint.take_over(now_ms, None, classes)
    delete_abandoned(log.files, log.epoch)
    return log, StateVersions(spark, open_store(files, log.epoch, conf, classes), log.stream_id)


def _key_of(location: str) -> str:
    path = local_path(location)
    if path is None and "://" in location:
        return location.rstrip("/")
    return os.path.realpath(location if path is None else path)
