"""What tasks report of their partitions besides their rows, in jobs that run anyway.

Reports are kept by partition and not added up: of two reports of one partition, after a retry, a
speculative twin or a lost block, that which has seen more records counts.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark import Accumulator, AccumulatorParam, SparkContext

F = TypeVar("F")

_Partitions = dict[int, tuple[int, F]]
_Reports = dict[int, _Partitions[Any]]
"""By token: by partition: how many records were seen, and what is said of them."""

_tokens = itertools.count()


class TaskReports(Generic[F]):
    """What the tasks of one RDD have reported so far; forgotten with this object."""

    def __init__(self, spark: SparkContext) -> None:
        accumulator = _accumulator_of(spark)
        self.task: TaskReport[F] = TaskReport(accumulator, next(_tokens))
        self._partitions: _Partitions[F] = {}
        accumulator.value[self.task.token] = self._partitions
        weakref.finalize(self, accumulator.value.pop, self.task.token, None)

    def facts(self) -> list[F]:
        return [fact for _, (_, fact) in sorted(self._partitions.copy().items())]


@dataclass(frozen=True)
class TaskReport(Generic[F]):
    """How a task reports: by the one accumulator of the context, under the token of its reports."""

    accumulator: Accumulator[_Reports]
    token: int

    def __call__(self, split: int, records: int, fact: F) -> None:
        """Report what was seen in a partition, and in how many records."""
        self.accumulator.add({self.token: {split: (records, fact)}})


class _Live(_Reports):
    """The driver's reports: those that somebody still asks about, and no other."""


class _ByPartition(AccumulatorParam[_Reports]):
    def zero(self, value: _Reports) -> _Reports:
        return {}

    def addInPlace(self, value1: _Reports, value2: _Reports) -> _Reports:  # noqa: N802
        for token, new in value2.items():
            known = value1.get(token) if isinstance(value1, _Live) else value1.setdefault(token, {})
            if known is not None:
                for split, report in new.items():
                    known[split] = max(known.get(split, report), report, key=_records)
        return value1


def _records(report: tuple[int, Any]) -> int:
    return report[0]


def _accumulator_of(spark: SparkContext) -> Accumulator[_Reports]:
    """Return the one accumulator of a context: PySpark keeps each for as long as it lives."""
    known = vars(spark)
    if "_dstreams_reports" not in known:
        known["_dstreams_reports"] = spark.accumulator(_Live(), _ByPartition())
    accumulator: Accumulator[_Reports] = known["_dstreams_reports"]
    return accumulator
