"""Limits: the first rows of a stream over all its batches, and the first rows of a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from pyspark import RDD

from checkpoint.state_store import StateWriter
from dstreams.errors import InvalidStreamError
from dstreams.spark.state_version import StateMetrics
from dstreams.spark.worker_gc import settle_worker
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    Distribution,
    NarrowExec,
    Ordering,
    Partitioning,
    PhysicalOperator,
    SinglePartition,
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
        return partial(_local_limit, self.limit)


@dataclass(frozen=True)
class StreamingGlobalLimitExec(StateStoreWriter, UnaryExec):
    """The first rows of a stream, over all its batches, in one task.

    Rows of the child are ``((), row)``.

    Semantics: StreamingGlobalLimitExec (Spark 4.3).
    """

    shortName: ClassVar[str] = "globalLimit"

    limit: int

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise InvalidStreamError(f"limit of {self.limit} rows must not be negative")

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


def _local_limit(limit: int, _: int, rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    settle_worker()
    return ((_COUNT, row) for row in _first(limit, rows))


def _first(limit: int, rows: Iterable[Any]) -> Iterator[Any]:
    # Read to the end: operators below may count rows, and Spark reuses a worker only then.
    return (row for place, row in enumerate(rows) if place < limit)


@dataclass(frozen=True)
class LimitExec(UnaryExec):
    """The first rows, in the order of the child."""

    outputPartitioning: ClassVar[Partitioning] = SinglePartition()

    count: int

    @property
    def arguments(self) -> list[str]:
        return [str(self.count)]

    @property
    def outputOrdering(self) -> Ordering:
        return self.child.outputOrdering

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        first = partial(_first, self.count)
        return self.child.execute(context).mapPartitions(first).coalesce(1).mapPartitions(first)
