"""The rule that fuses a stateful operator with those below it, up to the exchange.

Every operator of a plan can be executed by itself; rows then pass from one to the next. A fused
stage is one function that does the work of all its operators in one walk over the store. Rows,
state and metrics are the same, and it takes less time.

=================================================================  ====================
operators, from the top                                            function
=================================================================  ====================
StateStoreSave, HashAggregate, StateStoreRestore, HashAggregate    AggregateIntoState
SessionWindowStateStoreSave, MergingSessions,                      SessionsIntoState
SessionWindowStateStoreRestore, Sort
FlatMapGroupsWithState, Sort                                       FlatMapGroups
=================================================================  ====================

Rows of state format 1 are not fused.

Semantics: CollapseCodegenStages (Spark 4.3), which also marks fused operators by ``*(stage)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyspark import RDD

from dstreams.spark.state_store_rdd import StoreFunction
from dstreams.state.state_versions import StateUpdate
from dstreams.structured.operators.aggregation import (
    AggregateMode,
    HashAggregateExec,
    StateStoreRestoreExec,
    StateStoreSaveExec,
)
from dstreams.structured.operators.aggregation_state import AggregateIntoState, MergeRows
from dstreams.structured.operators.exchange import LocalSortExec
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.physical_operator import (
    Partitioning,
    PhysicalOperator,
    ShownOperator,
    UnaryExec,
)
from dstreams.structured.operators.sessions import (
    MergingSessionsExec,
    SessionsIntoState,
    SessionWindowStateStoreRestoreExec,
    SessionWindowStateStoreSaveExec,
)
from dstreams.structured.operators.stateful_operator import StateStoreReader, StateStoreWriter

Operators = Sequence[Any]
"""The operators of a stage, from the top."""


FusedFunction = Callable[[Operators, float], StoreFunction]
"""Returns the function of a stage, given its operators and the memory in MiB."""


@dataclass(frozen=True)
class FusedExec(UnaryExec):
    """A stage: *child* and the operators below it, *size* in all, executed as one function.

    The metrics of its operators are those that they have when they are executed one by one.
    """

    child: StateStoreWriter
    size: int
    stage: int
    fused: FusedFunction

    @property
    def nodeName(self) -> str:
        return self.child.nodeName

    @property
    def outputPartitioning(self) -> Partitioning:
        return self.child.outputPartitioning

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        operators = chain_of(self.child, self.size)
        info = self.child.getStateInfo()
        operators[-1].requireInput()
        (below,) = operators[-1].children[:1]
        function = self.fused(operators, context.memory_mb)
        data = self.child.data_of(below, context)
        rows = context.make(self.child, StateUpdate(info.before, data, function))
        made = context.state_metrics(self.child)
        for operator in operators:
            if isinstance(operator, StateStoreReader):
                context.set_metrics(operator, operator.countsIn(made))
        return rows

    def shown(self, stage: int = 0, fused: int = 0) -> ShownOperator:
        return self.child.shown(self.stage, self.size)


def chain_of(top: PhysicalOperator, size: int) -> list[Any]:
    """Return an operator and those below it, by the first child of each, *size* in all."""
    operators = [top]
    while len(operators) < size and operators[-1].children:
        operators.append(operators[-1].children[0])
    return operators


def _aggregation(operators: Operators, memory_mb: float) -> AggregateIntoState:
    save, merge, _, _ = operators
    merged = MergeRows(merge.aggregate, merge.grouping, merge.where, memory_mb)
    return AggregateIntoState(merged, save.function())


def _sessions(operators: Operators, memory_mb: float) -> SessionsIntoState:
    save, merging, restore, _ = operators
    return SessionsIntoState(
        merging.aggregate,
        save.function(),
        restore.eventTimeWatermarkForLateEvents,
        merging.where,
        memory_mb,
    )


def _groups(operators: Operators, memory_mb: float) -> StoreFunction:
    groups: FlatMapGroupsWithStateExec = operators[0]
    return groups.function(memory_mb, is_sorted=False)


_STAGES: dict[tuple[type[PhysicalOperator], ...], FusedFunction] = {
    (
        StateStoreSaveExec,
        HashAggregateExec,
        StateStoreRestoreExec,
        HashAggregateExec,
    ): _aggregation,
    (
        SessionWindowStateStoreSaveExec,
        MergingSessionsExec,
        SessionWindowStateStoreRestoreExec,
        LocalSortExec,
    ): _sessions,
    (FlatMapGroupsWithStateExec, LocalSortExec): _groups,
}
"""The operators of each kind of stage, from the top, and its function."""


def _can_be_fused(operators: Operators) -> bool:
    save, *rest = operators
    if not isinstance(save, StateStoreSaveExec):
        return True
    merges = [step for step in rest if isinstance(step, HashAggregateExec)]
    return save.stateFormatVersion == 2 and all(
        step.mode is AggregateMode.PartialMerge for step in merges
    )


def fuse_stateful_operators(plan: PhysicalOperator) -> PhysicalOperator:
    """Return the plan with each stage that can be fused as a :class:`FusedExec`."""
    stages = count(1)

    def fuse(operator: PhysicalOperator) -> PhysicalOperator:
        for types, fused in _STAGES.items():
            operators = chain_of(operator, len(types))
            if tuple(map(type, operators)) == types and _can_be_fused(operators):
                assert isinstance(operator, StateStoreWriter)
                return FusedExec(operator, len(types), next(stages), fused)
        return operator

    return plan.transform(fuse)
