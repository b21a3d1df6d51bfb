"""Pairs in their partitions: moved once, counted by headers, and an RDD like any other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext, StorageLevel

from dstreams.spark.blocks import MAX_BYTES, Block, Side
from dstreams.spark.failures import summarize
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import (
    ROUTED_ROWS,
    BlockPairsRDD,
    NotAPairError,
    Route,
    require_pair,
    shuffle_pairs,
)
from dstreams.spark.stable_hash import stable_hash
from tests.dstreams.spark.lineage import lineage_of, shuffles_in
from tests.dstreams.spark.refusing import Unreadable
from tests.support.jobs import count_jobs

TWO = StablePartitioner(2)
THREE = StablePartitioner(3)

WORDS = [(f"word {n % 40}", n) for n in range(500)]
SMALL = [("a", 1), ("b", 2), ("a", 3), ("c", 4)]


@pytest.fixture
def small(sc: SparkContext) -> BlockPairsRDD:
    """Four pairs with three keys, in two partitions."""
    return BlockPairsRDD(shuffle_pairs(sc.parallelize(SMALL, 2), TWO))


def test_each_pair_arrives_once_where_its_key_belongs(sc: SparkContext) -> None:
    """Keys of any type are in the partition that the partitioner returns."""
    keys = [None, 1, 2.5, "text", b"bytes", ("a", 1), frozenset({1, 2}), -7, True, ""]
    pairs = [(key, (n, key)) for n in range(300) for key in [*keys, f"key {n}"]]
    rdd = BlockPairsRDD(shuffle_pairs(sc.parallelize(pairs, 4), THREE))
    partitions = rdd.glom().collect()
    assert [Counter(THREE(key) for key, _ in part).keys() for part in partitions] == [{0}, {1}, {2}]
    assert Counter(pair for part in partitions for pair in part) == Counter(pairs)
    assert rdd.partitioner == THREE
    assert rdd.getNumPartitions() == 3


def test_values_of_a_key_keep_their_order_within_a_partition(sc: SparkContext) -> None:
    """Records of one partition arrive in the order in which they were sent."""
    pairs = [("a", n) if n % 3 else ("b", n) for n in range(25_000)]
    rdd = BlockPairsRDD(shuffle_pairs(sc.parallelize(pairs, 1), TWO))
    for key, values in rdd.groupByKey().mapValues(list).collect():
        assert values == [n for other, n in pairs if other == key]


def test_own_partition_function(sc: SparkContext) -> None:
    """A user's function places keys, also those that only it can place."""
    placed = StablePartitioner(3, lambda key: key["shard"], name="shard")
    records = sc.parallelize([({"shard": n}, n) for n in range(9)], 2)
    partitions = BlockPairsRDD(shuffle_pairs(records, placed)).values().glom().collect()
    assert list(map(sorted, partitions)) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_empty_rdds(sc: SparkContext) -> None:
    """An RDD without records or without partitions results in the requested partitions."""
    for rdd in (sc.parallelize([], 2), sc.parallelize([("a", 1)], 4), sc.emptyRDD()):
        blocks = shuffle_pairs(rdd, THREE)
        assert blocks.getNumPartitions() == 3
        assert BlockPairsRDD(blocks).count() == rdd.count()
        assert BlockPairsRDD(blocks).collect() == rdd.collect()


class Named(NamedTuple):
    key: str
    value: int


