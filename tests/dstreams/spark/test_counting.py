"""Counting what jobs read anyway, exactly, and at no cost to what is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext, TaskContext

from dstreams.spark.counting import counted
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from tests.support.jobs import count_jobs


def numbers(sc: SparkContext, n: int = 10, partitions: int = 3) -> RDD[int]:
    return sc.parallelize(range(n), partitions)


def test_an_rdd_is_counted_by_the_job_that_reads_it(sc: SparkContext) -> None:
    """Unknown before, exact after, and no job of its own."""
    rdd, count = counted(numbers(sc))
    assert count.records() is None
    seen: list[Any] = []
    doubled = rdd.map(lambda x: x * 2)
    assert count_jobs(sc, lambda: seen.extend([doubled.collect(), count.records()])) == 1
    assert seen == [list(range(0, 20, 2)), 10]


def test_an_empty_partition_counts_as_read(sc: SparkContext) -> None:
    """An RDD of empty partitions has no records, which is known."""
    rdd, count = counted(numbers(sc, 0))
    assert rdd.collect() == []
    assert count.records() == 0


def test_reading_twice_counts_once(sc: SparkContext) -> None:
    """By two jobs, and twice within one."""
    rdd, count = counted(numbers(sc))
    rdd.union(rdd).collect()
    rdd.collect()
    assert count.records() == 10


def test_a_retried_task_counts_once(sc: SparkContext) -> None:
    """The attempt that failed after the last record said nothing that counts."""

    def fail_at_first(records: Iterable[int]) -> Iterator[int]:
        yield from records
        if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
            raise RuntimeError("first attempt")

    rdd, count = counted(numbers(sc))
    assert len(rdd.mapPartitions(fail_at_first).collect()) == 10
    assert count.records() == 10


def test_taking_a_part_leaves_the_count_unknown(sc: SparkContext) -> None:
    """Also when some partitions were read to their end; reading the rest later completes it."""
    rdd, count = counted(numbers(sc))
    assert rdd.take(5) == [0, 1, 2, 3, 4]
    assert count.records() is None
    rdd.collect()
    assert count.records() == 10


def test_nothing_is_read_that_nobody_takes(sc: SparkContext, tmp_path: Path) -> None:
    """The first record arrives before the second is made, and the rest never is."""
    made = tmp_path / "made"

    def source(_: Iterable[int]) -> Iterator[int]:
        for number in range(1000):
            with made.open("a") as file:
                file.write(".")
            yield number

    rdd, _ = counted(sc.parallelize([0], 1).mapPartitions(source))
    assert rdd.mapPartitions(lambda records: [next(iter(records))]).collect() == [0]
    assert made.read_text() == "."


def test_the_partitioner_is_kept(sc: SparkContext) -> None:
    """Also by what is built on it, so that a join still needs no shuffle of this side."""
    pairs = sc.parallelize([(n, n) for n in range(10)], 2).partitionBy(4)
    rdd, count = counted(pairs)
    assert rdd.partitioner == pairs.partitioner
    assert rdd.mapValues(str).partitioner == pairs.partitioner
    assert rdd.partitionBy(4) is rdd
    assert dict(rdd.collect()) == {n: n for n in range(10)}
    assert count.records() == 10


def test_blocks_of_pairs_stay_what_they_are(sc: SparkContext) -> None:
    """RDDs of blocks are not counted, because operations on them need the blocks."""
    blocks = shuffle_pairs(sc.parallelize([("a", 1), ("b", 2)], 2), StablePartitioner(2))
    pairs = BlockPairsRDD(blocks)
    rdd, count = counted(pairs)
    assert isinstance(rdd, BlockPairsRDD)
    rdd.collect()
    assert count.records() is None


def test_a_persisted_rdd_is_counted_without_computing_it_again(sc: SparkContext) -> None:
    """Its blocks are read, and it stays persisted."""
    computed = sc.accumulator(0)

    def note(x: int) -> int:
        computed.add(1)
        return x

    persisted = numbers(sc).map(note).persist()
    try:
        persisted.count()
        rdd, count = counted(persisted)
        assert sum(rdd.collect()) == 45
        assert (count.records(), computed.value, persisted.is_cached) == (10, 10, True)
    finally:
        persisted.unpersist()


def test_lines_of_a_file_are_counted(sc: SparkContext, tmp_path: Path) -> None:
    """An RDD of another serializer than Python's."""
    (tmp_path / "a.txt").write_text("one\ntwo\nthree")
    rdd, count = counted(sc.textFile(str(tmp_path / "a.txt")))
    assert rdd.collect() == ["one", "two", "three"]
    assert count.records() == 3


def test_counts_of_several_rdds_are_kept_apart(sc: SparkContext) -> None:
    """Each gets its own count, also in a shared job."""
    first, first_count = counted(numbers(sc, 5))
    second, second_count = counted(numbers(sc, 7))
    first.map(abs).union(second.map(abs)).collect()
    assert (first_count.records(), second_count.records()) == (5, 7)


@pytest.mark.parametrize("partitions", [1, 5])
def test_coalescing_what_is_counted_changes_nothing(sc: SparkContext, partitions: int) -> None:
    """Counts belong to the partitions of the RDD itself."""
    rdd, count = counted(numbers(sc, 10, 5))
    assert len(rdd.map(abs).coalesce(partitions).collect()) == 10
    assert count.records() == 10


def test_the_jvm_reads_the_rdd_itself(sc: SparkContext) -> None:
    """A union takes no pass of Python, so it counts nothing; Python that reads it counts."""
    source = sc.parallelize(list(range(10)), 2)
    rdd, count = counted(source)
    union = rdd.union(source)
    assert "PythonRDD[" not in (union.toDebugString() or b"").decode()
    assert sorted(union.collect()) == sorted([*range(10), *range(10)])
    assert count.records() is None
    assert rdd.map(abs).sum() == 45
    assert count.records() == 10


def test_persisting_leaves_the_source_alone(sc: SparkContext) -> None:
    """A counted RDD that is persisted is persisted itself, and not what it counts."""
    source = sc.parallelize(range(10), 2)
    rdd, count = counted(source)
    rdd.persist()
    assert (rdd.is_cached, source.is_cached) == (True, False)
    assert source.getStorageLevel().useMemory is False
    assert sorted(rdd.union(sc.parallelize([10], 1)).collect()) == list(range(11))
    assert count.records() == 10
    rdd.unpersist()
    assert sorted(rdd.collect()) == list(range(10))
