"""What a sink is.

A batch that was not committed runs again, with the same number and the same input, so a sink gets a
number twice only with the same rows; what it does then decides whether the output is exactly once.
"""

from __future__ import annotations

from typing import Any, Protocol

from pyspark import RDD

from dstreams.sinks.output_batch import OutputBatch
from dstreams.state.group_state import OutputMode

ALL_MODES = (OutputMode.Append, OutputMode.Update, OutputMode.Complete)


class Sink(Protocol):
    """Takes the rows of each batch."""

    @property
    def name(self) -> str:
        """What progress calls it."""
        ...

    @property
    def modes(self) -> tuple[OutputMode, ...]:
        """Output modes that it can take."""
        ...

    @property
    def is_for_trials(self) -> bool:
        """Whether a query may do without a checkpoint of its own."""
        ...

    def begin(self, query_id: str) -> None:
        """Get ready, before the first batch of a run; ``start`` raises what cannot be.

        *batch_of* returns the batches of this run; None where nothing is known but the id.
        """
        ...

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Take the rows of a batch, and return how many; None where counting costs a job."""
        ...

    def close(self) -> None:
        """Give up what is open; once, at the end of a run."""
        ...
