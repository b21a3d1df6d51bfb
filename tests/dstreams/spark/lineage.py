"""The work of Spark for an RDD: its lineage, and the shuffled records of its jobs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

from pyspark import RDD, SparkContext


def lineage_of(rdd: RDD[Any]) -> list[str]:
    """Return the lines of an RDD's lineage, one for each RDD of the JVM."""
    text = rdd.toDebugString()
    assert text is not None
    return text.decode().splitlines()


def shuffles_in(rdd: RDD[Any]) -> int:
    """Return how many shuffles the lineage of an RDD has, one that is used twice counted once."""
    return len(set(re.findall(r"ShuffledRDD\[\d+\]", "\n".join(lineage_of(rdd)))))


def workers_of_a_task(rdd: RDD[Any]) -> int:
    """Return the number of simultaneous Python workers of a task that computes an RDD."""

    def workers(rdd: Any) -> int:
        above = rdd.dependencies()
        narrow = [above.apply(number) for number in range(above.size())]
        parents = (one.rdd() for one in narrow if "Shuffle" not in one.getClass().getName())
        return ("PythonRDD" in rdd.getClass().getName()) + sum(map(workers, parents))

    return workers(rdd._jrdd.rdd())


def bytes_shuffled(spark: SparkContext, action: Callable[[], object]) -> int:
    """Run *action* and return how many bytes its jobs wrote into shuffles."""
    group = uuid.uuid4().hex
    spark.setJobGroup(group, "measured by a test")
    try:
        action()
    finally:
        spark._jsc.clearJobGroup()
    context: Any = spark._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    store = context.statusStore()
    tracker = spark.statusTracker()
    infos = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    stages = {stage for info in infos if info is not None for stage in info.stageIds}
    return sum(store.lastStageAttempt(stage).shuffleWriteBytes() for stage in stages)
