"""Physical operators without state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD
from pyspark.shuffle import ExternalSorter

from dstreams.common.callables import describe
from dstreams.common.sql_values import sort_key
from dstreams.spark.element_tasks import Filter, FlatMap, Map
from dstreams.spark.failures import UserFunctionError, failed
from dstreams.spark.selectors import show
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.function_errors import PLAIN_ROWS, require_rows
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.partitioning import Ordering, Partitioning, SinglePartition
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    Task,
    UnaryExec,
)

if TYPE_CHECKING:
    from dstreams.structured.plan.logical import ElementKind

_ELEMENTS: dict[ElementKind, Callable[[Callable[[Any], Any], str], Task]] = {
    "map": Map,
    "flatMap": FlatMap,
    "filter": Filter,
}
_NAMES = {"map": "MapElements", "flatMap": "FlatMapElements", "filter": "Filter"}


@dataclass(frozen=True)
class StreamingRelationExec(PhysicalOperator):
    """The records of a source in a batch."""

    number: int
    name: str
    fields: tuple[str, ...] | None = None
    rdd: RDD[Any] | None = None

    @property
    def nodeName(self) -> str:
        return "StreamingRelation"

    @property
    def arguments(self) -> list[str]:
        return [self.name] if self.fields is None else [self.name, f"[{', '.join(self.fields)}]"]

    @property
    def output(self) -> tuple[str, ...]:
        return ("value",) if self.fields is None else self.fields

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        return context.spark.emptyRDD() if self.rdd is None else self.rdd


@dataclass(frozen=True)
class ElementsExec(NarrowExec):
    """A function of each record; rows of an event keep its time."""

    func: Callable[[Any], Any]
    kind: ElementKind

    @property
    def nodeName(self) -> str:
        return _NAMES[self.kind]

    @property
    def arguments(self) -> list[str]:
        return [show(self.func)]

    @property
    def output(self) -> tuple[str, ...]:
        return self.child.output if self.kind == "filter" else ("value",)

    def task(self, context: ExecutionContext) -> Task:
        func = _RowsOf(self.func) if self.kind == "flatMap" else self.func
        where = f"{self.kind}({describe(self.func)})"
        if self.child.hasEventTime:
            return _OfEvents(func, self.kind, where)
        return _ELEMENTS[self.kind](func, where)


@dataclass(frozen=True)
class _RowsOf:
    """Function: the rows that a user's function returns for a record, checked."""

    func: Callable[[Any], Any]

    def __call__(self, record: Any) -> Any:
        returned = self.func(record)
        if type(returned) not in PLAIN_ROWS:
            require_rows(returned, f"flatMap({describe(self.func)})", "record", record)
        return returned


