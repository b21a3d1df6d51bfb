"""Skips the records for which a function fails, and gives them to a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark.blocks import CHUNK_ROWS
from dstreams.spark.failures import mapped
from dstreams.spark.rejected_records import Attempt, rejections, results
from dstreams.spark.stable_hash import stable_hash, stable_hashes
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    Task,
    mapped_records,
)
from dstreams.structured.sinks.sink import Sink

OnFailure = Sink | Literal["fail", "skip"]


class Attempting(Protocol):
    """An operator that skips records, as far as :func:`attempted` is concerned."""

    @property
    def child(self) -> PhysicalOperator: ...

    @property
    def onError(self) -> OnFailure: ...

    @property
    def where(self) -> str: ...

    def task(self, context: ExecutionContext) -> Task: ...


def attempted(operator: Attempting, context: ExecutionContext, at_once: int = 1) -> RDD[Any]:
    """Return the rows of an operator without the records for which its task fails.

    If *onError* is a sink, they go there, and the results are persisted, so that the function runs
    once for each record.
    """
    report = context.skipped(operator)
    are_events = operator.child.hasEventTime
    attempt = Attempt(
        operator.task(context), operator.where, context.time_ms, report, are_events, at_once
    )
    rows: RDD[Any] = PipelinedRDD(operator.child.execute(context), attempt)
    if isinstance(operator.onError, Sink):
        context.keep(rows)
        context.set_aside(operator.onError, PipelinedRDD(rows, rejections))
    done: RDD[Any] = PipelinedRDD(rows, results)
    return done


@dataclass(frozen=True)
class UsableKey:
    """Function: fails if *key* fails for a record, or returns no key."""

    key: Callable[[Any], Any]

    def __call__(self, record: Any) -> int:
        return stable_hash(self.key(record))

    def of_all(self, records: list[Any]) -> list[int]:
        """Call it for many records, faster."""
        return stable_hashes(list(set(mapped(self.key, records))))


@dataclass(frozen=True)
class TryExec(NarrowExec):
    """Passes on the records for which functions of the next operator succeed.

    It calls them for many records at once, and for one at a time where one fails.
    """

    nodeName: ClassVar[str] = "Try"

    functions: tuple[Callable[[Any], Any], ...]
    where: str
    onError: OnFailure

    @property
    def arguments(self) -> list[str]:
        return [self.where]

    @property
    def output(self) -> tuple[str, ...]:
        return self.child.output

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        return attempted(self, context, CHUNK_ROWS)

    def task(self, context: ExecutionContext) -> Task:
        return Trial(self.functions, self.where, self.child.hasEventTime)


@dataclass(frozen=True)
class Trial:
    """Task: records or events -> the same, after all functions have been called for them."""

    functions: tuple[Callable[[Any], Any], ...]
    where: str
    are_events: bool

    def __call__(self, _: int, rows: Iterable[Any]) -> list[Any]:
        rows = list(rows)
        records = [row[1] for row in rows] if self.are_events else rows
        for func in self.functions:
            mapped_records(func, records, self.where, getattr(func, "of_all", None))
        return rows
