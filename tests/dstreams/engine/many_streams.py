"""Programs of ``test_many_streams``, each in a process of its own: python many_streams.py NAME."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread, SparkContext, TaskContext

from dstreams import StateSpec, StreamingContext, tuned_context
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for

POOL = "spark.scheduler.pool"
BATCHES, SHORT_TASKS = 3, 6000


def pool_of_task() -> str | None:
    """Return the pool of the job of the running task."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(POOL)


def add(new: list[int], state: tuple[int, Any] | None) -> tuple[int, Any]:
    return sum(new) + (state[0] if state else 0), pool_of_task()


def put(key: int, value: int, state: Any) -> Any:
    state.update(value + (state.getOption or 0))
    return key, pool_of_task()


def short_task(_: int) -> int:
    time.sleep(0.05)  # the work of a task that leaves its core to others afterwards
    return 1


def pools(spark: SparkContext, directory: str) -> dict[str, Any]:
    """Run a stream and a query, each in its pool, while a job of many tasks runs in another."""
    clock = ManualClock()
    ssc = StreamingContext(spark, 1, clock=clock)
    ssc.checkpoint(f"{directory}/stream")
    pairs = ssc.rateStream(10, uid="numbers", numPartitions=2).map(lambda row: (row[1] % 4, 1))
    seen: dict[str, list[Any]] = {"update": [], "map": [], "query": []}
    pairs.updateStateByKey(add, 2).checkpoint(1).foreachRDD(
        lambda rdd: seen["update"].append(sorted(rdd.collect()))
    )
    pairs.mapWithState(StateSpec.function(put).numPartitions(2)).foreachRDD(
        lambda rdd: seen["map"].append(sorted(set(rdd.collect())))
    )
    session = StreamSession(spark, {"spark.sql.shuffle.partitions": "2"})
    source: Any = session.memoryStream()
    rows = source.toDS().map(lambda number: (number, pool_of_task()))
    counts = rows.groupByKey(lambda row: row[1]).count()

    def run_job() -> None:
        spark.setLocalProperty(POOL, "job")
        with suppress(Py4JJavaError):  # it is cancelled
            spark.parallelize(range(SHORT_TASKS), SHORT_TASKS).map(short_task).sum()

    spark.setLocalProperty(POOL, "streams")
    ssc.start()
    spark.setLocalProperty(POOL, "queries")
    query = (
        counts.writeStream.outputMode("complete")
        .foreachBatch(lambda batch, _: seen["query"].append(sorted(batch.collect())))
        .start(checkpointLocation=f"{directory}/query")
    )
    spark.setLocalProperty(POOL, None)  # type: ignore[arg-type]
    job = InheritableThread(target=run_job)
    job.start()
    wait_for(spark.statusTracker().getActiveJobsIds)
    for batch in range(BATCHES):
        clock.advance(1000)
        source.addData(batch)
        query.processAllAvailable()
        wait_for(lambda batch=batch: len(seen["map"]) > batch or not job.is_alive())  # type: ignore[misc]
    is_job_running = job.is_alive()
    spark.cancelAllJobs()
    job.join()
    query.stop()
    ssc.stop(stopSparkContext=False)
    found = [pool.name() for pool in _listed(spark._jsc.sc().getAllPools())]
    return {"seen": seen, "pools": sorted(found), "is_job_running": is_job_running}


def _listed(found: Any) -> list[Any]:
    return [found.apply(at) for at in range(found.size())]


def own_threads() -> list[str]:
    """Return the names of our threads, except the one that reads the log of the JVM."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("dstreams") and "jvm" not in name]


def contexts(spark: SparkContext, directory: str) -> dict[str, Any]:
    """Run one StreamingContext after another, and report what each leaves behind."""
    sums, left = [], []
    for number in range(4):
        ssc = StreamingContext(spark, 1, clock=ManualClock())
        ssc.checkpoint(f"{directory}/{number}")
        pairs = ssc.rateStream(10, uid="numbers", numPartitions=2).map(lambda row: (row[1] % 4, 1))
        rows: list[Any] = []
        sums_of = pairs.updateStateByKey(lambda new, old: sum(new) + (old or 0), 2)
        sums_of.foreachRDD(lambda rdd, rows=rows: rows.append(sorted(rdd.collect())))
        mapped = pairs.mapWithState(StateSpec.function(put).numPartitions(2))
        mapped.foreachRDD(lambda rdd, rows=rows: rows.append(rdd.count()))
        ssc.step(BATCHES + number)
        ssc.stop(stopSparkContext=False)
        sums.append(rows[-2:])
        wait_for(lambda: not own_threads())  # the watchdog ends at its next look at the clock
        properties = ("spark.job.description", "spark.streaming.internal.batchTime")
        left.append([len(spark._jsc.getPersistentRDDs()), *map(spark.getLocalProperty, properties)])
    return {"sums": sums, "left": left}


def main(name: str) -> None:
    with TemporaryDirectory() as directory:
        settings = {
            "spark.scheduler.mode": "FAIR",
            "spark.ui.enabled": "false",
            "spark.dstreams.ui.enabled": "false",
            "spark.local.dir": f"{directory}/local",
            "spark.dstreams.state.localDirectory": f"{directory}/local/state",
        }
        found = []
        for number in range(2 if name == "contexts" else 1):
            spark = tuned_context(name, "local[2,4]", settings)
            run = {"pools": pools, "contexts": contexts}[name]
            found.append(run(spark, f"{directory}/{number}"))
            spark.stop()
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
