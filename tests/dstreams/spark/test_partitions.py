"""The union of many RDDs."""

from __future__ import annotations

import operator

import pytest
from pyspark import RDD, SparkContext

from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.partitions import spread, unite
from dstreams.spark.reduction import Reduction, reduce_pairs
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from tests.dstreams.spark.lineage import shuffles_in
from tests.support.jobs import count_jobs

PLUS = Reduction(operator.add, "plus")


def reduced(sc: SparkContext, value: int, partitions: int = 2) -> BlockPairsRDD:
    pairs = sc.parallelize([("a", value), ("b", value)], 2)
    return reduce_pairs(pairs, PLUS, StablePartitioner(partitions))


def test_none_and_one(sc: SparkContext) -> None:
    """The union of none is empty, the union of one is that one."""
    assert unite(sc, []).collect() == []
    one = sc.parallelize([1])
    assert unite(sc, [one]) is one


def test_records_come_in_order(sc: SparkContext) -> None:
    """Those of the first RDD first."""
    assert unite(sc, [sc.parallelize([n, -n], 2) for n in range(4)]).collect() == [
        *(0, 0, 1, -1, 2, -2, 3, -3)
    ]


def test_blocks_that_are_placed_alike_stay_in_place(sc: SparkContext) -> None:
    """Their union is blocks, too, has their partitioner and as many partitions, in order."""
    united = unite(sc, [reduced(sc, n) for n in range(5)])
    assert isinstance(united, BlockPairsRDD)
    assert united.partitioner == StablePartitioner(2)
    assert united.getNumPartitions() == 2
    assert [value for key, value in united.collect() if key == "a"] == [0, 1, 2, 3, 4]
    assert united.count() == 10


def test_rows_that_are_placed_alike_stay_in_place(sc: SparkContext) -> None:
    """Also with a partitioner of PySpark's."""

    def by_length(key: str) -> int:
        return len(key)

    placed = [sc.parallelize([("a", n), ("bb", n)]).partitionBy(3, by_length) for n in range(3)]
    united = unite(sc, placed)
    assert united.partitioner == placed[0].partitioner
    assert united.getNumPartitions() == 3
    assert sorted(united.collect()) == sorted((key, n) for n in range(3) for key in ("a", "bb"))


def test_blocks_and_rows_with_one_partitioner(sc: SparkContext) -> None:
    """The partitioner is kept, the form is rows."""
    blocks = reduced(sc, 1)
    united = unite(sc, [blocks, blocks.mapValues(str)])
    assert united.partitioner == StablePartitioner(2)
    assert united.getNumPartitions() == 2
    assert sorted(united.collect(), key=repr) == [("a", "1"), ("a", 1), ("b", "1"), ("b", 1)]


def test_what_has_nothing_in_common(sc: SparkContext) -> None:
    """Other partitions, other sides, no partitions: all records are there."""
    pairs: list[RDD[tuple[str, int]]] = [
        reduced(sc, 1),
        reduced(sc, 2, partitions=3),
        sc.parallelize([("a", 3)]),
        sc.emptyRDD(),
    ]
    united = unite(sc, pairs)
    assert united.partitioner is None
    assert sorted(united.collect()) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    states = shuffle_pairs(reduced(sc, 2), StablePartitioner(2), Side.STATE)
    mixed = unite(sc, [reduced(sc, 1), BlockPairsRDD(states, Side.STATE)])
    assert mixed.partitioner == StablePartitioner(2)
    assert sorted(mixed.collect()) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


@pytest.mark.parametrize("elements", [0, 1, 7, 100, 20_000])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (5, 2), (2, 5)])
def test_every_element_once_and_evenly(
    sc: SparkContext, elements: int, before: int, after: int
) -> None:
    """Partitions differ by a small part of their size, or by a few elements."""
    rdd = spread(sc.parallelize(range(elements), before), after)
    parts = rdd.glom().collect()
    assert len(parts) == rdd.getNumPartitions() == after
    assert sorted(x for part in parts for x in part) == list(range(elements))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= before + elements // (4 * after)


def test_elements_of_any_kind(sc: SparkContext) -> None:
    """None, lists and objects that are equal to nothing travel as they are."""
    elements = [None, [], {"a": 1}, float("inf"), ("a", 1), "text"]
    assert sorted(spread(sc.parallelize(elements, 2), 3).collect(), key=repr) == sorted(
        elements, key=repr
    )


def test_it_claims_no_partitioner_and_runs_nothing(sc: SparkContext) -> None:
    """Elements are where chance put them, and one shuffle brings them there."""
    pairs = sc.parallelize([("a", 1)]).partitionBy(2)
    rdd = spread(pairs, 2)
    assert rdd.partitioner is None
    assert shuffles_in(rdd) == 2
    assert count_jobs(sc, lambda: spread(pairs, 2)) == 0
    assert spread(sc.emptyRDD(), 2).collect() == []
