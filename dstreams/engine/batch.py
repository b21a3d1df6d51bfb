"""A batch as a value: its input and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dstreams.errors import BatchFailedError
from dstreams.graph.node import InputDStream
from dstreams.monitoring.events import BatchInfo, InputInfo, PendingBatch, PlannedOutput
from dstreams.sources.source import PlannedInput


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
    """The result of a batch.

    Args:
        info: the batch as listeners see it.
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
