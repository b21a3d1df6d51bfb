"""Physical operators: the nodes of a plan, the rows between them, and their distribution.

An operator is a frozen value with children, and makes an RDD of the RDDs of its children. The facts
of a batch (state info, watermarks, batch time) are fields that ``dataclasses.replace`` fills in, so
one plan is copied for each batch. Each operator can be executed by itself, over any child
(:meth:`PhysicalOperator.executeCollect`): :class:`RDDScanExec` makes an operator of an RDD.

- A **record** is any Python object.
- From an ``EventTimeWatermarkExec`` on records travel as **events**, pairs ``(event time, record)``
  with the time in microseconds since the epoch, or None. Watermarks are in milliseconds, as in
  Spark: a record is late up to the last microsecond of one. Maps and filters
  keep the time. :attr:`PhysicalOperator.hasEventTime` is true if rows are events.
- **Keyed** rows, before an operator with state, are pairs ``(key, row)``. A
  :class:`ShuffleExchangeExec` brings them to the partition in which the state of their key is.
- An operator requires a :class:`Distribution` and an :class:`Ordering` of its children, and has a
  :class:`Partitioning` and an ordering of its own. Semantics:
  org.apache.spark.sql.catalyst.plans.physical (Spark 4.3).
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
from dstreams.spark.failures import UserFunctionError, failed, make_brief, mapped
from dstreams.spark.partitioner import StablePartitioner
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    StatefulOperatorStateInfo,
)
from dstreams.structured.trees import tree_lines


@dataclass(frozen=True)
class Ordering:
    """The columns by which the rows of a partition are ordered; empty without order.

    Rows in the order of their key have equal keys next to each other. Keys are any Python values,
    which need not have an order among themselves: they come in the order of their first rows.
    """

    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"order by {', '.join(self.columns)}" if self.columns else "no order"

    def satisfies(self, required: Ordering) -> bool:
        """Return whether rows in this order are also in the *required* order."""
        return self.columns[: len(required.columns)] == required.columns


UNORDERED = Ordering()
BY_KEY = Ordering(("key",))
BY_KEY_AND_START = Ordering(("key", "session start"))


@dataclass(frozen=True)
class Distribution:
    """A distribution that an operator requires of a child; the base class requires nothing."""

    def is_satisfied_by(self, partitioning: Partitioning) -> bool:
        """Return whether rows with a partitioning are distributed like this."""
        return True


UNSPECIFIED = Distribution()


@dataclass(frozen=True)
class StatefulOpClusteredDistribution(Distribution):
    """Each pair is in the partition in which the state of its key is.

    The number of partitions may be unknown. *operation* is for error messages.
    """

    expressions: str = "key"
    requiredNumPartitions: int | None = None
    operation: str = "groupByKey"

    def __str__(self) -> str:
        count = self.requiredNumPartitions
        return f"hashpartitioning({self.expressions}, {'any' if count is None else count})"

    def is_satisfied_by(self, partitioning: Partitioning) -> bool:
        wanted = self.requiredNumPartitions
        return isinstance(partitioning, HashPartitioning) and wanted in (
            None,
            partitioning.numPartitions,
        )


@dataclass(frozen=True)
class Partitioning:
    """The actual distribution of rows; the base class is an unknown one."""

    def __str__(self) -> str:
        return "UnknownPartitioning"


UNKNOWN = Partitioning()


@dataclass(frozen=True)
class SinglePartition(Partitioning):
    """All rows are in one partition."""

    def __str__(self) -> str:
        return "SinglePartition"


@dataclass(frozen=True)
class HashPartitioning(Partitioning):
    """Each pair is in the partition that a ``StablePartitioner`` has for its key."""

    expressions: str
    numPartitions: int

    def __str__(self) -> str:
        return f"hashpartitioning({self.expressions}, {self.numPartitions})"


Event = tuple["int | None", Any]
Keyed = tuple[Any, Any]
Task = Callable[[int, Iterable[Any]], Iterable[Any]]

_O = TypeVar("_O", bound="PhysicalOperator")


def mapped_records(
    func: Callable[[Any], Any],
    records: list[Any],
    where: str,
    map_all: Callable[[list[Any]], list[Any]] | None = None,
) -> list[Any]:
    """Return *func* of each record, by *map_all* if given; errors name the record."""
    try:
        return mapped(func, records) if map_all is None else map_all(records)
    except Exception:
        for record in records:  # find the record that fails
            try:
                func(record)
            except UserFunctionError:
                raise
            except Exception as error:
                raise failed(where, record, error, "record") from error
        raise


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

    def executeCollect(self, context: ExecutionContext) -> list[Any]:
        """Return the rows of the batch as a list.

        Raises:
            Exception: a function of the program failed; the error of Spark with a message of one
                line and the program's own lines. The full text is in its attribute ``java``.
        """
        try:
            return self.execute(context).collect()
        except Exception as error:
            make_brief(error)
            raise

    def inBatch(
        self: _O,
        stateInfo: StatefulOperatorStateInfo,
        lateWatermark: int | None = None,
        evictionWatermark: int | None = None,
    ) -> _O:
        """Return the operator with the facts of a batch in those fields that it has for them.

        The state info is that of the operator, or of the one above it that saves the state.
        """
        facts = {
            "stateInfo": stateInfo,
            "eventTimeWatermarkForLateEvents": lateWatermark,
            "eventTimeWatermarkForEviction": evictionWatermark,
        }
        own = {field.name for field in fields(self)}
        return replace(self, **{name: fact for name, fact in facts.items() if name in own})

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
    """A scan of an RDD of records, events or pairs; None for an empty RDD.

    With *events* the rows are events, or keyed rows with events. *columns* are the parts of a row.
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

    outputPartitioning: ClassVar[Partitioning] = SinglePartition()

    rows: tuple[Any, ...]
    columns: tuple[str, ...] = ("value",)

    @property
    def arguments(self) -> list[str]:
        return [f"{len(self.rows)} rows"]

    @property
    def output(self) -> tuple[str, ...]:
        return self.columns

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
