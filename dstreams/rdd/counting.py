"""How many records an RDD has, learnt from the jobs that read it anyway.

In a notebook:

    from dstreams.rdd.counting import counted

    numbers, count = counted(spark.parallelize(range(10), 2))
    count.records()      # None: nobody has read it
    numbers.sum()
    count.records()      # 10

Each task says how many records its partition had, once it has reached the end of it. What tasks say
is kept by partition and not added up, so a partition that is computed again, because its task was
retried, speculated or its block lost, counts once. A partition of which somebody took only the
beginning says nothing: the count of its RDD stays unknown.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD, Accumulator, AccumulatorParam, SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.rdd.shuffle import BlockPairsRDD

T = TypeVar("T")

_Counts = dict[int, dict[int, int]]
"""Records by partition, by token of the RDD."""

_tokens = itertools.count()


class RecordCount:
    """What is known of the number of records of one RDD; forgotten with this object.

    Args:
        rdd: the RDD.
        counts: records by partition, filled as tasks end.
    """

    def __init__(self, rdd: RDD[Any], counts: dict[int, int]) -> None:
        self._rdd = rdd
        self._counts = counts

    def records(self) -> int | None:
        """Return the number of records, None unless each partition was read to its end."""
        counts = dict(self._counts)
        # How many partitions there are is a call into the JVM: not for nothing, and not to be
        # relied on after an output of the batch has stopped Spark.
        try:
            is_complete = bool(counts) and len(counts) == self._rdd.getNumPartitions()
        except (Py4JError, OSError):
            return None
        return sum(counts.values()) if is_complete else None


def counted(rdd: RDD[T]) -> tuple[RDD[T], RecordCount]:
    """Return *rdd* as one that is counted when it is read, and its count.

    Nothing is read ahead, and no record is held back. An RDD of blocks of pairs is returned as it
    is, and never counted: what is built on it must see the blocks.

    Args:
        rdd: any RDD; its partitioner is kept.
    """
    if isinstance(rdd, BlockPairsRDD):
        return rdd, RecordCount(rdd, {})
    accumulator = _accumulator_of(rdd.context)
    token = next(_tokens)
    counts: dict[int, int] = {}
    live = accumulator.value
    live[token] = counts
    count = RecordCount(rdd, counts)
    weakref.finalize(count, live.pop, token, None)
    return _CountedRDD(rdd, _Count(accumulator, token)), count


class _CountedRDD(PipelinedRDD):  # type: ignore[misc]
    """Counts within the Python that reads it, and takes none of its own.

    What is built on it in Python runs in one pass with the counting. What only the JVM reads, such
    as a union, gets the RDD as it was: a pass of Python for the sake of a number would cost more
    than all the rest. Persisted, it is an RDD of its own, and the other's storage is left alone.
    """

    def __init__(self, rdd: RDD[Any], count: _Count) -> None:
        self._counted = rdd
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


class _Live(dict[int, dict[int, int]]):
    """The driver's counts: of the RDDs that somebody still asks about, and of no other."""


class _ByPartition(AccumulatorParam[_Counts]):
    """Merges what tasks say: the larger number where two say something of one partition."""

    def zero(self, value: _Counts) -> _Counts:
        return {}

    def addInPlace(self, value1: _Counts, value2: _Counts) -> _Counts:  # noqa: N802
        for token, new in value2.items():
            known = value1.get(token) if isinstance(value1, _Live) else value1.setdefault(token, {})
            if known is not None:
                for split, records in new.items():
                    known[split] = max(records, known.get(split, 0))
        return value1


@dataclass(frozen=True)
class _Count:
    """Task: the records as they are; after the last one, how many there were."""

    accumulator: Accumulator[_Counts]
    token: int

    def __call__(self, split: int, records: Iterable[T]) -> Iterator[T]:
        # compress takes a record, then a number, and tests the number: all of it without a step of
        # Python for each record, and no number is taken after the last record.
        numbers = itertools.count(1)
        return itertools.chain(itertools.compress(records, numbers), self._report(split, numbers))

    def _report(self, split: int, numbers: Iterator[int]) -> Iterator[Any]:
        self.accumulator.add({self.token: {split: next(numbers) - 1}})
        yield from ()


def _accumulator_of(spark: SparkContext) -> Accumulator[_Counts]:
    """Return the one accumulator of a context: PySpark keeps each for as long as it lives."""
    known = vars(spark)
    if "_dstreams_counts" not in known:
        known["_dstreams_counts"] = spark.accumulator(_Live(), _ByPartition())
    accumulator: Accumulator[_Counts] = known["_dstreams_counts"]
    return accumulator
