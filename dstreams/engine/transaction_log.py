"""The transaction of a batch: begun before anything of it is read, and committed once, or not.

Streams and queries take the same course, in which a crash is harmless at every point. A drill can
end the driver at each *step* (:mod:`dstreams.common.faults`)::

    take over    rec.fence         an epoch is claimed: what an older driver adds is void
    plan         plan.start        what the batch reads is fixed
    begin        begin.start       the begin record says what it reads, and its beginning
                 begin.done
    run          job.submit        nothing of it is made yet
    make state   state.start       tasks sync files under names that no other attempt uses
                 state.done
    look                           a driver that was replaced runs no output
    outputs      out.start         those that ask are told the beginning, and have the batch once
                 out.done
    commit       commit.start      one record names the files of all operators; it is created only
                 commit.done       if there is none, and what no record names does not exist
    clean up     clean.start       what neither a restart nor a batch to come needs is deleted
                 clean.done

A batch asks storage for four things beside its files: the two records, and a look for a newer
driver before its outputs and after its commit.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Collection, Mapping

import pyspark

from checkpoint import (
    BeginRecord,
    CheckpointError,
    CommitRecord,
    ConcurrentWriterError,
    DriverProcess,
    Files,
    InputPast,
    InputSnapshots,
    OperatorSnapshot,
    OwnedStream,
    RecordId,
    RecoveryPlan,
    StoreCommit,
    StreamLog,
    new_attempt,
    take_over,
)
from checkpoint.state_store import StreamRetention
from dstreams.common.faults import fault, steps
from dstreams.engine.input_offsets import InputEnds
from dstreams.spark.stable_hash import STABLE_HASH_NAME

logger = logging.getLogger(__name__)

# Facts that the records of a stream's batches have beside what every record has.

AFTER = "after_ms"
"""Begin record: time of the batch before, where batches between the two are left out."""

BETWEEN_BATCHES = "between_batches"
"""Begin record: whether only state is committed, at a time between two batches."""

UNREAD = "unread"
"""Commit record: uids of the inputs that the batch could not read and did without."""

VERSIONS_MADE_AT = "versions_made_at"
"""Commit record: the batch that made each version in the state store, as JSON."""


class TransactionLog:
    """The batches of one stream or query, in the hands of this driver.

    Of operators that are not among *operators*, by uid, neither a record nor a file is kept: they
    were removed. None stands for all that there ever were.

    Attributes:
        plan: what this run goes on from.
        newest_ms: time of the newest batch that was begun or committed, 0 for none.
        newest_id: number of the newest batch that was begun, -1 for none.
        graph: the description of the program that batches begin with, None for none.
    """

    def __init__(
        self, owned: OwnedStream, stream_id: str, operators: Collection[str] | None = None
    ) -> None:
        self.owned = owned
        self.stream_id = stream_id
        self.files: Files = owned.lease.files
        self.plan: RecoveryPlan = owned.plan
        self.commits = owned.commits
        self.commits.operators = operators
        begun = self.plan.begins
        self.newest_ms = max([0, *begun, *self.plan.committed_ms])
        self.newest_id = max((record.batch_id for record in begun.values()), default=-1)
        self.graph: RecordId | None = None
        self._begins = owned.begins
        self._inputs = InputSnapshots(owned.lease, stream_id, self.plan)
        self._retention = StreamRetention(owned)

    @classmethod
    def take_over(
        cls,
        files: Files,
        stream_id: str,
        now_ms: int,
        found: StreamLog | None = None,
        *,
        operators: Collection[str] | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> TransactionLog:
        """Take a stream over: nothing that a driver before this one still adds counts.

        Nothing is read again of what was *found* before. *facts* tell people of this driver, beside
        its versions.

        Raises:
            ConcurrentWriterError: another driver takes it over at this moment.
            CheckpointError: it cannot be written, or what a restart needs is missing or damaged.
        """
        versions = {"python": platform.python_version(), "pyspark": pyspark.__version__}
        driver = DriverProcess.of_this_process(now_ms, {**versions, **(facts or {})})
        owned = take_over(files, stream_id, driver, found)
        fault("rec.fence")
        return cls(owned, stream_id, operators)

    @property
    def epoch(self) -> int:
        """Number of this driver among those that had the stream."""
        return self.owned.epoch

    def time_of_next(self, now_ms: int) -> int:
        """Return now, or the time after the newest batch where the clock says no later one."""
        return max(now_ms, self.newest_ms + 1)

    def begin(
        self,
        batch_id: int,
        time_ms: int,
        inputs: Mapping[str, object],
        *,
        watermarks: Mapping[str, int] | None = None,
        facts: Mapping[str, object] | None = None,
        beginning: str | None = None,
    ) -> BeginRecord:
        """Write down what a batch is, before anything of it is read.

        The *beginning* is that of the batch when it was begun before, empty where no output asks
        for one, None for a new one; the rest are fields of the record.

        Raises:
            CheckpointError: it could not be written: nothing of the batch may run.
        """
        with steps("begin", batch_id):
            record = BeginRecord(
                self.stream_id,
                batch_id,
                time_ms,
                self.epoch,
                inputs,
                watermarks or {},
                facts or {},
                self._inputs.newest,
                self.graph,
                beginning=new_attempt() if beginning is None else beginning,
            )
            self._begins.begin(record)
            self.newest_ms = max(self.newest_ms, time_ms)
            self.newest_id = max(self.newest_id, batch_id)
        return record

    def require_newest(self) -> None:
        """Refuse to go on after another driver has taken over.

        Raises:
            ConcurrentWriterError: one has.
            CheckpointError: the storage does not answer.
        """
        self.owned.lease.check()

    def commit(
        self,
        batch_id: int,
        time_ms: int,
        *,
        snapshots: Mapping[str, OperatorSnapshot] | None = None,
        stores: Collection[StoreCommit] = (),
        watermarks: Mapping[str, int] | None = None,
        without_state: Collection[str] = (),
        failed_outputs: Collection[str] = (),
        facts: Mapping[str, object] | None = None,
    ) -> str:
        """Write the record that makes a batch count; its arguments are fields of that.

        Returns:
            What to say of outputs that failed, and how to run them again; empty for none.

        Raises:
            ConcurrentWriterError: another driver has taken over.
            CheckpointError: it could not be written: no batch may run any more.
        """
        with steps("commit", batch_id):
            record = CommitRecord(
                self.stream_id,
                batch_id,
                time_ms,
                self.epoch,
                snapshots or {},
                {"python": platform.python_version(), "hash": STABLE_HASH_NAME},
                stores=tuple(stores),
                watermarks=watermarks or {},
                failed_outputs=tuple(failed_outputs),
                without_state=tuple(without_state),
                facts=facts or {},
            )
            committed = self.commits.commit(record)
        return self._left_out(committed) if failed_outputs else ""

    def _left_out(self, record: CommitRecord) -> str:
        """Say which outputs a batch was committed without, and how to run them again."""
        remedy = (
            "no batch is before it to go back to, so only a new checkpoint directory has it again"
        )
        if record.previous is not None:
            remedy = (
                "to run it again, with the same input, all of its outputs and all batches after "
                f"it: stop the stream, dstreams checkpoint rewind {self.files.url} --to "
                f"{record.previous.time_ms}, as long as clean-up has left that batch, and start "
                "it again"
            )
        return (
            f"outputs {', '.join(record.failed_outputs)} of the batch at {record.batch_time_ms} ms "
            "failed, and the batch is committed without them: no restart runs them again by "
            f"itself; {remedy}"
        )

    def past(self, uid: str) -> InputPast:
        """Return what earlier runs have read of an input.

        Raises:
            CheckpointError: it is lost.
        """
        return self._inputs.past(uid)

    def begin_inputs(self, ends: InputEnds, first_ms: int = 0) -> None:
        """Write down what inputs begin with of which no earlier run has written anything.

        *first_ms* is a time before the first batch.

        Raises:
            CheckpointError: what earlier runs have read is lost, or it could not be written.
        """
        last_ms = first_ms if self.plan.last_ms is None else self.plan.last_ms
        self._inputs.begin(ends.history_readers, last_ms, ends.snapshot)

    def expect_snapshots(self) -> None:
        """Take note that tasks have written snapshots of state."""
        self._retention.expect_snapshots()

    def retire(
        self,
        oldest_needed_ms: int,
        ends: InputEnds,
        oldest_input_ms: int | None = None,
    ) -> None:
        """Delete what neither a restart nor a batch to come can need; on any thread.

        The state of batches from *oldest_needed_ms* on stays, and the input of those from
        *oldest_input_ms* on, where that is given. What inputs have to know of older batches is
        written down before the begin records of these go.

        Raises:
            CheckpointError: something could not be read or deleted, or a newer driver has taken
                over; nothing was deleted then.
        """

        def retire_inputs(upto_ms: int, batches: int) -> RecordId | None:
            size = ends.snapshot_size()
            snapshot = self._inputs.retire(upto_ms, batches, size, ends.snapshot)
            if snapshot is not None:
                ends.retire(snapshot.time_ms)
            return snapshot

        for name in self._retention.retire(
            oldest_needed_ms, oldest_input_ms, retire_inputs if ends.history_readers else None
        ):
            logger.warning("%s could not be deleted; it is tried again later", name)

    def release(self) -> None:
        """Say on disk that this driver has stopped, and nothing of it runs any more; never raises.

        A driver that was replaced says nothing: it is not the one to be asked any more.
        """
        try:
            self.owned.lease.check()
            self.owned.lease.release()
        except ConcurrentWriterError:
            pass
        except CheckpointError as error:
            logger.info("the end of the run could not be written down: %s", error)

    def give_up(self) -> None:
        """Let go of a stream that could not be started; never raises."""
        self.owned.lease.give_up()