def test_lists_and_named_tuples_of_two_are_pairs(sc: SparkContext) -> None:
    """Tuples and lists of two items are pairs, and arrive as plain tuples."""
    records = sc.parallelize([["a", 1], ("b", 2)], 1).map(lambda pair: pair)
    assert sorted(BlockPairsRDD(shuffle_pairs(records, TWO)).collect()) == [("a", 1), ("b", 2)]
    assert require_pair(Named("a", 1), "test") == ("a", 1)
    assert require_pair(["a", 1], "test") == ("a", 1)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("ab", r"got 'ab' \(str\)"),
        (5, r"got 5 \(int\)"),
        (("a", 1, 2), r"got \('a', 1, 2\) \(tuple\)"),
        (["a"], r"got \['a'\] \(list\)"),
        ({"a": 1, "b": 2}, r"got \{'a': 1, 'b': 2\} \(dict\)"),
        (None, r"got None \(NoneType\)"),
        ("x" * 500, r"got 'x+\.\.\. \(str\)"),
    ],
    ids=["text", "number", "triple", "list of one", "dict", "none", "long"],
)
def test_records_that_are_no_pairs(record: Any, message: str) -> None:
    """The error names the operation, the record, its type and the remedy."""
    rule = r"updateStateByKey at app.py:7: expected \(key, value\) pairs, "
    with pytest.raises(NotAPairError, match=f"{rule}{message}; map the stream to pairs first, for"):
        require_pair(record, "updateStateByKey at app.py:7")
    task = Route(TWO, Side.BATCH, "updateStateByKey at app.py:7")
    with pytest.raises(NotAPairError, match=rule + message):
        list(task(0, iter([("a", 1), record])))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (["a"], r"the key \['a'\] cannot be placed: a key of type list is unhashable; use an"),
        (float("nan"), "the key nan cannot be placed: NaN cannot be a key"),
        ("x" * 500, r"the key 'x+\.\.\. cannot be placed: no place for text"),
    ],
    ids=["unhashable", "nan", "refused by the user"],
)
def test_keys_that_cannot_be_placed(key: Any, message: str) -> None:
    """The error names the operation, the key and the reason."""

    def place(key: Any) -> int:
        if isinstance(key, str):
            raise LookupError("no place for text")
        return stable_hash(key)

    task = Route(StablePartitioner(2, place), Side.BATCH, "test")
    with pytest.raises(TypeError, match=f"test: {message}") as caught:
        list(task(0, iter([(1, 1), (key, 1)])))
    assert isinstance(caught.value.__cause__, (TypeError, LookupError))


def test_bad_record_fails_the_job_in_its_own_words(sc: SparkContext) -> None:
    """The error of the failed job describes the invalid record."""
    records = sc.parallelize([("a", 1), "word"], 1)
    with pytest.raises(Py4JJavaError) as caught:
        shuffle_pairs(records, TWO, operation="test").count()
    assert "NotAPairError: test: expected (key, value) pairs, got 'word'" in summarize(caught.value)


def test_value_that_cannot_be_pickled_is_named() -> None:
    """A value that cannot travel is an error with its key."""
    with pytest.raises(TypeError, match="the value of type lock of key 'a' cannot be pickled"):
        list(Route(TWO, Side.BATCH, "test")(0, iter([("a", threading.Lock())])))


