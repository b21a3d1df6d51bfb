"""FlatMapGroupsWithStateExec: the operator of ``flatMapGroupsWithState`` and its kin.

Its tasks run :class:`~dstreams.state.partition_tasks.FlatMapGroups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pyspark import RDD

from checkpoint.state_store import StateWriter
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import Side
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.state_metrics import StateMetrics
from dstreams.state import partition_tasks
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.state.input_processor import Converter
from dstreams.state.state_manager import ONE_COLUMN, StateEncoder
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.partitioning import BY_KEY, UNORDERED, Distribution, Ordering
from dstreams.structured.operators.physical_operator import PhysicalOperator, UnaryExec
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.selectors import show

_event_time = itemgetter(0)
_record = itemgetter(1)
_FOR_EVER_MS = 1 << 62


@dataclass(frozen=True)
class FlatMapGroupsWithStateExec(StateStoreWriter, UnaryExec):
    """Calls a function for each key with records, then for each key whose timer is due.

    The child has pairs ``(key, row)``, those of a key next to each other. With event-time timeouts
    late rows are dropped. The rows of groups with records come first, then those of timed-out keys,
    then the store is committed.

    Args:
        func: ``(key, records, GroupState) -> rows``, or a row if *isMap*.
        keyName: what the pairs are keyed by, for people.
        outputMode: append or update; the mode of the function.
        timeoutConf: which timers the function may set.
        rowsAreEvents: whether a row is a pair (event time, record).
        where: for error messages.
        batchTimestampMs: processing time of the batch, milliseconds since the epoch; required with
            processing-time timeouts. Event-time timeouts require both watermarks.
        initialState: pairs of key and state; for the first batch only.
        keepTimer: keep a timer that a call does not set again, unless it was due.
        skipEmittingInitialStateKeys: do not call the function for keys without records in the first
            batch.
        stateFormatVersion: how state and timer are laid out in the store, 1 or 2
            (``spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion``).
        stateEncoder: makes columns of a state, and a state of columns.
        getKeyObj, getValueObj, getOutputRow: convert what the function is called with, and the rows
            that it returns; None to leave them as they are.

    Raises:
        InvalidStreamError: at execution, a time that *timeoutConf* requires is not filled in.

    Semantics: FlatMapGroupsWithStateExec (Spark 4.3).
    """

    func: Callable[..., Any]
    keyName: str
    outputMode: OutputMode
    timeoutConf: GroupStateTimeout
    rowsAreEvents: bool
    where: str
    isMap: bool = False
    batchTimestampMs: int | None = None
    initialState: PhysicalOperator | None = None
    keepTimer: bool = False
    skipEmittingInitialStateKeys: bool = False
    stateFormatVersion: int = 2
    stateEncoder: StateEncoder = ONE_COLUMN
    getKeyObj: Converter | None = None
    getValueObj: Converter | None = None
    getOutputRow: Converter | None = None

    @property
    def shortName(self) -> str:
        return "flatMapGroupsWithState"

    @property
    def hasEventTime(self) -> bool:
        return False

    @property
    def output(self) -> tuple[str, ...]:
        return ("value",)

    @property
    def arguments(self) -> list[str]:
        time = self.batchTimestampMs
        state, *marks = self.watermarkArguments
        return [
            show(self.func),
            self.keyName,
            state,
            self.outputMode.name,
            self.timeoutConf.value,
            "<unknown>" if time is None else str(time),
            *marks,
        ]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        """Return whether event-time timers may be due; the others are reported with their time."""
        if self.timeoutConf is not GroupStateTimeout.EventTimeTimeout:
            return False
        return super().shouldRunAnotherBatch(newInputWatermark)

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        """Both children have each key in the partition of its state."""
        return (self.clustered(self.keyName, self.where),) * len(self.children)

    @property
    def requiredChildOrdering(self) -> tuple[Ordering, ...]:
        """Rows of a key come together; initial states are grouped with them in the task."""
        return (BY_KEY, UNORDERED)[: len(self.children)]

    @property
    def hasInitialState(self) -> bool:
        """True if the batch starts from the initial state, which only the first one does."""
        return self.initialState is not None and self.getStateInfo().storeVersion == 0

    def data_of(self, child: PhysicalOperator, context: ExecutionContext) -> RDD[Any]:
        """Return the input of each task, with the rows of *child* for those of the batch."""
        rows = child.execute(context)
        if self.initialState is None or not self.hasInitialState:
            return rows
        partitioner = self.getStateInfo().partitioner
        name = f"initial state of {self.where}"
        states = self.initialState.execute(context)
        return state_inputs(
            shuffle_pairs(states, partitioner, Side.STATE, name),
            shuffle_pairs(rows, partitioner, Side.BATCH, self.where),
        )

    def function(self, memory_mb: float = 512) -> WithNextTimeout:
        return self.store_function(memory_mb, is_sorted=True)

    @property
    def _value_obj(self) -> Converter | None:
        """The converter of rows: that of records leaves event times alone."""
        if self.getValueObj is None or not self.rowsAreEvents:
            return self.getValueObj
        return OfEvent(self.getValueObj)

    def store_function(self, memory_mb: float = 512, *, is_sorted: bool = False) -> WithNextTimeout:
        """Return the function of each task, for rows with adjacent keys (*is_sorted*) or any rows.

        Grouping beyond *memory_mb* is spilled.
        """
        has_processing_time = self.timeoutConf is GroupStateTimeout.ProcessingTimeTimeout
        if has_processing_time and self.batchTimestampMs is None:
            raise InvalidStreamError(
                f"{self.where}: processing-time timeout needs batchTimestampMs, got None; fill it "
                "in for each batch"
            )
        is_event_time = self.timeoutConf is GroupStateTimeout.EventTimeTimeout
        watermark_ms = self.eventTimeWatermarkForEviction if self.rowsAreEvents else None
        late_ms = self.eventTimeWatermarkForLateEvents if is_event_time else None
        if is_event_time and (watermark_ms is None or late_ms is None):
            raise InvalidStreamError(
                f"{self.where}: event-time timeout needs rows with event times and both watermarks"
            )
        return WithNextTimeout(
            partition_tasks.FlatMapGroups(
                func=GroupCall(self.func, self.isMap, self.rowsAreEvents),
                where=self.where,
                timeoutConf=self.timeoutConf,
                batchTimestampMs=self.batchTimestampMs,
                eventTimeWatermark=watermark_ms,
                lateWatermark=late_ms,
                event_time=_event_time if self.rowsAreEvents and is_event_time else None,
                keepTimer=self.keepTimer,
                skipEmittingInitialStateKeys=self.skipEmittingInitialStateKeys,
                stateEncoder=self.stateEncoder,
                stateFormatVersion=self.stateFormatVersion,
                getKeyObj=self.getKeyObj,
                getValueObj=self._value_obj,
                getOutputRow=self.getOutputRow,
                memory_mb=memory_mb,
                is_sorted=is_sorted,
            ),
            has_processing_time,
        )


@dataclass(frozen=True)
class OfEvent:
    """A converter of records as one of events."""

    convert: Converter

    def __call__(self, event: tuple[int | None, Any]) -> tuple[int | None, Any]:
        return event[0], self.convert(event[1])


@dataclass(frozen=True)
class GroupCall:
    """Calls the user's function with the records of rows; with *is_map* it returns one row."""

    func: Callable[..., Any]
    is_map: bool
    are_events: bool

    def __call__(self, key: Any, rows: Iterator[Any], state: Any) -> Iterable[Any]:
        returned = self.func(key, map(_record, rows) if self.are_events else rows, state)
        return [returned] if self.is_map else returned


@dataclass(frozen=True)
class WithNextTimeout:
    """Function of a store: that of the groups, then a search for the earliest timer left."""

    function: partition_tasks.FlatMapGroups
    looks: bool

    def __call__(
        self,
        store: StateWriter,
        initial: Iterator[tuple[Any, Any]],
        records: Iterator[tuple[Any, Any]],
        metrics: StateMetrics,
    ) -> Iterator[Any]:
        yield from self.function(store, initial, records, metrics)
        if self.looks:
            metrics.nextTimeoutMs = earliest_timeout_ms(store)


def earliest_timeout_ms(store: StateWriter) -> int:
    """Return the earliest timer of a store, milliseconds since the epoch; -1 for none.

    A store finds keys in the order of the timers that they had first, so a timer that was put off
    comes too early, and those before it are looked for again.
    """
    earliest_ms = -1
    until_ms = _FOR_EVER_MS
    while True:
        found = next(iter(store.due(until_ms)), None)
        if found is None:
            return earliest_ms
        earliest_ms = until_ms = found[2]
