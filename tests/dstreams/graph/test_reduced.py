"""The node that reduces each batch by key."""

from __future__ import annotations

import operator

from pyspark import SparkContext

from dstreams.graph.transformed import ReducedDStream
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import Reduction
from tests.dstreams.graph.given import PARENT, Given, compute

NODE = ReducedDStream(
    PARENT, Reduction(operator.add, "plus"), StablePartitioner(2), "reduceByKey at a.py:2"
)


def test_what_it_is() -> None:
    """One parent, its slide, no earlier RDDs, no storage."""
    assert NODE.parents == (PARENT,)
    assert NODE.slide_ms == PARENT.slide_ms
    assert not NODE.is_stateful
    assert NODE.default_storage is None


def test_each_key_once(sc: SparkContext) -> None:
    """In its partition; without an RDD of the parent there is none."""
    given = Given(sc, {(PARENT, 1000): sc.parallelize([("a", 1), ("b", 2), ("a", 3)], 3)})
    made = compute(NODE, 1000, given)
    assert made is not None
    assert dict(made.collect()) == {"a": 4, "b": 2}
    assert made.partitioner == StablePartitioner(2)
    assert compute(NODE, 2000, given) is None
