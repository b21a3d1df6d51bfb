"""Reducing by key into blocks."""

from __future__ import annotations

import operator
from operator import add
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext

from dstreams.spark import reduction
from dstreams.spark.blocks import Block, Side
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import END, Reduction, count_all, reduce_all, reduce_pairs
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from tests.dstreams.spark.lineage import bytes_shuffled, shuffles_in
from tests.support.jobs import count_jobs

PLUS = Reduction(operator.add, "reduce function plus of reduceByKey at a.py:1")
TWO = StablePartitioner(2)


def letters(sc: SparkContext) -> RDD[tuple[str, int]]:
    return sc.parallelize([(letter, 1) for letter in "abracadabra"], 3)


COUNTS = {"a": 5, "b": 2, "c": 1, "d": 1, "r": 2}


def partitions_of(rdd: RDD[bytes]) -> list[list[bytes]]:
    """The frames of each partition."""
    return [list(frames) for frames in rdd.glom().collect()]


def test_each_key_comes_once_and_a_mark_at_the_end(sc: SparkContext) -> None:
    """In the partition where it belongs; the mark is not a pair and is not counted."""
    reduced = reduce_pairs(letters(sc), PLUS, TWO)
    assert dict(reduced.collect()) == COUNTS
    assert reduced.count() == len(COUNTS)
    assert reduced.partitioner == TWO
    for number, frames in enumerate(partitions_of(reduced.blocks)):
        assert frames[-1] == END
        rows = [Block(frame).rows for frame in frames]
        assert rows[-1] == 0 not in rows[:-1]
        columns = [Block(frame).keys() for frame in frames]
        assert {TWO(key) for keys in columns for key in keys} <= {number}


def test_no_records(sc: SparkContext) -> None:
    """Empty partitions have the mark, too, also where the RDD had no partition."""
    for rdd in (sc.parallelize([], 2), sc.emptyRDD()):
        assert partitions_of(reduce_pairs(rdd, PLUS, TWO).blocks) == [[END], [END]]


def test_values_are_reduced_before_they_are_moved(sc: SparkContext) -> None:
    """Shuffled data does not grow with the number of values of a key."""
    few, many = (sc.parallelize([("a", 1), ("b", 1)] * n, 2) for n in (10, 10_000))
    sizes = [bytes_shuffled(sc, reduce_pairs(rdd, PLUS, TWO).count) for rdd in (few, many)]
    assert sizes[1] < 2 * sizes[0]


def test_memory_before_the_shuffle_is_bounded(
    sc: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With very many keys some are sent on before all records were read."""
    monkeypatch.setattr(reduction, "_MOST_KEYS", 10)
    task = reduction._CombinePairs(PLUS, "reduce")
    records = [(number % 2000, 1) for number in range(4000)]
    remaining = iter(records)
    combined = task(0, remaining)
    assert next(combined) == (0, 1)
    assert next(remaining) == (1000, 1)
    assert sum(value for _, value in combined) == 3998


@pytest.mark.parametrize("form", ["blocks", "pairs", "state"])
def test_what_is_in_place_is_not_moved(sc: SparkContext, form: str) -> None:
    """An RDD with an equal partitioner is reduced where it is."""
    side = Side.STATE if form == "state" else Side.BATCH
    placed = BlockPairsRDD(shuffle_pairs(letters(sc), StablePartitioner(2), side), side)
    rdd: RDD[Any] = placed.mapValues(int) if form == "pairs" else placed
    reduced = reduce_pairs(rdd, PLUS, TWO)
    assert dict(reduced.collect()) == COUNTS
    assert shuffles_in(reduced) == 1


def test_a_reduction_of_reductions(sc: SparkContext) -> None:
    """Marks in the middle are passed over."""
    first = reduce_pairs(letters(sc), PLUS, TWO)
    again = reduce_pairs(first, PLUS, TWO)
    assert dict(again.collect()) == COUNTS


def test_falsy_values_and_keys(sc: SparkContext) -> None:
    """Are values and keys."""
    first = Reduction(lambda v, w: v, "first")
    pairs = [(None, 0), (None, 1), ("", None), ("", 2), (0, False), (0, True)]
    reduced = reduce_pairs(sc.parallelize(pairs, 1), first, TWO)
    assert dict(reduced.collect()) == {None: 0, "": None, 0: False}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([("a", 1), "b"], "counts: expected .key, value. pairs, got 'b'"),
        ([(["a"], 1)], r"the key \['a'\] cannot be placed: .*unhashable"),
        ([("a", 1), ("a", "x")], "plus of reduceByKey at a.py:1 failed for key 'a': TypeError"),
    ],
)
def test_errors_name_what_is_wrong(sc: SparkContext, records: list[Any], message: str) -> None:
    """The record, the key, or the function."""
    reduced = reduce_pairs(sc.parallelize(records, 1), PLUS, TWO, "counts")
    with pytest.raises(Py4JJavaError, match=message):
        reduced.collect()


def test_merge_names_the_key_that_failed() -> None:
    """The one at which the function was, not the first."""
    total: dict[str, Any] = {}
    with pytest.raises(UserFunctionError, match="failed for key 'b': TypeError"):
        PLUS.merge(total, ["a", "b", "a", "b"], [1, 2, 3, ""])
    assert total == {"a": 4, "b": 2}


def test_a_value_that_cannot_be_pickled() -> None:
    """Is named with its key."""
    with pytest.raises(
        UserFunctionError, match=r"plus.*: the value of type generator of key 'a' cannot"
    ):
        list(reduction._blocks({"a": (x for x in ())}, PLUS.where))


SHAPES = {
    "two partitions": ([3, 1, 2], 2),
    "more partitions than elements": ([5], 4),
    "empty partitions": ([], 3),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_totals(sc: SparkContext, shape: str) -> None:
    """A sum is there where there is an element; a count always."""
    elements, count = SHAPES[shape]
    rdd = sc.parallelize(elements, count)
    assert reduce_all(rdd, add).collect() == ([sum(elements)] if elements else [])
    assert count_all(rdd).collect() == [len(elements)]


def test_no_partitions(sc: SparkContext) -> None:
    """An RDD without partitions has a count, too."""
    assert reduce_all(sc.emptyRDD(), add).collect() == []
    assert count_all(sc.emptyRDD()).collect() == [0]


def test_absent_looking_elements_count(sc: SparkContext) -> None:
    """None, 0 and empty texts are elements like any other."""
    assert count_all(sc.parallelize([None, 0, "", []], 2)).collect() == [4]
    assert reduce_all(sc.parallelize([None], 2), add).collect() == [None]


def test_blocks_are_counted_by_their_headers(sc: SparkContext) -> None:
    """The pairs of a state need not be unpickled to be counted."""
    blocks = shuffle_pairs(sc.parallelize([("a", 1), ("b", 2)], 2), StablePartitioner(2))
    assert count_all(BlockPairsRDD(blocks, Side.BATCH)).collect() == [2]


def test_one_job_and_only_when_asked(sc: SparkContext) -> None:
    """Making a total starts no job, collecting it one."""
    rdd = sc.parallelize(range(10), 2)
    assert count_jobs(sc, lambda: reduce_all(rdd, max)) == 0
    assert count_jobs(sc, lambda: count_all(rdd).collect()) == 1
