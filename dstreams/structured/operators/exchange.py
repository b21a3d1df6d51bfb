"""Exchange and local sort: they distribute and order rows as an operator requires.

:func:`ensure_requirements` adds them to a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.spark.ordered_groups import GroupsInOrder
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import PlacedPairsRDD
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.worker_gc import settle_worker
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.partitioning import (
    BY_KEY_AND_START,
    HashPartitioning,
    Ordering,
    Partitioning,
    StatefulOpClusteredDistribution,
)
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    Task,
    UnaryExec,
)

_first = itemgetter(0)


@dataclass(frozen=True)
class ShuffleExchangeExec(UnaryExec):
    """Brings pairs to the partition of their key, in columnar blocks.

    A partition has its rows in the order in which the child has them, partition after partition.

    Args:
        numPartitions: number of partitions of the state that the key is looked up in.
        keyName: what the pairs are keyed by, for people.
        operation: what requires the exchange, for error messages.

    Semantics: ShuffleExchangeExec (Spark 4.3).
    """

    numPartitions: int
    keyName: str = "key"
    operation: str = "groupByKey"

    @property
    def nodeName(self) -> str:
        return "Exchange"

    @property
    def arguments(self) -> list[str]:
        return [str(self.outputPartitioning)]

    @property
    def outputPartitioning(self) -> Partitioning:
        return HashPartitioning(self.keyName, self.numPartitions)

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows = self.child.execute(context)
        partitioner = StablePartitioner(self.numPartitions)
        blocks = shuffle_pairs(rows, partitioner, operation=self.operation, ordered=True)
        return PlacedPairsRDD(blocks)


@dataclass(frozen=True)
class LocalSortExec(NarrowExec):
    """Brings equal keys of a partition together, in the order of the first row of each.

    Rows of a key keep their order or, if *ordering* says so, are sorted by the first field of their
    value. Rows beyond the memory of a worker are spilled.

    Semantics: SortExec with ``global = false`` (Spark 4.3), as far as operators with state need it.
    """

    keepsPartitioning: ClassVar[bool] = True

    ordering: Ordering

    @property
    def nodeName(self) -> str:
        return "Sort"

    @property
    def arguments(self) -> list[str]:
        return [f"[{', '.join(self.ordering.columns)}]", "false"]

    @property
    def outputOrdering(self) -> Ordering:
        return self.ordering

    def task(self, context: ExecutionContext) -> Task:
        return _SortPairs(context.memory_mb, self.ordering == BY_KEY_AND_START)


@dataclass(frozen=True)
class _SortPairs:
    """Task: pairs -> the same pairs, those of a key next to each other."""

    memory_mb: float
    by_value: bool

    def __call__(self, _: int, pairs: Iterable[Any]) -> Iterator[Any]:
        settle_worker()
        groups = GroupsInOrder(self.memory_mb)
        groups.add(pairs)
        for key, values in groups.items():
            for value in sorted(values, key=_first) if self.by_value else values:
                yield key, value


def ensure_requirements(plan: PhysicalOperator, numPartitions: int) -> PhysicalOperator:
    """Return the plan with an exchange and a sort wherever a child lacks what is required of it.

    Args:
        plan: any plan.
        numPartitions: partitions of each state whose operator does not know them yet.

    Semantics: EnsureRequirements (Spark 4.3).
    """

    def ensure(operator: PhysicalOperator) -> PhysicalOperator:
        names = [
            field.name
            for field in fields(operator)
            if isinstance(getattr(operator, field.name), PhysicalOperator)
        ]
        requirements = zip(
            names,
            operator.children,
            operator.requiredChildDistribution,
            operator.requiredChildOrdering,
            strict=True,
        )
        changed: dict[str, PhysicalOperator] = {}
        for name, child, distribution, ordering in requirements:
            better = child
            if isinstance(distribution, StatefulOpClusteredDistribution):
                count = distribution.requiredNumPartitions or numPartitions
                wanted = replace(distribution, requiredNumPartitions=count)
                if not wanted.is_satisfied_by(child.outputPartitioning):
                    better = ShuffleExchangeExec(
                        child, count, distribution.expressions, distribution.operation
                    )
            if not better.outputOrdering.satisfies(ordering):
                better = LocalSortExec(better, ordering)
            if better is not child:
                changed[name] = better
        return replace(operator, **changed) if changed else operator

    return plan.transform(ensure)
