"""Bases of the operators that restore or save the state of an aggregation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.errors import InvalidStreamError
from dstreams.kernel.state_versions import StateUpdate
from dstreams.rdd.shuffle import pairs_of_blocks, shuffle_pairs
from dstreams.state.group_state import OutputMode
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    PhysicalOperator,
    StatefulOperator,
    UnaryExec,
)
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo
from dstreams.structured.operators.state_steps import StateStep, StateSteps, StepThatReads

_R = TypeVar("_R", bound="RestoringOperator")


class Named(Protocol):
    """What rows are grouped by, as far as ``explain`` is concerned."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...


@dataclass(frozen=True)
class RestoringOperator(UnaryExec):
    """Adds the rows that the state has to those of the batch.

    Below an operator that saves, it reads from the store that is open there; executed by itself, it
    opens the version of its state info for reading.
    """

    keepsEventTime: ClassVar[bool] = False
    grouping: Named
    stateInfo: StatefulOperatorStateInfo | None = field(default=None, kw_only=True)

    def inBatch(
        self: _R,
        stateInfo: StatefulOperatorStateInfo,
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> _R:
        return replace(self, stateInfo=stateInfo)

    def stateStep(self) -> StateStep:
        raise NotImplementedError

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        if self.stateInfo is None:
            raise InvalidStreamError(f"{self.nodeName}: fill in stateInfo before execution")
        blocks = shuffle_pairs(self.child.execute(context), self.stateInfo.partitioner)
        task = StepThatReads(self.stateStep(), context.store, self.stateInfo.before)
        restored: RDD[Any] = PipelinedRDD(pairs_of_blocks(blocks), task, True)
        return restored


@dataclass(frozen=True)
class SavingOperator(StatefulOperator, UnaryExec):
    """Writes the state of the batch, and puts out what the output mode asks for.

    The operators between it and the next shuffle below run in its task.
    """

    keepsEventTime: ClassVar[bool] = False
    grouping: Named
    outputMode: OutputMode | None = None

    @property
    def arguments(self) -> list[str]:
        mode = "<unknown>" if self.outputMode is None else self.outputMode.name
        state, *marks = self.watermarkArguments
        return [f"by {self.grouping.name}", state, mode, *marks]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        if self.outputMode is OutputMode.Complete:
            return False
        return super().shouldRunAnotherBatch(newInputWatermark)

    def step(self) -> StateStep:
        """Return what saving does where the state is."""
        raise NotImplementedError

    def steps(self, below: list[StateStep], memory_mb: float) -> list[StateStep]:
        """Return all that its task does, after the steps of the operators *below*, the lowest
        first.
        """
        return [*below, self.step()]

    def update(self, context: ExecutionContext) -> StateUpdate:
        info = self.getStateInfo()
        below, steps = _steps_of(self.child)
        rows = below.execute(context)
        blocks = shuffle_pairs(rows, info.partitioner, ordered=True)
        function = StateSteps(tuple(self.steps(steps, rows._memory_limit())))
        return StateUpdate(info.before, [blocks], function)


def _steps_of(top: PhysicalOperator) -> tuple[PhysicalOperator, list[StateStep]]:
    """Return the operator below the next shuffle, and the steps above it, the lowest first."""
    steps: list[StateStep] = []
    while isinstance(top, UnaryExec) and (step := top.stateStep()) is not None:
        steps.insert(0, step)
        top = top.child
    return top, steps
