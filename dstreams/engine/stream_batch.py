"""One batch of a stream: failures, cancellation, and what is reported and cleaned up after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark import RDD

from dstreams.common.clock import Clock
from dstreams.common.durations import batch_name
from dstreams.common.faults import FaultError, fault, steps
from dstreams.engine.batch import Batch, BatchResult, BatchRun
from dstreams.engine.committer import BatchCommitter, RddSnapshot
from dstreams.engine.garbage_collector import BatchCleanUp
from dstreams.engine.inputs import BatchInputs
from dstreams.engine.planner import BegunBatches
from dstreams.errors import (
    BatchFailedError,
    DurabilityError,
    EnvironmentNotReadyError,
    MissingInputError,
)
from dstreams.graph.generated_rdds import GeneratedRdds, carry_over_gap
from dstreams.graph.node import Node, OutputOperation
from dstreams.graph.plan import Plan
from dstreams.graph.state import StateStoreDStream
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    EventHandler,
    Outcome,
    PlannedOutput,
    StateOperatorInfo,
)
from dstreams.monitoring.progress import PhaseTimer
from dstreams.spark import jvm
from dstreams.spark.failures import located, make_brief, stops_stream
from dstreams.spark.job_labels import begin_stream_batch, label_jobs, labelled_jobs
from dstreams.spark.job_watch import watched
from dstreams.spark.state_version import NO_EVENT_TIME


@dataclass(eq=False)
class BatchRunner:
    """Runs the batches of a stream, one after another.

    Attributes:
        committer: None without a checkpoint directory.
        open_gaps: times of the batches before and after a gap that no state was carried over yet.
        ran_ms: time of the newest batch that ran; 0 before the first.
    """

    plan: Plan
    rdds: GeneratedRdds
    inputs: BatchInputs
    begun: BegunBatches
    committer: BatchCommitter | None
    clean_up: BatchCleanUp
    clock: Clock
    notify: EventHandler
    stops_on_failure: bool
    open_gaps: list[tuple[int, int]] = field(default_factory=list)
    ran_ms: int = 0

    def run(
        self,
        batch: Batch,
        is_cancelled: Callable[[], bool] = lambda: False,
        cancelled_by: str = "a stop",
    ) -> BatchResult:
        """Run a batch from its input to its commit; its error is in the result.

        Once *is_cancelled* returns True, nothing more of the batch starts; *cancelled_by* says why.
        """
        spark = self.rdds.spark
        name = batch_name(batch.time_ms, batch.batch_id)
        with jvm.rewriting_outputs(spark), labelled_jobs(spark), watched(name):
            begin_stream_batch(batch.time_ms, self.plan.batch_ms)
            result = StreamBatchRun(self, batch, is_cancelled, cancelled_by).run()
        self.ran_ms = batch.time_ms
        return result


class _BatchEndedError(Exception):
    """Nothing more of the batch may run."""


class StreamBatchRun(BatchRun):
    """One batch of a stream.

    A failure is kept, and the batch continues as far as the stream does: unless the stream stops on
    failure, the batch is committed without the outputs that failed.
    """

    def __init__(
        self,
        runner: BatchRunner,
        batch: Batch,
        is_cancelled: Callable[[], bool],
        cancelled_by: str,
    ) -> None:
        timer = PhaseTimer(batch.planning_ms)
        committer = runner.committer
        fence = None if committer is None else committer.checkpoint.fence
        spark = runner.rdds.spark
        super().__init__(spark, runner.clock, runner.notify, batch.batch_id, timer, fence)
        self._runner = runner
        self._plan = runner.plan
        self._rdds = runner.rdds
        self._committer = committer
        self._batch = batch
        self._is_cancelled = is_cancelled
        self._cancelled_by = cancelled_by
        self._error: BatchFailedError | None = None
        self._may_run_outputs = True
        self._unmade: set[int] = set()
        self._failed_by_itself = False
        self._was_cut_off = False
        self._needs_clean_up = False
        self._spark_ended = False
        self._failed_outputs = ""
        self._jobs: dict[int, tuple[OutputOperation, RDD[Any]]] | None = None
        self._snapshots: dict[Node, RddSnapshot] = {}

    def run(self) -> BatchResult:
        """Run the batch to its end."""
        started_ms = self.clock.now_ms()
        self.notify(BatchStarted(self._batch.pending(started_ms)))
        try:
            self.run_steps()
        except _BatchEndedError:
            pass
        except KeyboardInterrupt:  # in a function of the user's
            if not self._is_cancelled():
                raise
            self._was_cut_off = True
        if self._spark_ended:
            self._error = self._spark_ended_error()
        info = self._info(started_ms)
        if self._error is not None:
            self._error.batch_infos = (info,)
        self.notify(BatchCompleted(info))
        if self._needs_clean_up:
            with steps("clean", self.batch_id):
                if not self._runner.open_gaps:  # a state needs everything since before the gap
                    self._runner.clean_up.after(self._batch)
        return BatchResult(
            info, self._error, self._ends_stream(), self._spark_ended, self._failed_outputs
        )

    # Steps -----------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the inputs. If one fails, the others still reach the state."""
        batch = self._batch
        self._rdds.retry_failed()
        if batch.after_ms is not None:
            self._rdds.mark_gap(batch.after_ms, batch.time_ms)
            self._runner.open_gaps.append((batch.after_ms, batch.time_ms))
        failure = self._runner.inputs.read(batch)
        if failure is not None:
            self._may_run_outputs = False
            self._fail(failure.where, failure.error, _kind_of(failure.error))
        self._was_cut_off = self._is_cancelled()
        self._end_if_due()

    def make_state(self) -> None:
        """Make the versions in the state store, then the RDDs of outputs, then due snapshots."""
        with self.timer.phase("state"):
            self._close_gaps()
            self._rdds.make_resumed(self._batch.time_ms)
            self._make_stored_state()
        with self.timer.phase("queryPlanning"):
            if self._may_run_outputs:
                self._make_output_rdds()
        with self.timer.phase("snapshots"):
            if not self._ends_stream():
                self._write_snapshots()

    def run_outputs(self) -> None:
        """Run the outputs, unless the batch ends."""
        jobs = self._jobs or {}
        for output_id, (output, rdd) in jobs.items():
            if self._must_end():
                break
            fault("out.start", self.batch_id)
            self._check_fence()
            if not self._must_end():
                with self.timer.phase("addBatch"):
                    self._run_output(output_id, output, rdd)
        if self._is_cancelled():
            ran = sum(info.failure is None for info in self.outputs)
            self._was_cut_off = self._committer is not None or ran < len(jobs)
            raise _BatchEndedError

    def require_spark(self) -> None:
        """End the batch if Spark has ended."""
        try:
            if not self._spark_ended:
                super().require_spark()
        except EnvironmentNotReadyError as error:
            self._fail("committing it", error)
        self._end_if_due()

    def commit(self) -> None:
        """Commit the batch, also without outputs that failed: the next batch needs its state."""
        try:
            if self._committer is not None:
                self._failed_outputs = self._committer.commit(
                    self._batch, self._snapshots, self._failed_uids(), self._runner.inputs.unread
                )
        except FaultError:
            raise  # it simulates the end of the driver
        except Exception as error:
            self._fail("committing its state", error, DurabilityError)
        else:
            self._runner.inputs.committed(self._batch)
        self._needs_clean_up = not self._must_end()

    # State and RDDs --------------------------------------------------------------------------

    def _close_gaps(self) -> None:
        """Carry states over the batches that were skipped."""
        try:
            for after_ms, first_ms in tuple(self._runner.open_gaps):
                carry_over_gap(self._plan, self._rdds, after_ms, first_ms)
                self._runner.open_gaps.remove((after_ms, first_ms))
        except Exception as error:
            self._fail_state("making the state of earlier batches", error)

    def _make_stored_state(self) -> None:
        """Make the versions in the state store, and state RDDs of earlier batches that failed."""
        for node in self._plan.stateful():
            where = f"making the state of {node.operation}"
            if isinstance(node, StateStoreDStream):
                label_jobs(f"state: {node.operation}")
                self._rdds.make([node], self._batch.time_ms)
                failed = self._rdds.failure(node, self._batch.time_ms)
                if failed is not None:
                    self._fail_state(where, failed.error)
            elif self._committer is not None:
                try:
                    self._committer.snapshots.catch_up(node, self._batch.time_ms)
                except Exception as error:
                    self._fail_state(where, error)

    def _fail_state(self, where: str, error: Exception) -> None:
        """Fail for a state. If it lacks input files of an earlier batch, other outputs run."""
        self._may_run_outputs &= isinstance(error, MissingInputError)
        self._fail(where, error, _kind_of(error))

    def _make_output_rdds(self) -> None:
        """Make the RDDs of outputs. If one fails, none runs, unless it lacks earlier input."""
        jobs: dict[int, tuple[OutputOperation, RDD[Any]]] = {}
        time_ms = self._batch.time_ms
        for output_id, output in enumerate(self._plan.outputs):
            self._rdds.make([output.parent], time_ms)
            failed = self._rdds.failure(output.parent, time_ms)
            rdd = self._rdds.get(output.parent, time_ms)
            if failed is None and rdd is not None:
                jobs[output_id] = (output, rdd)
            elif failed is not None and isinstance(failed.error, MissingInputError):
                self._fail(f"making the RDD for {output.operation}", failed.error)
                self._unmade.add(output_id)
            elif failed is not None:
                where = f"making the RDD for {output.operation}, in {failed.node.operation}"
                self._fail(where, failed.error)
                return
        self._jobs = jobs

    def _write_snapshots(self) -> None:
        """Make every state RDD, also if no output runs, and write the snapshots that are due."""
        if self._committer is None:
            return
        self._rdds.retry_failed()  # a failure of an output must not postpone durability
        for node in self._plan.checkpointed():
            try:
                snapshot = self._committer.snapshots.make(node, self._batch.time_ms)
            except Exception as error:
                self._fail(f"writing the state of {node.operation}", error, _kind_of(error))
            else:
                if snapshot is not None:
                    self._snapshots[node] = snapshot

    # Outputs ---------------------------------------------------------------------------------

    def _check_fence(self) -> None:
        try:
            self.require_newest()
        except Exception as error:
            self._fail("beginning its outputs", error, DurabilityError)

    def _run_output(self, output_id: int, output: OutputOperation, rdd: RDD[Any]) -> None:
        label_jobs(f"output operation {output_id}: {output.operation}", output_id)
        batch = self._batch
        seen = self._runner.begun.output_batch(batch.time_ms, batch.batch_token)
        planned = PlannedOutput(output_id, output.operation)
        try:
            self.run_output(batch.time_ms, planned, partial(output.func, seen, rdd))
        except Exception as error:
            self._fail(output.operation, error, _kind_of(error))
        fault("out.done", self.batch_id)

    def _failed_uids(self) -> list[str]:
        """Return the uids of the outputs that were due and did not succeed."""
        plan, time_ms = self._plan, self._batch.time_ms
        due = {
            output_id
            for output_id, output in enumerate(plan.outputs)
            if plan.fires(output.parent, time_ms)
        }
        if self._jobs is not None:
            due = self._unmade | set(self._jobs)
        ended = {info.output_id for info in self.outputs if info.failure is None}
        return [plan.output_uids[output_id] for output_id in sorted(due - ended)]

    # Failure ---------------------------------------------------------------------------------

    def _ends_stream(self) -> bool:
        """Return whether the batch failed and no batch may run after it: it stays uncommitted."""
        is_failed = self._error is not None
        must_stop = self._runner.stops_on_failure or isinstance(self._error, DurabilityError)
        return self._spark_ended or (is_failed and must_stop)

    def _must_end(self) -> bool:
        return self._ends_stream() or self._is_cancelled()

    def _end_if_due(self) -> None:
        if self._must_end():
            raise _BatchEndedError

    def _fail(
        self, where: str, error: Exception, kind: type[BatchFailedError] = BatchFailedError
    ) -> None:
        """Keep the first error of the batch, or one of the storage."""
        # An error in a batch that is being cancelled may be due to that.
        self._failed_by_itself |= kind is DurabilityError or not self._is_cancelled()
        self._spark_ended = self._spark_ended or not jvm.is_running(self.spark)
        if self._error is None or kind is DurabilityError:
            message = f"{self._name()} failed in {where}: {located(error)}"
            if (remedy := self._runner.inputs.remedy(error)) is not None:
                message = f"{message}; {remedy}"
            make_brief(error)
            self._error = kind(message, self._batch.time_ms)
            self._error.__cause__ = error

    def _spark_ended_error(self) -> BatchFailedError:
        """Return an error that names the end of Spark as the cause."""
        first = self._error
        again = "; it is not committed, and the next start runs it again"
        error = BatchFailedError(
            f"the SparkContext was stopped, or its JVM ended, while {self._name()} ran"
            f"{again if self._committer is not None else ''}; stop the StreamingContext before "
            f"Spark, and give the JVM memory if the system killed it ({first})",
            self._batch.time_ms,
        )
        error.__cause__ = None if first is None else first.__cause__
        return error

    def _name(self) -> str:
        return batch_name(self._batch.time_ms, self.batch_id)

    # Report ----------------------------------------------------------------------------------

    def _info(self, started_ms: int) -> BatchInfo:
        outcome: Outcome = "succeeded" if self._jobs else "empty"
        failure = None if self._error is None else str(self._error)
        if self._was_cut_off and not self._failed_by_itself:
            outcome = "cancelled"
            failure = f"{self._name()} was cut off by {self._cancelled_by}"
        elif failure is not None:
            outcome = "failed"
        inputs = self._runner.inputs.infos(self._batch)
        return BatchInfo(
            batch_id=self.batch_id,
            batch_time_ms=self._batch.time_ms,
            records={info.name: info.records for info in inputs},
            submitted_ms=self._batch.submitted_ms,
            started_ms=started_ms,
            completed_ms=self.clock.now_ms(),
            outputs=tuple(self.outputs),
            outcome=outcome,
            failure=failure,
            inputs=inputs,
            states=self._state_infos(),
            durations_ms=self.timer.durations_ms(),
            since_ms=self._plan.batch_ms,
        )

    def _state_infos(self) -> tuple[StateOperatorInfo, ...]:
        """Return the versions in the state store that the batch made, as listeners see them."""
        return tuple(
            StateOperatorInfo(
                uid,
                node.operation,
                len(version.version_ids),
                version.metrics.as_dict(),
                None if version.watermark_ms == NO_EVENT_TIME else version.watermark_ms,
            )
            for node in self._plan.in_state_store()
            if (uid := self._plan.nodes[node].uid)
            and (version := self._rdds.states.at(uid, self._batch.time_ms)) is not None
            and version.metrics is not None
        )


def _kind_of(error: Exception) -> type[BatchFailedError]:
    """Return the error class of a batch: a failure of the storage ends the stream."""
    return DurabilityError if stops_stream(error) else BatchFailedError
