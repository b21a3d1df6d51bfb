"""The checkpoint of a query: taken over at the start of a run, and kept small.

::

    <checkpoint>/epochs/       who took the query over, and what it builds on
    <checkpoint>/batches/      what each batch reads
    <checkpoint>/commits/      what each batch left behind
    <checkpoint>/graph/        what the query is, for people
    <checkpoint>/stores/       the state
    <checkpoint>/inputs/       what sources have read in batches whose records are deleted

It is the directory of one stream, whose id is that of the query: ``python -m checkpoint`` shows,
verifies and mends it.
"""

from __future__ import annotations

import logging
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyspark
from msgspec.structs import replace

from checkpoint import (
    CheckpointError,
    ConcurrentWriterError,
    DriverProcess,
    Files,
    GraphSnapshot,
    InputPast,
    InputSnapshots,
    OwnedStream,
    RecordId,
    RecoveryPlan,
    StreamLog,
    new_attempt,
    open_existing,
    open_files,
    plan_recovery,
    read_log,
    take_over,
    write_graph,
)
from checkpoint.state_store import StreamRetention, require_stored_state
from dstreams.errors import RestartError
from dstreams.kernel.source import SnapshotReader
from dstreams.sinks.output_batch import OutputBatch
from dstreams.spark_checkpoint import require_no_query_of_spark
from dstreams.structured.batch_records import OffsetRecord, QueryCommit, source_uid
from dstreams.structured.sources.micro_batch_reader import MicroBatchReader

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovered:
    """What is known of the batches before a run.

    *committed* is the newest batch that ran to its end; *unfinished* were begun after it, and run
    again.
    """

    committed: OffsetRecord | None
    commit: QueryCommit | None
    unfinished: tuple[OffsetRecord, ...]

    @property
    def newest(self) -> OffsetRecord | None:
        """The newest batch that was begun."""
        return self.unfinished[-1] if self.unfinished else self.committed


