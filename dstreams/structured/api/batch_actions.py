"""BatchActions: what a program does with the rows of a batch dataset."""

from __future__ import annotations

import sys
from typing import Any, Generic, TypeVar

from pyspark import RDD

from dstreams.structured.api.api_hints import OF_DATASETS, Instead
from dstreams.structured.api.writer import WriterEnvironment
from dstreams.structured.plan.logical import LogicalPlan
from dstreams.structured.plan.unsupported import require_batch
from dstreams.structured.sinks.trial_sinks import table

T_co = TypeVar("T_co", covariant=True)


class BatchActions(Instead, Generic[T_co]):
    """The actions of a dataset whose records do not come from a stream.

    Each action reads the records again. All of them raise UnsupportedOperationError if the records
    come from a stream, and UserFunctionError if a function of the program fails.

    Semantics: the actions of pyspark.sql.DataFrame.
    """

    plan: LogicalPlan
    environment: WriterEnvironment

    _instead = OF_DATASETS

    @property
    def rdd(self) -> RDD[T_co]:
        """The records as an RDD, computed by each action on it; ``rdd.cache()`` keeps them."""
        return self._rows("rdd")

    def collect(self) -> list[T_co]:
        """Return all records."""
        rows: list[T_co] = self._rows("collect").collect()
        return rows

    def count(self) -> int:
        """Return the number of records."""
        return self._rows("count").count()

    def take(self, num: int) -> list[T_co]:
        """Return the first records, up to *num*."""
        rows: list[T_co] = self._rows("take").take(num)
        return rows

    def first(self) -> T_co | None:
        """Return the first record, None without records."""
        return next(iter(self._rows("first").take(1)), None)

    def isEmpty(self) -> bool:
        """Return whether there is no record."""
        return not self._rows("isEmpty").take(1)

    def show(self, n: int = 20, truncate: bool = True) -> None:
        """Print the first records as a table.

        Args:
            n: the largest number of records.
            truncate: cut cells to 20 characters.
        """
        rows = self._rows("show").take(n + 1)
        sys.stdout.write(table(rows[:n], truncate=truncate))
        if len(rows) > n:
            sys.stdout.write(f"only showing top {n} rows\n")

    def _rows(self, action: str) -> RDD[Any]:
        require_batch(self.plan, action)
        return self.environment.manager.rows_of_batch(self.plan, self.environment.conf())
