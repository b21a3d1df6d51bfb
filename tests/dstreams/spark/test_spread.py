"""Spreading elements over partitions: all of them, evenly, without a job of its own."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

from dstreams.spark.spread import spread
from tests.dstreams.spark.lineage import shuffles_in
from tests.support.jobs import count_jobs


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
