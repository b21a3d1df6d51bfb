"""StreamingDataset and GroupedDataset: operations on unbounded records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from pyspark import RDD

from dstreams.arrow.aggregates.functions import AggregateFunction, Count, Reduce
from dstreams.common.callables import require_arity, require_function
from dstreams.common.durations import parse_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.spark.rejected_records import OnError
from dstreams.spark.selectors import Fields, Spec, as_specs, key_selector, selector, show
from dstreams.state.flat_map_groups import EventTime
from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode
from dstreams.state.stateful_processor import Columns, TimeMode
from dstreams.state.transform_groups import defined
from dstreams.structured.api.api_hints import OF_GROUPS, Instead
from dstreams.structured.api.batch_actions import BatchActions
from dstreams.structured.api.join_sides import JoinKey, JoinSide, join_of
from dstreams.structured.api.writer import (
    DataStreamWriter,
    WriterEnvironment,
    WriterSettings,
    output_mode,
)
from dstreams.structured.execution.batch_execution import prepare_batch
from dstreams.structured.execution.description import plan_nodes
from dstreams.structured.named_rows import NamedRow, same
from dstreams.structured.operators.attempts import UsableKey
from dstreams.structured.plan.logical import (
    Aggregate,
    BatchRelation,
    Deduplicate,
    ElementKind,
    Elements,
    EventTimeWatermark,
    FlatMapGroupsWithState,
    GroupKey,
    Limit,
    LogicalPlan,
    Observe,
    Sort,
    TransformWithState,
    Tried,
    Union,
    event_time_of,
)
from dstreams.structured.plan.planning import plan_batch, plan_query, time_of_window
from dstreams.structured.plan.result_names import name_of_aggregate
from dstreams.structured.plan.unsupported import require_stream
from dstreams.structured.sinks.function_sinks import ForeachBatchSink
from dstreams.structured.sinks.sink import Sink
from dstreams.structured.sources.static_rows import StaticRows
from dstreams.structured.trees import explained_plans
from dstreams.structured.window_function import SessionWindow, TimeWindow, time_spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from dstreams.structured.named_rows import KeyedRow

K = TypeVar("K")
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
SideOutput = Sink | Callable[[RDD[Any], int], None]
if TYPE_CHECKING:
    StaticRecords = Iterable[T] | RDD[T] | Callable[[], Any] | DataFrame

InitialState = RDD[Any] | Iterable[tuple[Any, Any]] | Mapping[Any, Any] | None

if TYPE_CHECKING:

    class AnyKey(Any):  # type: ignore[misc]
        """The key of groups by names, windows or several keys, of which no type is known."""


@dataclass(frozen=True, repr=False)
class StreamingDataset(BatchActions[T_co]):
    """A query under construction; each method returns a new one.

    Its records come from a stream, or are those of a batch dataset, with the same methods
    (:meth:`StreamSession.createDataset`, :attr:`StreamSession.read`). A stream is started with
    :attr:`writeStream`; a batch dataset has :meth:`collect` and other actions.

    ``StreamingDataset[T]`` has records of type T, as far as a type checker can infer it.

    Records are any Python objects. After :meth:`withWatermark` each record has an event time, which
    is stored outside the record and kept by maps and filters. It is not part of comparisons of
    records, unless the records contain it themselves.
    """

    plan: LogicalPlan
    environment: WriterEnvironment

    def __repr__(self) -> str:
        """Return the logical plan, as ``explain(extended=True)`` prints it."""
        kind = "StreamingDataset" if self.isStreaming else "Batch dataset"
        return f"{kind} of\n{self.plan.tree()}"

    def _repr_html_(self) -> str:
        from dstreams.monitoring.notebook import graph_html  # noqa: PLC0415 - only in notebooks

        return graph_html("StreamingDataset", plan_nodes(self.plan))

    @property
    def isStreaming(self) -> bool:
        """True if the records come from a stream, False for a batch dataset."""
        return self.plan.is_streaming

    @property
    def writeStream(self) -> DataStreamWriter:
        """The writer that sends the records to a sink.

        Raises:
            UnsupportedOperationError: this is a batch dataset.
        """
        require_stream(self.plan)
        return DataStreamWriter(self.plan, self.environment, WriterSettings())

    def map(
        self, f: Callable[[T_co], U], *, onError: SideOutput | OnError = "fail"
    ) -> StreamingDataset[U]:
        """Return ``f(record)`` of each record.

        Args:
            f: the function.
            onError: a record for which *f* raises an exception: ``fail`` fails the batch; ``skip``
                skips the record, and counts it in the log and in the progress, as ``rejected`` of
                its source. A sink of :meth:`StreamSession.sink`, or a function ``f(rows, batch
                id)``, skips it too, and gets it as a :class:`~dstreams.RejectedRecord`, in the same
                batch. The results are then persisted until the batch ends, so that *f* runs once
                for each record.

        Raises:
            InvalidStreamError: *f* is not a function of one argument, or cannot be pickled, or
                *onError* is none of these.
        """
        return self._elements(f, "map", onError)

    def flatMap(
        self, f: Callable[[T_co], Iterable[U]], *, onError: SideOutput | OnError = "fail"
    ) -> StreamingDataset[U]:
        """Return each of the rows in ``f(record)`` of each record.

        *onError* and errors as of :meth:`map`. A skipped record has no rows.

        A batch fails if *f* returns a str, a dict, a set or a table instead of an iterable of rows.
        """
        return self._elements(f, "flatMap", onError)

    def filter(
        self, f: Callable[[T_co], Any], *, onError: SideOutput | OnError = "fail"
    ) -> StreamingDataset[T_co]:
        """Return the records for which ``f(record)`` is true.

        *onError* and errors as of :meth:`map`.
        """
        return self._elements(f, "filter", onError)

    def union(self, other: StreamingDataset[U]) -> StreamingDataset[T_co | U]:
        """Return the records of both.

        Raises:
            InvalidStreamError: *other* is not a StreamingDataset.
        """
        self._require_dataset(other, "union")
        return self._with(Union(self.plan, other.plan))

    def observe(
        self, name: str, *exprs: AggregateFunction, **metrics: AggregateFunction
    ) -> StreamingDataset[T_co]:
        """Return the same records, and report aggregates over those of each batch.

        The progress of a batch has them: ``progress.observedMetrics["orders"]["total"]`` after
        ``observe("orders", total=Sum("price"))``. They are computed by the jobs of the batch, over
        the records that pass here and that the sink reads. A batch without records has the results
        of no records, such as 0 and None.

        Semantics: pyspark.sql.DataFrame.observe, for streams; metrics are named by keywords.

        Args:
            name: name of the observation, unique in the query.
            exprs: aggregators, as of :meth:`GroupedDataset.agg`, which also names them, such as
                ``count`` and ``sum_price``.
            metrics: aggregators by the name of their metric.

        Raises:
            InvalidStreamError: the name is empty, no aggregator is given, two have the same name,
                or one lacks a method.
        """
        if not isinstance(name, str) or not name.strip():
            raise InvalidStreamError(f"name of observe must be a non-empty str, got {name!r}")
        _require_aggregators((*exprs, *metrics.values()), "observe")
        _require_fields((*exprs, *metrics.values()), "observe", self.plan.fields)
        named = [*map(name_of_aggregate, exprs), *metrics]
        for metric in named:
            if named.count(metric) > 1:
                raise InvalidStreamError(
                    f"observe({name!r}) has several metrics named {metric!r}; name them by keywords"
                )
        aggregates = (*exprs, *metrics.values())
        return self._with(Observe(self.plan, name, tuple(named), aggregates))

    def withWatermark(
        self,
        eventTime: Spec,
        delayThreshold: str,
        idleTimeout: str | None = None,
        *,
        lateOutput: SideOutput | None = None,
        onError: SideOutput | OnError = "fail",
    ) -> StreamingDataset[T_co]:
        """Set the event time of records, and how late they may arrive.

        The watermark is the latest event time of all earlier batches, minus *delayThreshold*.
        Stateful operators drop records up to it, and evict the state that it has passed.

        Event times have microseconds, watermarks milliseconds, as in Spark. A second event time for
        the same records is refused. In a batch dataset no record is late.

        Semantics: pyspark.sql.DataFrame.withWatermark; *idleTimeout*, *lateOutput* and *onError*
        are ours.

        Args:
            eventTime: name of a field, or a function of a record: a datetime (local time if it has
                no zone), milliseconds since the epoch, or None for a record without event time.
            delayThreshold: interval, such as ``"10 seconds"``.
            idleTimeout: interval without records after which this watermark no longer holds back
                the watermark of the query. None: it always does.
            lateOutput: a sink of :meth:`StreamSession.sink`, or a function ``f(rows, batch id)``,
                which gets the records that stateful operators drop as late, as
                :class:`~dstreams.RejectedRecord`, in the same batch. Its job computes the input of
                these operators again. None: they are only counted.
            onError: as of :meth:`map`, for records whose event time cannot be read.

        Raises:
            InvalidStreamError: the field is unknown, an interval is invalid or negative, or
                *lateOutput* or *onError* is neither a sink nor a function.
        """
        where = f"withWatermark({eventTime!r})" if isinstance(eventTime, str) else "withWatermark"
        func = event_time_of(self.plan, eventTime, where)
        delay_ms = parse_duration_ms(delayThreshold, "delayThreshold of withWatermark")
        if delay_ms < 0:
            raise InvalidStreamError(
                f"delayThreshold of withWatermark must not be negative, got {delayThreshold!r}"
            )
        idle_ms = None
        if idleTimeout is not None:
            idle_ms = parse_duration_ms(idleTimeout, "idleTimeout of withWatermark")
        if idle_ms is not None and idle_ms <= 0:
            raise InvalidStreamError(
                f"idleTimeout of withWatermark must be positive, got {idleTimeout!r}"
            )
        late = None if lateOutput is None else _side_output(lateOutput, f"lateOutput of {where}")
        time = EventTime(func, f"withWatermark({show(eventTime)})")
        plan = self._trying((time,), time.where, "withWatermark", onError)
        return self._with(EventTimeWatermark(plan, eventTime, func, delay_ms, idle_ms, late))

    @overload
    def groupByKey(self) -> GroupedDataset[AnyKey, T_co]: ...

    @overload
    def groupByKey(
        self, key: Callable[[T_co], K], /, *, onError: SideOutput | OnError = ...
    ) -> GroupedDataset[K, T_co]: ...

    @overload
    def groupByKey(
        self,
        key: str | TimeWindow | SessionWindow,
        /,
        *keys: GroupKey,
        onError: SideOutput | OnError = ...,
    ) -> GroupedDataset[AnyKey, T_co]: ...

    @overload
    def groupByKey(
        self,
        key: GroupKey,
        other: GroupKey,
        /,
        *keys: GroupKey,
        onError: SideOutput | OnError = ...,
    ) -> GroupedDataset[AnyKey, T_co]: ...

    def groupByKey(
        self, *keys: Any, onError: SideOutput | OnError = "fail"
    ) -> GroupedDataset[Any, T_co]:
        """Group records, for operations over all records of a key.

        Args:
            keys: functions of a record, names of fields, and at most one
                :func:`~dstreams.structured.window` or
                :func:`~dstreams.structured.session_window`. Several keys form a tuple that begins
                with the window. Without keys, all records are in one group. A key is a field of the
                rows of an aggregation: with the name of the field or function, ``window``,
                ``session_window``, or ``key`` for a lambda.
            onError: as of :meth:`map`, for records whose key, time of a window or gap of a session
                cannot be computed, or cannot be a key. The functions run twice for each record.

        Raises:
            InvalidStreamError: a key has another type, there are two windows, or *onError* is
                invalid. Raised by a later operation: a key is the event time itself, and a map has
                changed the records.
        """
        windows = [key for key in keys if isinstance(key, (TimeWindow, SessionWindow))]
        if len(windows) > 1:
            raise InvalidStreamError(f"groupByKey takes one window, got {len(windows)}: {windows}")
        tried: list[Callable[[Any], Any]] = []
        for key in keys:
            spec = time_spec(key)
            if spec != self.plan.event_time:  # the event time is stored outside the record
                func = selector(spec, "groupByKey", self.plan.fields)
                is_key = spec is key
                tried.append(UsableKey(func) if is_key else time_of_window(spec, self.plan))
            if isinstance(key, SessionWindow) and callable(key.gap_us):
                tried.append(key.gap_us)
        where = f"groupByKey({', '.join(map(show, keys))})"
        plan = self._trying(tried, where, "groupByKey", onError)
        return GroupedDataset(self._with(plan), keys)

    def dropDuplicates(
        self,
        subset: Spec | Sequence[Spec] | None = None,
        *,
        name: str | None = None,
        onError: SideOutput | OnError = "fail",
    ) -> StreamingDataset[T_co]:
        """Return the first record of each key.

        Keys are kept forever, unless one of them is the event time: then the watermark evicts them.
        It also evicts whole records, if no map has changed them since :meth:`withWatermark`.

        Args:
            subset: field or function, or several, by which records are compared; None for the whole
                record.
            name: identity of the state, for restarts with a changed query.
            onError: as of :meth:`map`, for records whose key cannot be computed, or cannot be a
                key. The functions run twice for each record.

        Raises:
            InvalidStreamError: a part is neither a field of the records nor a function, or
                *onError* is invalid.
        """
        return self._deduplicated(subset, name, onError, within_watermark=False)

    def dropDuplicatesWithinWatermark(
        self,
        subset: Spec | Sequence[Spec] | None = None,
        *,
        name: str | None = None,
        onError: SideOutput | OnError = "fail",
    ) -> StreamingDataset[T_co]:
        """Return the first record of each key within the delay of the watermark.

        A key is evicted when the watermark has passed its first record by the delay, in a union by
        the longest delay. Arguments and errors as of :meth:`dropDuplicates`.
        """
        return self._deduplicated(subset, name, onError, within_watermark=True)

    @overload
    def join(
        self,
        other: StreamingDataset[U] | StaticRecords[U],
        on: JoinKey | Sequence[JoinKey],
        how: Literal["inner"] = "inner",
        *,
        otherOn: JoinKey | Sequence[JoinKey] | None = None,
        within: tuple[str | None, str | None] | None = None,
        matches: Callable[[T_co, U], bool] | None = None,
        eventTime: Spec | None = None,
        otherEventTime: Spec | None = None,
        refresh: str | None = None,
        name: str | None = None,
    ) -> StreamingDataset[tuple[T_co, U]]: ...

    @overload
    def join(
        self,
        other: StreamingDataset[U] | StaticRecords[U],
        on: JoinKey | Sequence[JoinKey],
        how: str,
        *,
        otherOn: JoinKey | Sequence[JoinKey] | None = None,
        within: tuple[str | None, str | None] | None = None,
        matches: Callable[[T_co, U], bool] | None = None,
        eventTime: Spec | None = None,
        otherEventTime: Spec | None = None,
        refresh: str | None = None,
        name: str | None = None,
    ) -> StreamingDataset[Any]: ...

    def join(
        self,
        other: StreamingDataset[Any] | StaticRecords[Any],
        on: JoinKey | Sequence[JoinKey],
        how: str = "inner",
        *,
        otherOn: JoinKey | Sequence[JoinKey] | None = None,
        within: tuple[str | None, str | None] | None = None,
        matches: Callable[[Any, Any], bool] | None = None,
        eventTime: Spec | None = None,
        otherEventTime: Spec | None = None,
        refresh: str | None = None,
        name: str | None = None,
    ) -> StreamingDataset[Any]:
        """Return ``(record, record of other)`` for each pair of records with the same key.

        With watermarks on both sides, a pair has the later of the two event times, named as on this
        side. With one watermark, pairs have no event time.

        A row is evicted when no later row can match it: when the watermark of the *other* side has
        passed the end of its range. Without that watermark, or that end, rows are kept for ever,
        which only an inner join permits for both sides, and a full outer join for one; other joins
        need both for the rows that they return without a match, or drop. If *on* has the event
        times of both sides, the watermark of one side is enough.

        A join of a stream with static data needs no watermark and keeps no state: each record of
        the stream is looked up in the rows that the query read when it started, or at the last
        *refresh*. A batch that runs again after a restart sees the rows that it saw before, which
        the checkpoint keeps; but many rows (``spark.sql.autoBroadcastJoinThreshold``) are not kept,
        and are read again by the restart. Static data can be
        on the right of an ``inner``, ``left_outer``, ``left_semi`` or ``left_anti`` join, and on
        the left of an ``inner`` or ``right_outer`` join. Pairs have the event time of the stream.

        Semantics: pyspark.sql.DataFrame.join; the support matrix of joins in streaming queries.

        Args:
            other: the other stream, or static data: a batch dataset, or what
                :meth:`StreamSession.createDataset` takes.
            on: field or function, or several: the key of a record. A part may be a
                :func:`~dstreams.structured.window` without *slide*: records of one window match.
                ``"window"`` is the window of a row of a windowed aggregation.
            how: ``inner``; ``left_outer``, ``right_outer`` or ``full_outer``, with None in place of
                a missing match; or ``left_semi`` or ``left_anti``, which return only this side's
                records, with and without a match. Two streams have no ``left_anti``.
            otherOn: key of the other stream's records, None for *on*.
            within: minimum and maximum interval from the event time of this side's record to that
                of *other*'s, such as ``("0 seconds", "1 hour")``. None leaves an end open: the
                maximum ends the wait of this side's rows, the minimum that of *other*'s. If *on*
                has the event times of both sides, the interval is 0 by default, or the size of a
                window of them.
            matches: ``f(record, record of other) -> bool``, an additional condition.
            eventTime: field or function with the event time of this side's records, for *within*,
                if they have no watermark. None of them is late.
            otherEventTime: the same of the other stream's records.
            refresh: interval, such as ``"10 minutes"``, after which the first batch reads the
                static rows again. They must be few (``spark.sql.autoBroadcastJoinThreshold``), and
                come from a function or :attr:`StreamSession.read`. None: they are read once.
            name: identity of the state or the static rows, for restarts with a changed query.

        Raises:
            InvalidStreamError: an argument is invalid.
        """
        if not isinstance(other, StreamingDataset):
            other = self._with(BatchRelation(StaticRows.of(other, "join")))
        if matches is not None:
            require_function(matches, "join", "matches(left, right)", 2)
        left = JoinSide.of(self.plan, on, eventTime, "eventTime")
        right = JoinSide.of(
            other.plan, on if otherOn is None else otherOn, otherEventTime, "otherEventTime"
        )
        return self._with(join_of(left, right, how, within, matches, refresh, name))

    def orderBy(self, key: Spec, *, ascending: bool = True) -> StreamingDataset[T_co]:
        """Sort a complete result.

        Args:
            key: field or function of a row.
            ascending: smallest first.

        Raises:
            InvalidStreamError: *key* is neither a field nor a function.
        """
        return self._with(Sort(self.plan, selector(key, "orderBy", self.plan.fields), ascending))

    def limit(self, num: int, *, name: str | None = None) -> StreamingDataset[T_co]:
        """Return the first rows of a complete result, or in append mode of all batches together.

        Args:
            num: number of rows.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: *num* is not a whole number of at least 0.
        """
        if isinstance(num, bool) or not isinstance(num, int) or num < 0:
            raise InvalidStreamError(f"limit must be a whole number of at least 0, got {num!r}")
        return self._with(Limit(self.plan, name, num))

    def explain(self, extended: bool = False, *, outputMode: str | OutputMode = "append") -> None:
        """Print the physical plan, without the facts of a batch.

        Args:
            extended: also print the logical plan.
            outputMode: output mode of the query.
        """
        sys.stdout.write(self.explanation(extended=extended, outputMode=outputMode))

    def explanation(
        self, *, extended: bool = False, outputMode: str | OutputMode = "append"
    ) -> str:
        """Return the text that :meth:`explain` prints."""
        mode, conf = output_mode(outputMode), self.environment.conf()
        if self.isStreaming:
            physical = plan_query(self.plan, mode, conf).prepared()
        else:
            physical = prepare_batch(plan_batch(self.plan, conf), conf, 0)
        return explained_plans(self.plan.tree(), physical.tree(), extended=extended)

    def _elements(
        self, f: Callable[[Any], Any], kind: ElementKind, on_error: SideOutput | OnError
    ) -> StreamingDataset[Any]:
        require_function(f, kind, "f(record)")
        return self._with(Elements(self.plan, f, kind, self._on_failure(on_error, kind)))

    def _trying(
        self,
        functions: Sequence[Callable[[Any], Any]],
        where: str,
        operation: str,
        on_error: SideOutput | OnError,
    ) -> LogicalPlan:
        """Return the plan of the records for which functions of the next step do not fail."""
        on_failure = self._on_failure(on_error, operation)
        if on_failure == "fail" or not functions:
            return self.plan
        return Tried(self.plan, tuple(functions), where, on_failure)

    def _on_failure(self, on_error: SideOutput | OnError, operation: str) -> Sink | OnError:
        if isinstance(on_error, str) and on_error in ("fail", "skip"):
            return on_error
        sink = _side_output(on_error, f"onError of {operation}")
        if not self.isStreaming:
            raise InvalidStreamError(
                f"onError of {operation} takes a sink only in a stream, got a batch dataset; use "
                "onError='skip'"
            )
        return sink

    def _deduplicated(
        self,
        subset: Spec | Sequence[Spec] | None,
        name: str | None,
        on_error: SideOutput | OnError,
        *,
        within_watermark: bool,
    ) -> StreamingDataset[T_co]:
        where = "dropDuplicatesWithinWatermark" if within_watermark else "dropDuplicates"
        specs = as_specs(subset, where)
        others = [spec for spec in specs if spec != self.plan.event_time]
        key = key_selector(others, where, self.plan.fields) if others or specs else None
        tried = [UsableKey(key or same)] if key or not specs else []
        parts = f"{where}({', '.join(map(show, specs))})"
        plan = self._trying(tried, parts, where, on_error)
        return self._with(Deduplicate(plan, name, specs, key, within_watermark))

    def _with(self, plan: LogicalPlan) -> StreamingDataset[Any]:
        return StreamingDataset(plan, self.environment)

    def _require_dataset(self, other: object, operation: str) -> None:
        if not isinstance(other, StreamingDataset):
            raise InvalidStreamError(
                f"{operation} takes another StreamingDataset, got {type(other).__name__}; to "
                "combine a stream with fixed data, use join, or add the data to a memoryStream"
            )


@dataclass(frozen=True)
class GroupedDataset(Instead, Generic[K, T]):
    """Records of type T grouped by keys of type K."""

    dataset: StreamingDataset[T]
    keys: tuple[GroupKey, ...]

    _instead = OF_GROUPS

    def flatMapGroupsWithState(
        self,
        func: Callable[[K, Iterator[T], GroupState[S]], Iterable[U]],
        outputMode: str | OutputMode,
        timeoutConf: GroupStateTimeout | str = GroupStateTimeout.NoTimeout,
        initialState: InitialState = None,
        *,
        keepTimer: bool = False,
        name: str | None = None,
    ) -> StreamingDataset[U]:
        """Return the rows that a function returns for each key, with a state per key.

        Semantics: KeyValueGroupedDataset.flatMapGroupsWithState (Spark 4.3).

        Args:
            func: ``f(key, iterator of records, state) -> rows``, called for each key with records,
                then without records for each key whose timer is due. A batch fails if it returns a
                str, a dict, a set or a table instead of an iterable of rows.
            outputMode: output mode of its rows: ``append`` or ``update``.
            timeoutConf: the clock of timeouts.
            initialState: initial pairs of key and state: an RDD, a list, a dict or a DataFrame of
                two columns.
            keepTimer: keep a timer that a call did not set again, unless it was due.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: an argument is invalid.
        """
        mode = output_mode(outputMode)
        if mode is OutputMode.Complete:
            raise InvalidStreamError("The output mode of function should be append or update")
        operation = "flatMapGroupsWithState"
        return self._groups(func, operation, mode, timeoutConf, initialState, keepTimer, name)

    def mapGroupsWithState(
        self,
        func: Callable[[K, Iterator[T], GroupState[S]], U],
        timeoutConf: GroupStateTimeout | str = GroupStateTimeout.NoTimeout,
        initialState: InitialState = None,
        *,
        keepTimer: bool = False,
        name: str | None = None,
    ) -> StreamingDataset[U]:
        """Return the row that a function returns for each key; for queries in update mode.

        Arguments and errors as of :meth:`flatMapGroupsWithState`.
        """
        mode, operation = OutputMode.Update, "mapGroupsWithState"
        return self._groups(func, operation, mode, timeoutConf, initialState, keepTimer, name)

    def transformWithState(
        self,
        statefulProcessor: Any,
        outputStructType: StructType | str | None = None,
        outputMode: str | OutputMode = "append",
        timeMode: str = "none",
        initialState: InitialState = None,
        eventTimeColumnName: str = "",
        *,
        name: str | None = None,
    ) -> StreamingDataset[Any]:
        """Return the rows of a stateful processor, which has state variables and timers per key.

        A processor for ``GroupedData.transformWithState`` of Spark runs unchanged. Its key is a
        tuple, also for one grouping key; records that are dicts reach it as Rows. An append to a
        list and a change of a map cost the entries that they touch.

        Semantics: pyspark.sql.GroupedData.transformWithState (4.3).

        Args:
            statefulProcessor: a :class:`~dstreams.structured.StatefulProcessor`, or one of
                ``pyspark.sql.streaming``.
            outputStructType: the columns of output rows, a StructType or DDL text. Rows then are
                Rows with these names, and their types are checked. None: rows may be any objects.
            outputMode: output mode of its rows: ``append`` or ``update``.
            timeMode: ``none``; ``processingTime`` for timers and TTLs by the batch time; or
                ``eventTime`` for timers by the watermark.
            initialState: initial pairs of key and row, as of :meth:`flatMapGroupsWithState`, with
                keys that are tuples; a key may occur several times.
            eventTimeColumnName: the output column with the event time of rows, for operators with
                event time behind this one; empty for none. It needs *outputStructType*. A batch
                fails if a row is older than the watermark.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: an argument is invalid, or the processor's ``init`` fails, which
                runs once here.
        """
        operation = "transformWithState"
        mode = output_mode(outputMode)
        if mode is OutputMode.Complete:
            raise InvalidStreamError(
                f"the output mode of {operation} must be append or update, got {outputMode!r}"
            )
        key = self._key_function(operation)
        where = f"{operation}({type(statefulProcessor).__name__})"
        time_mode = TimeMode.of(timeMode)
        output = None if outputStructType is None else Columns.of(outputStructType, where)
        if eventTimeColumnName and (output is None or eventTimeColumnName not in output.names):
            raise InvalidStreamError(
                f"{where}: eventTimeColumnName must be a column of outputStructType, got "
                f"{eventTimeColumnName!r}"
            )
        variables, deleted = defined(statefulProcessor, time_mode, where)
        initial = _initial_pairs(initialState, operation)
        return self.dataset._with(
            TransformWithState(
                self.dataset.plan,
                name,
                key if isinstance(key, Fields) else Fields((key,)),
                ", ".join(map(show, self.keys)),
                statefulProcessor,
                mode,
                time_mode,
                variables,
                deleted,
                output,
                eventTimeColumnName or None,
                _with_tuples(initial, len(self.keys), where),
            )
        )

    @overload
    def count(  # type: ignore[overload-overlap]  # a key of no known type
        self: GroupedDataset[AnyKey, T], *, name: str | None = None
    ) -> StreamingDataset[NamedRow]: ...

    @overload
    def count(self, *, name: str | None = None) -> StreamingDataset[KeyedRow[K, int]]: ...

    def count(self, *, name: str | None = None) -> StreamingDataset[Any]:
        """Return a row of the keys and ``count``, the number of records, for each group.

        Args:
            name: identity of the state, for restarts with a changed query.
        """
        return self._aggregated((Count(),), (None,), name)

    @overload
    def reduceGroups(  # type: ignore[overload-overlap]  # a key of no known type
        self: GroupedDataset[AnyKey, T], f: Callable[[T, T], T], *, name: str | None = None
    ) -> StreamingDataset[NamedRow]: ...

    @overload
    def reduceGroups(
        self, f: Callable[[T, T], T], *, name: str | None = None
    ) -> StreamingDataset[KeyedRow[K, T]]: ...

    def reduceGroups(
        self, f: Callable[[T, T], T], *, name: str | None = None
    ) -> StreamingDataset[Any]:
        """Return a row of the keys and ``reduce``, the records combined, for each group.

        Args:
            f: ``(record, record) -> record``, associative and commutative.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: *f* is not a function of two arguments.
        """
        require_function(f, "reduceGroups", "f(record, record)", 2)
        return self._aggregated((Reduce(func=f),), (None,), name)

    @overload
    def agg(  # type: ignore[overload-overlap]  # a key of no known type
        self: GroupedDataset[AnyKey, T],
        *aggregators: AggregateFunction,
        name: str | None = None,
        onError: SideOutput | OnError = ...,
        **named: AggregateFunction,
    ) -> StreamingDataset[NamedRow]: ...

    @overload
    def agg(
        self,
        aggregator: AggregateFunction,
        /,
        *,
        name: str | None = None,
        onError: SideOutput | OnError = ...,
    ) -> StreamingDataset[KeyedRow[K, Any]]: ...

    @overload
    def agg(
        self,
        *aggregators: AggregateFunction,
        name: str | None = None,
        onError: SideOutput | OnError = ...,
        **named: AggregateFunction,
    ) -> StreamingDataset[NamedRow]: ...

    def agg(
        self,
        *aggregators: AggregateFunction,
        name: str | None = None,
        onError: SideOutput | OnError = "fail",
        **named: AggregateFunction,
    ) -> StreamingDataset[Any]:
        """Return a row of the keys and the results for each group.

        Rows are tuples with names, such as ``row.user`` and ``row.sum_price``: the window first,
        then the other keys, then the results. A result has the name of Spark's function and, behind
        it, that of the field or function, if it has one: ``Sum("price")`` is ``sum_price``. A name
        that is there already ends with a number, such as ``max_2``.

        Args:
            aggregators: of :mod:`dstreams.structured.api.aggregates`, or any objects with
                ``zero()``, ``reduce(buffer, record)``, ``merge(buffer, buffer)`` and
                ``finish(buffer)``.
            name: identity of the state, for restarts with a changed query.
            onError: as of :meth:`StreamingDataset.map`, for records for which the field or function
                of an aggregator fails, such as that of ``Sum(lambda row: float(row.price))``. The
                functions run twice for each record. An error in adding up what they return still
                fails the batch, as does one of an aggregator of your own.
            named: further aggregators, by the name of their field: ``total=Sum("price")``.

        Raises:
            InvalidStreamError: no aggregator is given, one lacks a method, the records are known to
                lack its field, another field has its name, or *onError* is invalid.
        """
        names = (*(None for _ in aggregators), *named)
        rows = self._aggregated((*aggregators, *named.values()), names, name, onError)
        fields = rows.plan.fields or ()
        for field in named:
            if field not in fields[-len(named) :]:
                raise InvalidStreamError(
                    f"agg: the name {field!r} of a result is there already among "
                    f"{', '.join(fields)}; choose another one"
                )
        return rows

    def _aggregated(
        self,
        aggregators: tuple[AggregateFunction, ...],
        names: tuple[str | None, ...],
        name: str | None,
        on_error: SideOutput | OnError = "fail",
    ) -> StreamingDataset[Any]:
        _require_aggregators(aggregators, "agg")
        selectors = _require_fields(aggregators, "agg", self.dataset.plan.fields)
        where = f"agg({', '.join(map(name_of_aggregate, aggregators))})"
        plan = self.dataset._trying(selectors, where, "agg", on_error)
        return self.dataset._with(Aggregate(plan, name, self.keys, aggregators, names))

    def _groups(
        self,
        func: Callable[..., Any],
        operation: str,
        mode: OutputMode,
        timeout: GroupStateTimeout | str,
        initial: Any,
        keep_timer: bool,
        name: str | None,
    ) -> StreamingDataset[Any]:
        require_function(func, operation, "f(key, records, state)", 3)
        plan, key = self.dataset.plan, self._key_function(operation)
        return self.dataset._with(
            FlatMapGroupsWithState(
                plan,
                name,
                key,
                ", ".join(map(show, self.keys)),
                func,
                mode,
                _timeout(timeout, operation),
                operation == "mapGroupsWithState",
                _initial_pairs(initial, operation),
                keep_timer,
            )
        )

    def _key_function(self, operation: str) -> Callable[[Any], Any]:
        if not self.keys or any(isinstance(key, (TimeWindow, SessionWindow)) for key in self.keys):
            raise InvalidStreamError(
                f"{operation} needs a function or a field as key, not a window; windows are for "
                "agg, count and reduceGroups"
            )
        return key_selector(self.keys, "groupByKey", self.dataset.plan.fields)


@dataclass(frozen=True)
class _TupleKeys:
    """Task: pairs of an initial state whose keys are tuples of *count* parts."""

    count: int
    where: str

    def __call__(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for key, state in pairs:
            if not isinstance(key, tuple) or len(key) != self.count:
                raise InvalidStreamError(
                    f"{self.where}: keys of the initial state must be tuples of {self.count} "
                    f"parts, as the processor gets them, got {key!r}"
                )
            yield tuple(key), state


def _require_aggregators(aggregators: Sequence[Any], operation: str) -> None:
    if not aggregators:
        raise InvalidStreamError(f"{operation} needs at least one aggregator, for example Count()")
    for aggregator in aggregators:
        if isinstance(aggregator, type):
            name = aggregator.__name__
            raise InvalidStreamError(f"{operation} needs aggregators, got a class; pass {name}()")
        missing = [
            method
            for method in ("zero", "reduce", "merge", "finish")
            if not callable(getattr(aggregator, method, None))
        ]
        if missing:
            raise InvalidStreamError(
                f"aggregators of {operation} must have zero, reduce, merge and finish, got "
                f"{aggregator!r}, which lacks {', '.join(missing)}"
            )


def _require_fields(
    aggregators: Sequence[Any], operation: str, fields: tuple[str, ...] | None
) -> list[Callable[[Any], Any]]:
    """Return the selectors of aggregators; InvalidStreamError for a field that records lack."""
    return [
        selector(spec, f"{type(aggregator).__name__} of {operation}", fields)
        for aggregator in aggregators
        for spec in (getattr(aggregator, "of", None), getattr(aggregator, "by", None))
        if isinstance(spec, str) or callable(spec)
    ]


def _with_tuples(initial: Any, count: int, where: str) -> Any:
    if initial is None:
        return None
    checked = _TupleKeys(count, where)
    if isinstance(initial, RDD):
        return initial.mapPartitions(checked)
    return tuple(checked(initial))


def _timeout(timeout: object, operation: str) -> GroupStateTimeout:
    for known in GroupStateTimeout:
        if timeout in (known, known.value):
            return known
    names = ", ".join(known.value for known in GroupStateTimeout)
    raise InvalidStreamError(f"timeoutConf of {operation} must be one of {names}, got {timeout!r}")


def _initial_pairs(initial: Any, operation: str) -> Any:
    if initial is None or isinstance(initial, RDD):
        return initial
    if isinstance(initial, StreamingDataset) and initial.isStreaming:
        raise InvalidStreamError(
            f"initialState of {operation} must not be a stream; pass an RDD or a list of pairs of "
            "key and state"
        )
    if hasattr(initial, "rdd"):
        return initial.rdd
    if isinstance(initial, Mapping):
        return tuple(initial.items())
    pairs = tuple(initial) if isinstance(initial, Iterable) else (initial,)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidStreamError(
                f"initialState of {operation} must be pairs of key and state, got {pair!r}; pass "
                "an RDD, a list of pairs, or a dict"
            )
    return pairs


def _side_output(given: object, where: str) -> Sink:
    if isinstance(given, Sink):
        return given
    if not callable(given):
        raise InvalidStreamError(
            f"{where} must be a sink, such as session.sink('json', path), or a function f(rows, "
            f"batch id), got {given!r}"
        )
    require_arity(given, (2,), where, "f(rows, batch id)")
    return ForeachBatchSink(given)
