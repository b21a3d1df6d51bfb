"""Batches as values, and the steps that a batch of a stream or query runs through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark import SparkContext

from checkpoint import FenceChecks
from dstreams.common.clock import Clock
from dstreams.common.faults import fault, steps
from dstreams.errors import BatchFailedError, EnvironmentNotReadyError
from dstreams.graph.node import InputDStream
from dstreams.monitoring.events import (
    BatchInfo,
    EventHandler,
    InputInfo,
    OutputOperationCompleted,
    OutputOperationInfo,
    OutputOperationStarted,
    PendingBatch,
    PlannedOutput,
)
from dstreams.monitoring.progress import PhaseTimer
from dstreams.sources.source import PlannedInput
from dstreams.spark import jvm
from dstreams.spark.failures import located
from dstreams.spark.job_labels import doing, jobs_since, next_job_id_if_known

_FENCE_CHECK_MS = 500
"""The fence is checked again before an output that starts later than that after the last check."""


@dataclass(frozen=True)
class InputFailure:
    """The error that kept a batch from having its input, and the step that raised it."""

    where: str
    error: Exception


@dataclass(frozen=True)
class Batch:
    """A batch whose input is fixed.

    Args:
        submitted_ms: clock when the input was fixed.
        failure: why the input could not be fixed, None if it could.
        after_ms: time of the previous batch if batches between the two are skipped, else None.
        batch_token: random id of its begin record; empty without a checkpoint directory.
        outputs: the outputs that run in this batch.
        planning_ms: duration of each phase of planning.
    """

    batch_id: int
    time_ms: int
    inputs: Mapping[InputDStream, PlannedInput]
    submitted_ms: int
    failure: InputFailure | None = None
    after_ms: int | None = None
    batch_token: str = ""
    input_infos: tuple[InputInfo, ...] = ()
    outputs: tuple[PlannedOutput, ...] = ()
    planning_ms: Mapping[str, int] = field(default_factory=dict)

    def pending(self, started_ms: int | None = None) -> PendingBatch:
        """Return the batch as listeners see it before its end."""
        return PendingBatch(
            self.batch_id,
            self.time_ms,
            self.input_infos,
            self.outputs,
            self.submitted_ms,
            started_ms,
        )


@dataclass(frozen=True)
class BatchResult:
    """The result of a batch; *info* is the batch as listeners see it.

    Args:
        error: the error it failed with, None if it succeeded.
        ends_stream: whether no batch may run after it.
        spark_ended: whether Spark ended while it ran; it is not committed then.
        failed_outputs: a message about outputs that it was committed without; empty if none failed.
    """

    info: BatchInfo
    error: BatchFailedError | None
    ends_stream: bool = False
    spark_ended: bool = False
    failed_outputs: str = ""


class BatchRun(ABC):
    """One batch from its input to its commit. A step that raises ends the batch."""

    def __init__(
        self,
        spark: SparkContext,
        clock: Clock,
        notify: EventHandler,
        batch_id: int,
        timer: PhaseTimer,
        fence: FenceChecks | None,
    ) -> None:
        self.spark = spark
        self.clock = clock
        self.notify = notify
        self.batch_id = batch_id
        self.timer = timer
        self._fence = fence
        self._fence_checked_ms = 0
        self.outputs: list[OutputOperationInfo] = []

    def run_steps(self) -> None:
        """Run the batch, which has begun: so the first fence check can start."""
        fault("job.submit", self.batch_id)
        self._start_fence_check()
        doing("input")
        with self.timer.phase("getBatch"):
            self.read()
        with steps("state", self.batch_id):
            self.make_state()
        self.run_outputs()
        doing("commit")
        self.require_spark()
        with self.timer.phase("commitOffsets"):
            self.commit()

    @abstractmethod
    def read(self) -> None:
        """Create the RDDs of the inputs."""

    @abstractmethod
    def make_state(self) -> None:
        """Make the new versions of all states, and the RDDs of the outputs."""

    @abstractmethod
    def run_outputs(self) -> None:
        """Check the fence, then run each output by :meth:`run_output`."""

    @abstractmethod
    def commit(self) -> None:
        """Write the commit record and notify the sources."""

    def run_output(
        self, batch_time_ms: int, planned: PlannedOutput, write: Callable[[], int | None]
    ) -> None:
        """Run one output and report it to listeners; *write* returns its rows, None if unknown."""
        started_ms = self.clock.now_ms()
        self.notify(OutputOperationStarted(batch_time_ms, planned, started_ms))
        first_job = next_job_id_if_known(self.spark)
        rows: int | None = None
        failure: str | None = None
        try:
            rows = write()
        except BaseException as error:
            failure = located(error)
            raise
        finally:
            done = OutputOperationInfo(
                planned.output_id,
                planned.name,
                started_ms,
                self.clock.now_ms(),
                failure,
                rows,
                jobs_since(self.spark, first_job),
            )
            self.outputs.append(done)
            self.notify(OutputOperationCompleted(batch_time_ms, done))

    def require_newest(self) -> None:
        """Keep a driver that was replaced while it was paused from running outputs.

        Raises ConcurrentWriterError if another driver has taken over; CheckpointError.
        """
        if self.clock.now_ms() - self._fence_checked_ms >= _FENCE_CHECK_MS:
            self._start_fence_check()
        if self._fence is not None:
            self._fence.wait()

    def _start_fence_check(self) -> None:
        self._fence_checked_ms = self.clock.now_ms()
        if self._fence is not None:
            self._fence.start()

    def require_spark(self) -> None:
        """Raise if Spark has ended: an output may have hidden that its jobs failed."""
        if not jvm.is_running(self.spark):
            raise EnvironmentNotReadyError(
                "the SparkContext was stopped, or its JVM ended, while the batch ran; it is not "
                "committed, and the next start runs it again"
            )
