"""Combining, grouping and joining by key: like PySpark's, in place, and within memory."""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext

from dstreams.spark.blocks import Side
from dstreams.spark.by_key import (
    Combiner,
    cogroup_by_key,
    combine_by_key,
    group_by_key,
    join_by_key,
)
from dstreams.spark.failures import summarize
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from tests.dstreams.spark.lineage import shuffles_in

TWO = StablePartitioner(2)
SUM = Combiner.of_reduction(add)
Pairs = list[tuple[Any, Any]]


def by_length(word: str) -> int:
    return len(word)


def parts(rdd: RDD[Any]) -> list[list[Any]]:
    return [sorted(part) for part in rdd.glom().collect()]


KEYS = st.sampled_from(["a", "b", "", None, 1, (2, "x")])
PAIRS = st.lists(st.tuples(KEYS, st.integers(-9, 9)), max_size=12)
BOUNDED = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.deep
@BOUNDED
@given(left=PAIRS, right=PAIRS)
def test_results_are_those_of_pyspark(sc: SparkContext, left: Pairs, right: Pairs) -> None:
    """Each operation returns the same as that of the RDD, for random pairs."""
    ours, theirs = sc.parallelize(left, 3), sc.parallelize(right, 2)

    def lists(key_and_sides: tuple[Any, Any]) -> Any:
        key, sides = key_and_sides
        return repr(key), [sorted(values, key=repr) for values in sides]

    def same(mine: RDD[Any], pyspark: RDD[Any], shown: Callable[[Any], Any] = repr) -> bool:
        return sorted(map(shown, mine.collect()), key=repr) == sorted(
            map(shown, pyspark.collect()), key=repr
        )

    assert same(combine_by_key(ours, SUM, TWO), ours.reduceByKey(add, 2))
    assert same(group_by_key(ours, TWO).mapValues(sorted), ours.groupByKey(2).mapValues(sorted))
    assert same(cogroup_by_key(ours, theirs, TWO), ours.cogroup(theirs, 2), lists)
    assert same(join_by_key(ours, theirs, TWO), ours.join(theirs, 2))
    assert same(join_by_key(ours, theirs, TWO, all_left=True), ours.leftOuterJoin(theirs, 2))
    assert same(join_by_key(ours, theirs, TWO, all_right=True), ours.rightOuterJoin(theirs, 2))
    assert same(
        join_by_key(ours, theirs, TWO, all_left=True, all_right=True),
        ours.fullOuterJoin(theirs, 2),
    )


def test_keys_are_where_the_partitioner_says(sc: SparkContext) -> None:
    """A partition function of the user's decides for every operation."""
    partitioner = StablePartitioner(3, by_length)
    left = sc.parallelize([("a", 1), ("bb", 2), ("ccc", 3), ("d", 4)], 2)
    right = sc.parallelize([("a", 5), ("eeee", 6)], 2)
    assert parts(combine_by_key(left, SUM, partitioner)) == [
        [("ccc", 3)],
        [("a", 1), ("d", 4)],
        [("bb", 2)],
    ]
    joined = join_by_key(left, right, partitioner, all_right=True)
    assert parts(joined) == [[], [("a", (1, 5)), ("eeee", (None, 6))], []]
    assert joined.partitioner == partitioner


def test_what_is_in_its_place_is_not_moved(sc: SparkContext) -> None:
    """A join of what was reduced by the same partitioner shuffles nothing again."""
    ones = sc.parallelize([("a", 1), ("b", 1), ("a", 1)], 2)
    counts = combine_by_key(ones, SUM, TWO)
    assert shuffles_in(counts) == 1
    assert shuffles_in(combine_by_key(counts.mapValues(lambda v: v), SUM, TWO)) == 1
    assert shuffles_in(group_by_key(counts, TWO)) == 1
    state = BlockPairsRDD(shuffle_pairs(counts, TWO, Side.STATE), Side.STATE)
    joined = join_by_key(counts, state, TWO)
    assert shuffles_in(joined) == 1
    assert sorted(joined.collect()) == [("a", (2, 2)), ("b", (1, 1))]
    assert shuffles_in(combine_by_key(counts, SUM, StablePartitioner(3))) == 2


@pytest.mark.deep
def test_more_than_fits_is_spilled(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to no memory for it, the results are the same, by way of the disk."""
    monkeypatch.setattr(RDD, "_memory_limit", lambda _: 1)
    pairs = sc.parallelize(range(20_000), 2).map(lambda n: (n % 5000, n))
    assert combine_by_key(pairs, SUM, TWO).map(lambda kv: kv[1]).sum() == sum(range(20_000))
    groups = group_by_key(pairs, TWO).mapValues(len).collect()
    assert sorted(groups) == [(key, 4) for key in range(5000)]
    assert join_by_key(pairs, pairs, TWO).count() == 5000 * 16


@pytest.mark.deep
@pytest.mark.parametrize(
    "operate",
    [
        lambda rdd, p, name: combine_by_key(rdd, SUM, p, name),
        group_by_key,
        lambda rdd, p, name: cogroup_by_key(rdd, rdd, p, name),
        lambda rdd, p, name: join_by_key(rdd, rdd, p, operation=name),
    ],
    ids=["combine", "group", "cogroup", "join"],
)
@pytest.mark.parametrize("place", [None, lambda _: 0], ids=["stable", "user"])
@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("ab", "operation at app.py:3: expected (key, value) pairs, got 'ab' (str)"),
        ((1, 2, 3), "operation at app.py:3: expected (key, value) pairs, got (1, 2, 3) (tuple)"),
        (([1], 2), "operation at app.py:3: the key [1] cannot be placed: "),
    ],
)
def test_records_that_cannot_be_used(
    sc: SparkContext,
    operate: Callable[[RDD[Any], StablePartitioner, str], RDD[Any]],
    place: Callable[[Any], int] | None,
    record: Any,
    message: str,
) -> None:
    """The error for a non-pair or an unhashable key names the operation."""
    partitioner = StablePartitioner(2, place)
    rdd = sc.parallelize([("a", 1), record], 1)
    with pytest.raises(Py4JJavaError) as raised:
        operate(rdd, partitioner, "operation at app.py:3").collect()
    assert message in summarize(raised.value)


def test_a_type_error_of_the_function_stays_what_it_is(sc: SparkContext) -> None:
    """An error that is not about the key is not explained away."""
    rdd = sc.parallelize([("a", 1), ("a", "x")], 1)
    with pytest.raises(Py4JJavaError) as raised:
        combine_by_key(rdd, SUM, TWO).collect()
    assert "unsupported operand type" in summarize(raised.value)
