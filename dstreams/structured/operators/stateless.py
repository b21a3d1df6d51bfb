"""Physical operators without state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from itertools import islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark import RDD
from pyspark.rdd import PipelinedRDD
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer
from pyspark.shuffle import ExternalSorter

from dstreams.arrow.aggregates.functions import Several
from dstreams.common.callables import describe
from dstreams.common.sql_values import sort_key
from dstreams.spark.blocks import CHUNK_ROWS, Columns, PairColumns
from dstreams.spark.element_tasks import Filter, FlatMap, Map
from dstreams.spark.failures import UserFunctionError, failed
from dstreams.spark.selectors import show
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.flat_map_groups import EventTime
from dstreams.state.function_errors import PLAIN_ROWS, require_rows
from dstreams.structured.named_rows import NamedRow
from dstreams.structured.operators.attempts import OnFailure, attempted
from dstreams.structured.operators.execution_context import EventTimeStats, ExecutionContext
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    Ordering,
    Partitioning,
    PhysicalOperator,
    SinglePartition,
    Task,
    UnaryExec,
    mapped_records,
)

if TYPE_CHECKING:
    from dstreams.structured.plan.logical import ElementKind
    from dstreams.structured.sources.static_rows import StaticRows

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
    def arguments(self) -> list[str]:
        return [self.name] if self.fields is None else [self.name, f"[{', '.join(self.fields)}]"]

    @property
    def output(self) -> tuple[str, ...]:
        return ("value",) if self.fields is None else self.fields

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        return context.spark.emptyRDD() if self.rdd is None else self.rdd


@dataclass(frozen=True)
class BatchScanExec(PhysicalOperator):
    """Rows that do not come from a stream, as they are when the plan is executed."""

    nodeName: ClassVar[str] = "Scan"

    rows: StaticRows

    @property
    def arguments(self) -> list[str]:
        return [self.rows.name]

    @property
    def output(self) -> tuple[str, ...]:
        return self.rows.fields or ("value",)

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        return self.rows.load(context.spark)


@dataclass(frozen=True)
class ElementsExec(NarrowExec):
    """A function of each record; rows of an event keep its time.

    With *onError*, records for which it fails are skipped, and go to that sink.
    """

    func: Callable[[Any], Any]
    kind: ElementKind
    onError: OnFailure = "fail"

    @property
    def nodeName(self) -> str:
        return _NAMES[self.kind]

    @property
    def arguments(self) -> list[str]:
        return [show(self.func)]

    @property
    def output(self) -> tuple[str, ...]:
        return self.child.output if self.kind == "filter" else ("value",)

    @property
    def where(self) -> str:
        """The operation and its function, in messages."""
        return f"{self.kind}({describe(self.func)})"

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        if self.onError == "fail":
            return super().execute(context)
        return attempted(self, context)

    def task(self, context: ExecutionContext) -> Task:
        func = partial(_checked_rows, self.func) if self.kind == "flatMap" else self.func
        where = self.where
        if self.child.hasEventTime:
            return partial(_of_events, func, self.kind, where)
        return _ELEMENTS[self.kind](func, where)


def _checked_rows(func: Callable[[Any], Any], record: Any) -> Any:
    """Return the rows that a user's function returns for a record."""
    returned = func(record)
    if type(returned) not in PLAIN_ROWS:
        require_rows(returned, f"flatMap({describe(func)})", "record", record)
    return returned


def _of_events(
    func: Callable[[Any], Any], kind: ElementKind, where: str, _: int, events: Iterable[Any]
) -> Iterator[Any]:
    settle_worker()
    for event in events:
        time_us, record = event
        try:
            result = func(record)
            if kind == "flatMap":
                for row in result:
                    yield time_us, row
                continue
        except Exception as error:
            raise failed(where, record, error, "record") from error
        if kind == "map":
            yield time_us, result
        elif result:
            yield event


@dataclass(frozen=True)
class UnionExec(PhysicalOperator):
    """The rows of both children; rows of a child without event times get None."""

    left: PhysicalOperator
    right: PhysicalOperator

    @property
    def hasEventTime(self) -> bool:
        return self.left.hasEventTime or self.right.hasEventTime

    @property
    def output(self) -> tuple[str, ...]:
        return self.left.output

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rdds = []
        for child in (self.left, self.right):
            rows = child.execute(context)
            lacks_time = self.hasEventTime and not child.hasEventTime
            rdds.append(PipelinedRDD(rows, _without_time) if lacks_time else rows)
        return rdds[0].union(rdds[1])


