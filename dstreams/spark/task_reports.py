"""Reports that tasks send about their partitions, in addition to their rows.

Reports are kept per partition and not added up. If a partition reports twice, after a retry, a
speculative attempt or a lost block, the report that covers more records wins. Tasks report, among
others, the records that they could not decode and skipped.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

from pyspark import Accumulator, AccumulatorParam, SparkContext

from dstreams.common.settings import choice

F = TypeVar("F")

_Partitions = dict[int, tuple[int, F]]
_Reports = dict[int, _Partitions[Any]]
"""Token -> partition -> (number of records read, report)."""

_tokens = itertools.count()


class TaskReports(Generic[F]):
    """The reports of the tasks of one RDD, discarded together with this object."""

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
    """A function with which a task reports, over the accumulator of the context."""

    accumulator: Accumulator[_Reports]
    token: int

    def __call__(self, split: int, records: int, fact: F) -> None:
        """Report *fact* about a partition after reading *records* of it."""
        self.accumulator.add({self.token: {split: (records, fact)}})


class _Live(_Reports):
    """The driver's reports: only those whose TaskReports still exists."""


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
    """Return the accumulator of a context; one is enough, because PySpark never frees them."""
    known = vars(spark)
    if "_dstreams_reports" not in known:
        known["_dstreams_reports"] = spark.accumulator(_Live(), _ByPartition())
    accumulator: Accumulator[_Reports] = known["_dstreams_reports"]
    return accumulator


BadRecords = Literal["FAILFAST", "DROPMALFORMED"]
"""A record that cannot be decoded fails the batch, or is skipped, counted and sent to the dead
letters if there are any."""

BAD_RECORDS = choice(*get_args(BadRecords))


class LeftOut(NamedTuple):
    """The number of records skipped in a partition, the first with its error, and the reason."""

    records: int
    first: str
    problem: str = "could not be decoded"


def skipped(records: int, problem: str) -> str:
    """Return how many records were skipped, and why, for people."""
    return f"{records} {problem} and {'was' if records == 1 else 'were'} skipped"


@runtime_checkable
class LeavesOut(Protocol):
    """An RDD whose tasks report the records that they skip."""

    left_out: TaskReports[LeftOut]
