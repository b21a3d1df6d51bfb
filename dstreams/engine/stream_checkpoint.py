"""The checkpoint of a stream or query: each batch begins and commits exactly one record.

A crash is harmless at every point. A drill can end the driver at each *step*
(:mod:`dstreams.common.faults`)::

    take over     rec.fence        an epoch is claimed: what an older driver adds is superseded
    plan          plan.start       the input of the batch is fixed
    begin         begin.start      the begin record has the input and the batch token
                  begin.done
    run           job.submit       nothing of the batch has been computed
    make state    state.start      tasks sync files under names that no other attempt uses
                  state.done
    fence check                    a driver that was replaced runs no output
    outputs       out.start        transactional outputs write the token with the batch, once
                  out.done
    commit        commit.start     one record names the files of all operators; it is created only
                  commit.done      if absent, and files that no record names do not count
    fence check                    the commit counts: it is reported, and sources are notified
    clean up      clean.start      files that no restart and no later batch needs are deleted
                  clean.done

Apart from files, a batch makes four requests to storage: the two records and the two fence checks.
Its outputs wait for the records only. The checks run in the background
(:mod:`checkpoint.log.fencing`): the first one while state is made, the second one while a query
plans and begins its next batch. A stream waits for the second one before it reports the batch.
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
    FenceChecks,
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
from dstreams.engine.inputs import InputOffsets
from dstreams.spark.stable_hash import STABLE_HASH_NAME

logger = logging.getLogger(__name__)

# Facts in the records of a stream, in addition to those in every record.

AFTER = "after_ms"
"""Begin record: time of the previous batch, if batches between the two were skipped."""

BETWEEN_BATCHES = "between_batches"
"""Begin record: whether only state is committed, at a time between two batches."""

UNREAD = "unread"
"""Commit record: uids of the inputs that the batch could not read and skipped."""

VERSIONS_MADE_AT = "versions_made_at"
"""Commit record: the batch that made each version in the state store, by uid."""


def gap_before(begun: BeginRecord) -> int | None:
    """Return the time of the previous batch if batches before this one were skipped, else None."""
    after_ms = begun.facts.get(AFTER)
    return after_ms if isinstance(after_ms, int) else None


class StreamCheckpoint:
    """The checkpoint of one stream or query, owned by this driver.

    Records and files of operators that are not in *operators*, by uid, are deleted; None keeps all.

    Attributes:
        plan: the state and the batches that this run begins with.
        newest_ms: time of the newest batch that was begun or committed, 0 if no batch was.
        newest_id: number of the newest batch that was begun, -1 if no batch was.
        graph: the graph snapshot that begin records refer to, None without one.
        fence: checks whether another driver has taken over: one starts with the takeover, and one
            with each commit.
    """

    def __init__(
        self, owned: OwnedStream, stream_id: str, operators: Collection[str] | None = None
    ) -> None:
        self.owned = owned
        self.stream_id = stream_id
        self.epoch = owned.epoch
        self.files: Files = owned.lease.files
        self.plan: RecoveryPlan = owned.plan
        self.fence = FenceChecks(owned.lease)
        self.commits = owned.commits
        self.commits.operators = operators
        begun = self.plan.begins
        self.newest_ms = max([0, *begun, *self.plan.committed_ms])
        self.newest_id = max((record.batch_id for record in begun.values()), default=-1)
        self.graph: RecordId | None = None
        self._begins = owned.begins
        self._inputs = InputSnapshots(owned, stream_id)
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
    ) -> StreamCheckpoint:
        """Take a stream over: from now on, anything the previous driver writes is ignored.

        Records that were *found* before are not read again. *facts* describe this driver to people,
        in addition to its versions. Another driver may have taken it over in the meantime: wait for
        the fence before anything depends on it.
        """
        versions = {"python": platform.python_version(), "pyspark": pyspark.__version__}
        driver = DriverProcess.of_this_process(now_ms, {**versions, **(facts or {})})
        owned = take_over(files, stream_id, driver, found)
        fault("rec.fence")
        checkpoint = cls(owned, stream_id, operators)
        checkpoint.fence.start()
        return checkpoint

    def time_of_next(self, now_ms: int) -> int:
        """Return now, or the time after the newest batch if the clock is not later."""
        return max(now_ms, self.newest_ms + 1)

    def begin(
        self,
        batch_id: int,
        time_ms: int,
        inputs: Mapping[str, object],
        *,
        watermarks: Mapping[str, int] | None = None,
        facts: Mapping[str, object] | None = None,
        token: str | None = None,
    ) -> BeginRecord:
        """Write the begin record of a batch, before anything is read; without it, it must not run.

        *token* is the original one of a batch that runs again, empty if no output needs one, None
        for a new one; the other arguments are fields of the record.
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
                beginning=new_attempt() if token is None else token,
            )
            self._begins.begin(record)
            self.owned.ahead.forget()  # the start is over
            self.newest_ms = max(self.newest_ms, time_ms)
            self.newest_id = max(self.newest_id, batch_id)
        return record

    def require_newest(self) -> None:
        """Check the fence now: raise ConcurrentWriterError if another driver has taken over."""
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
        """Write the commit record of a batch; if that fails, no batch may run after it.

        Wait for the fence before anything depends on the commit. The arguments are fields of the
        record. Return a message about the outputs that failed, and how to run them again; empty if
        none did.
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
        self.fence.start()
        return self._failed_outputs(committed) if failed_outputs else ""

    def _failed_outputs(self, record: CommitRecord) -> str:
        """Return which outputs a batch was committed without, and how to run them again."""
        remedy = "it is the first batch, so only a new checkpoint directory would run it again"
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
        """Return what earlier runs have read of an input."""
        return self._inputs.past(uid)

    def begin_inputs(self, offsets: InputOffsets, first_ms: int = 0) -> None:
        """Write where new inputs begin; *first_ms* is a time before the first batch."""
        last_ms = first_ms if self.plan.last_ms is None else self.plan.last_ms
        self._inputs.begin(offsets.history_readers, last_ms, offsets.snapshot)

    def write_inputs(self, upto_ms: int, inputs: Mapping[str, Mapping[str, object]]) -> None:
        """Write what batches up to a time have read, by uid of the input."""
        self._inputs.write(upto_ms, inputs)

    def expect_snapshots(self) -> None:
        """Let retention look for snapshots of state that tasks have written."""
        self._retention.expect_snapshots()

    def retire(
        self,
        oldest_needed_ms: int,
        offsets: InputOffsets,
        oldest_input_ms: int | None = None,
    ) -> None:
        """Delete files that no restart and no later batch can need; on any thread.

        State since *oldest_needed_ms* and input since *oldest_input_ms* stay. Offsets in deleted
        begin records are written to a snapshot first. Nothing is deleted if a newer driver has
        taken over.
        """

        def retire_inputs(upto_ms: int, batches: int) -> RecordId | None:
            size = offsets.snapshot_size()
            snapshot = self._inputs.retire(upto_ms, batches, size, offsets.snapshot)
            if snapshot is not None:
                offsets.retire(snapshot.time_ms)
            return snapshot

        for name in self._retention.retire(
            oldest_needed_ms, oldest_input_ms, retire_inputs if offsets.history_readers else None
        ):
            logger.warning("failed to delete %s, which will be retried later", name)

    def oldest_begun_ms(self) -> int:
        """Return the time of the oldest begin record, 0 without one; this lists storage."""
        return min((found.time_ms for found in self._begins.all_ids()), default=0)

    def release(self) -> None:
        """Record that this driver has stopped, unless it was replaced; never raises."""
        try:
            self.owned.lease.check()
            self.owned.lease.release()
        except ConcurrentWriterError:
            pass
        except CheckpointError as error:
            logger.info("could not record that this driver stopped: %s", error)

    def give_up(self) -> None:
        """Release the lease of a stream that could not be started; never raises."""
        self.owned.lease.give_up()
