"""Steps of several operators, one after the other, in the task that has the store open.

Restoring, merging and saving all look at the store of their partition, which has one writer. So the
operator that saves takes the steps of those below it, up to the next shuffle, and opens it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from checkpoint.state_store import StateStore, StateWriter
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.state_version import StateVersion
from dstreams.rdd.worker_gc import settle_worker

Row = tuple[Any, Any]
Rows = Iterator[Row]


class StateStep(Protocol):
    """What one operator does in the task that has the store of its partition open."""

    def __call__(self, store: StateWriter, rows: Rows, metrics: StateMetrics) -> Rows:
        """Return rows for rows, pairs (key, buffer); they are pulled to the end."""
        ...


@dataclass(frozen=True)
class StateSteps:
    """The function of a task: steps one after the other.

    The metrics are those of the last step, with late rows that any of them left out.
    """

    steps: tuple[StateStep, ...]

    def __call__(
        self, store: StateWriter, initial: Iterable[Row], records: Rows, metrics: StateMetrics
    ) -> Rows:
        rows: Rows = chain(initial, records)
        below = StateMetrics()
        for step in self.steps[:-1]:
            rows = step(store, rows, below)
        yield from self.steps[-1](store, rows, metrics)
        metrics.numRowsDroppedByWatermark += below.numRowsDroppedByWatermark


@dataclass(frozen=True)
class StepWithoutState:
    """Task: a step that asks for no state."""

    step: StateStep

    def __call__(self, _: int, rows: Iterable[Row]) -> Rows:
        settle_worker()
        return self.step(None, iter(rows), StateMetrics())  # type: ignore[arg-type]


@dataclass(frozen=True)
class StepThatReads:
    """Task: a step that changes no state, which is opened for reading."""

    step: StateStep
    store: StateStore
    version: StateVersion

    def __call__(self, split: int, rows: Iterable[Row]) -> Rows:
        settle_worker()
        with self.version.open(self.store, split) as reader:
            yield from self.step(reader, iter(rows), StateMetrics())  # type: ignore[arg-type]
