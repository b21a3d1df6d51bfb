"""The union of many RDDs."""

from __future__ import annotations

import operator

from pyspark import RDD, SparkContext

from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import Reduction, reduce_pairs
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.spark.union import unite

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
