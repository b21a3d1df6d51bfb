"""The interface of sinks of queries.

A batch that was not committed runs again with the same number and the same input, so a sink that
receives a number twice receives the same rows. An exactly-once sink skips them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.sinks.output_batch import AT_LEAST_ONCE, DeliveryGuarantee, OutputBatch
from dstreams.state.group_state import OutputMode


class Sink(ABC):
    """Base class of sinks, which write the rows of each batch.

    Attributes:
        modes: supported output modes.
        is_for_trials: whether a query may run without a checkpoint location.
        promise: delivery guarantee.
    """

    modes: ClassVar[tuple[OutputMode, ...]] = tuple(OutputMode)
    is_for_trials: ClassVar[bool] = True
    promise: DeliveryGuarantee = AT_LEAST_ONCE

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in progress reports."""

    def begin(self, query_id: str) -> None:  # noqa: B027 - most need nothing
        """Prepare for the first batch of a run; ``start`` raises the errors."""

    @abstractmethod
    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Write the rows of a batch, and return their number; None if counting costs a job."""

    def close(self) -> None:  # noqa: B027
        """Release resources; called once, at the end of a run."""
