"""The course of one batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark import RDD

from dstreams.errors import BatchFailedError, DurabilityError, MissingInputError
from dstreams.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    Outcome,
    OutputOperationCompleted,
    OutputOperationInfo,
    OutputOperationStarted,
    PlannedOutput,
)
from dstreams.faults import fault
from dstreams.graph.node import Node
from dstreams.graph.output import OutputOperation
from dstreams.rdd.failures import stops_stream, summarize
from dstreams.streams.batch import Batch, BatchResult
from dstreams.streams.rdd_snapshots import RddSnapshot

if TYPE_CHECKING:
    from dstreams.streams.engine import Engine

logger = logging.getLogger(__name__)

_CHECK_MS = 500
"""After that long an output is not begun before a look whether this driver was replaced."""


class BatchRun:
    """Runs one batch; what it fails with is in the result.

    Args:
        engine: the engine.
        batch: the batch.
        is_cancelled: asked before each output and before the commit; once it says True, nothing
            more is begun.
    """

    def __init__(self, engine: Engine, batch: Batch, is_cancelled: Callable[[], bool]) -> None:
        self._engine = engine
        self._batch = batch
        self._is_cancelled = is_cancelled
        self._outputs: list[OutputOperationInfo] = []
        self._error: BatchFailedError | None = None
        self._checked_ms = 0
        self._may_run_outputs = True
        self._unmade: set[int] = set()
        self._failed_by_itself = False
        self._was_cut_off = False
        self._leaves_waste = False
        self._jobs: dict[int, tuple[OutputOperation, RDD[Any]]] | None = None

    def run(self) -> BatchResult:
        """Run the batch to its end."""
        started_ms = self._engine.now_ms()
        self._engine.tell(BatchStarted(self._engine.pending(self._batch, started_ms)))
        self._step("job.submit")
        self._feed()
        # Of a batch that could not be begun nothing may run.
        self._was_cut_off = self._is_cancelled()
        jobs = {} if self._must_end() else self._run()
        info = self._info(started_ms, len(jobs))
        if self._error is not None:
            self._error.batch_infos = (info,)
        self._engine.tell(BatchCompleted(info))
        if self._leaves_waste:
            self._clean_up()
        return BatchResult(info, self._error, self._ends_stream())

    def _run(self) -> dict[int, tuple[OutputOperation, RDD[Any]]]:
        self._bridge()
        self._make_states()
        jobs = self._generate()
        self._step("state.start")
        snapshots = {} if self._ends_stream() else self._write_snapshots()
        self._step("state.done")
        if jobs and not self._must_end():
            self._require_newest()
        for output_id, (output, rdd) in jobs.items():
            if self._must_end():
                break
            self._step("out.start")
            if self._engine.now_ms() - self._checked_ms >= _CHECK_MS:
                self._require_newest()
            if not self._must_end():
                self._run_output(output_id, output, rdd)
        if self._is_cancelled():
            ran = sum(info.failure is None for info in self._outputs)
            self._was_cut_off = self._engine.durability is not None or ran < len(jobs)
            return jobs
        if not self._must_end():
            # Where the stream goes on, a failed output does not undo the state: the next batch
            # builds on it, and the record says which outputs failed.
            self._commit(snapshots)
        self._leaves_waste = not self._must_end()
        return jobs

    def _step(self, name: str) -> None:
        fault(name, self._batch.batch_id)

    def _ends_stream(self) -> bool:
        """Whether the batch has failed, and no batch may run after it: it stays uncommitted."""
        is_failed = self._error is not None
        must_stop = self._engine.stops_on_failure or isinstance(self._error, DurabilityError)
        return is_failed and must_stop

    def _must_end(self) -> bool:
        return self._ends_stream() or self._is_cancelled()

    def _feed(self) -> None:
        # When one source failed, what was taken from the others must still reach the state.
        failure = self._engine.feed(self._batch)
        if failure is not None:
            self._may_run_outputs = False
            self._fail(failure.where, failure.error, _kind_of(failure.error))

    def _bridge(self) -> None:
        try:
            self._engine.bridge()
        except Exception as error:
            self._fail_state("making the state of earlier batches", error)

    def _make_states(self) -> None:
        """Make every version in the state store, before any output: once, also when that fails."""
        for node in self._engine.plan.stateful():
            try:
                self._engine.make_state(node, self._batch.time_ms)
            except Exception as error:
                self._fail_state(f"making the state of {node.operation}", error)

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
        for output_id, output in enumerate(self._engine.plan.outputs):
            try:
                rdd = self._engine.history.at(output.parent, self._batch.time_ms)
            except MissingInputError as error:
                self._fail(f"making the RDD for {output.operation}", error)
                self._unmade.add(output_id)
            except Exception as error:
                self._fail(f"making the RDD for {output.operation}", error)
                return {}
            else:
                if rdd is not None:
                    jobs[output_id] = (output, rdd)
        self._jobs = jobs
        return jobs

    def _write_snapshots(self) -> dict[Node, RddSnapshot]:
        """Make every state RDD, also when no output runs, and write the snapshots that are due."""
        snapshots: dict[Node, RddSnapshot] = {}
        for node in self._engine.plan.checkpointed():
            try:
                snapshot = self._engine.write_snapshot(node, self._batch.time_ms)
            except Exception as error:
                self._fail(f"writing the state of {node.operation}", error, _kind_of(error))
            else:
                if snapshot is not None:
                    snapshots[node] = snapshot
        return snapshots

    def _require_newest(self) -> None:
        """Let a driver that was replaced while it stood still run no output."""
        try:
            self._engine.require_newest()
            self._checked_ms = self._engine.now_ms()
        except Exception as error:
            self._fail("beginning its outputs", error, DurabilityError)

    def _run_output(self, output_id: int, output: OutputOperation, rdd: RDD[Any]) -> None:
        started_ms = self._engine.now_ms()
        planned = PlannedOutput(output_id, output.operation)
        self._engine.tell(OutputOperationStarted(self._batch.time_ms, planned, started_ms))
        failure: str | None = None
        try:
            batch = self._batch
            output.func(self._engine.batches.output_batch(batch.time_ms, batch.beginning), rdd)
        except Exception as error:
            failure = summarize(error)
            self._fail(output.operation, error, _kind_of(error))
        self._step("out.done")
        info = OutputOperationInfo(
            output_id, output.operation, started_ms, self._engine.now_ms(), failure
        )
        self._outputs.append(info)
        self._engine.tell(OutputOperationCompleted(self._batch.time_ms, info))

    def _commit(self, snapshots: dict[Node, RddSnapshot]) -> None:
        self._step("commit.start")
        try:
            self._engine.commit(self._batch, snapshots, self._failed_outputs())
        except Exception as error:
            self._fail("committing its state", error, DurabilityError)
        self._step("commit.done")

    def _failed_outputs(self) -> list[str]:
        """Uids of the outputs that should have run to their end and did not."""
        plan, time_ms = self._engine.plan, self._batch.time_ms
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
        self._step("clean.start")
        after = f"the batch at {self._batch.time_ms} ms"
        try:
            clean_up = self._engine.forget(self._batch)
        except Exception:
            logger.warning("cleaning up after %s failed", after, exc_info=True)
        else:
            if clean_up is not None:
                self._engine.janitor.post(after, clean_up)
        self._step("clean.done")

    def _fail(
        self, where: str, error: Exception, kind: type[BatchFailedError] = BatchFailedError
    ) -> None:
        """Keep the first error of the batch, but let nothing hide that the storage failed.

        What fails in a batch that is being cut off may well fail for that reason.
        """
        self._failed_by_itself |= kind is DurabilityError or not self._is_cancelled()
        if self._error is None or kind is DurabilityError:
            time_ms = self._batch.time_ms
            message = f"batch at {time_ms} ms failed in {where}: {summarize(error)}"
            if (remedy := self._engine.inputs.explain(error)) is not None:
                message = f"{message}; {remedy}"
            self._error = kind(message, time_ms)
            self._error.__cause__ = error

    def _info(self, started_ms: int, jobs: int) -> BatchInfo:
        outcome: Outcome = "succeeded" if jobs else "empty"
        failure = None if self._error is None else str(self._error)
        if self._was_cut_off and not self._failed_by_itself:
            outcome = "cancelled"
            failure = f"batch at {self._batch.time_ms} ms was cut off by a stop"
        elif failure is not None:
            outcome = "failed"
        inputs = self._engine.ended_inputs_of(self._batch)
        return BatchInfo(
            batch_id=self._batch.batch_id,
            batch_time_ms=self._batch.time_ms,
            records={info.name: info.records for info in inputs},
            submitted_ms=self._batch.submitted_ms,
            started_ms=started_ms,
            completed_ms=self._engine.now_ms(),
            outputs=tuple(self._outputs),
            outcome=outcome,
            failure=failure,
            inputs=inputs,
            states=self._engine.states_of(self._batch),
        )


def _kind_of(error: Exception) -> type[BatchFailedError]:
    """Return what a batch fails with: the stream goes on, unless its storage does not work."""
    return DurabilityError if stops_stream(error) else BatchFailedError
