"""GroupedDataset: what can be done with all records of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark import RDD

from dstreams.callables import require_arity, require_picklable
from dstreams.errors import InvalidStreamError
from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode
from dstreams.structured.logical import Aggregate, FlatMapGroupsWithState, GroupKey, LogicalPlan
from dstreams.structured.operators.aggregate_functions import AggregateFunction, Count, Reduce
from dstreams.structured.selectors import key_selector, show
from dstreams.structured.windows import SessionWindow, TimeWindow
from dstreams.structured.writer import output_mode

if TYPE_CHECKING:
    from dstreams.structured.dataset import StreamingDataset

K = TypeVar("K")
S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
InitialState = RDD[Any] | Iterable[tuple[Any, Any]] | Mapping[Any, Any] | None


@dataclass(frozen=True)
class GroupedDataset(Generic[K, T]):
    """Records of type T by keys of type K.

    Args:
        plan: whose records they are.
        keys: what they are grouped by.
        make: returns the dataset of a plan.
    """

    plan: LogicalPlan
    keys: tuple[GroupKey, ...]
    make: Callable[[LogicalPlan], StreamingDataset[Any]]

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
        require_arity(f, (2,), "reduceGroups", "f(record, record)")
        require_picklable(f, "reduceGroups")
        return self.agg(Reduce(func=f), name=name)

    def agg(
        self, *aggregators: AggregateFunction, name: str | None = None
    ) -> StreamingDataset[tuple[K, Any]]:
        """Return ``(key, result)``, or ``(key, (result, result, ...))`` of several.

        Args:
            aggregators: of :mod:`dstreams.structured.aggregates`, or any objects with ``zero()``,
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
        return self.make(Aggregate(self.plan, name, self.keys, aggregators))

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
        require_arity(func, (3,), operation, "f(key, records, state)")
        require_picklable(func, operation)
        if not self.keys or any(isinstance(key, (TimeWindow, SessionWindow)) for key in self.keys):
            raise InvalidStreamError(
                f"{operation} needs a key that is a function or a field, and no window; "
                "windows are for agg, count and reduceGroups"
            )
        key = key_selector(self.keys, "groupByKey", self.plan.fields)
        return self.make(
            FlatMapGroupsWithState(
                self.plan,
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
