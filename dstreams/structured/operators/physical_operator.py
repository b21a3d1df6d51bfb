"""Physical operators: the nodes of a plan, and the rows between them.

An operator is a frozen value with children, and makes an RDD of the RDDs of its children. The facts
of a batch (state info, watermarks, batch time) are fields that ``dataclasses.replace`` fills in, so
one plan is copied for each batch. Each operator can be executed by itself, over any child:
:class:`RDDScanExec` makes an operator of an RDD.

- A **record** is any Python object.
- From an ``EventTimeWatermarkExec`` on records travel as **events**, pairs ``(event time, record)``
  with the time in microseconds since the epoch, or None. Watermarks are in milliseconds, as in
  Spark: a record is late up to the last microsecond of one. :attr:`PhysicalOperator.hasEventTime`
  says which of the two the rows are. Maps and filters keep the time.
- **Keyed** rows, before an operator with state, are pairs ``(key, row)``. A
  :class:`ShuffleExchangeExec` brings them to the partition in which the state of their key is.
- Between partial and final aggregation rows are pairs ``(key, buffer)``; with a time window the key
  has the window's end in front: :mod:`dstreams.structured.operators.grouping`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.errors import InvalidStreamError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    StatefulOperatorStateInfo,
)
from dstreams.structured.operators.partitioning import (
    UNKNOWN,
    UNORDERED,
    UNSPECIFIED,
    Distribution,
    HashPartitioning,
    Ordering,
    Partitioning,
    SinglePartition,
)
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
        """The operators that this one reads rows from."""
        found = (getattr(self, field.name) for field in fields(self))
        return tuple(value for value in found if isinstance(value, PhysicalOperator))

    @property
    def nodeName(self) -> str:
        """The name that ``explain`` prints."""
        return type(self).__name__.removesuffix("Exec")

    writesState: ClassVar[bool] = False
    """True for an operator that makes a version of a state."""

    @property
    def hasEventTime(self) -> bool:
        """True if rows are pairs (event time, record), or keyed rows with such pairs."""
        return False

    @property
    def arguments(self) -> list[str]:
        """The arguments that ``explain`` prints after the name."""
        return []

    @property
    def output(self) -> tuple[str, ...]:
        """The names of the parts of a row."""
        return ("value",)

    @property
    def outputPartitioning(self) -> Partitioning:
        """The distribution of the rows."""
        return UNKNOWN

    @property
    def outputOrdering(self) -> Ordering:
        """The order of the rows of each partition."""
        return UNORDERED

    @property
    def requiredChildDistribution(self) -> tuple[Distribution, ...]:
        """The distribution that the rows of each child must have."""
        return (UNSPECIFIED,) * len(self.children)

    @property
    def requiredChildOrdering(self) -> tuple[Ordering, ...]:
        """The order that the rows of each child must have."""
        return (UNORDERED,) * len(self.children)

    def requireInput(self) -> None:
        """Raise InvalidStreamError if a child does not have the required distribution or order."""
        requirements = zip(
            self.children, self.requiredChildDistribution, self.requiredChildOrdering, strict=True
        )
        for child, distribution, ordering in requirements:
            if not distribution.is_satisfied_by(child.outputPartitioning):
                wanted: object = distribution
                found: object = child.outputPartitioning
            elif not child.outputOrdering.satisfies(ordering):
                wanted, found = ordering, child.outputOrdering
            else:
                continue
            raise InvalidStreamError(
                f"{self.nodeName}: its input must have {wanted}, {child.nodeName} has {found}; "
                "call ensure_requirements(plan, numPartitions), which adds exchanges and sorts"
            )

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        """Return the rows of the batch.

        State below is made on the way, from the leaves up, in one job for each operator that writes
        it. No other job runs.
        """
        raise NotImplementedError

    def inBatch(
        self: _O,
        stateInfo: StatefulOperatorStateInfo,
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> _O:
        """Return the operator with the facts of a batch filled in.

        The state info is that of the operator, or of the one above it that saves the state.
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
            if operator.writesState:
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
        """Return the line that ``explain`` prints."""
        return " ".join([self.nodeName, ", ".join(self.arguments)]).rstrip()

    def shown(self, stage: int = 0, fused: int = 0) -> ShownOperator:
        """Return the plan as it is printed; the first *fused* operators belong to a fused stage."""
        mark = f"*({stage}) " if fused else ""
        below = max(fused - 1, 0)
        # Only the first child of an operator belongs to its stage.
        children = [
            child.shown(stage, 0 if place else below) for place, child in enumerate(self.children)
        ]
        return ShownOperator(mark + self.describe(), children)

    def tree(self) -> str:
        """Return the plan as text, the outermost operator first."""
        return "\n".join(tree_lines(self.shown(), attrgetter("text")))


