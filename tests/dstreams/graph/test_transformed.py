"""Streams made from others: what they get, and what they may return."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node
from dstreams.graph.transformed import TransformedDStream
from dstreams.sources.queue import QueueSource

ONE, TWO = (
    InputDStream(number, QueueSource([]), 1000, f"queueStream at a.py:{number}")
    for number in (1, 2)
)


class Given:
    """The RDDs that a node is given, in the place of a history."""

    def __init__(self, spark: SparkContext, **rdds: RDD[Any]) -> None:
        self.spark = spark
        self._rdds = rdds

    def at(self, node: Node, time_ms: int) -> RDD[Any] | None:
        return self._rdds.get({ONE: "one", TWO: "two"}[node]) if time_ms == 1000 else None  # type: ignore[index]


def test_the_function_gets_the_rdds_of_that_time(sc: SparkContext) -> None:
    """With the batch time, in the order of the parents; what it returns is the RDD."""
    calls: list[Any] = []

    def func(time_ms: int, rdds: tuple[RDD[Any], ...]) -> RDD[Any]:
        calls.append((time_ms, rdds))
        return rdds[1]

    one, two = sc.parallelize([1]), sc.parallelize([2])
    node = TransformedDStream((ONE, TWO), func, "transform at a.py:3")
    assert node.compute(1000, Given(sc, one=one, two=two)) is two
    assert calls == [(1000, (one, two))]


def test_a_single_parent_without_an_rdd(sc: SparkContext) -> None:
    """There is none here either, and the function is not called."""

    def func(time_ms: int, rdds: tuple[RDD[Any], ...]) -> RDD[Any]:
        raise AssertionError

    assert TransformedDStream((ONE,), func, "map at a.py:3").compute(1000, Given(sc)) is None


def test_one_of_several_parents_without_an_rdd(sc: SparkContext) -> None:
    """It has an empty one, also when all of them have none."""
    node = TransformedDStream((ONE, TWO), lambda _, rdds: rdds[0].union(rdds[1]), "union at a.py:3")
    for given, wanted in ((Given(sc, two=sc.parallelize([2])), [2]), (Given(sc), [])):
        found = node.compute(1000, given)
        assert found is not None
        assert found.collect() == wanted


def test_no_rdd_may_be_returned(sc: SparkContext) -> None:
    """None means that there is none."""
    node = TransformedDStream((ONE,), lambda time_ms, rdds: None, "transform at a.py:3")
    assert node.compute(1000, Given(sc, one=sc.parallelize([1]))) is None


def test_what_is_no_rdd_is_refused(sc: SparkContext) -> None:
    """The message has the operation and the type."""
    func: Any = lambda time_ms, rdds: [1]  # noqa: E731 - returns what the type forbids
    node = TransformedDStream((ONE,), func, "transform at a.py:3")
    with pytest.raises(InvalidStreamError) as raised:
        node.compute(1000, Given(sc, one=sc.parallelize([1])))
    assert str(raised.value) == "transform at a.py:3 must return an RDD or None, got list"