def _without_time(_: int, rows: Iterable[Any]) -> Iterator[Any]:
    return ((None, row) for row in rows)


@dataclass(frozen=True)
class ObserveExec(NarrowExec):
    """Passes rows on, and reports aggregates over those of the batch.

    Rows that are computed twice count once. Semantics: CollectMetricsExec (Spark 4.3).
    """

    nodeName: ClassVar[str] = "CollectMetrics"

    name: str
    metrics: tuple[str, ...]
    aggregate: Several

    @property
    def arguments(self) -> list[str]:
        return [self.name, f"[{', '.join(self.metrics)}]"]

    def task(self, context: ExecutionContext) -> Task:
        report = context.observe_metrics(self.name, self)
        return Observed(self.aggregate, self.child.hasEventTime, f"observe({self.name!r})", report)

    def finish(self, buffers: list[Any]) -> dict[str, Any]:
        """Return the metrics of the buffers of all partitions."""
        merged = reduce(self.aggregate.merge, buffers, self.aggregate.zero())
        return dict(zip(self.metrics, self.aggregate.finish(merged), strict=True))


@dataclass(frozen=True)
class Observed:
    """Task: rows -> the same rows; reports the buffer of their aggregates."""

    aggregate: Several
    are_events: bool
    where: str
    report: Callable[[int, int, Any], None]

    def __call__(self, split: int, rows: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        buffer, count = self.aggregate.zero(), 0
        try:
            for row in rows:
                record = row[1] if self.are_events else row
                try:
                    buffer = self.aggregate.reduce(buffer, record)
                except Exception as error:
                    raise failed(self.where, record, error, "record") from error
                count += 1
                yield row
        finally:
            self.report(split, count, buffer)


@dataclass(frozen=True)
class TimedExec(NarrowExec):
    """Gives rows an event time without a watermark."""

    hasEventTime: ClassVar[bool] = True

    time: Callable[[Any], int | None]

    def task(self, context: ExecutionContext) -> Task:
        return partial(_timed, self.time, self.child.hasEventTime)


def _timed(
    time: Callable[[Any], int | None], are_events: bool, _: int, rows: Iterable[Any]
) -> Iterator[Any]:
    settle_worker()
    return ((time(record), record) for record in _records(are_events, 0, rows))


@dataclass(frozen=True)
class WindowTimeExec(TimedExec):
    """Gives rows of an aggregation the event time of their key: for a window its last millisecond.

    Semantics: pyspark.sql.functions.window_time.
    """


@dataclass(frozen=True)
class AppendKeyExec(NarrowExec):
    """Pairs each row with its key: ``(key, row)``; a row is a record or an event."""

    nodeName: ClassVar[str] = "AppendColumns"

    key: Callable[[Any], Any]
    name: str

    @property
    def arguments(self) -> list[str]:
        return [self.name]

    @property
    def output(self) -> tuple[str, ...]:
        return ("key", *self.child.output)

    def task(self, context: ExecutionContext) -> Task:
        return partial(_append_key, self.key, self.child.hasEventTime)


def _append_key(
    key: Callable[[Any], Any], are_events: bool, _: int, rows: Iterable[Any]
) -> Iterator[Any]:
    settle_worker()
    if are_events:
        return ((key(event[1]), event) for event in rows)
    return ((key(row), row) for row in rows)


@dataclass(frozen=True)
class RecordsExec(NarrowExec):
    """Removes the event times: the last step of a query."""

    nodeName: ClassVar[str] = "SerializeFromObject"
    keepsEventTime: ClassVar[bool] = False

    def task(self, context: ExecutionContext) -> Task:
        return partial(_records, self.child.hasEventTime)

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows: Any = super().execute(context)
        if rows._jrdd_deserializer == _BATCHES:
            rows._jrdd_deserializer = _NAMED_BATCHES
        return rows  # type: ignore[no-any-return]


def _records(are_events: bool, _: int, rows: Iterable[Any]) -> Iterator[Any]:
    return (event[1] for event in rows) if are_events else iter(rows)


class NamedRowSerializer(CPickleSerializer):
    """Pickles a batch of rows with the same names as columns, in a fifth of the time.

    The pickle is of the list of rows, so that every serializer of PySpark reads it.
    """

    def dumps(self, obj: Any) -> bytes:
        kinds = set(map(type, obj)) if type(obj) is list else ()
        if len(kinds) == 1 and issubclass(kind := kinds.pop(), NamedRow) and kind._fields:
            obj = _NamedColumns(kind, tuple(zip(*obj, strict=True)))
        return super().dumps(obj)  # type: ignore[no-any-return,no-untyped-call]


@dataclass(frozen=True)
class _NamedColumns:
    """Rows with the same names, which are a list after they were pickled."""

    kind: type[NamedRow]
    columns: tuple[tuple[Any, ...], ...]

    def __reduce__(self) -> Any:
        return _rows_of, (self.kind, self.columns)


def _rows_of(kind: type[NamedRow], columns: tuple[tuple[Any, ...], ...]) -> list[NamedRow]:
    return list(map(tuple.__new__, repeat(kind), zip(*columns, strict=True)))


_BATCHES, _NAMED_BATCHES = map(AutoBatchedSerializer, (CPickleSerializer(), NamedRowSerializer()))


@dataclass(frozen=True)
class SortExec(UnaryExec):
    """All rows in order, in one partition."""

    outputPartitioning: ClassVar[Partitioning] = SinglePartition()

    key: Callable[[Any], Any]
    ascending: bool = True

    @property
    def arguments(self) -> list[str]:
        return [f"[{self._order}]", "true"]

    @property
    def _order(self) -> str:
        return f"{show(self.key)} {'ASC' if self.ascending else 'DESC'}"

    @property
    def outputOrdering(self) -> Ordering:
        return Ordering((self._order,))

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows = self.child.execute(context)
        are_events, memory_mb = self.child.hasEventTime, rows._memory_limit()
        sort = partial(_sort_rows, self.key, self.ascending, are_events, memory_mb)
        ordered: RDD[Any] = PipelinedRDD(rows.coalesce(1), sort)
        return ordered


def _sort_rows(
    key: Callable[[Any], Any],
    ascending: bool,
    are_events: bool,
    memory_mb: float,
    _: int,
    rows: Any,
) -> Iterable[Any]:
    """Sort rows; spill beyond the memory limit."""
    settle_worker()
    where = f"orderBy({describe(key)})"

    def key_of(row: Any) -> Any:
        record = row[1] if are_events else row
        try:
            value = key(record)
        except Exception as error:
            raise failed(where, record, error, "record") from error
        return sort_key(value)

    sorter: ExternalSorter[Any] = ExternalSorter(memory_mb * 0.9)
    try:
        return sorter.sorted(rows, key=key_of, reverse=not ascending)
    except TypeError as error:
        raise UserFunctionError(
            f"{where}: keys have no common order, got {error}; return keys of one type"
        ) from error


_second = itemgetter(1)


@dataclass(frozen=True)
class EventTimeWatermarkExec(NarrowExec):
    """Makes events of records, and collects their times for the next watermark.

    The times come with the batch's own jobs: ``context.event_times()[name]``. A record without an
    event time counts as one of the epoch there, and travels with None.

    Semantics: EventTimeWatermarkExec (Spark 4.3).
    """

    hasEventTime: ClassVar[bool] = True

    eventTime: Callable[[Any], datetime | int | None]
    delayMs: int = 0
    name: str = "eventTime"
    where: str = "withWatermark"

    @property
    def arguments(self) -> list[str]:
        return [self.name, f"{self.delayMs} ms"]

    def task(self, context: ExecutionContext) -> Task:
        event_time = EventTime(self.eventTime, self.where)
        report = context.observe(self.name)
        return MarkEvents(event_time, self.child.hasEventTime, report, self.where)


@dataclass(frozen=True)
class MarkEvents:
    """Task: records, or events with another time (*is_marked*) -> events; reports their times."""

    event_time: Callable[[Any], int | None]
    is_marked: bool
    report: Callable[[int, int, EventTimeStats], None]
    where: str = "withWatermark"

    def __call__(self, split: int, rows: Iterable[Any]) -> PairColumns:
        settle_worker()
        return PairColumns(self._marked(split, rows))

    def _marked(self, split: int, rows: Iterable[Any]) -> Iterator[Columns]:
        remaining = iter(rows)
        if self.is_marked:
            remaining = map(_second, remaining)
        seen: EventTimeStats | None = None
        try:
            while records := list(islice(remaining, CHUNK_ROWS)):
                times = self._times(records)
                known = times if None not in times else [time or 0 for time in times]
                stats = EventTimeStats.of(known)  # type: ignore[arg-type]
                seen = stats if seen is None else seen.merge(stats)
                yield times, records
        finally:
            if seen is not None:
                self.report(split, seen.count, seen)

    def _times(self, records: list[Any]) -> list[int | None]:
        if isinstance(self.event_time, EventTime):
            return mapped_records(self.event_time, records, self.where, self.event_time.of_all)
        return mapped_records(self.event_time, records, self.where)
