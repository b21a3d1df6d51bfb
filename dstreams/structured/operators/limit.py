"""Limits: the first rows of a stream over all its batches, and the first rows of a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from pyspark import RDD

from checkpoint.state_store import StateWriter
from dstreams.errors import InvalidStreamError
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.worker_gc import settle_worker
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.partitioning import (
    Distribution,
    Ordering,
    Partitioning,
    SinglePartition,
)
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    Task,
    UnaryExec,
)
from dstreams.structured.operators.stateful_operator import StateStoreWriter

_COUNT = ()


@dataclass(frozen=True)
class LimitRows:
    """Function of a store: emits rows until the limit, over all batches."""

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
class StreamingLocalLimitExec(NarrowExec):
    """The first rows of each partition, all under one key: ``((), row)``.

    Semantics: StreamingLocalLimitExec (Spark 4.3).
    """

    limit: int

    @property
    def arguments(self) -> list[str]:
        return [str(self.limit)]

    @property
    def output(self) -> tuple[str, ...]:
        return ("key", *self.child.output)

    def task(self, context: ExecutionContext) -> Task:
        return _LocalLimit(self.limit)


@dataclass(frozen=True)
class StreamingGlobalLimitExec(StateStoreWriter, UnaryExec):
    """The first rows of a stream, over all its batches, in one task.

    Rows of the child are ``((), row)``.

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

    @property
    def output(self) -> tuple[str, ...]:
        return self.child.output[1:]

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        return (self.clustered("limit", "limit"),)

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        return False

    def function(self, memory_mb: float = 512) -> LimitRows:
        return LimitRows(self.limit)


def plan_limit(child: PhysicalOperator, limit: int, *, numPartitions: int) -> PhysicalOperator:
    """Return the operators of a limit.

    Semantics: StreamingGlobalLimitStrategy (Spark 4.3).
    """
    few = StreamingLocalLimitExec(child, limit)
    return ensure_requirements(StreamingGlobalLimitExec(few, limit), numPartitions)


@dataclass(frozen=True)
class _LocalLimit:
    """Task: rows -> as many as may be emitted, under one key."""

    limit: int

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        settle_worker()
        for place, row in enumerate(rows):
            # Read to the end: operators below may count rows.
            if place < self.limit:
                yield _COUNT, row


@dataclass(frozen=True)
class LimitExec(UnaryExec):
    """The first rows, in the order of the child."""

    count: int

    @property
    def arguments(self) -> list[str]:
        return [str(self.count)]

    @property
    def outputPartitioning(self) -> Partitioning:
        return SinglePartition()

    @property
    def outputOrdering(self) -> Ordering:
        return self.child.outputOrdering

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        first = self.child.execute(context).mapPartitions(_First(self.count))
        return first.coalesce(1).mapPartitions(_First(self.count))


@dataclass(frozen=True)
class _First:
    count: int

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        remaining = iter(rows)
        first = [row for _, row in zip(range(self.count), remaining, strict=False)]
        for _ in remaining:  # Spark reuses a worker only after it has read its input
            pass
        return chain(first)