class QueryCheckpoint:
    """The logs of a query, in the hands of one run once that has claimed it.

    Without a location they are in a directory that is deleted after the run; *new_query_id* is the
    id of a query that begins here.

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
        self._owned: OwnedStream | None = None
        self._times: dict[int, int] = {}
        self._beginnings: dict[int, str] = {}
        self._ends: dict[int, tuple[Any, ...]] = {}
        self._inputs: InputSnapshots | None = None

    @property
    def epoch(self) -> int:
        """Number of this run; 0 before it has claimed the checkpoint."""
        return 0 if self._owned is None else self._owned.epoch

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

    def claim(self, now_ms: int, description: Mapping[str, object]) -> Recovered:
        """Take the checkpoint over: nothing that a run before this one still adds counts.

        Raises:
            ConcurrentWriterError: another run takes it over at this moment.
            CheckpointError: it cannot be written, or what a restart needs is damaged.
        """
        require_stored_state(self.files, self._plan)
        versions = {"python": platform.python_version(), "pyspark": pyspark.__version__}
        driver = DriverProcess.of_this_process(now_ms, {"run": self._run_id, **versions})
        owned = take_over(self.files, self.query_id, driver, self._found)
        self._owned, self._plan, self._found = owned, owned.plan, None
        self._begins, self._commits = owned.begins, owned.commits
        self._inputs = InputSnapshots(owned.lease, self.query_id, self._plan)
        self._ends = {
            time_ms: OffsetRecord.from_begin(begun).ends
            for time_ms, begun in self._plan.begins.items()
        }
        self._times = {begun.batch_id: begun.batch_time_ms for begun in self._plan.in_flight}
        self._beginnings = {begun.batch_id: begun.beginning for begun in self._plan.in_flight}
        self._retention = StreamRetention(owned)
        # No batch is of time 0: what sources begin with is written down as of then.
        self._last_ms = max([0, *self._plan.begins, *self._plan.committed_ms])
        at_ms = now_ms if self._plan.last_ms is None else self._plan.last_ms
        graph = GraphSnapshot(self.query_id, at_ms, owned.epoch, description, b"")
        write_graph(owned.lease, graph)
        self._graph = graph.record_id
        return self.recovered()

    def past(self, number: int) -> InputPast:
        """Return what earlier runs have read of a source.

        Raises:
            RestartError: it is lost.
        """
        if self._inputs is None:
            return InputPast()
        try:
            return self._inputs.past(source_uid(number))
        except CheckpointError as error:
            raise RestartError(f"{self.files.url} cannot be taken up: {error}") from error

    def begin_inputs(self, readers: Sequence[MicroBatchReader]) -> None:
        """Write down what sources begin with that have to know what batches have read.

        Raises:
            ConcurrentWriterError: another run has taken the checkpoint over.
            CheckpointError: it cannot be written.
        """
        knowing = _knowing(readers)
        if self._inputs is not None:
            last_ms = 0 if self._plan.last_ms is None else self._plan.last_ms
            self._inputs.begin(map(source_uid, knowing), last_ms, partial(self._snapshot, knowing))

    def output_batch(self, batch_id: int) -> OutputBatch:
        """Return a batch that was begun and is not committed, as sinks are told of it."""
        time_ms, beginning = self._times[batch_id], self._beginnings[batch_id]
        newest = max(self._times)
        return OutputBatch(self.query_id, batch_id, time_ms, beginning, newest=newest)

    def begin(self, record: OffsetRecord) -> None:
        """Write what a batch is, before anything of it runs.

        Raises:
            CheckpointError: it cannot be written.
        """
        time_ms = max(record.timestamp_ms, self._last_ms + 1)
        snapshot = None if self._inputs is None else self._inputs.newest
        begun = record.to_begin(self.query_id, time_ms, self.epoch, snapshot, self._graph)
        begun = replace(begun, beginning=new_attempt())
        self._begins.begin(begun)
        self._last_ms = self._times[record.batch_id] = time_ms
        self._ends[time_ms] = record.ends
        self._beginnings[record.batch_id] = begun.beginning

    def require_newest(self) -> None:
        """Refuse to go on after another run has taken the checkpoint over.

        Raises:
            ConcurrentWriterError: one has.
            CheckpointError: the storage does not answer.
        """
        if self._owned is not None:
            self._owned.lease.check()

    def commit(self, record: QueryCommit) -> None:
        """Write what a batch left behind.

        Raises:
            ConcurrentWriterError: another run has taken the checkpoint over.
            CheckpointError: it cannot be written.
        """
        time_ms = self._times[record.batch_id]
        self._commits.commit(record.to_commit(self.query_id, time_ms, self.epoch))
        del self._times[record.batch_id], self._beginnings[record.batch_id]

    def expect_snapshots(self) -> None:
        """Take note that tasks have written snapshots of state."""
        self._retention.expect_snapshots()

    def clean(self, retained: int, readers: Sequence[MicroBatchReader]) -> None:
        """Delete what only batches before the last *retained* ones needed; on any thread.

        What sources have read in them is written down in one file before.

        Raises:
            CheckpointError: it cannot be read or written.
        """
        committed_ms, inputs = self._commits.times(), self._inputs
        if inputs is None or len(committed_ms) <= retained + 1:
            return
        oldest_ms, knowing = committed_ms[-retained - 1], _knowing(readers)
        retire_inputs = partial(self._retire_inputs, inputs, knowing)
        for name in self._retention.retire(
            oldest_ms, retire_inputs=retire_inputs if knowing else None
        ):
            _log.warning("%s could not be deleted; it is tried again later", name)
        if not knowing:
            self._forget_ends(oldest_ms)

    def _retire_inputs(
        self,
        inputs: InputSnapshots,
        readers: Mapping[int, SnapshotReader],
        upto_ms: int,
        batches: int,
    ) -> RecordId | None:
        size = sum(reader.snapshot_size() or 0 for reader in readers.values())
        snapshot = inputs.retire(upto_ms, batches, size, partial(self._snapshot, readers))
        if snapshot is not None:
            self._forget_ends(snapshot.time_ms)
        return snapshot

    def _forget_ends(self, upto_ms: int) -> None:
        # A copy: another thread may begin a batch meanwhile.
        for time_ms in tuple(self._ends):
            if time_ms <= upto_ms:
                del self._ends[time_ms]

    def _snapshot(
        self, readers: Mapping[int, SnapshotReader], upto_ms: int
    ) -> dict[str, Mapping[str, Any]]:
        """Return what sources have to know of batches up to a time."""
        newest_ms = max((time_ms for time_ms in tuple(self._ends) if time_ms <= upto_ms), default=0)
        ends = dict(enumerate(self._ends.get(newest_ms, ())))
        return {
            source_uid(number): reader.snapshot(ends.get(number))
            for number, reader in readers.items()
        }

    def close(self) -> None:
        """Say that this run has stopped, and delete a checkpoint that was for it alone."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        elif self._owned is not None:
            try:
                self._owned.lease.check()
                self._owned.lease.release()
            except ConcurrentWriterError:
                pass  # it is not the one to be asked any more
            except CheckpointError as error:
                _log.info("the end of the run could not be written down: %s", error)


def _knowing(readers: Sequence[MicroBatchReader]) -> dict[int, SnapshotReader]:
    numbered = enumerate(readers)
    return {number: one for number, one in numbered if isinstance(one, SnapshotReader)}


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
    unfinished = tuple(map(OffsetRecord.from_begin, plan.in_flight))
    if last is None:
        return Recovered(None, None, unfinished)
    committed = plan.begins.get(last.batch_time_ms)
    if committed is None:
        raise _missing(last.batch_id, location)
    return Recovered(OffsetRecord.from_begin(committed), QueryCommit.from_commit(last), unfinished)


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
