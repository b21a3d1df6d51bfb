"""What a sink is.

A batch that was not committed runs again, with the same number and the same input, so a sink gets a
number twice only with the same rows; what it does then decides whether the output is exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.promise import AT_LEAST_ONCE, DeliveryGuarantee
from dstreams.state.group_state import OutputMode


class Sink(ABC):
    """Takes the rows of each batch.

    Attributes:
        modes: output modes that it can take.
        is_for_trials: whether a query may do without a checkpoint of its own.
        promise: how often a batch is in it.
    """

    modes: ClassVar[tuple[OutputMode, ...]] = tuple(OutputMode)
    is_for_trials: ClassVar[bool] = True
    promise: DeliveryGuarantee = AT_LEAST_ONCE

    @property
    @abstractmethod
    def name(self) -> str:
        """What progress calls it."""

    def begin(self, query_id: str) -> None:  # noqa: B027 - most need nothing
        """Get ready, before the first batch of a run; ``start`` raises what cannot be."""

    @abstractmethod
    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Take the rows of a batch, and return how many; None where counting costs a job."""

    def close(self) -> None:  # noqa: B027
        """Give up what is open; once, at the end of a run."""
