"""Counting Spark jobs: a promise about cost that does not drift with the machine."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from pyspark import SparkContext


def count_jobs(spark: SparkContext, action: Callable[[], object]) -> int:
    """Run *action* and return how many Spark jobs it started from this thread."""
    group = uuid.uuid4().hex
    spark.setJobGroup(group, "counted by a test")
    try:
        action()
    finally:
        spark._jsc.clearJobGroup()
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    return len(spark.statusTracker().getJobIdsForGroup(group))
