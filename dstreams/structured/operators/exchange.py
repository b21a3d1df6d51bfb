"""Exchange and local sort, which distribute and order rows as an operator requires.

:func:`ensure_requirements` adds them to a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import PlacedPairsRDD
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.spilling import GroupsInOrder
from dstreams.spark.worker_gc import settle_worker
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    BY_KEY_AND_START,
    HashPartitioning,
    NarrowExec,
    Ordering,
    Partitioning,
    PhysicalOperator,
    StatefulOpClusteredDistribution,
    Task,
    UnaryExec,
)

_first = itemgetter(0)


@dataclass(frozen=True)
class ShuffleExchangeExec(UnaryExec):
    """Brings pairs to the partition of their key, in columnar blocks.

    A partition has its rows in the order in which the child has them, partition after partition.
    *operation* is for error messages.

    Semantics: ShuffleExchangeExec (Spark 4.3).
    """

    nodeName: ClassVar[str] = "Exchange"

    numPartitions: int
    keyName: str = "key"
    operation: str = "groupByKey"

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

    nodeName: ClassVar[str] = "Sort"
    keepsPartitioning: ClassVar[bool] = True

    ordering: Ordering

    @property
    def arguments(self) -> list[str]:
        return [f"[{', '.join(self.ordering.columns)}]", "false"]

    @property
    def outputOrdering(self) -> Ordering:
        return self.ordering

    def task(self, context: ExecutionContext) -> Task:
        return partial(_sort_pairs, context.memory_mb, self.ordering == BY_KEY_AND_START)


def _sort_pairs(memory_mb: float, by_value: bool, _: int, pairs: Iterable[Any]) -> Iterator[Any]:
    settle_worker()
    groups = GroupsInOrder(memory_mb)
    groups.add(pairs)
    for key, values in groups.items():
        for value in sorted(values, key=_first) if by_value else values:
            yield key, value


def ensure_requirements(plan: PhysicalOperator, numPartitions: int) -> PhysicalOperator:
    """Return the plan with an exchange and a sort below each operator that requires them.

    *numPartitions* is the number of partitions of states without a state info.

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
