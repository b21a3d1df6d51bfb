"""BatchActions: what a program does with the rows of a batch dataset."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pyspark import RDD

from dstreams.spark.failures import make_brief
from dstreams.structured.api.api_hints import OF_DATASETS, Instead
from dstreams.structured.api.writer import WriterEnvironment
from dstreams.structured.plan.logical import LogicalPlan
from dstreams.structured.plan.unsupported import require_batch
from dstreams.structured.sinks.trial_sinks import table

T_co = TypeVar("T_co", covariant=True)
_R = TypeVar("_R")


class BatchActions(Instead, Generic[T_co]):
    """The actions of a dataset whose records do not come from a stream.

    Each action reads the records again. All of them raise UnsupportedOperationError if the records
    come from a stream, and the error of Spark if a task fails, with a message of one line and the
    program's own lines; the full text is in its attribute ``java``.

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
        return self._run("collect", RDD.collect)

    def count(self) -> int:
        """Return the number of records."""
        return self._run("count", RDD.count)

    def take(self, num: int) -> list[T_co]:
        """Return the first records, up to *num*."""
        return self._take("take", num)

    def first(self) -> T_co | None:
        """Return the first record, None without records."""
        return next(iter(self._take("first", 1)), None)

    def isEmpty(self) -> bool:
        """Return whether the dataset is empty."""
        return not self._take("isEmpty", 1)

    def show(self, n: int = 20, truncate: bool = True) -> None:
        """Print the first records as a table.

        Args:
            n: the largest number of records.
            truncate: cut cells to 20 characters.
        """
        rows = self._take("show", n + 1)
        sys.stdout.write(table(rows[:n], truncate=truncate))
        if len(rows) > n:
            sys.stdout.write(f"only showing top {n} rows\n")

    def _take(self, action: str, num: int) -> list[T_co]:
        return self._run(action, lambda rows: rows.take(num))

    def _run(self, action: str, job: Callable[[RDD[Any]], _R]) -> _R:
        rows = self._rows(action)
        try:
            return job(rows)
        except Exception as error:
            make_brief(error)
            raise

    def _rows(self, action: str) -> RDD[Any]:
        require_batch(self.plan, action)
        return self.environment.manager.rows_of_batch(self.plan, self.environment.conf())
