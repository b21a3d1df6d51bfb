"""The course of one batch: its input, state, outputs and commit; then what is cleaned up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark import RDD

from dstreams.common.clock import Clock
from dstreams.common.durations import batch_name
from dstreams.common.faults import FaultError, fault, steps
from dstreams.engine.batch import Batch, BatchResult
from dstreams.engine.batch_inputs import BatchInputs
from dstreams.engine.clean_up import BatchCleanUp
from dstreams.engine.committer import BatchCommitter
from dstreams.engine.planner import BegunBatches
from dstreams.engine.rdd_snapshots import RddSnapshot
from dstreams.engine.recovery.skipped_batches import bridge
from dstreams.engine.rejected_counts import with_left_out
from dstreams.errors import (
    BatchFailedError,
    DurabilityError,
    EnvironmentNotReadyError,
    MissingInputError,
)
from dstreams.graph.history import History
from dstreams.graph.node import Node
from dstreams.graph.output import OutputOperation
from dstreams.graph.plan import Plan
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    EventHandler,
    Outcome,
    OutputOperationCompleted,
    OutputOperationInfo,
    OutputOperationStarted,
    PlannedOutput,
    StateOperatorInfo,
)
from dstreams.monitoring.progress import PhaseTimer
from dstreams.spark import jvm
from dstreams.spark.failures import located, make_brief, stops_stream
from dstreams.spark.job_labels import (
    begin_stream_batch,
    doing,
    jobs_since,
    label_jobs,
    labelled_jobs,
    next_job_id,
)
from dstreams.spark.job_watch import watched
from dstreams.spark.state_version import NO_EVENT_TIME

_CHECK_MS = 500
"""After that long an output is not begun before a look whether this driver was replaced."""


@dataclass(eq=False)
class BatchRunner:
    """Runs the batches of a stream, one after another.

    Attributes:
        committer: None without a checkpoint directory.
        unbridged: batches before and after a gap over which no state was brought yet.
        ran_ms: time of the newest batch that ran; 0 before the first.
    """

    plan: Plan
    history: History
    inputs: BatchInputs
    begun: BegunBatches
    committer: BatchCommitter | None
    clean_up: BatchCleanUp
    clock: Clock
    tell: EventHandler
    stops_on_failure: bool
    unbridged: list[tuple[int, int]] = field(default_factory=list)
    ran_ms: int = 0

    def run(
        self,
        batch: Batch,
        is_cancelled: Callable[[], bool] = lambda: False,
        cancelled_by: str = "a stop",
    ) -> BatchResult:
        """Run a batch from its input to its commit; what it fails with is in the result.

        *is_cancelled* is asked before each output and before the commit; once it says True, nothing
        more is begun. *cancelled_by* is what people are told of that.
        """
        spark = self.history.spark
        name = batch_name(batch.time_ms, batch.batch_id)
        with jvm.rewriting_outputs(spark), labelled_jobs(spark), watched(name):
            begin_stream_batch(batch.time_ms, self.plan.batch_ms)
            result = BatchRun(self, batch, is_cancelled, cancelled_by).run()
        self.ran_ms = batch.time_ms
        return result


class BatchRun:
    """One batch on its way, and what it has failed with so far."""

    def __init__(
        self,
        runner: BatchRunner,
        batch: Batch,
        is_cancelled: Callable[[], bool],
        cancelled_by: str,
    ) -> None:
        self._runner = runner
        self._plan = runner.plan
        self._history = runner.history
        self._committer = runner.committer
        self._now_ms = runner.clock.now_ms
        self._tell = runner.tell
        self._batch = batch
        self._is_cancelled = is_cancelled
        self._cancelled_by = cancelled_by
        self._outputs: list[OutputOperationInfo] = []
        self._error: BatchFailedError | None = None
        self._checked_ms = 0
        self._may_run_outputs = True
        self._unmade: set[int] = set()
        self._failed_by_itself = False
        self._was_cut_off = False
        self._leaves_waste = False
        self._spark_ended = False
        self._left_out = ""
        self._jobs: dict[int, tuple[OutputOperation, RDD[Any]]] | None = None
        self._timer = PhaseTimer(batch.planning_ms)

    def run(self) -> BatchResult:
        """Run the batch to its end."""
        started_ms = self._now_ms()
        self._tell(BatchStarted(self._batch.pending(started_ms)))
        self._step("job.submit")
        with self._timer.phase("getBatch"):
            self._feed()
        # Of a batch that could not be begun nothing may run.
        self._was_cut_off = self._is_cancelled()
        jobs: dict[int, tuple[OutputOperation, RDD[Any]]] = {}
        try:
            if not self._must_end():
                jobs = self._run()
        except KeyboardInterrupt:  # in a function of the user's
            if not self._is_cancelled():
                raise
            self._was_cut_off = True
        if self._spark_ended:
            self._say_that_spark_ended()
        info = self._info(started_ms, len(jobs))
        if self._error is not None:
            self._error.batch_infos = (info,)
        self._tell(BatchCompleted(info))
        if self._leaves_waste:
            self._clean_up()
        return BatchResult(
            info, self._error, self._ends_stream(), self._spark_ended, self._left_out
        )

    def _run(self) -> dict[int, tuple[OutputOperation, RDD[Any]]]:
        with steps("state", self._batch.batch_id):
            with self._timer.phase("state"):
                self._bridge()
                self._history.make_earlier(self._batch.time_ms)
                self._make_states()
            with self._timer.phase("queryPlanning"):
                jobs = self._generate()
            with self._timer.phase("snapshots"):
                snapshots = {} if self._ends_stream() else self._write_snapshots()
        if jobs and not self._must_end():
            self._require_newest()
        for output_id, (output, rdd) in jobs.items():
            if self._must_end():
                break
            self._step("out.start")
            if self._now_ms() - self._checked_ms >= _CHECK_MS:
                self._require_newest()
            if not self._must_end():
                with self._timer.phase("addBatch"):
                    self._run_output(output_id, output, rdd)
        if self._is_cancelled():
            ran = sum(info.failure is None for info in self._outputs)
            self._was_cut_off = self._committer is not None or ran < len(jobs)
            return jobs
        self._require_spark()
        if not self._must_end():
            # Where the stream goes on, a failed output does not undo the state: the next batch
            # builds on it, and the record says which outputs failed.
            with self._timer.phase("commitOffsets"):
                self._commit(snapshots)
        self._leaves_waste = not self._must_end()
        return jobs

    def _step(self, name: str) -> None:
        fault(name, self._batch.batch_id)

    def _ends_stream(self) -> bool:
        """Whether the batch has failed, and no batch may run after it: it stays uncommitted."""
        is_failed = self._error is not None
        must_stop = self._runner.stops_on_failure or isinstance(self._error, DurabilityError)
        return self._spark_ended or (is_failed and must_stop)

    def _must_end(self) -> bool:
        return self._ends_stream() or self._is_cancelled()

    def _feed(self) -> None:
        # When one source failed, what was taken from the others must still reach the state.
        batch = self._batch
        doing("input")
        if batch.after_ms is not None:
            self._history.leave_out(batch.after_ms, batch.time_ms)
            self._runner.unbridged.append((batch.after_ms, batch.time_ms))
        failure = self._runner.inputs.feed(batch)
        if failure is not None:
            self._may_run_outputs = False
            self._fail(failure.where, failure.error, _kind_of(failure.error))

    def _bridge(self) -> None:
        """Let state that a restart has found stand for that of the batches that it left out."""
        try:
            for after_ms, first_ms in tuple(self._runner.unbridged):
                bridge(self._plan, self._history, after_ms, first_ms)
                self._runner.unbridged.remove((after_ms, first_ms))
        except Exception as error:
            self._fail_state("making the state of earlier batches", error)

    def _make_states(self) -> None:
        """Make every version in the state store, before any output: once, also when that fails."""
        for node in self._plan.stateful():
            if isinstance(node, StateStoreDStream):
                label_jobs(f"state: {node.operation}")
            try:
                self._make_state(node)
            except Exception as error:
                self._fail_state(f"making the state of {node.operation}", error)

    def _make_state(self, node: Node) -> None:
        """Make the state of *node*, also of earlier batches that could not be made when they ran.

        Of state that is an RDD of each batch only that of earlier ones is made here.
        """
        if isinstance(node, StateStoreDStream):
            self._history.make_state(node, self._batch.time_ms)
        elif self._committer is not None:
            self._committer.snapshots.catch_up(node, self._batch.time_ms)

    def _fail_state(self, where: str, error: Exception) -> None:
        """Fail for a state; where it lacks files of an earlier batch, other outputs run."""
        self._may_run_outputs &= isinstance(error, MissingInputError)
        self._fail(where, error, _kind_of(error))

    def _generate(self) -> dict[int, tuple[OutputOperation, RDD[Any]]]:
        """Make the RDD of each output; when one cannot be made, no output of the batch runs.

        Files that an earlier batch lacks are the exception: outputs that need none of them run.
        """
        jobs: dict[int, tuple[OutputOperation, RDD[Any]]] = {}
        if not self._may_run_outputs:
            return {}
        for output_id, output in enumerate(self._plan.outputs):
            try:
                rdd = self._history.at(output.parent, self._batch.time_ms)
            except MissingInputError as error:
                self._fail(f"making the RDD for {output.operation}", error)
                self._unmade.add(output_id)
            except Exception as error:
                of = self._history.failed_operation(error)
                within = "" if of is None else f", in {of}"
                self._fail(f"making the RDD for {output.operation}{within}", error)
                return {}
            else:
                if rdd is not None:
                    jobs[output_id] = (output, rdd)
        self._jobs = jobs
        return jobs

    def _write_snapshots(self) -> dict[Node, RddSnapshot]:
        """Make every state RDD, also when no output runs, and write the snapshots that are due."""
        made: dict[Node, RddSnapshot] = {}
        if self._committer is None:
            return made
        for node in self._plan.checkpointed():
            try:
                snapshot = self._committer.snapshots.make(node, self._batch.time_ms)
            except Exception as error:
                self._fail(f"writing the state of {node.operation}", error, _kind_of(error))
            else:
                if snapshot is not None:
                    made[node] = snapshot
        return made

    def _require_newest(self) -> None:
        """Let a driver that was replaced while it stood still run no output."""
        try:
            if self._committer is not None:
                self._committer.log.require_newest()
            self._checked_ms = self._now_ms()
        except Exception as error:
            self._fail("beginning its outputs", error, DurabilityError)

    def _require_spark(self) -> None:
        """Commit nothing without Spark: an output may have hidden that its jobs failed."""
        if not (self._spark_ended or jvm.is_running(self._history.spark)):
            self._fail("committing it", EnvironmentNotReadyError("Spark does not answer"))

    def _say_that_spark_ended(self) -> None:
        """Put the end of Spark in front of what failed for that reason."""
        first = self._error
        again = "; it is not committed, and the next start runs it again"
        self._error = BatchFailedError(
            f"the SparkContext was stopped, or its JVM ended, while {self._name()} ran"
            f"{again if self._committer is not None else ''}; stop the StreamingContext before "
            f"Spark, and give the JVM memory if the system killed it ({first})",
            self._batch.time_ms,
        )
        self._error.__cause__ = None if first is None else first.__cause__

    def _run_output(self, output_id: int, output: OutputOperation, rdd: RDD[Any]) -> None:
        started_ms = self._now_ms()
        planned = PlannedOutput(output_id, output.operation)
        self._tell(OutputOperationStarted(self._batch.time_ms, planned, started_ms))
        failure: str | None = None
        spark = self._history.spark
        label_jobs(f"output operation {output_id}: {output.operation}", output_id)
        first_job = next_job_id(spark)
        try:
            batch = self._batch
            output.func(self._runner.begun.output_batch(batch.time_ms, batch.beginning), rdd)
        except Exception as error:
            failure = located(error)
            self._fail(output.operation, error, _kind_of(error))
        self._step("out.done")
        jobs = jobs_since(spark, first_job)
        info = OutputOperationInfo(
            output_id, output.operation, started_ms, self._now_ms(), failure, job_ids=jobs
        )
        self._outputs.append(info)
        self._tell(OutputOperationCompleted(self._batch.time_ms, info))

    def _commit(self, snapshots: Mapping[Node, RddSnapshot]) -> None:
        doing("commit")
        try:
            if self._committer is not None:
                self._left_out = self._committer.commit(
                    self._batch, snapshots, self._failed_outputs(), self._runner.inputs.unread
                )
        except FaultError:
            raise  # it stands for the end of the driver, and there is no batch any more
        except Exception as error:
            self._fail("committing its state", error, DurabilityError)
        else:
            self._runner.inputs.committed(self._batch)

    def _failed_outputs(self) -> list[str]:
        """Uids of the outputs that should have run to their end and did not."""
        plan, time_ms = self._plan, self._batch.time_ms
        due = {
            output_id
            for output_id, output in enumerate(plan.outputs)
            if plan.fires(output.parent, time_ms)
        }
        if self._jobs is not None:
            due = self._unmade | set(self._jobs)
        ended = {info.output_id for info in self._outputs if info.failure is None}
        return [plan.output_uids[output_id] for output_id in sorted(due - ended)]

    def _clean_up(self) -> None:
        with steps("clean", self._batch.batch_id):
            if not self._runner.unbridged:  # else state needs all that came before the gap
                self._runner.clean_up.after(self._batch)

    def _fail(
        self, where: str, error: Exception, kind: type[BatchFailedError] = BatchFailedError
    ) -> None:
        """Keep the first error of the batch, but let nothing hide that the storage failed.

        What fails in a batch that is being cut off may well fail for that reason.
        """
        self._failed_by_itself |= kind is DurabilityError or not self._is_cancelled()
        self._spark_ended = self._spark_ended or not jvm.is_running(self._history.spark)
        if self._error is None or kind is DurabilityError:
            time_ms = self._batch.time_ms
            message = f"{self._name()} failed in {where}: {located(error)}"
            if (remedy := self._runner.inputs.explain(error)) is not None:
                message = f"{message}; {remedy}"
            make_brief(error)
            self._error = kind(message, time_ms)
            self._error.__cause__ = error

    def _name(self) -> str:
        return batch_name(self._batch.time_ms, self._batch.batch_id)

    def _info(self, started_ms: int, jobs: int) -> BatchInfo:
        outcome: Outcome = "succeeded" if jobs else "empty"
        failure = None if self._error is None else str(self._error)
        if self._was_cut_off and not self._failed_by_itself:
            outcome = "cancelled"
            failure = f"{self._name()} was cut off by {self._cancelled_by}"
        elif failure is not None:
            outcome = "failed"
        inputs = with_left_out(
            self._runner.inputs.ended(self._batch.inputs, self._batch.input_infos),
            self._plan,
            self._history,
            self._batch.time_ms,
        )
        return BatchInfo(
            batch_id=self._batch.batch_id,
            batch_time_ms=self._batch.time_ms,
            records={info.name: info.records for info in inputs},
            submitted_ms=self._batch.submitted_ms,
            started_ms=started_ms,
            completed_ms=self._now_ms(),
            outputs=tuple(self._outputs),
            outcome=outcome,
            failure=failure,
            inputs=inputs,
            states=self._state_infos(),
            durations_ms=self._timer.durations_ms(),
            since_ms=self._plan.batch_ms,
        )

    def _state_infos(self) -> tuple[StateOperatorInfo, ...]:
        """Return what is told of the versions in the state store that the batch made."""
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
            and (version := self._history.states.at(uid, self._batch.time_ms)) is not None
            and version.metrics is not None
        )


def _kind_of(error: Exception) -> type[BatchFailedError]:
    """Return what a batch fails with: the stream goes on, unless its storage does not work."""
    return DurabilityError if stops_stream(error) else BatchFailedError