def test_large_records_are_not_gathered() -> None:
    """A task holds few records of a megabyte at a time, and thousands of small ones."""
    held: list[int] = []
    pulled = 0

    def records(size: int, count: int) -> Iterator[tuple[int, bytes]]:
        nonlocal pulled
        for pulled in range(1, count + 1):
            yield pulled, pulled.to_bytes(4, "big") * (size // 4)

    sent = 0
    for number, frame in enumerate(Route(TWO, Side.BATCH, "test")(0, records(1 << 18, 400))):
        if number % 2:
            block = Block(frame)
            assert block.size <= MAX_BYTES
            sent += block.rows
            held.append(pulled - sent)
    assert sent == 400
    assert max(held) <= 150
    frames = list(Route(TWO, Side.BATCH, "test")(0, records(8, 60_000)))[1::2]
    assert max(Block(frame).rows for frame in frames) == ROUTED_ROWS
    assert len(frames) <= 20


def test_equal_partitioner_means_no_shuffle(sc: SparkContext) -> None:
    """Placed data is not shuffled: blocks are unchanged, other pairs are encoded in place."""
    blocks = shuffle_pairs(sc.parallelize(WORDS, 2), TWO)
    pairs = BlockPairsRDD(blocks)
    assert shuffle_pairs(pairs, StablePartitioner(2)) is blocks
    expected = pairs.glom().map(sorted).collect()
    for others in (pairs.mapValues(lambda value: value), pairs.filter(lambda pair: True)):
        packed = shuffle_pairs(others, TWO)
        assert packed.partitioner == TWO
        assert shuffles_in(packed) == 1, lineage_of(packed)
        assert BlockPairsRDD(packed).glom().map(sorted).collect() == expected
    assert Block(shuffle_pairs(pairs, TWO, Side.STATE).first()).side is Side.STATE


def test_another_partitioner_means_a_shuffle(sc: SparkContext) -> None:
    """Another number or function, PySpark's own partitioning, or a changed key: moved again."""
    pairs = BlockPairsRDD(shuffle_pairs(sc.parallelize(WORDS, 2), TWO))
    for rdd, partitioner in (
        (pairs, THREE),
        (pairs, StablePartitioner(2, len)),
        (pairs.partitionBy(2), TWO),
        (pairs.map(lambda pair: (pair[0] + "!", pair[1])), TWO),
    ):
        moved = shuffle_pairs(rdd, partitioner)
        assert shuffles_in(moved) == shuffles_in(rdd) + 1
        assert moved.partitioner == partitioner
        found = BlockPairsRDD(moved).glom().collect()
        assert [partitioner(key) for part in found for key, _ in part] == [
            number for number, part in enumerate(found) for _ in part
        ]
        assert sum(map(len, found)) == 500


def test_count_reads_headers_in_one_job(sc: SparkContext) -> None:
    """Counting looks at no value, and runs one job."""
    records = sc.parallelize(range(100), 2).map(lambda n: (n, Unreadable()))
    pairs = BlockPairsRDD(shuffle_pairs(records, TWO))
    assert pairs.count() == 100
    assert count_jobs(sc, pairs.count) == 1
    with pytest.raises(Py4JJavaError, match="a value was unpickled"):
        pairs.collect()


def persistent_rdds(spark: SparkContext) -> set[int]:
    return set(spark._jsc.getPersistentRDDs().keySet())


@pytest.mark.parametrize("level", [StorageLevel.MEMORY_ONLY, StorageLevel.DISK_ONLY], ids=str)
def test_persisting_pairs_persists_blocks(sc: SparkContext, level: StorageLevel) -> None:
    """The bytes of the blocks are kept, not the pairs, and computed only once."""
    before = persistent_rdds(sc)
    computed = sc.accumulator(0)

    def look(pair: Any) -> Any:
        computed.add(1)
        return pair

    blocks = shuffle_pairs(sc.parallelize(WORDS, 2).map(look), TWO)
    pairs = BlockPairsRDD(blocks)
    assert pairs.getStorageLevel() == StorageLevel.NONE
    assert pairs.persist(level) is pairs
    assert pairs.getStorageLevel() == level == blocks.getStorageLevel()
    assert persistent_rdds(sc) - before == {blocks.id()}
    assert pairs.count() == 500
    assert sorted(pairs.collect()) == sorted(WORDS)
    assert computed.value == 500
    assert any("CachedPartitions: 2" in line for line in lineage_of(pairs))
    assert pairs.unpersist(blocking=True) is pairs
    assert pairs.getStorageLevel() == StorageLevel.NONE
    assert persistent_rdds(sc) <= before  # what other tests persisted may be collected meanwhile
    assert pairs.count() == 500


def test_cache_is_persist_in_memory(small: BlockPairsRDD) -> None:
    """``cache`` means what it does for every RDD."""
    assert small.cache() is small
    assert small.getStorageLevel() == StorageLevel.MEMORY_ONLY
    small.unpersist()


def test_changing_what_was_collected_changes_nothing(sc: SparkContext) -> None:
    """Blocks that are kept are bytes: no user of their pairs can spoil them for another."""
    pairs = BlockPairsRDD(shuffle_pairs(sc.parallelize([("a", [1]), ("b", [2])], 2), TWO)).cache()
    assert sorted(pairs.map(lambda pair: pair[1].append(9) or pair).collect()) == [
        ("a", [1, 9]),
        ("b", [2, 9]),
    ]
    assert sorted(pairs.collect()) == [("a", [1]), ("b", [2])]
    pairs.unpersist()


def by_key(pairs: Any) -> Any:
    """Sort the collected pairs, and values where they are iterables."""
    return sorted((key, sorted(v) if hasattr(v, "__iter__") else v) for key, v in pairs)


OTHER = [("a", "x"), ("d", "y"), ("a", "z")]

OPERATIONS: dict[str, Callable[[RDD[Any], RDD[Any]], Any]] = {
    "join": lambda rdd, other: sorted(rdd.join(other).collect()),
    "join from the other side": lambda rdd, other: sorted(other.join(rdd, 3).collect()),
    "left join": lambda rdd, other: sorted(rdd.leftOuterJoin(other).collect(), key=repr),
    "full join": lambda rdd, other: sorted(rdd.fullOuterJoin(other).collect(), key=repr),
    "cogroup": lambda rdd, other: sorted(
        (key, sorted(mine), sorted(theirs)) for key, (mine, theirs) in rdd.cogroup(other).collect()
    ),
    "subtract by key": lambda rdd, other: sorted(rdd.subtractByKey(other).collect()),
    "join with itself": lambda rdd, other: sorted(rdd.join(rdd).collect()),
    "union": lambda rdd, other: sorted(rdd.union(other).map(str).collect()),
    "union with itself": lambda rdd, other: sorted(rdd.union(rdd).collect()),
    "intersection": lambda rdd, other: sorted(rdd.intersection(rdd).collect()),
    "cartesian": lambda rdd, other: sorted(rdd.cartesian(other).collect()),
    "partition by": lambda rdd, other: sorted(rdd.partitionBy(3).collect()),
    "partition by, placed": lambda rdd, other: [
        sorted(part) for part in rdd.partitionBy(3, ord).glom().collect()
    ],
    "group by key": lambda rdd, other: by_key(rdd.groupByKey().collect()),
    "reduce by key": lambda rdd, other: by_key(rdd.reduceByKey(lambda a, b: a + b).collect()),
    "aggregate by key": lambda rdd, other: by_key(
        rdd.aggregateByKey(0, lambda total, n: total + n, lambda a, b: a + b).collect()
    ),
    "count by key": lambda rdd, other: dict(rdd.countByKey()),
    "count by value": lambda rdd, other: dict(rdd.countByValue()),
    "sort by key": lambda rdd, other: [key for key, _ in rdd.sortByKey(False, 2).collect()],
    "sort by": lambda rdd, other: rdd.sortBy(lambda pair: -pair[1]).collect(),
    "take": lambda rdd, other: sorted(rdd.take(4)),
    "take of more": lambda rdd, other: len(rdd.take(100)),
    "first": lambda rdd, other: rdd.first() in SMALL,
    "top": lambda rdd, other: rdd.top(2),
    "take ordered": lambda rdd, other: rdd.takeOrdered(3, lambda pair: -pair[1]),
    "max": lambda rdd, other: rdd.max(lambda pair: pair[1]),
    "lookup": lambda rdd, other: sorted(rdd.lookup("a")),
    "lookup of nothing": lambda rdd, other: rdd.lookup("nothing"),
    "collect as map": lambda rdd, other: sorted(rdd.collectAsMap()),
    "keys": lambda rdd, other: sorted(rdd.keys().collect()),
    "values": lambda rdd, other: sorted(rdd.values().collect()),
    "map values": lambda rdd, other: sorted(rdd.mapValues(str).collect()),
    "flat map values": lambda rdd, other: sorted(rdd.flatMapValues(range).collect()),
    "filter and count": lambda rdd, other: rdd.filter(lambda pair: pair[1] > 1).count(),
    "count approximately": lambda rdd, other: rdd.countApprox(60_000),
    "is empty": lambda rdd, other: rdd.isEmpty(),
    "sum": lambda rdd, other: rdd.values().sum(),
    "reduce": lambda rdd, other: rdd.map(lambda pair: pair[1]).reduce(lambda a, b: a * b),
    "distinct": lambda rdd, other: sorted(rdd.union(rdd).distinct().collect()),
    "zip with index": lambda rdd, other: sorted(n for _, n in rdd.zipWithIndex().collect()),
    "zip with itself": lambda rdd, other: all(a == b for a, b in rdd.zip(rdd).collect()),
    "coalesce": lambda rdd, other: [len(part) for part in rdd.coalesce(1).glom().collect()],
    "repartition": lambda rdd, other: sorted(rdd.repartition(3).collect()),
    "part of a partition": lambda rdd, other: len(
        rdd.coalesce(1).mapPartitions(lambda part: islice(part, 2)).collect()
    ),
    "local iterator": lambda rdd, other: sorted(rdd.toLocalIterator()),
    "map to text": lambda rdd, other: sorted(rdd.map(str).collect()),
}


@pytest.mark.deep
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operations_of_pyspark(
    sc: SparkContext, small: BlockPairsRDD, operation: Callable[[RDD[Any], RDD[Any]], Any]
) -> None:
    """Pairs of blocks give what the same pairs of an ordinary RDD give, as either side."""
    other = sc.parallelize(OTHER, 2)
    plain = sc.parallelize(SMALL, 2)
    assert operation(small, other) == operation(plain, other)


def test_joins_of_equally_placed_pairs(sc: SparkContext) -> None:
    """Two RDDs of blocks with one partitioner join, unite and cogroup as any others."""
    first = BlockPairsRDD(shuffle_pairs(sc.parallelize(SMALL, 2), TWO)).cache()
    second = BlockPairsRDD(shuffle_pairs(sc.parallelize(OTHER, 2), StablePartitioner(2)))
    third = BlockPairsRDD(shuffle_pairs(sc.parallelize(OTHER, 2), THREE))
    plain, other = sc.parallelize(SMALL, 2), sc.parallelize(OTHER, 2)
    for right in (second, third):
        assert sorted(first.join(right).collect()) == sorted(plain.join(other).collect())
        assert sorted(first.union(right).map(str).collect()) == sorted(
            plain.union(other).map(str).collect()
        )
    united = first.union(second)
    assert united.getNumPartitions() == 2
    assert {len({TWO(key) for key, _ in part}) for part in united.glom().collect()} <= {0, 1}
    first.unpersist()
