"""Streams made from others: what they get, and what they may return."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.graph.node import InputDStream
from dstreams.graph.transformed import TransformedDStream
from dstreams.sources.queue import QueueSource
from tests.dstreams.graph.given import Given, compute

ONE, TWO = (
    InputDStream(number, QueueSource([]), 1000, f"queueStream at a.py:{number}")
    for number in (1, 2)
)


def given(sc: SparkContext, **rdds: RDD[Any]) -> Given:
    nodes = {"one": ONE, "two": TWO}
    return Given(sc, {(nodes[name], 1000): rdd for name, rdd in rdds.items()})


def test_the_function_gets_the_rdds_of_that_time(sc: SparkContext) -> None:
    """With the batch time, in the order of the parents; the result is the RDD."""
    calls: list[Any] = []

    def func(time_ms: int, rdds: tuple[RDD[Any], ...]) -> RDD[Any]:
        calls.append((time_ms, rdds))
        return rdds[1]

    one, two = sc.parallelize([1]), sc.parallelize([2])
    node = TransformedDStream((ONE, TWO), func, "transform at a.py:3")
    assert compute(node, 1000, given(sc, one=one, two=two)) is two
    assert calls == [(1000, (one, two))]


def test_a_single_parent_without_an_rdd(sc: SparkContext) -> None:
    """Without an RDD of the parent there is none, and the function is not called."""

    def func(time_ms: int, rdds: tuple[RDD[Any], ...]) -> RDD[Any]:
        raise AssertionError

    node = TransformedDStream((ONE,), func, "map at a.py:3")
    assert compute(node, 1000, given(sc)) is None


def test_one_of_several_parents_without_an_rdd(sc: SparkContext) -> None:
    """It gets an empty one, also if all of them have none."""
    node = TransformedDStream((ONE, TWO), lambda _, rdds: rdds[0].union(rdds[1]), "union at a.py:3")
    for some, wanted in ((given(sc, two=sc.parallelize([2])), [2]), (given(sc), [])):
        found = compute(node, 1000, some)
        assert found is not None
        assert found.collect() == wanted


def test_no_rdd_may_be_returned(sc: SparkContext) -> None:
    """A function may return None for a batch without an RDD."""
    node = TransformedDStream((ONE,), lambda time_ms, rdds: None, "transform at a.py:3")
    assert compute(node, 1000, given(sc, one=sc.parallelize([1]))) is None


def test_what_is_no_rdd_is_refused(sc: SparkContext) -> None:
    """The error has the operation and the type."""
    func: Any = lambda time_ms, rdds: [1]  # noqa: E731 - returns what the type forbids
    node = TransformedDStream((ONE,), func, "transform at a.py:3")
    with pytest.raises(InvalidStreamError) as raised:
        compute(node, 1000, given(sc, one=sc.parallelize([1])))
    assert str(raised.value) == "transform at a.py:3 must return an RDD or None, got list"
