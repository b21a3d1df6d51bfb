"""Aggregation by session windows.

::

    FinishSessions                              buffers -> results
    +- SessionWindowStateStoreSave              the state of the batch, and what goes out
       +- MergingSessions                       sessions that touch become one
          +- SessionWindowStateStoreRestore     with those of the state
             +- ShuffleExchange                 to the partition of the key, without the session
                +- UpdatingSessions             events -> sessions, where they are

:func:`plan_sessions` builds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.rdd.shuffle import shuffle_pairs
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.aggregate_functions import AggregateFunction, Count
from dstreams.structured.operators.aggregation import ShuffleExchangeExec
from dstreams.structured.operators.aggregation_state import StateStep, StateSteps
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    StatefulOperator,
    Task,
    UnaryExec,
)
from dstreams.structured.operators.session_state import (
    AggregateSessions,
    FinishSessions,
    MergeSessions,
    RestoreSessions,
    SaveSessions,
    SessionGrouping,
    require_session_mode,
)


@dataclass(frozen=True)
class UpdatingSessionsExec(NarrowExec):
    """Makes a session of each event, and one of those that touch in its partition.

    Args:
        aggregate: what is computed.
        grouping: what records are grouped by.
        where: operation and function, for error messages.
        eventTimeWatermarkForLateEvents: as of the operators with state; late sessions stay apart.
    """

    aggregate: AggregateFunction
    grouping: SessionGrouping
    where: str = "agg"
    eventTimeWatermarkForLateEvents: int | None = None

    @property
    def hasEventTime(self) -> bool:
        return False

    @property
    def arguments(self) -> list[str]:
        return [type(self.aggregate).__name__, f"by {self.grouping.name}"]

    def task(self, context: ExecutionContext) -> Task:
        if not self.child.hasEventTime:
            raise InvalidStreamError(
                f"session windows by {self.grouping.name} need an event time; call withWatermark "
                "before"
            )
        late_ms = self.eventTimeWatermarkForLateEvents
        return AggregateSessions(self.aggregate, self.grouping, late_ms, self.where)


@dataclass(frozen=True)
class SessionWindowStateStoreRestoreExec(UnaryExec):
    """Leaves out late sessions, and adds those of the state; runs where the state is saved.

    Args:
        grouping: what rows are grouped by.
        eventTimeWatermarkForLateEvents: sessions that end up to this time are late, milliseconds
            since the epoch. None: none are.
    """

    grouping: SessionGrouping
    eventTimeWatermarkForLateEvents: int | None = None

    @property
    def hasEventTime(self) -> bool:
        return False

    @property
    def arguments(self) -> list[str]:
        return [f"by {self.grouping.name}", str(self.eventTimeWatermarkForLateEvents)]

    def step(self) -> RestoreSessions:
        """Return what restoring does where the state is."""
        return RestoreSessions(self.eventTimeWatermarkForLateEvents)


@dataclass(frozen=True)
class MergingSessionsExec(UnaryExec):
    """Makes one of sessions that touch; runs where the state is saved.

    Args:
        aggregate: merges buffers.
        where: operation and function, for error messages.
    """

    aggregate: AggregateFunction
    where: str = "agg"

    @property
    def hasEventTime(self) -> bool:
        return False

    @property
    def arguments(self) -> list[str]:
        return [type(self.aggregate).__name__]

    def step(self) -> MergeSessions:
        """Return what merging does where the state is."""
        return MergeSessions(self.aggregate, self.where)


@dataclass(frozen=True)
class SessionWindowStateStoreSaveExec(StatefulOperator, UnaryExec):
    """Writes the sessions of the batch, and puts out what the output mode asks for.

    Args:
        grouping: what rows are grouped by.
        outputMode: append or complete; None until the query says.
    """

    grouping: SessionGrouping
    outputMode: OutputMode | None = None

    @property
    def hasEventTime(self) -> bool:
        return False

    @property
    def shortName(self) -> str:
        return "sessionWindowStateStoreSaveExec"

    @property
    def arguments(self) -> list[str]:
        mode = "<unknown>" if self.outputMode is None else self.outputMode.name
        state, *marks = self.watermarkArguments
        return [f"by {self.grouping.name}", state, mode, *marks]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        if self.outputMode is OutputMode.Complete:
            return False
        return super().shouldRunAnotherBatch(newInputWatermark)

    def step(self) -> SaveSessions:
        """Return what saving does where the state is."""
        mode = require_session_mode(self.outputMode)
        return SaveSessions(mode, self.eventTimeWatermarkForEviction)

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        info = self.getStateInfo()
        steps: list[StateStep] = [self.step()]
        below = self.child
        while isinstance(below, (MergingSessionsExec, SessionWindowStateStoreRestoreExec)):
            steps.insert(0, below.step())
            below = below.child
        blocks = shuffle_pairs(below.execute(context), info.partitioner, ordered=True)
        return context.advance(info, [blocks], StateSteps(tuple(steps)))


@dataclass(frozen=True)
class FinishSessionsExec(NarrowExec):
    """The results of sessions: ``((Window, key), result)``.

    Args:
        aggregate: what is computed.
        grouping: what records are grouped by.
    """

    aggregate: AggregateFunction
    grouping: SessionGrouping

    @property
    def hasEventTime(self) -> bool:
        return False

    @property
    def arguments(self) -> list[str]:
        return [type(self.aggregate).__name__, f"by {self.grouping.name}"]

    def task(self, context: ExecutionContext) -> Task:
        return FinishSessions(self.aggregate, self.grouping)


def plan_sessions(
    child: PhysicalOperator,
    grouping: SessionGrouping,
    aggregate: AggregateFunction | None = None,
    *,
    numPartitions: int,
    outputMode: OutputMode | None = None,
    where: str = "agg",
) -> FinishSessionsExec:
    """Return the operators of an aggregation by session windows.

    The late watermark has to be filled in at UpdatingSessionsExec and
    SessionWindowStateStoreRestoreExec as well as where the state is saved.

    Args:
        child: whose events are aggregated.
        grouping: what they are grouped by.
        aggregate: what is computed, None for how many there are.
        numPartitions: partitions of the state.
        outputMode: append or complete; None to fill it in later.
        where: operation and function, for error messages.
    """
    function = Count() if aggregate is None else aggregate
    updating = UpdatingSessionsExec(child, function, grouping, where)
    moved = ShuffleExchangeExec(updating, numPartitions)
    restored = SessionWindowStateStoreRestoreExec(moved, grouping)
    merging = MergingSessionsExec(restored, function, where)
    saved = SessionWindowStateStoreSaveExec(merging, grouping, outputMode)
    return FinishSessionsExec(saved, function, grouping)
