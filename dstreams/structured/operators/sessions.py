"""Aggregation by session windows.

::

    FinishSessions                              buffers -> results
    +- SessionWindowStateStoreSave              saves the sessions, and emits by output mode
       +- MergingSessions                       sessions that touch become one
          +- SessionWindowStateStoreRestore     with those of the state
             +- Sort                            by key and start
                +- Exchange                     to the partition of the key, without the session
                   +- UpdatingSessions          events -> sessions, where they are

:func:`plan_sessions` builds it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dstreams.arrow.aggregates.functions import AggregateFunction, Count
from dstreams.errors import InvalidStreamError
from dstreams.spark.state_metrics import StateMetrics
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.aggregation_state import Report
from dstreams.structured.operators.exchange import ensure_requirements
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    StatefulOperatorStateInfo,
    describe_state_info,
)
from dstreams.structured.operators.partitioning import (
    BY_KEY_AND_START,
    Distribution,
    Ordering,
    StatefulOpClusteredDistribution,
)
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    Task,
    UnaryExec,
)
from dstreams.structured.operators.session_state import (
    AggregateSessions,
    FinishSessions,
    MergeTouching,
    RestoreSessions,
    SaveSessions,
    SessionGrouping,
    require_session_mode,
)
from dstreams.structured.operators.stateful_operator import SavingOperator, StateStoreReader


@dataclass(frozen=True)
class UpdatingSessionsExec(NarrowExec):
    """Makes a session of each event, and merges those that touch, except late ones.

    Semantics: UpdatingSessionsExec (Spark 4.3).
    """

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
    def output(self) -> tuple[str, ...]:
        return ("key", "session")

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
class SessionWindowStateStoreRestoreExec(StateStoreReader, UnaryExec):
    """Drops late sessions, and merges those of the state among the sessions of each key.

    Rows are (key, session), those of a key in the order of their starts, before and after.
    ``numOutputRows`` counts the rows out, ``numRowsDroppedByWatermark`` the late ones; the operator
    above that saves the sessions reports the latter as its own.

    Semantics: SessionWindowStateStoreRestoreExec (Spark 4.3).
    """

    keepsEventTime: ClassVar[bool] = False

    keyExpressions: SessionGrouping
    eventTimeWatermarkForLateEvents: int | None = None

    @property
    def arguments(self) -> list[str]:
        late = self.eventTimeWatermarkForLateEvents
        state = describe_state_info(self.stateInfo)
        mark = "<unknown>" if late is None else str(late)
        return [f"by {self.keyExpressions.name}", state, mark]

    @property
    def outputOrdering(self) -> Ordering:
        return BY_KEY_AND_START

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        return (self.clustered(self.keyExpressions.name),)

    @property
    def requiredChildOrdering(self) -> tuple[Ordering, ...]:
        return (BY_KEY_AND_START,)

    def inBatch(
        self,
        stateInfo: StatefulOperatorStateInfo,
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> SessionWindowStateStoreRestoreExec:
        return replace(self, stateInfo=stateInfo, eventTimeWatermarkForLateEvents=lateWatermark)

    def countsIn(self, made: StateMetrics) -> dict[str, int]:
        dropped = made.numRowsDroppedByWatermark
        return {**super().countsIn(made), "numRowsDroppedByWatermark": dropped}

    def function(self, report: Report) -> RestoreSessions:
        return RestoreSessions(self.eventTimeWatermarkForLateEvents, report)


@dataclass(frozen=True)
class MergingSessionsExec(NarrowExec):
    """Merges sessions that touch; rows of a key come together, in the order of their starts.

    Semantics: MergingSessionsExec (Spark 4.3).
    """

    keepsEventTime: ClassVar[bool] = False
    keepsPartitioning: ClassVar[bool] = True

    aggregate: AggregateFunction
    where: str = "agg"

    @property
    def arguments(self) -> list[str]:
        return [type(self.aggregate).__name__]

    @property
    def outputOrdering(self) -> Ordering:
        return BY_KEY_AND_START

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        return (StatefulOpClusteredDistribution(),)

    @property
    def requiredChildOrdering(self) -> tuple[Ordering, ...]:
        return (BY_KEY_AND_START,)

    def task(self, context: ExecutionContext) -> Task:
        return MergeTouching(self.aggregate, self.where)


@dataclass(frozen=True)
class SessionWindowStateStoreSaveExec(SavingOperator):
    """Replaces the stored sessions of each key, and emits rows by output mode.

    Semantics: SessionWindowStateStoreSaveExec (Spark 4.3).
    """

    keyExpressions: SessionGrouping

    @property
    def shortName(self) -> str:
        return "sessionWindowStateStoreSaveExec"

    @property
    def requiredChildOrdering(self) -> tuple[Ordering, ...]:
        return (BY_KEY_AND_START,)

    def function(self, memory_mb: float = 512) -> SaveSessions:
        mode = require_session_mode(self.outputMode)
        return SaveSessions(mode, self.eventTimeWatermarkForEviction)


@dataclass(frozen=True)
class FinishSessionsExec(NarrowExec):
    """The results of sessions: ``((Window, key), result)``."""

    keepsEventTime: ClassVar[bool] = False

    aggregate: AggregateFunction
    grouping: SessionGrouping

    @property
    def output(self) -> tuple[str, ...]:
        return ("key", "result")

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
) -> PhysicalOperator:
    """Return the operators of an aggregation by session windows; without *aggregate* of a count."""
    function = Count() if aggregate is None else aggregate
    updating = UpdatingSessionsExec(child, function, grouping, where)
    restored = SessionWindowStateStoreRestoreExec(updating, grouping)
    merging = MergingSessionsExec(restored, function, where)
    saved = SessionWindowStateStoreSaveExec(merging, grouping, outputMode)
    return ensure_requirements(FinishSessionsExec(saved, function, grouping), numPartitions)