class ShownOperator(NamedTuple):
    """An operator as ``explain`` prints it."""

    text: str
    children: list[ShownOperator]


@dataclass(frozen=True)
class RDDScanExec(PhysicalOperator):
    """The rows of an RDD: records, events or pairs.

    Args:
        rdd: the RDD; None for one without rows.
        name: for ``explain``.
        events: whether the rows are events, or keyed rows hold events.
        ordering: the order of the rows of each partition.
        columns: the names of the parts of a row.
    """

    rdd: RDD[Any] | None
    name: str = "rdd"
    events: bool = False
    ordering: Ordering = UNORDERED
    columns: tuple[str, ...] = ("value",)

    @property
    def hasEventTime(self) -> bool:
        return self.events

    @property
    def arguments(self) -> list[str]:
        return [self.name]

    @property
    def output(self) -> tuple[str, ...]:
        return self.columns

    @property
    def outputPartitioning(self) -> Partitioning:
        placed_by = None if self.rdd is None else self.rdd.partitioner
        if isinstance(placed_by, StablePartitioner):
            return HashPartitioning("key", placed_by.numPartitions)
        return UNKNOWN

    @property
    def outputOrdering(self) -> Ordering:
        return self.ordering

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        if self.rdd is None:
            return context.spark.parallelize([], 1)
        return self.rdd


@dataclass(frozen=True)
class LocalTableScanExec(PhysicalOperator):
    """Rows that the program has in memory, in one partition."""

    rows: tuple[Any, ...]
    columns: tuple[str, ...] = ("value",)

    @property
    def arguments(self) -> list[str]:
        return [f"{len(self.rows)} rows"]

    @property
    def output(self) -> tuple[str, ...]:
        return self.columns

    @property
    def outputPartitioning(self) -> Partitioning:
        return SinglePartition()

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        return context.spark.parallelize(self.rows, 1)


@dataclass(frozen=True)
class UnaryExec(PhysicalOperator):
    """An operator with one child."""

    keepsEventTime: ClassVar[bool] = True
    """True if the operator makes events of events."""

    child: PhysicalOperator

    @property
    def hasEventTime(self) -> bool:
        return self.keepsEventTime and self.child.hasEventTime

    @property
    def output(self) -> tuple[str, ...]:
        return self.child.output


@dataclass(frozen=True)
class NarrowExec(UnaryExec):
    """An operator whose partitions each follow from one of its child's, in one pass with it."""

    keepsPartitioning: ClassVar[bool] = False
    """True if the rows are pairs with the keys of the child's rows."""

    @property
    def outputPartitioning(self) -> Partitioning:
        return self.child.outputPartitioning if self.keepsPartitioning else UNKNOWN

    def task(self, context: ExecutionContext) -> Task:
        """Return ``(partition number, rows) -> rows``."""
        raise NotImplementedError

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        self.requireInput()
        rows: RDD[Any] = PipelinedRDD(
            self.child.execute(context), self.task(context), self.keepsPartitioning
        )
        return rows
