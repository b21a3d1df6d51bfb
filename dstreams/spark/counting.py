"""Record counts of RDDs, taken from the jobs that read them.

In a notebook:

    from dstreams.spark.counting import counted

    numbers, count = counted(spark.parallelize(range(10), 2))
    count.records()      # None: not read yet
    numbers.sum()
    count.records()      # 10

Each task reports the number of records when it reaches the end of its partition. The count of an
RDD stays unknown until every partition has been read to its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from py4j.protocol import Py4JError
from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.task_reports import TaskReport, TaskReports

T = TypeVar("T")


class RecordCount:
    """The number of records of one RDD; *reports* is None if they are not counted."""

    def __init__(self, rdd: RDD[Any], reports: TaskReports[int] | None) -> None:
        self._rdd = rdd
        self._reports = reports
        self._others: list[tuple[int, TaskReports[int]]] = []

    def also_of(self, partitions: int) -> TaskReport[int]:
        """Return a report for the tasks of another RDD of the same records, in *partitions*."""
        reports: TaskReports[int] = TaskReports(self._rdd.context)
        self._others.append((partitions, reports))
        return reports.task

    def records(self) -> int | None:
        """Return the number of records, None unless each partition was read to its end."""
        for partitions, reports in self._others:
            counts = reports.facts()
            if len(counts) == partitions:
                return sum(counts)
        counts = [] if self._reports is None else self._reports.facts()
        # getNumPartitions calls the JVM: skip it if nothing was reported; it fails if an output of
        # the batch has stopped Spark.
        try:
            is_complete = bool(counts) and len(counts) == self._rdd.getNumPartitions()
        except (Py4JError, OSError):
            return None
        return sum(counts) if is_complete else None


@runtime_checkable
class CountsItself(Protocol):
    """An RDD whose tasks report their number of records."""

    record_count: RecordCount


def counted(rdd: RDD[T]) -> tuple[RDD[T], RecordCount]:
    """Return *rdd* as an RDD that counts its records when it is read, and the count.

    The partitioner is kept. Records are not read ahead or held back. A :class:`BlockPairsRDD` is
    returned unchanged and never counted, because operations on it need its blocks.
    """
    if isinstance(rdd, CountsItself):
        return rdd, rdd.record_count
    if isinstance(rdd, BlockPairsRDD):
        return rdd, RecordCount(rdd, None)
    reports: TaskReports[int] = TaskReports(rdd.context)
    count = RecordCount(rdd, reports)
    return _CountedRDD(rdd, _Count(reports.task), count), count


def counted_unless_known(rdd: RDD[T], records: int | None) -> tuple[RDD[T], RecordCount | None]:
    """Return *rdd* and its count as :func:`counted` does, or None if *records* is known.

    An RDD that counts its own records is more precise than *records*.
    """
    if records is None or isinstance(rdd, CountsItself):
        return counted(rdd)
    return rdd, None


def uncounted(rdd: RDD[T]) -> RDD[T]:
    """Return the original of an RDD from :func:`counted`, unless it is persisted by itself."""
    return rdd._counted if isinstance(rdd, _CountedRDD) and not rdd._is_own else rdd


def count_of(rdd: RDD[Any]) -> RecordCount | None:
    """Return the count of an RDD that :func:`counted` made, None for other RDDs."""
    return rdd._known_count if isinstance(rdd, _CountedRDD) else None


class _CountedRDD(PipelinedRDD):  # type: ignore[misc]
    """An RDD that counts its records in the Python worker that reads it.

    Python functions on top of it run in the same pass. Readers in the JVM, such as a union, get the
    original RDD. Once persisted, it has storage of its own.
    """

    def __init__(self, rdd: RDD[Any], count: _Count, known: RecordCount) -> None:
        self._counted = rdd
        self._known_count = known
        self._own_deserializer: Any = None
        self._is_asked = False
        super().__init__(rdd, count, preservesPartitioning=True)

    @property
    def _is_own(self) -> bool:
        return bool(self._is_asked or self.is_cached or self.is_checkpointed)

    @property
    def _jrdd(self) -> Any:
        return super()._jrdd if self._is_own else self._counted._jrdd

    @property
    def _jrdd_deserializer(self) -> Any:
        return self._own_deserializer if self._is_own else self._counted._jrdd_deserializer

    @_jrdd_deserializer.setter
    def _jrdd_deserializer(self, serializer: Any) -> None:
        self._own_deserializer = serializer

    def id(self) -> int:
        number: int = self._jrdd.id()
        return number

    def collect(self) -> list[Any]:
        self._is_asked = True
        try:
            records: list[Any] = super().collect()
            return records
        finally:
            self._is_asked = False


@dataclass(frozen=True)
class _Count:
    """Task: yields the records unchanged, and reports their number after the last one."""

    report: TaskReport[int]

    def __call__(self, split: int, records: Iterable[T]) -> Iterator[T]:
        # compress takes a record, then a number, and tests the number: no Python code runs per
        # record, and no number is taken after the last record.
        numbers = itertools.count(1)
        return itertools.chain(itertools.compress(records, numbers), self._report(split, numbers))

    def _report(self, split: int, numbers: Iterator[int]) -> Iterator[Any]:
        count = next(numbers) - 1
        self.report(split, count, count)
        yield from ()
