"""How many records an RDD has, learnt from the jobs that read it anyway.

In a notebook:

    from dstreams.spark.counting import counted

    numbers, count = counted(spark.parallelize(range(10), 2))
    count.records()      # None: nobody has read it
    numbers.sum()
    count.records()      # 10

Each task says how many records its partition had, once it has reached the end of it. A partition of
which somebody took only the beginning says nothing: the count of its RDD stays unknown.
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
    """What is known of the number of records of one RDD; *reports* is None where nobody counts."""

    def __init__(self, rdd: RDD[Any], reports: TaskReports[int] | None) -> None:
        self._rdd = rdd
        self._reports = reports
        self._others: list[tuple[int, TaskReports[int]]] = []

    def also_of(self, partitions: int) -> TaskReport[int]:
        """Return how the tasks of another RDD of the same records, in *partitions*, report."""
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
        # How many partitions there are is a call into the JVM: not for nothing, and not to be
        # relied on after an output of the batch has stopped Spark.
        try:
            is_complete = bool(counts) and len(counts) == self._rdd.getNumPartitions()
        except (Py4JError, OSError):
            return None
        return sum(counts) if is_complete else None


@runtime_checkable
class CountsItself(Protocol):
    """An RDD whose tasks report how many records they have."""

    record_count: RecordCount


def counted(rdd: RDD[T]) -> tuple[RDD[T], RecordCount]:
    """Return *rdd* as one that is counted when it is read, and its count.

    Nothing is read ahead, and no record is held back. An RDD of blocks of pairs is returned as it
    is, and never counted: what is built on it must see the blocks.

    Args:
        rdd: any RDD; its partitioner is kept.
    """
    if isinstance(rdd, CountsItself):
        return rdd, rdd.record_count
    if isinstance(rdd, BlockPairsRDD):
        return rdd, RecordCount(rdd, None)
    reports: TaskReports[int] = TaskReports(rdd.context)
    count = RecordCount(rdd, reports)
    return _CountedRDD(rdd, _Count(reports.task), count), count


def counted_unless_known(rdd: RDD[T], records: int | None) -> tuple[RDD[T], RecordCount | None]:
    """Return *rdd* and its count, as :func:`counted`, where its number of *records* is not known.

    An RDD that counts itself knows better; of another, whose number is known, there is no count.
    """
    if records is None or isinstance(rdd, CountsItself):
        return counted(rdd)
    return rdd, None


def uncounted(rdd: RDD[T]) -> RDD[T]:
    """Return the RDD that :func:`counted` was given, as far as none but the counting reads it."""
    return rdd._counted if isinstance(rdd, _CountedRDD) and not rdd._is_own else rdd


def count_of(rdd: RDD[Any]) -> RecordCount | None:
    """Return the count of an RDD that :func:`counted` made; None for one that nobody counts."""
    return rdd._known_count if isinstance(rdd, _CountedRDD) else None


class _CountedRDD(PipelinedRDD):  # type: ignore[misc]
    """Counts in the Python worker that reads the RDD, and starts none of its own.

    What is built on it in Python runs in one pass with the counting. What only the JVM reads, such
    as a union, gets the RDD as it was. Persisted, it is an RDD of its own with its own storage.
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
    """Task: the records as they are; after the last one, how many there were."""

    report: TaskReport[int]

    def __call__(self, split: int, records: Iterable[T]) -> Iterator[T]:
        # compress takes a record, then a number, and tests the number: all of it without a step of
        # Python for each record, and no number is taken after the last record.
        numbers = itertools.count(1)
        return itertools.chain(itertools.compress(records, numbers), self._report(split, numbers))

    def _report(self, split: int, numbers: Iterator[int]) -> Iterator[Any]:
        count = next(numbers) - 1
        self.report(split, count, count)
        yield from ()
