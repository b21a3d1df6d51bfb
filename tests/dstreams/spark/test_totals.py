"""One value for a whole RDD."""

from __future__ import annotations

from operator import add

import pytest
from pyspark import SparkContext

from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.spark.totals import count_all, reduce_all
from tests.support.jobs import count_jobs

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
