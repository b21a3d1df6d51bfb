"""FlatMapGroupsWithStateExec: the node of the plan over the function of the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.errors import InvalidStreamError
from dstreams.rdd.blocks import Side
from dstreams.rdd.shuffle import shuffle_pairs
from dstreams.state import store_functions
from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode
from dstreams.state.input_processor import GroupFunction
from dstreams.structured.operators.deduplication import KeyEvents
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    PhysicalOperator,
    StatefulOperator,
    UnaryExec,
)

_first, _second = itemgetter(0), itemgetter(1)


@dataclass(frozen=True)
class FlatMapGroupsWithStateExec(StatefulOperator, UnaryExec):
    """A user's function for the rows of each key, and for each key whose timer is due.

    Semantics: FlatMapGroupsWithStateExec (Spark 4.3).

    Args:
        func: ``f(key, iterator of records, state) -> rows``.
        key: ``record -> key``.
        timeoutConf: which timeout there is.
        outputMode: of the function: append or update.
        batchTimestampMs: the batch time, None before the first batch.
        initialState: pairs (key, state) for batch 0 of a new checkpoint, None for none.
        hasInitialState: whether it is used: in batch 0 only.
        skipEmittingInitialStateKeys: do not call the function for keys that have an initial state
            only.
        stateFormatVersion: how states stand in the store, 1 or 2.
        where: operation and function, for error messages.
    """

    func: GroupFunction
    key: Callable[[Any], Any]
    timeoutConf: GroupStateTimeout = GroupStateTimeout.NoTimeout
    outputMode: OutputMode = OutputMode.Update
    batchTimestampMs: int | None = None
    initialState: PhysicalOperator | None = None
    hasInitialState: bool = False
    skipEmittingInitialStateKeys: bool = False
    stateFormatVersion: int = 2
    where: str = "flatMapGroupsWithState"

    def __post_init__(self) -> None:
        if self.outputMode is OutputMode.Complete:
            raise InvalidStreamError(
                f"{self.where}: the output mode of the function should be append or update, got "
                "complete"
            )

    @property
    def hasEventTime(self) -> bool:
        return False

    @property
    def watermarkPresent(self) -> bool:
        """Whether records have event times with a watermark, whatever the timeout."""
        return self.child.hasEventTime

    @property
    def shortName(self) -> str:
        return "flatMapGroupsWithState"

    @property
    def arguments(self) -> list[str]:
        state, *marks = self.watermarkArguments
        time = "<unknown>" if self.batchTimestampMs is None else str(self.batchTimestampMs)
        mode, timeout = self.outputMode.name, self.timeoutConf.value
        return [self.where, state, str(self.stateFormatVersion), mode, timeout, time, *marks]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        if self.timeoutConf is GroupStateTimeout.EventTimeTimeout:
            return super().shouldRunAnotherBatch(newInputWatermark)
        return self.timeoutConf is GroupStateTimeout.ProcessingTimeTimeout

    def function(self, memory_mb: float = 512) -> store_functions.FlatMapGroupsWithStateExec:
        """Return what a task does where the state is.

        Args:
            memory_mb: memory for grouping; more is spilled.

        Raises:
            InvalidStreamError: a fact of the batch that the timeout needs was not filled in.
        """
        self._require_facts()
        return store_functions.FlatMapGroupsWithStateExec(
            _OfRecords(self.func) if self._with_times else self.func,
            self.timeoutConf,
            self.batchTimestampMs or 0,
            self.eventTimeWatermarkForEviction if self.watermarkPresent else None,
            self.eventTimeWatermarkForLateEvents,
            _first if self._with_times else None,
            self.where,
            state_format=self.stateFormatVersion,
            skip_initial_keys=self.skipEmittingInitialStateKeys,
            memory_mb=memory_mb,
        )

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        info = self.getStateInfo()
        partitioner = info.partitioner
        rows = self.child.execute(context)
        keys = _KeyRows(KeyEvents(self.key, self.child.hasEventTime, False, self.where))
        task = keys.events if self._with_times else keys.records
        blocks = [shuffle_pairs(PipelinedRDD(rows, task), partitioner, operation=self.where)]
        if self.hasInitialState and self.initialState is not None:
            states = self.initialState.execute(context)
            blocks.insert(0, shuffle_pairs(states, partitioner, Side.STATE, self.where))
        return context.advance(info, blocks, self.function(rows._memory_limit()))

    @property
    def _with_times(self) -> bool:
        # Only this timeout looks at them: with another one nothing is late.
        return self.timeoutConf is GroupStateTimeout.EventTimeTimeout

    def _require_facts(self) -> None:
        if self.timeoutConf is GroupStateTimeout.ProcessingTimeTimeout:
            missing = [] if self.batchTimestampMs is not None else ["batchTimestampMs"]
        elif self._with_times:
            if not self.watermarkPresent:
                raise InvalidStreamError(
                    f"{self.where} with EventTimeTimeout needs an event time; call withWatermark "
                    "before"
                )
            names = ("eventTimeWatermarkForLateEvents", "eventTimeWatermarkForEviction")
            missing = [name for name in names if getattr(self, name) is None]
        else:
            missing = []
        if missing:
            raise InvalidStreamError(
                f"{self.where} with {self.timeoutConf.value}: {' and '.join(missing)} must be "
                "filled in before execution"
            )


@dataclass(frozen=True)
class _OfRecords:
    """The user's function, called with records where the values are events."""

    func: GroupFunction

    def __call__(self, key: Any, values: Iterator[Any], state: GroupState[Any]) -> Iterable[Any]:
        return self.func(key, map(_second, values), state)


@dataclass(frozen=True)
class _KeyRows:
    """Tasks: rows -> (key, event) or (key, record)."""

    keys: KeyEvents

    def events(self, split: int, rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        return self.keys(split, rows)

    def records(self, split: int, rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        return ((key, event[1]) for key, event in self.keys(split, rows))
