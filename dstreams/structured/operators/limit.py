"""StreamingGlobalLimitExec: the first rows of a stream, over all its batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyspark.rdd import PipelinedRDD

from checkpoint.state_store import StateWriter
from dstreams.errors import InvalidStreamError
from dstreams.kernel.state_versions import StateUpdate
from dstreams.rdd.shuffle import shuffle_pairs
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.rdd.worker_gc import settle_worker
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import StatefulOperator, UnaryExec

_COUNT = ()


@dataclass(frozen=True)
class LimitRows:
    """Function of a task: lets rows pass until so many have, in this batch and those before."""

    limit: int

    def __call__(
        self,
        store: StateWriter,
        initial: Iterable[Any],
        records: Iterator[tuple[Any, Any]],
        metrics: StateMetrics,
    ) -> Iterator[Any]:
        before = store.get(_COUNT) or 0
        for _, row in islice(records, max(self.limit - before, 0)):
            metrics.numOutputRows += 1
            yield row
        if metrics.numOutputRows:
            store.put(_COUNT, before + metrics.numOutputRows)
            metrics.numUpdatedStateRows += 1


@dataclass(frozen=True)
class StreamingGlobalLimitExec(StatefulOperator, UnaryExec):
    """The first rows of a stream; all of them pass one task.

    Semantics: StreamingGlobalLimitExec (Spark 4.3).
    """

    limit: int

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise InvalidStreamError(f"limit of {self.limit} rows must not be negative")

    @property
    def shortName(self) -> str:
        return "globalLimit"

    @property
    def arguments(self) -> list[str]:
        return [str(self.limit), self.watermarkArguments[0]]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        return False

    def update(self, context: ExecutionContext) -> StateUpdate:
        info = self.getStateInfo()
        few = PipelinedRDD(self.child.execute(context), _LocalLimit(self.limit))
        blocks = shuffle_pairs(few, info.partitioner, operation="limit", ordered=True)
        return StateUpdate(info.before, [blocks], LimitRows(self.limit))


@dataclass(frozen=True)
class _LocalLimit:
    """Task: no more rows of a partition than can go out, under one key."""

    limit: int

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        settle_worker()
        for place, row in enumerate(rows):
            # Read to the end: what is below may count or gather as it goes.
            if place < self.limit:
                yield _COUNT, row
