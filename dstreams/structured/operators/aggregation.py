"""Streaming aggregation: partial, shuffled, merged with the state, saved and put out.

::

    HashAggregate final                     buffers -> results
    +- StateStoreSave                       the state of the batch, and what goes out
       +- HashAggregate merge               old and new: one row a key
          +- StateStoreRestore              the old row in front of each new one
             +- HashAggregate merge         one row a key
                +- ShuffleExchange          to the partition of the key
                   +- HashAggregate partial records -> buffers, where they are

:func:`plan_aggregation` builds it. The operators below the final one run in two tasks: up to the
shuffle, and after it in one walk over the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, ClassVar

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.errors import InvalidStreamError
from dstreams.rdd.failures import failed
from dstreams.rdd.pair_columns import Columns, PairColumns, columns_of
from dstreams.rdd.shuffle import ROUTED_ROWS
from dstreams.rdd.worker_gc import settle_worker
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.aggregate_functions import (
    AggregateFunction,
    Count,
    is_count_of_records,
    is_finished,
)
from dstreams.structured.operators.aggregation_state import AggregateIntoState
from dstreams.structured.operators.copied_records import may_change_records, private_records
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    Task,
    UnaryExec,
)
from dstreams.structured.operators.stateful_operator import SavingOperator, ShuffleExchangeExec

_MOST_KEYS = 100_000
"""Keys that are held back before the shuffle; then they go out and others come."""


class AggregateMode(Enum):
    """Which part of an aggregation an operator does."""

    Partial = "partial"
    PartialMerge = "merge"
    Final = "final"


@dataclass(frozen=True)
class HashAggregateExec(NarrowExec):
    """One part of an aggregation.

    Semantics: HashAggregateExec (Spark 4.3).
    """

    keepsEventTime: ClassVar[bool] = False

    aggregate: AggregateFunction
    grouping: Grouping
    mode: AggregateMode
    where: str = "agg"

    @property
    def arguments(self) -> list[str]:
        function = getattr(self.aggregate, "__name__", type(self.aggregate).__name__)
        return [f"{self.mode.value} {function}", f"by {self.grouping.name}"]

    def task(self, context: ExecutionContext) -> Task:
        if self.mode is AggregateMode.Partial:
            are_events = self.child.hasEventTime
            return AggregateRecords(self.aggregate, self.grouping, are_events, self.where)
        if self.mode is AggregateMode.Final:
            return FinishRows(self.aggregate, self.grouping)
        return super().task(context)  # merging is done where the state is

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        if self.mode is not AggregateMode.Partial or not self.grouping.isGlobal:
            return super().execute(context)
        records = self.child.execute(context)
        if not records.getNumPartitions():  # all records are one group, also when there are none
            records = context.spark.parallelize([], 1)
        rows: RDD[Any] = PipelinedRDD(records, self.task(context))
        return rows


@dataclass(frozen=True)
class AggregateRecords:
    """Task: records or events -> (key, buffer); without a key always one row."""

    aggregate: AggregateFunction
    grouping: Grouping
    are_events: bool
    where: str = "agg"

    def __call__(self, _: int, rows: Iterable[Any]) -> PairColumns:
        settle_worker()
        return PairColumns(self._aggregated(rows))

    def _aggregated(self, rows: Iterable[Any]) -> Iterator[Columns]:
        total: dict[Any, Any] = Counter()
        if self.grouping.isGlobal:
            total[()] = self.aggregate.zero()
        add = self._count if is_count_of_records(self.aggregate) else self._reduce
        for keys, records in self._assigned(rows):
            add(total, keys, records)
            if len(total) >= _MOST_KEYS:
                yield from _columns(total)
                total.clear()
        yield from _columns(total)

    def _assigned(self, rows: Iterable[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
        if not self.grouping.overlaps:
            return self.grouping.assign_columns(rows, self.are_events)
        assigned = self.grouping.assign(rows, self.are_events)
        if may_change_records(self.aggregate):
            assigned = private_records(assigned, self.where)
        return columns_of(assigned)  # type: ignore[return-value]

    def _count(self, total: dict[Any, Any], keys: list[Any], _: list[Any]) -> None:
        try:
            total.update(keys)  # a Counter
        except Exception:
            for key in keys:  # one of them cannot be looked up; the error says which
                try:
                    total.get(key)
                except Exception as error:
                    raise failed(self.where, self.grouping.result_key(key), error) from error
            raise

    def _reduce(self, total: dict[Any, Any], keys: list[Any], records: list[Any]) -> None:
        zero, reduce = self.aggregate.zero, self.aggregate.reduce
        for key, record in zip(keys, records, strict=True):
            try:
                total[key] = reduce(total[key] if key in total else zero(), record)
            except Exception as error:
                raise failed(self.where, self.grouping.result_key(key), error) from error


def _columns(total: dict[Any, Any]) -> Iterator[Columns]:
    keys, buffers = iter(total), iter(total.values())
    while some := list(islice(keys, ROUTED_ROWS)):
        yield some, list(islice(buffers, ROUTED_ROWS))


@dataclass(frozen=True)
class FinishRows:
    """Task: (key, buffer) -> (key as it stands in the result, result)."""

    aggregate: AggregateFunction
    grouping: Grouping

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        result_key = self.grouping.result_keys()
        if is_finished(self.aggregate):
            return ((result_key(key), buffer) for key, buffer in rows)
        finish = self.aggregate.finish
        return ((result_key(key), finish(buffer)) for key, buffer in rows)


@dataclass(frozen=True)
class StateStoreRestoreExec(UnaryExec):
    """Brings the row of the state to each row, in the task of the operator that saves.

    Semantics: StateStoreRestoreExec (Spark 4.3).
    """

    keepsEventTime: ClassVar[bool] = False

    grouping: Grouping

    @property
    def arguments(self) -> list[str]:
        return [f"by {self.grouping.name}"]


@dataclass(frozen=True)
class StateStoreSaveExec(SavingOperator):
    """Writes one row for each key, and puts out what the output mode asks for.

    Semantics: StateStoreSaveExec (Spark 4.3).
    """

    child: HashAggregateExec
    grouping: Grouping

    @property
    def shortName(self) -> str:
        return "stateStoreSave"

    def function(self, memory_mb: float = 512) -> AggregateIntoState:
        if self.outputMode is None:
            raise InvalidStreamError("StateStoreSave: fill in outputMode before execution")
        if self.outputMode is OutputMode.Append and not self.grouping.hasWatermark:
            raise InvalidStreamError(
                "append mode needs an aggregation by windows of an event time with a watermark, or "
                "no row would ever be final; use withWatermark and window, or mode update"
            )
        return AggregateIntoState(
            self.child.aggregate,
            self.grouping,
            self.outputMode,
            self.eventTimeWatermarkForLateEvents,
            self.eventTimeWatermarkForEviction,
            self.child.where,
            memory_mb,
        )


def plan_aggregation(
    child: PhysicalOperator,
    grouping: Grouping,
    aggregate: AggregateFunction | None = None,
    *,
    numPartitions: int,
    outputMode: OutputMode | None = None,
    where: str = "agg",
) -> HashAggregateExec:
    """Return the operators of a streaming aggregation; without *aggregate* of a count.

    Semantics: StatefulAggregationStrategy (Spark 4.3).
    """
    function = Count() if aggregate is None else aggregate

    def part(below: PhysicalOperator, mode: AggregateMode) -> HashAggregateExec:
        return HashAggregateExec(below, function, grouping, mode, where)

    moved = ShuffleExchangeExec(part(child, AggregateMode.Partial), numPartitions)
    restored = StateStoreRestoreExec(part(moved, AggregateMode.PartialMerge), grouping)
    saved = StateStoreSaveExec(part(restored, AggregateMode.PartialMerge), grouping, outputMode)
    return part(saved, AggregateMode.Final)
