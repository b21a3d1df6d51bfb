"""What is told about a batch: frozen values, made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["succeeded", "failed", "empty"]


@dataclass(frozen=True)
class OutputOperationInfo:
    """One output operation of one batch.

    Args:
        output_id: 0, 1, 2, ... in order of registration.
        name: operation and call site, for example ``pprint at app.py:20``.
        started_ms: clock when it began, milliseconds since the epoch.
        completed_ms: clock when it ended.
        failure: why it failed, None when it succeeded.
    """

    output_id: int
    name: str
    started_ms: int
    completed_ms: int
    failure: str | None


@dataclass(frozen=True)
class BatchInfo:
    """One batch that ran.

    All times are milliseconds since the epoch. ``batch_time_ms`` is the logical time of the batch,
    the others are readings of the driver's clock.

    Args:
        batch_id: 0 for the first batch of the stream, then 1, 2, ...
        batch_time_ms: the batch time.
        records: how many records each source gave, by the source's name; None where counting would
            have cost a job.
        submitted_ms: when its input was fixed.
        started_ms: when it began to run.
        completed_ms: when it had run.
        outputs: outcome of each output operation that had an RDD, in order.
        outcome: ``succeeded``, ``failed``, or ``empty`` when no output had an RDD.
        failure: why it failed, None when it did not.
    """

    batch_id: int
    batch_time_ms: int
    records: Mapping[str, int | None]
    submitted_ms: int
    started_ms: int
    completed_ms: int
    outputs: tuple[OutputOperationInfo, ...]
    outcome: Outcome
    failure: str | None

    @property
    def scheduling_delay_ms(self) -> int:
        """How long the batch waited for earlier ones."""
        return self.started_ms - self.submitted_ms

    @property
    def processing_delay_ms(self) -> int:
        """How long the batch ran."""
        return self.completed_ms - self.started_ms

    @property
    def total_delay_ms(self) -> int:
        """Waiting and running together."""
        return self.completed_ms - self.submitted_ms
