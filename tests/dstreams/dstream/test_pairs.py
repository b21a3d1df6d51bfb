"""Pair operations beyond the conformance tables: partitions, checks, and what is kept."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import DStream, InvalidStreamError, StablePartitioner, stable_hash
from dstreams.testing import BatchDriver


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


PARTITIONED: dict[str, Callable[..., DStream]] = {
    "reduceByKey": lambda s, *n: s.reduceByKey(operator.add, *n),
    "combineByKey": lambda s, *n: s.combineByKey(str, operator.add, operator.add, *n),
    "groupByKey": lambda s, *n: s.groupByKey(*n),
    "cogroup": lambda s, *n: s.cogroup(s, *n),
    "join": lambda s, *n: s.join(s, *n),
    "leftOuterJoin": lambda s, *n: s.leftOuterJoin(s, *n),
    "rightOuterJoin": lambda s, *n: s.rightOuterJoin(s, *n),
    "fullOuterJoin": lambda s, *n: s.fullOuterJoin(s, *n),
    "updateStateByKey": lambda s, *n: s.updateStateByKey(add, *n),
}


def test_numbers_of_partitions(sc: SparkContext) -> None:
    """The given number, or the default parallelism."""
    found: dict[str, list[int]] = {name: [] for name in PARTITIONED}
    with BatchDriver(sc) as driver:
        pairs = driver.input([sc.parallelize([("a", 1)], 4)])
        for name, operation in PARTITIONED.items():
            for count in ((), (5,)):
                operation(pairs, *count).foreachRDD(
                    lambda rdd, counts=found[name]: counts.append(rdd.getNumPartitions())
                )
        driver.run(1)
    assert found == {name: [2, 5] for name in PARTITIONED}


def test_values_may_change_without_losing_the_partitioner(sc: SparkContext) -> None:
    """mapValues and flatMapValues keep it, so a state over them shuffles nothing."""
    shuffles: list[int] = []
    with BatchDriver(sc) as driver:
        states = driver.input([[("a", 1)]]).updateStateByKey(add, 3)
        changed = states.mapValues(lambda v: [v]).flatMapValues(lambda v: v)
        changed.updateStateByKey(add, 3).foreachRDD(
            lambda rdd: shuffles.append((rdd.toDebugString() or b"").count(b"ShuffledRDD"))
        )
        driver.run(1)
    assert shuffles == [1]


def test_partition_by_a_function(sc: SparkContext) -> None:
    """A function can place keys that cannot be hashed."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[([1], "a"), ([2], "b")]])
        seen = driver.output(pairs.partitionBy(2, lambda key: key[0]).glom())
        driver.run(1)
    assert seen == [[[([2], "b")], [([1], "a")]]]


# Partitioners of a state ---------------------------------------------------------------------


def partitioner_of(sc: SparkContext, **parameters: Any) -> Any:
    found: list[Any] = []
    with BatchDriver(sc) as driver:
        states = driver.input([[("a", 1)]]).updateStateByKey(add, **parameters)
        states.foreachRDD(lambda rdd: found.append(rdd.partitioner))
        driver.run(1)
    return found[0]


def by_length(key: str) -> int:
    return len(key)


def test_the_partitioner_of_a_state(sc: SparkContext) -> None:
    """The stable hash by default, a function, or a partitioner as it is."""
    assert partitioner_of(sc) == StablePartitioner(2)
    assert partitioner_of(sc, numPartitions=3) == StablePartitioner(3, stable_hash)
    assert partitioner_of(sc, partitionFunc=by_length) == StablePartitioner(2, by_length)
    mine = StablePartitioner(4, by_length, name="by length")
    assert partitioner_of(sc, partitionFunc=mine) is mine
    assert partitioner_of(sc, partitionFunc=mine, numPartitions=4) is mine


def test_a_partitioner_and_another_number_of_partitions(sc: SparkContext) -> None:
    """Two numbers of partitions that differ are ambiguous and refused."""
    with BatchDriver(sc) as driver, pytest.raises(InvalidStreamError) as raised:
        driver.input([]).updateStateByKey(add, 3, partitionFunc=StablePartitioner(4))
    assert str(raised.value).startswith("updateStateByKey at test_pairs.py:")
    assert str(raised.value).endswith(
        "has numPartitions 3, but its partitioner has 4; give one of the two"
    )


@pytest.mark.parametrize("wrong", [5, "hash", lambda: 1])
def test_a_partition_function_that_is_none(sc: SparkContext, wrong: Any) -> None:
    """It is refused at definition."""
    with BatchDriver(sc) as driver, pytest.raises(InvalidStreamError, match=r"f\(key\) -> int"):
        driver.input([]).updateStateByKey(add, partitionFunc=wrong)


def test_an_initial_state_is_taken_as_it_is_now(sc: SparkContext) -> None:
    """Later changes of the dict do not change the state."""
    initial = {"a": 1}
    with BatchDriver(sc) as driver:
        states = driver.input([[]]).updateStateByKey(add, initialRDD=initial)
        initial["b"] = 2
        seen = driver.output(states)
        driver.run(1)
    assert seen == [[("a", 1)]]


def test_an_empty_initial_state_is_none(sc: SparkContext) -> None:
    """As in pyspark.streaming."""
    with BatchDriver(sc) as driver:
        seen = driver.output(driver.input([None, []]).updateStateByKey(add, initialRDD=[]))
        driver.run(2)
    assert seen == [None, []]
