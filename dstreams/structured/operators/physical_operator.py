"""Physical operators: what a plan is made of, and how records travel between them.

An operator is a frozen value with children, and makes an RDD of the RDDs of its children. A batch's
facts (state info, watermarks, batch time) are fields that ``dataclasses.replace`` fills in, so one
plan is copied for each batch.

- A **record** is any Python object.
- From an ``EventTimeWatermarkExec`` on records travel as **events**, pairs ``(event time, record)``
  with the time in microseconds since the epoch, or None. Watermarks are in milliseconds, as in
  Spark: a record is late up to the last microsecond of one. :attr:`PhysicalOperator.hasEventTime`
  tells events from records. Maps and filters leave the time alone.
- **Keyed** rows, before an operator with state, are pairs ``(key, row)``, placed by the
  ``StablePartitioner`` of the operator's state info, in columnar blocks.
- Between partial and final aggregation rows are pairs ``(key, buffer)``; with a time window the key
  has the window's end in front: :mod:`dstreams.structured.operators.grouping`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.errors import InvalidStreamError
from dstreams.kernel.state_versions import StateUpdate
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo, describe_state_info
from dstreams.structured.trees import tree_lines

Event = tuple["int | None", Any]
Keyed = tuple[Any, Any]
Task = Callable[[int, Iterable[Any]], Iterable[Any]]

_O = TypeVar("_O", bound="PhysicalOperator")


@dataclass(frozen=True)
class PhysicalOperator:
    """One step of a physical plan."""

    @property
    def children(self) -> tuple[PhysicalOperator, ...]:
        """The operators whose rows this one takes."""
        found = (getattr(self, field.name) for field in fields(self))
        return tuple(value for value in found if isinstance(value, PhysicalOperator))

    @property
    def nodeName(self) -> str:
        """What ``explain`` calls it."""
        return type(self).__name__.removesuffix("Exec")

    @property
    def hasEventTime(self) -> bool:
        """Whether rows are pairs (event time, record)."""
        return False

    @property
    def arguments(self) -> list[str]:
        """What ``explain`` prints besides the name."""
        return []

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        """Return the rows; no job runs, because all state below has been made."""
        raise NotImplementedError

    def run(self, context: ExecutionContext) -> RDD[Any]:
        """Make all state, from the leaves up, a job for each operator, and return the rows."""

        def made(operator: PhysicalOperator) -> PhysicalOperator:
            if not isinstance(operator, StatefulOperator):
                return operator
            rows = context.make(operator.getStateInfo(), operator.update(context))
            return RDDScanExec(rows, operator.nodeName, operator.hasEventTime)

        return self.transform(made).execute(context)

    def inBatch(
        self: _O,
        stateInfo: StatefulOperatorStateInfo,
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> _O:
        """Return the operator with the facts of a batch filled in, as far as it has any.

        The state info is that of the operator, or of the one above it in whose task it runs.
        """
        return self

    def filled(
        self,
        states: Sequence[StatefulOperatorStateInfo],
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> PhysicalOperator:
        """Return the plan with the facts of a batch; *states* go from the leaves up."""
        remaining = list(states)

        def fill(operator: PhysicalOperator) -> PhysicalOperator:
            if not remaining:
                return operator
            full = operator.inBatch(remaining[0], lateWatermark, evictionWatermark)
            if isinstance(operator, StatefulOperator):
                del remaining[0]
            return full

        return self.transform(fill)

    def transform(self, change: Callable[[PhysicalOperator], PhysicalOperator]) -> PhysicalOperator:
        """Return the plan with *change* applied to every operator, from the leaves up."""
        changed = {
            field.name: value.transform(change)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), PhysicalOperator)
        }
        return change(replace(self, **changed) if changed else self)

    def walk(self) -> Iterator[PhysicalOperator]:
        """Iterate over the operators of the plan, from the leaves up."""
        for child in self.children:
            yield from child.walk()
        yield self

    def describe(self) -> str:
        """Return the line that ``explain`` prints of it."""
        return " ".join([self.nodeName, ", ".join(self.arguments)]).rstrip()

    def tree(self) -> str:
        """Return the plan as text, the outermost operator first."""
        return "\n".join(tree_lines(self, PhysicalOperator.describe))


@dataclass(frozen=True)
class RDDScanExec(PhysicalOperator):
    """The rows of an RDD that is there already: records, or events."""

    rdd: RDD[Any] | None
    name: str = "rdd"
    events: bool = False

    @property
    def hasEventTime(self) -> bool:
        return self.events

    @property
    def arguments(self) -> list[str]:
        return [self.name]

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        if self.rdd is None:
            return context.spark.parallelize([], 1)
        return self.rdd


@dataclass(frozen=True)
class UnaryExec(PhysicalOperator):
    """An operator with one child."""

    keepsEventTime: ClassVar[bool] = True
    """Whether rows that come of events are events."""

    child: PhysicalOperator

    @property
    def hasEventTime(self) -> bool:
        return self.keepsEventTime and self.child.hasEventTime


@dataclass(frozen=True)
class NarrowExec(UnaryExec):
    """An operator whose partitions each follow from one of its child's, in one pass with it."""

    def task(self, context: ExecutionContext) -> Task:
        """Return ``(partition number, rows) -> rows``."""
        raise NotImplementedError

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows: RDD[Any] = PipelinedRDD(self.child.execute(context), self.task(context))
        return rows


@dataclass(frozen=True, kw_only=True)
class StatefulOperator(PhysicalOperator):
    """What operators with state have in common: the facts of a batch.

    Rows up to the one watermark are late, state up to the other is given up; None for neither. They
    are milliseconds since the epoch.
    """

    stateInfo: StatefulOperatorStateInfo | None = None
    eventTimeWatermarkForLateEvents: int | None = None
    eventTimeWatermarkForEviction: int | None = None

    @property
    def shortName(self) -> str:
        """What a query's progress calls it."""
        raise NotImplementedError

    def update(self, context: ExecutionContext) -> StateUpdate:
        """Return what the batch does to the state; no job runs."""
        raise NotImplementedError

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        raise InvalidStreamError(f"{self.nodeName} makes its state: call run(context)")

    @property
    def watermarkArguments(self) -> list[str]:
        """The state info and both watermarks, as ``explain`` shows them."""
        marks = (self.eventTimeWatermarkForLateEvents, self.eventTimeWatermarkForEviction)
        shown = ["<unknown>" if mark is None else str(mark) for mark in marks]
        return [describe_state_info(self.stateInfo), *shown]

    def shouldRunAnotherBatch(self, newInputWatermark: int | None) -> bool:
        """Whether a batch without data would change anything, now that the watermark is this."""
        before = self.eventTimeWatermarkForEviction
        return before is not None and newInputWatermark is not None and newInputWatermark > before

    def getStateInfo(self) -> StatefulOperatorStateInfo:
        """Return the state info, or raise InvalidStreamError if it was not filled in."""
        if self.stateInfo is None:
            raise InvalidStreamError(
                f"{self.nodeName}: state location not present for execution; fill in stateInfo, "
                "for example with StatefulOperatorStateInfo.empty(numPartitions)"
            )
        return self.stateInfo

    def inBatch(
        self: _O,
        stateInfo: StatefulOperatorStateInfo,
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> _O:
        return replace(
            self,
            stateInfo=stateInfo,  # type: ignore[call-arg]
            eventTimeWatermarkForLateEvents=lateWatermark,
            eventTimeWatermarkForEviction=evictionWatermark,
        )
