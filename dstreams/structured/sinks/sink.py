"""What a sink is.

A batch that was not committed runs again, with the same number and the same input, so a sink is
given a number twice only with the same rows; what it does the second time decides whether the
output is there exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pyspark import RDD

from dstreams.sinks.output_batch import OutputBatch
from dstreams.state.group_state import OutputMode

ALL_MODES = (OutputMode.Append, OutputMode.Update, OutputMode.Complete)


BatchOf = Callable[[int], OutputBatch]
"""``f(number of a batch that was begun) -> the batch, as outputs are told of it``."""


class Sink(Protocol):
    """Takes the rows of each batch."""

    @property
    def name(self) -> str:
        """What it is, for progress."""
        ...

    @property
    def modes(self) -> tuple[OutputMode, ...]:
        """Output modes that it can take."""
        ...

    @property
    def is_for_trials(self) -> bool:
        """Whether a query may do without a checkpoint of its own."""
        ...

    def begin(self, query_id: str, batch_of: BatchOf | None = None) -> None:
        """Get ready, before the first batch of a run; what cannot be is raised by ``start``."""
        ...

    def add_batch(self, batch_id: int, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Take the rows of a batch, and return how many; None where counting costs a job."""
        ...

    def close(self) -> None:
        """Give up what is open; once, at the end of a run."""
        ...
