"""A batch as a value: what it reads, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dstreams.errors import BatchFailedError
from dstreams.graph.input import InputDStream
from dstreams.monitoring.events import BatchInfo, InputInfo, PendingBatch, PlannedOutput
from dstreams.sources.source import PlannedInput


@dataclass(frozen=True)
class InputFailure:
    """Why a batch cannot have its input: where something failed, and what was raised there."""

    where: str
    error: Exception


@dataclass(frozen=True)
class Batch:
    """A batch whose input is fixed, and what is told of it.

    Args:
        submitted_ms: clock when the input was fixed.
        failure: why the input could not be fixed, None when it could.
        after_ms: time of the batch before it, where batches between the two are left out; None
            where it is one batch duration before.
        beginning: random id of its begin record; empty without a checkpoint directory.
        outputs: the outputs that have a turn.
        planning_ms: how long each phase of planning took.
    """

    batch_id: int
    time_ms: int
    inputs: Mapping[InputDStream, PlannedInput]
    submitted_ms: int
    failure: InputFailure | None = None
    after_ms: int | None = None
    beginning: str = ""
    input_infos: tuple[InputInfo, ...] = ()
    outputs: tuple[PlannedOutput, ...] = ()
    planning_ms: Mapping[str, int] = field(default_factory=dict)

    def pending(self, started_ms: int | None = None) -> PendingBatch:
        """Return what is told of a batch that has not run to its end."""
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
    """What became of a batch that ran.

    Args:
        info: what is told of it.
        error: what it failed with, None where it did not.
        ends_stream: whether no batch may run after it.
        spark_ended: whether Spark ended while it ran; it is not committed then.
        left_out: what to say of outputs that it was committed without; empty for none.
    """

    info: BatchInfo
    error: BatchFailedError | None
    ends_stream: bool = False
    spark_ended: bool = False
    left_out: str = ""
