"""StreamingDataset and GroupedDataset: what can be done with records that come in batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, overload

from pyspark import RDD

from dstreams.arrow.aggregates.functions import AggregateFunction, Count, Reduce
from dstreams.common.callables import require_function
from dstreams.common.durations import parse_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.spark.selectors import Spec, as_specs, key_selector, selector, show
from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode
from dstreams.structured.api.api_hints import OF_DATASETS, OF_GROUPS, Instead
from dstreams.structured.api.joins import join_plan
from dstreams.structured.api.writer import (
    DataStreamWriter,
    WriterEnvironment,
    WriterSettings,
    output_mode,
)
from dstreams.structured.execution.graph_nodes import plan_nodes
from dstreams.structured.plan.logical import (
    Aggregate,
    Deduplicate,
    ElementKind,
    Elements,
    EventTimeWatermark,
    FlatMapGroupsWithState,
    GroupKey,
    Limit,
    LogicalPlan,
    Sort,
    Union,
)
from dstreams.structured.plan.planning import plan_query
from dstreams.structured.trees import explanation
from dstreams.structured.window_function import SessionWindow, TimeWindow, time_spec

K = TypeVar("K")
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
InitialState = RDD[Any] | Iterable[tuple[Any, Any]] | Mapping[Any, Any] | None


@dataclass(frozen=True, repr=False)
class StreamingDataset(Instead, Generic[T_co]):
    """A query that is being written; each method returns another one.

    ``StreamingDataset[T]`` has records of type T, as far as a type checker can follow that.

    Records are any Python objects. After :meth:`withWatermark` each record has an event time, which
    stays with what maps and filters make of it, beside the record: where records are compared it
    counts only as far as they have it themselves.

    Args:
        plan: what was written so far.
        environment: of the session.
    """

    plan: LogicalPlan
    environment: WriterEnvironment

    isStreaming = True
    _instead = OF_DATASETS

    def __repr__(self) -> str:
        """Return the steps, as ``explain(extended=True)`` prints them."""
        return f"StreamingDataset of\n{self.plan.tree()}"

    def _repr_html_(self) -> str:
        from dstreams.monitoring.notebook import graph_html  # noqa: PLC0415 - only in notebooks

        return graph_html("StreamingDataset", plan_nodes(self.plan))

    @property
    def writeStream(self) -> DataStreamWriter:
        """Says where the records go."""
        return DataStreamWriter(self.plan, self.environment, WriterSettings())

    def map(self, f: Callable[[T_co], U]) -> StreamingDataset[U]:
        """Return ``f(record)`` of each record.

        Raises:
            InvalidStreamError: *f* is no function of one argument, or cannot be sent to workers.
        """
        return self._elements(f, "map")

    def flatMap(self, f: Callable[[T_co], Iterable[U]]) -> StreamingDataset[U]:
        """Return each of the rows in ``f(record)`` of each record. Raises as :meth:`map`.

        A batch fails where *f* returns a text, a dict, a set or a table in the place of rows.
        """
        return self._elements(f, "flatMap")

    def filter(self, f: Callable[[T_co], Any]) -> StreamingDataset[T_co]:
        """Return the records for which ``f(record)`` is true. Raises as :meth:`map`."""
        return self._elements(f, "filter")

    def union(self, other: StreamingDataset[U]) -> StreamingDataset[T_co | U]:
        """Return the records of both.

        Raises:
            InvalidStreamError: *other* is no such dataset.
        """
        self._require_dataset(other, "union")
        return self._with(Union(self.plan, other.plan))

    def withWatermark(
        self, eventTime: Spec, delayThreshold: str, idleTimeout: str | None = None
    ) -> StreamingDataset[T_co]:
        """Say when records happened, and how late they may come.

        The watermark is the latest event time of all batches before, less *delayThreshold*.
        Operators with state drop records up to it, and give up state that it has passed.

        Event times count to the microsecond, watermarks to the millisecond, as in Spark. A query in
        which records that have an event time get another one is refused.

        Semantics: pyspark.sql.DataFrame.withWatermark; *idleTimeout* is ours.

        Args:
            eventTime: name of a field, or a function of a record, that is a datetime (without zone:
                local time), milliseconds since the epoch, or None for a record without.
            delayThreshold: interval, such as ``"10 seconds"``.
            idleTimeout: interval without records after which this watermark holds those of other
                streams back no more. None: it holds them back.

        Raises:
            InvalidStreamError: the field is unknown, or an interval is none or negative.
        """
        where = f"withWatermark({eventTime!r})" if isinstance(eventTime, str) else "withWatermark"
        func = selector(eventTime, where, self.plan.fields)
        delay_ms = parse_duration_ms(delayThreshold, "delayThreshold of withWatermark")
        if delay_ms < 0:
            raise InvalidStreamError(
                f"delayThreshold {delayThreshold!r} of withWatermark should not be negative"
            )
        idle_ms = None
        if idleTimeout is not None:
            idle_ms = parse_duration_ms(idleTimeout, "idleTimeout of withWatermark")
        if idle_ms is not None and idle_ms <= 0:
            raise InvalidStreamError(
                f"idleTimeout of withWatermark must be positive, got {idleTimeout!r}"
            )
        return self._with(EventTimeWatermark(self.plan, eventTime, func, delay_ms, idle_ms))

    @overload
    def groupByKey(self) -> GroupedDataset[tuple[()], T_co]: ...

    @overload
    def groupByKey(self, key: Callable[[T_co], K], /) -> GroupedDataset[K, T_co]: ...

    @overload
    def groupByKey(
        self, key: str | TimeWindow | SessionWindow, /, *keys: GroupKey
    ) -> GroupedDataset[Any, T_co]: ...

    @overload
    def groupByKey(
        self, key: GroupKey, other: GroupKey, /, *keys: GroupKey
    ) -> GroupedDataset[Any, T_co]: ...

    def groupByKey(self, *keys: Any) -> GroupedDataset[Any, T_co]:
        """Group records, for operations over all records of a key.

        Args:
            keys: functions of a record, names of fields, and at most one
                :func:`~dstreams.structured.window` or
                :func:`~dstreams.structured.session_window`. Several make a tuple, in which the
                window comes first; none puts all records into one group, whose key is ``()``.

        Raises:
            InvalidStreamError: a key is none of these, or there are two windows. By an operation
                that follows: a key is the event time itself, and a map has changed the records.
        """
        windows = [key for key in keys if isinstance(key, (TimeWindow, SessionWindow))]
        if len(windows) > 1:
            raise InvalidStreamError(f"groupByKey takes one window, got {len(windows)}: {windows}")
        for key in keys:
            spec = time_spec(key)
            if spec != self.plan.event_time:  # the event time travels beside the record
                selector(spec, "groupByKey", self.plan.fields)
        return GroupedDataset(self, keys)

    def dropDuplicates(
        self, subset: Spec | Sequence[Spec] | None = None, *, name: str | None = None
    ) -> StreamingDataset[T_co]:
        """Return the first record of each key.

        Keys are kept for ever, unless one of them is the event time: then a watermark ends them. So
        it does with whole records, where they are those that :meth:`withWatermark` was given.

        Args:
            subset: field, function, or several, that make records equal; None for all of a record.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: a part is neither, or no field of the records.
        """
        return self._deduplicated(subset, name, within_watermark=False)

    def dropDuplicatesWithinWatermark(
        self, subset: Spec | Sequence[Spec] | None = None, *, name: str | None = None
    ) -> StreamingDataset[T_co]:
        """Return the first record of each key, and those that come later than the watermark allows.

        Keys are forgotten when the watermark has passed their first record by its delay, in a union
        by the longest one. Arguments and errors as of :meth:`dropDuplicates`.
        """
        return self._deduplicated(subset, name, within_watermark=True)

    @overload
    def join(
        self,
        other: StreamingDataset[U],
        on: Spec | Sequence[Spec],
        how: Literal["inner"] = "inner",
        *,
        otherOn: Spec | Sequence[Spec] | None = None,
        within: tuple[str, str] | None = None,
        matches: Callable[[T_co, U], bool] | None = None,
        name: str | None = None,
    ) -> StreamingDataset[tuple[T_co, U]]: ...

    @overload
    def join(
        self,
        other: StreamingDataset[U],
        on: Spec | Sequence[Spec],
        how: str,
        *,
        otherOn: Spec | Sequence[Spec] | None = None,
        within: tuple[str, str] | None = None,
        matches: Callable[[T_co, U], bool] | None = None,
        name: str | None = None,
    ) -> StreamingDataset[Any]: ...

    def join(
        self,
        other: StreamingDataset[Any],
        on: Spec | Sequence[Spec],
        how: str = "inner",
        *,
        otherOn: Spec | Sequence[Spec] | None = None,
        within: tuple[str, str] | None = None,
        matches: Callable[[Any, Any], bool] | None = None,
        name: str | None = None,
    ) -> StreamingDataset[Any]:
        """Return ``(record, record of other)`` for each two records of one key.

        With event times on both sides a pair has the later one, under the name of this side's.

        Args:
            other: the other stream.
            on: field, function, or several: the key of a record.
            how: ``inner``, ``left_outer``, ``right_outer`` or ``full_outer``, where None stands for
                a record without a match; or ``left_semi``, for records that have one, alone.
            otherOn: the same of the other stream, None for *on*.
            within: two intervals; the event time of *other*'s record is at least the first, at most
                the second after that of this one, such as ``("0 seconds", "1 hour")``. It needs
                watermarks on both sides, and bounds the state.
            matches: ``f(record, record of other)``: what else has to be true of two records.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: an argument is none of these.
        """
        self._require_dataset(other, "join")
        keys = on if otherOn is None else otherOn
        return self._with(join_plan(self.plan, other.plan, on, keys, how, within, matches, name))

    def orderBy(self, key: Spec, *, ascending: bool = True) -> StreamingDataset[T_co]:
        """Return a complete result in order.

        Args:
            key: field or function of a row.
            ascending: smallest first.

        Raises:
            InvalidStreamError: *key* is neither.
        """
        return self._with(Sort(self.plan, selector(key, "orderBy", self.plan.fields), ascending))

    def limit(self, num: int, *, name: str | None = None) -> StreamingDataset[T_co]:
        """Return the first rows: of a complete result, or in append mode of all batches together.

        Args:
            num: how many.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: *num* is no whole number of at least 0.
        """
        if isinstance(num, bool) or not isinstance(num, int) or num < 0:
            raise InvalidStreamError(f"limit must be a whole number of at least 0, got {num!r}")
        return self._with(Limit(self.plan, name, num))

    def explain(self, extended: bool = False, *, outputMode: str | OutputMode = "append") -> None:
        """Print the physical plan, in which facts of a batch are unknown.

        Args:
            extended: print the logical plan too.
            outputMode: the mode that the query will have.
        """
        sys.stdout.write(self.explanation(extended=extended, outputMode=outputMode))

    def explanation(
        self, *, extended: bool = False, outputMode: str | OutputMode = "append"
    ) -> str:
        """Return what :meth:`explain` prints."""
        planned = plan_query(self.plan, output_mode(outputMode), self.environment.conf())
        return explanation(self.plan.tree(), planned.prepared().tree(), extended=extended)

    def _elements(self, f: Callable[[Any], Any], kind: ElementKind) -> StreamingDataset[Any]:
        require_function(f, kind, "f(record)")
        return self._with(Elements(self.plan, f, kind))

    def _deduplicated(
        self, subset: Spec | Sequence[Spec] | None, name: str | None, *, within_watermark: bool
    ) -> StreamingDataset[T_co]:
        where = "dropDuplicatesWithinWatermark" if within_watermark else "dropDuplicates"
        specs = as_specs(subset, where)
        others = [spec for spec in specs if spec != self.plan.event_time]
        key = key_selector(others, where, self.plan.fields) if others or specs else None
        return self._with(Deduplicate(self.plan, name, specs, key, within_watermark))

    def _with(self, plan: LogicalPlan) -> StreamingDataset[Any]:
        return StreamingDataset(plan, self.environment)

    def _require_dataset(self, other: object, operation: str) -> None:
        if not isinstance(other, StreamingDataset):
            raise InvalidStreamError(
                f"{operation} takes another StreamingDataset, got {type(other).__name__}; what "
                "does not change as a stream does is looked up in map(f), from a dict or a "
                "broadcast, or added to a memoryStream"
            )


@dataclass(frozen=True)
class GroupedDataset(Instead, Generic[K, T]):
    """Records of type T by keys of type K.

    Args:
        dataset: whose records they are.
        keys: what they are grouped by.
    """

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
        """Return the rows that a function gives for each key, over a state that it keeps.

        Semantics: KeyValueGroupedDataset.flatMapGroupsWithState (Spark 4.3).

        Args:
            func: ``f(key, iterator of records, state) -> rows``: called for each key with records,
                then without records for each key whose timer is due. A batch fails where it
                returns a text, a dict, a set or a table in the place of rows.
            outputMode: what its rows mean: ``append`` or ``update``.
            timeoutConf: which clock ends a key.
            initialState: pairs of key and state to begin with: an RDD, a list, a dict or a
                DataFrame of two columns.
            keepTimer: let a timer that a call did not set again stay, unless it was due.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: an argument is none of these.
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
        """Return the one row that a function gives for each key; for queries in update mode.

        Arguments and errors as of :meth:`flatMapGroupsWithState`.
        """
        mode, operation = OutputMode.Update, "mapGroupsWithState"
        return self._groups(func, operation, mode, timeoutConf, initialState, keepTimer, name)

    def count(self, *, name: str | None = None) -> StreamingDataset[tuple[K, int]]:
        """Return ``(key, how many records)``.

        Args:
            name: identity of the state, for restarts with a changed query.
        """
        return self.agg(Count(), name=name)

    def reduceGroups(
        self, f: Callable[[T, T], T], *, name: str | None = None
    ) -> StreamingDataset[tuple[K, T]]:
        """Return ``(key, one record)``, made of all by an associative and commutative function.

        Args:
            f: ``(record, record) -> record``.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: *f* is no such function.
        """
        require_function(f, "reduceGroups", "f(record, record)", 2)
        return self.agg(Reduce(func=f), name=name)

    def agg(
        self, *aggregators: AggregateFunction, name: str | None = None
    ) -> StreamingDataset[tuple[K, Any]]:
        """Return ``(key, result)``, or ``(key, (result, result, ...))`` of several.

        Args:
            aggregators: of :mod:`dstreams.structured.api.aggregates`, or any objects with
            ``zero()``,
                ``reduce(buffer, record)``, ``merge(buffer, buffer)`` and ``finish(buffer)``.
            name: identity of the state, for restarts with a changed query.

        Raises:
            InvalidStreamError: there is none, or one lacks a method.
        """
        if not aggregators:
            raise InvalidStreamError("agg needs at least one aggregator, for example Count()")
        for aggregator in aggregators:
            missing = [
                method
                for method in ("zero", "reduce", "merge", "finish")
                if not callable(getattr(aggregator, method, None))
            ]
            if missing or isinstance(aggregator, type):
                raise InvalidStreamError(
                    f"an aggregator of agg is an object with zero, reduce, merge and finish, got "
                    f"{aggregator!r}, which lacks {', '.join(missing) or 'an instance'}"
                )
        return self.dataset._with(Aggregate(self.dataset.plan, name, self.keys, aggregators))

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
        if not self.keys or any(isinstance(key, (TimeWindow, SessionWindow)) for key in self.keys):
            raise InvalidStreamError(
                f"{operation} needs a key that is a function or a field, and no window; "
                "windows are for agg, count and reduceGroups"
            )
        plan = self.dataset.plan
        key = key_selector(self.keys, "groupByKey", plan.fields)
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


def _timeout(timeout: object, operation: str) -> GroupStateTimeout:
    for known in GroupStateTimeout:
        if timeout in (known, known.value):
            return known
    names = ", ".join(known.value for known in GroupStateTimeout)
    raise InvalidStreamError(f"timeoutConf of {operation} is {timeout!r}; use one of {names}")


def _initial_pairs(initial: Any, operation: str) -> Any:
    if initial is None or isinstance(initial, RDD):
        return initial
    if hasattr(initial, "plan") and getattr(initial, "isStreaming", False):
        raise InvalidStreamError(
            f"initialState of {operation} must not be a stream; give an RDD or a list of pairs of "
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
                f"initialState of {operation} must be pairs of key and state, got {pair!r}; give "
                "an RDD, a list of pairs, or a dict"
            )
    return pairs
