"""Reports of tasks: one per partition, kept while they are referenced."""

from __future__ import annotations

import gc
from typing import Any

from pyspark import SparkContext

from dstreams.spark.task_reports import TaskReports, _accumulator_of, _ByPartition, _Live


def test_reports_are_apart_and_forgotten(sc: SparkContext) -> None:
    """Discarded reports take no memory, even if their tasks still report."""
    live: dict[int, Any] = _accumulator_of(sc).value
    gc.collect()
    before = len(live)
    first, second = TaskReports[str](sc), TaskReports[str](sc)
    report = first.task
    rdd = sc.parallelize(["b", "a"], 2)

    def tell(split: int, words: Any) -> Any:
        for word in words:
            report(split, 1, word)
        yield from ()

    rdd.mapPartitionsWithIndex(tell).count()
    assert (first.facts(), second.facts()) == (["b", "a"], [])
    assert len(live) == before + 2
    del first
    gc.collect()
    rdd.mapPartitionsWithIndex(tell).count()
    assert len(live) == before + 1


def test_of_two_reports_of_a_partition_that_of_more_records_counts() -> None:
    """In any order of arrival; the first of equal ones wins."""
    merge, live = _ByPartition().addInPlace, _Live({7: {}})
    for records, fact in ((2, "two"), (3, "three"), (1, "one"), (3, "again")):
        task: dict[int, Any] = {}
        merge(task, {7: {0: (records, fact)}})
        merge(live, task)
    merge(live, {8: {0: (1, "nobody asks")}})
    assert live == {7: {0: (3, "three")}}
