"""Streaming aggregation: partial, shuffled, merged with the state, saved and emitted.

::

    HashAggregate final                     buffers -> results
    +- StateStoreSave                       saves the rows, and emits by output mode
       +- HashAggregate merge               old and new: one row a key
          +- StateStoreRestore              the stored row in front of each new one
             +- HashAggregate merge         one row a key
                +- Exchange                 to the partition of the key
                   +- HashAggregate partial records -> buffers, where they are

:func:`plan_aggregation` builds it. The operators from the exchange up to StateStoreSave run in one
task. :mod:`dstreams.structured.operators.fusion` has the rule that executes them as one function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.arrow.aggregates.functions import (
    AggregateFunction,
    Count,
    is_count_of_records,
    is_finished,
    may_change_records,
    private_records,
)
from dstreams.spark.blocks import Columns, PairColumns, columns_of
from dstreams.spark.failures import failed
from dstreams.spark.shuffle import ROUTED_ROWS
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.group_state import OutputMode
from dstreams.structured.named_rows import ResultRows, pairs_of
from dstreams.structured.operators.aggregation_state import (
    MergeRows,
    Report,
    RestoreRows,
    SaveRows,
    StreamingAggregationStateManager,
    create_aggregation_state_manager,
    require_output_mode,
)
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import ExecutionContext, describe_state_info
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.physical_operator import (
    BY_KEY,
    UNKNOWN,
    UNORDERED,
    UNSPECIFIED,
    Distribution,
    NarrowExec,
    Ordering,
    Partitioning,
    PhysicalOperator,
    StatefulOpClusteredDistribution,
    Task,
    UnaryExec,
)
from dstreams.structured.operators.stateful_operator import SavingOperator, StateStoreReader

_MOST_KEYS = 100_000
"""The most keys that are aggregated before the shuffle."""


class AggregateMode(Enum):
    """The part of an aggregation that an operator computes."""

    Partial = "partial"
    PartialMerge = "merge"
    Final = "final"


@dataclass(frozen=True)
class HashAggregateExec(NarrowExec):
    """One part of an aggregation.

    =============  ===========================  =================================================
    mode           rows of the child            rows out
    =============  ===========================  =================================================
    Partial        records or events            (key, buffer), nearly always one for each key
    PartialMerge   (key, buffer)                (key, buffer), one for each key of the partition
    Final          (key, buffer)                rows of results
    =============  ===========================  =================================================

    Without a grouping key, Partial emits one row for each partition, also for an empty one.
    PartialMerge keeps the order of the child: of the buffers of a key, and of first rows of keys.
    Rows of results have the fields of *result*; without it they are (key, result).

    Semantics: HashAggregateExec (Spark 4.3).
    """

    keepsEventTime: ClassVar[bool] = False

    aggregate: AggregateFunction
    grouping: Grouping
    mode: AggregateMode
    where: str = "agg"
    result: ResultRows | None = None

    @property
    def arguments(self) -> list[str]:
        function = getattr(self.aggregate, "__name__", type(self.aggregate).__name__)
        return [f"{self.mode.value} {function}", f"by {self.grouping.name}"]

    @property
    def output(self) -> tuple[str, ...]:
        if self.mode is not AggregateMode.Final:
            return ("key", "buffer")
        return ("key", "result") if self.result is None else self.result.names

    @property
    def outputPartitioning(self) -> Partitioning:
        merges = self.mode is AggregateMode.PartialMerge
        return self.child.outputPartitioning if merges else UNKNOWN

    @property
    def outputOrdering(self) -> Ordering:
        return BY_KEY if self.mode is AggregateMode.PartialMerge else UNORDERED

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        if self.mode is AggregateMode.PartialMerge:
            return (StatefulOpClusteredDistribution(self.grouping.name),)
        return (UNSPECIFIED,)

    def task(self, context: ExecutionContext) -> Task:
        if self.mode is AggregateMode.Partial:
            are_events = self.child.hasEventTime
            return AggregateRecords(self.aggregate, self.grouping, are_events, self.where)
        if self.mode is AggregateMode.Final:
            return partial(finish_rows, self.aggregate, self.grouping, self.result)
        return MergeRows(self.aggregate, self.grouping, self.where, context.memory_mb)

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        self.requireInput()
        records = self.child.execute(context)
        is_total = self.mode is AggregateMode.Partial and self.grouping.isGlobal
        if is_total and not records.getNumPartitions():
            records = context.spark.parallelize([], 1)  # one row even without records
        merges = self.mode is AggregateMode.PartialMerge
        rows: RDD[Any] = PipelinedRDD(records, self.task(context), preservesPartitioning=merges)
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
            for key in keys:  # find the key that fails
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


def finish_rows(
    aggregate: AggregateFunction,
    grouping: Grouping,
    result: ResultRows | None,
    _: int,
    rows: Iterable[Any],
) -> Iterator[Any]:
    """Make rows of results, or (key of the result, result), of (key, buffer)."""
    settle_worker()
    finish = None if is_finished(aggregate) else aggregate.finish
    rows_of = pairs_of if result is None else result.rows
    return rows_of(rows, grouping.result_keys(), finish)


@dataclass(frozen=True)
class StateStoreRestoreExec(StateStoreReader, UnaryExec):
    """Puts the stored row of its key, if there is one, in front of each row of the child.

    A partition without rows emits nothing or, without grouping keys, all stored rows: so a total
    over no records does not overwrite the stored one. Output, partitioning and order are the
    child's. ``numOutputRows`` counts the rows of the child.

    Semantics: StateStoreRestoreExec (Spark 4.3), but for the metric, which counts stored rows too
    there.
    """

    keepsEventTime: ClassVar[bool] = False

    keyExpressions: Grouping
    stateFormatVersion: int = 2

    @property
    def stateManager(self) -> StreamingAggregationStateManager:
        return create_aggregation_state_manager(self.stateFormatVersion)

    @property
    def arguments(self) -> list[str]:
        state = describe_state_info(self.stateInfo)
        return [f"by {self.keyExpressions.name}", state, str(self.stateFormatVersion)]

    @property
    def outputOrdering(self) -> Ordering:
        return self.child.outputOrdering

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        return (self.clustered(self.keyExpressions.name),)

    def function(self, report: Report) -> RestoreRows:
        return RestoreRows(self.stateManager, self.keyExpressions.isGlobal, report)


@dataclass(frozen=True)
class StateStoreSaveExec(SavingOperator):
    """Saves one row for each key, evicts what the watermark has passed, and emits by output mode.

    ========  ============  =====================================  ===========================
    mode      late rows     evicted                                emitted
    ========  ============  =====================================  ===========================
    Complete  kept          nothing                                all stored rows
    Append    dropped       rows that the watermark has passed     the evicted rows
    Update    dropped       rows that the watermark has passed     the rows that were saved
    ========  ============  =====================================  ===========================

    Execution requires the output mode.

    Semantics: StateStoreSaveExec (Spark 4.3).
    """

    shortName: ClassVar[str] = "stateStoreSave"

    keyExpressions: Grouping
    stateFormatVersion: int = 2

    @property
    def stateManager(self) -> StreamingAggregationStateManager:
        return create_aggregation_state_manager(self.stateFormatVersion)

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, str(self.stateFormatVersion)]

    def function(self, memory_mb: float = 512) -> SaveRows:
        return SaveRows(
            self.stateManager,
            self.keyExpressions,
            require_output_mode(self.outputMode, self.keyExpressions),
            self.eventTimeWatermarkForLateEvents,
            self.eventTimeWatermarkForEviction,
        )


def plan_aggregation(
    child: PhysicalOperator,
    grouping: Grouping,
    aggregate: AggregateFunction | None = None,
    *,
    numPartitions: int,
    outputMode: OutputMode | None = None,
    stateFormatVersion: int = 2,
    where: str = "agg",
    keepsState: bool = True,
    result: ResultRows | None = None,
) -> PhysicalOperator:
    """Return the operators of a streaming aggregation, by default a count.

    Without *keepsState* they are those of a batch dataset, which merge the rows of each key once.

    Semantics: StatefulAggregationStrategy (Spark 4.3).
    """
    function = Count() if aggregate is None else aggregate

    def part(below: PhysicalOperator, mode: AggregateMode) -> HashAggregateExec:
        return HashAggregateExec(below, function, grouping, mode, where)

    def finished(below: PhysicalOperator) -> PhysicalOperator:
        return ensure_requirements(
            replace(part(below, AggregateMode.Final), result=result), numPartitions
        )

    merged = part(part(child, AggregateMode.Partial), AggregateMode.PartialMerge)
    if not keepsState:
        return finished(merged)
    restored = StateStoreRestoreExec(merged, grouping, stateFormatVersion)
    both = part(restored, AggregateMode.PartialMerge)
    saved = StateStoreSaveExec(both, grouping, outputMode, stateFormatVersion)
    return finished(saved)
