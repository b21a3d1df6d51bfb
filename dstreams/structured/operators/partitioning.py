"""Distribution and order of rows: those that an operator has, and those that it requires.

An operator says what its children must have (:class:`Distribution`, :class:`Ordering`) and what its
own rows have (:class:`Partitioning`, :class:`Ordering`).
:func:`~dstreams.structured.operators.exchange.ensure_requirements` compares the two, and adds
exchanges and sorts.

Semantics: org.apache.spark.sql.catalyst.plans.physical (Spark 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ordering:
    """The columns by which the rows of a partition are ordered; none for no order.

    Rows in the order of their key have equal keys next to each other. Keys are any Python values,
    which need not have an order among themselves: they come in the order of their first rows.
    """

    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"order by {', '.join(self.columns)}" if self.columns else "no order"

    def satisfies(self, required: Ordering) -> bool:
        """Return whether rows in this order are in the *required* one as well."""
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

    Args:
        expressions: what the pairs are keyed by, for people.
        requiredNumPartitions: partitions of the state; None if they are not known yet.
        operation: what requires it, for error messages.
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
    """The distribution that rows have; the base class is for an unknown one."""

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
    """Each pair is in the partition that a ``StablePartitioner`` has for its key.

    Args:
        expressions: what the pairs are keyed by, for people.
        numPartitions: number of partitions.
    """

    expressions: str
    numPartitions: int

    def __str__(self) -> str:
        return f"hashpartitioning({self.expressions}, {self.numPartitions})"
