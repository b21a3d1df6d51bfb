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

from dataclasses import dataclass, replace
from typing import ClassVar

from dstreams.errors import InvalidStreamError
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.aggregate_functions import AggregateFunction, Count
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    Task,
    UnaryExec,
)
from dstreams.structured.operators.session_state import (
    AggregateSessions,
    FinishSessions,
    SessionGrouping,
    SessionsIntoState,
    require_session_mode,
)
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo
from dstreams.structured.operators.stateful_operator import SavingOperator, ShuffleExchangeExec


@dataclass(frozen=True)
class UpdatingSessionsExec(NarrowExec):
    """Makes a session of each event, and one of those that touch; late ones stay apart."""

    keepsEventTime: ClassVar[bool] = False

    aggregate: AggregateFunction
    grouping: SessionGrouping
    where: str = "agg"
    eventTimeWatermarkForLateEvents: int | None = None

    def inBatch(
        self,
        stateInfo: StatefulOperatorStateInfo,
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> UpdatingSessionsExec:
        return replace(self, eventTimeWatermarkForLateEvents=lateWatermark)

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
    """Leaves out late sessions, and adds those of the state.

    Semantics: SessionWindowStateStoreRestoreExec (Spark 4.3).
    """

    keepsEventTime: ClassVar[bool] = False

    grouping: SessionGrouping
    eventTimeWatermarkForLateEvents: int | None = None

    @property
    def arguments(self) -> list[str]:
        return [f"by {self.grouping.name}", str(self.eventTimeWatermarkForLateEvents)]

    def inBatch(
        self,
        stateInfo: StatefulOperatorStateInfo,
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> SessionWindowStateStoreRestoreExec:
        return replace(self, eventTimeWatermarkForLateEvents=lateWatermark)


@dataclass(frozen=True)
class MergingSessionsExec(UnaryExec):
    """Makes one of sessions that touch; those of a key come together, in the order of starts.

    Semantics: MergingSessionsExec (Spark 4.3).
    """

    keepsEventTime: ClassVar[bool] = False

    aggregate: AggregateFunction
    where: str = "agg"

    @property
    def arguments(self) -> list[str]:
        return [type(self.aggregate).__name__]


@dataclass(frozen=True)
class SessionWindowStateStoreSaveExec(SavingOperator):
    """Writes the sessions of each key, and puts out what the output mode asks for.

    Semantics: SessionWindowStateStoreSaveExec (Spark 4.3).
    """

    child: MergingSessionsExec
    grouping: SessionGrouping

    @property
    def shortName(self) -> str:
        return "sessionWindowStateStoreSaveExec"

    def function(self, memory_mb: float = 512) -> SessionsIntoState:
        return SessionsIntoState(
            self.child.aggregate,
            require_session_mode(self.outputMode),
            self.eventTimeWatermarkForLateEvents,
            self.eventTimeWatermarkForEviction,
            self.child.where,
            memory_mb,
        )


@dataclass(frozen=True)
class FinishSessionsExec(NarrowExec):
    """The results of sessions: ``((Window, key), result)``."""

    keepsEventTime: ClassVar[bool] = False

    aggregate: AggregateFunction
    grouping: SessionGrouping

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
    """Return the operators of an aggregation by session windows; without *aggregate* of a count."""
    function = Count() if aggregate is None else aggregate
    updating = UpdatingSessionsExec(child, function, grouping, where)
    moved = ShuffleExchangeExec(updating, numPartitions)
    restored = SessionWindowStateStoreRestoreExec(moved, grouping)
    merging = MergingSessionsExec(restored, function, where)
    saved = SessionWindowStateStoreSaveExec(merging, grouping, outputMode)
    return FinishSessionsExec(saved, function, grouping)
