"""The course of one batch, of a stream or of a query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from pyspark import SparkContext

from dstreams.common.clock import Clock
from dstreams.common.faults import fault, steps
from dstreams.errors import EnvironmentNotReadyError
from dstreams.monitoring.events import (
    EventHandler,
    OutputOperationCompleted,
    OutputOperationInfo,
    OutputOperationStarted,
    PlannedOutput,
)
from dstreams.monitoring.progress import PhaseTimer
from dstreams.spark import jvm
from dstreams.spark.failures import located
from dstreams.spark.job_labels import doing, jobs_since, next_job_id


class BatchRun(ABC):
    """One batch from its input to its commit. A step that raises ends the batch."""

    def __init__(
        self,
        spark: SparkContext,
        clock: Clock,
        tell: EventHandler,
        batch_id: int,
        timer: PhaseTimer,
    ) -> None:
        self.spark = spark
        self.clock = clock
        self.tell = tell
        self.batch_id = batch_id
        self.timer = timer
        self.outputs: list[OutputOperationInfo] = []

    def run_steps(self) -> None:
        """Run the batch."""
        fault("job.submit", self.batch_id)
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
        self.tell(OutputOperationStarted(batch_time_ms, planned, started_ms))
        first_job = next_job_id(self.spark)
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
            self.tell(OutputOperationCompleted(batch_time_ms, done))

    def require_spark(self) -> None:
        """Raise if Spark has ended: an output may have hidden that its jobs failed."""
        if not jvm.is_running(self.spark):
            raise EnvironmentNotReadyError(
                "the SparkContext was stopped, or its JVM ended, while the batch ran; it is not "
                "committed, and the next start runs it again"
            )