@dataclass(frozen=True)
class _OfEvents:
    """Task: events -> events."""

    func: Callable[[Any], Any]
    kind: ElementKind
    where: str

    def __call__(self, _: int, events: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        if self.kind == "map":
            return self._mapped(events)
        return self._kept(events) if self.kind == "filter" else self._rows(events)

    def _mapped(self, events: Iterable[Any]) -> Iterator[Any]:
        func = self.func
        for time_us, record in events:
            try:
                mapped = func(record)
            except Exception as error:
                raise failed(self.where, record, error, "record") from error
            yield time_us, mapped

    def _kept(self, events: Iterable[Any]) -> Iterator[Any]:
        func = self.func
        for event in events:
            try:
                is_kept = func(event[1])
            except Exception as error:
                raise failed(self.where, event[1], error, "record") from error
            if is_kept:
                yield event

    def _rows(self, events: Iterable[Any]) -> Iterator[Any]:
        func = self.func
        for time_us, record in events:
            try:
                for row in func(record):
                    yield time_us, row
            except Exception as error:
                raise failed(self.where, record, error, "record") from error


@dataclass(frozen=True)
class UnionExec(PhysicalOperator):
    """The rows of both children; if one lacks event times, its rows get None."""

    left: PhysicalOperator
    right: PhysicalOperator

    @property
    def hasEventTime(self) -> bool:
        return self.left.hasEventTime or self.right.hasEventTime

    @property
    def output(self) -> tuple[str, ...]:
        return self.left.output

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rdds = [
            PipelinedRDD(rows, _without_time)
            if self.hasEventTime and not child.hasEventTime
            else rows
            for child in (self.left, self.right)
            for rows in (child.execute(context),)
        ]
        return rdds[0].union(rdds[1])


def _without_time(_: int, rows: Iterable[Any]) -> Iterator[Any]:
    return ((None, row) for row in rows)


@dataclass(frozen=True)
class WindowTimeExec(NarrowExec):
    """Gives rows of an aggregation the event time of their key: for a window its last millisecond.

    Semantics: pyspark.sql.functions.window_time.
    """

    time: Callable[[Any], int | None]

    @property
    def hasEventTime(self) -> bool:
        return True

    def task(self, context: ExecutionContext) -> Task:
        return _Timed(self.time, are_events=False)


@dataclass(frozen=True)
class TimedExec(NarrowExec):
    """Gives rows an event time without a watermark."""

    time: Callable[[Any], int | None]

    @property
    def hasEventTime(self) -> bool:
        return True

    def task(self, context: ExecutionContext) -> Task:
        return _Timed(self.time, self.child.hasEventTime)


@dataclass(frozen=True)
class _Timed:
    time: Callable[[Any], int | None]
    are_events: bool

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        records = (event[1] for event in rows) if self.are_events else rows
        return ((self.time(record), record) for record in records)


@dataclass(frozen=True)
class AppendKeyExec(NarrowExec):
    """Pairs each row with its key: ``(key, row)``; a row is a record or an event."""

    key: Callable[[Any], Any]
    name: str

    @property
    def nodeName(self) -> str:
        return "AppendColumns"

    @property
    def arguments(self) -> list[str]:
        return [self.name]

    @property
    def output(self) -> tuple[str, ...]:
        return ("key", *self.child.output)

    def task(self, context: ExecutionContext) -> Task:
        return _AppendKey(self.key, self.child.hasEventTime)


@dataclass(frozen=True)
class _AppendKey:
    key: Callable[[Any], Any]
    are_events: bool

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        key = self.key
        if self.are_events:
            return ((key(event[1]), event) for event in rows)
        return ((key(row), row) for row in rows)


@dataclass(frozen=True)
class RecordsExec(NarrowExec):
    """Removes the event times: the last step of a query."""

    @property
    def nodeName(self) -> str:
        return "SerializeFromObject"

    @property
    def hasEventTime(self) -> bool:
        return False

    def task(self, context: ExecutionContext) -> Task:
        return _records if self.child.hasEventTime else _unchanged


def _records(_: int, events: Iterable[Any]) -> Iterator[Any]:
    return (record for _, record in events)


def _unchanged(_: int, rows: Iterable[Any]) -> Iterator[Any]:
    return iter(rows)


@dataclass(frozen=True)
class SortExec(UnaryExec):
    """All rows in order, in one partition."""

    key: Callable[[Any], Any]
    ascending: bool = True

    @property
    def arguments(self) -> list[str]:
        return [f"[{self._order}]", "true"]

    @property
    def _order(self) -> str:
        return f"{show(self.key)} {'ASC' if self.ascending else 'DESC'}"

    @property
    def outputPartitioning(self) -> Partitioning:
        return SinglePartition()

    @property
    def outputOrdering(self) -> Ordering:
        return Ordering((self._order,))

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows = self.child.execute(context)
        sort = _SortRows(self.key, self.ascending, self.child.hasEventTime, rows._memory_limit())
        ordered: RDD[Any] = PipelinedRDD(rows.coalesce(1), sort)
        return ordered


@dataclass(frozen=True)
class _SortRows:
    """Task: rows -> the same in order; spills beyond the memory limit."""

    key: Callable[[Any], Any]
    ascending: bool
    are_events: bool
    memory_mb: float

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterable[Any]:
        settle_worker()
        sorter: ExternalSorter[Any] = ExternalSorter(self.memory_mb * 0.9)
        try:
            return sorter.sorted(rows, key=self._key_of, reverse=not self.ascending)
        except TypeError as error:
            raise UserFunctionError(
                f"orderBy({describe(self.key)}): keys have no common order, got {error}; return "
                "keys of one type"
            ) from error

    def _key_of(self, row: Any) -> Any:
        record = row[1] if self.are_events else row
        try:
            key = self.key(record)
        except Exception as error:
            raise failed(f"orderBy({describe(self.key)})", record, error, "record") from error
        return sort_key(key)
