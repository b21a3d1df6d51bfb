"""Jobs of a batch: one Spark job per output, one more when state is made durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import DStream, StreamingContext
from dstreams.testing import BatchDriver, ManualClock
from tests.support.jobs import count_jobs
from tests.support.waiting import wait_for


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(rdd: RDD[Any]) -> None:
    rdd.count()


def jobs_of(sc: SparkContext, driver: BatchDriver, batches: int) -> list[int]:
    return [count_jobs(sc, lambda: driver.run(1)) for _ in range(batches)]


def test_one_output_is_one_job(sc: SparkContext) -> None:
    """In empty batches, without an RDD: one; an initial state is written once, before the first."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)], [("b", 1)], [], None])
        pairs.updateStateByKey(add, initialRDD={"z": 1}).foreachRDD(count)
        assert jobs_of(sc, driver, 5) == [2, *[1] * 4]


def test_two_outputs_are_two_jobs(sc: SparkContext) -> None:
    """However much they have in common."""
    with BatchDriver(sc) as driver:
        states = driver.input([[("a", 1)], [("b", 1)], []]).updateStateByKey(add)
        states.foreachRDD(count)
        states.map(lambda pair: pair[1]).foreachRDD(count)
        assert jobs_of(sc, driver, 3) == [2] * 3


def test_a_batch_without_an_rdd_runs_no_job(sc: SparkContext) -> None:
    """Nothing is run to find out that there is nothing."""
    with BatchDriver(sc) as driver:
        driver.input([None, None]).updateStateByKey(add).foreachRDD(count)
        assert jobs_of(sc, driver, 2) == [0, 0]


def test_an_output_that_runs_nothing_costs_nothing(sc: SparkContext) -> None:
    """State is not computed if no output uses it and no snapshot is due."""
    with BatchDriver(sc) as driver:
        driver.input([[("a", 1)]]).updateStateByKey(add).foreachRDD(lambda rdd: None)
        assert jobs_of(sc, driver, 1) == [0]


@pytest.mark.deep
def test_durable_state_is_one_more_job(sc: SparkContext) -> None:
    """Exactly in the batches whose state is made durable, also in the batch after."""
    with BatchDriver(sc) as driver:
        states = driver.input([[("a", 1)]] * 9).updateStateByKey(add).checkpoint(3)
        states.foreachRDD(count)
        assert jobs_of(sc, driver, 9) == [1, 1, 2] * 3


def test_two_durable_states_are_two_more_jobs(sc: SparkContext) -> None:
    """Each state stream is written by a job of its own, when it is due."""
    with BatchDriver(sc) as driver:
        first = driver.input([[("a", 1)]] * 4).updateStateByKey(add).checkpoint(1)
        first.updateStateByKey(add).checkpoint(2).foreachRDD(count)
        assert jobs_of(sc, driver, 4) == [2, 3, 2, 3]


def test_without_a_promise_about_partitions_it_is_one_job_too(sc: SparkContext) -> None:
    """A shuffle of the whole state is a stage of the job, not a job."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)]] * 3)
        pairs.updateStateByKey(add, preservePartitioning=False).foreachRDD(count)
        assert jobs_of(sc, driver, 3) == [1] * 3


OUTPUTS: dict[str, Callable[[DStream, Path], None]] = {
    "foreachRDD": lambda stream, path: stream.foreachRDD(count),
    "pprint": lambda stream, path: stream.pprint(),
    "saveAsTextFiles": lambda stream, path: stream.saveAsTextFiles(str(path / "out")),
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_each_kind_of_output_is_one_job(sc: SparkContext, tmp_path: Path, output: str) -> None:
    """Also where there are many partitions and few records."""
    with BatchDriver(sc) as driver:
        numbers = driver.input([sc.parallelize(range(30), 4), sc.parallelize([], 4)])
        OUTPUTS[output](numbers.map(str), tmp_path)
        assert jobs_of(sc, driver, 2) == [1, 1]


STATELESS: dict[str, Callable[[DStream], DStream]] = {
    "count": lambda s: s.count(),
    "reduce": lambda s: s.map(lambda pair: pair[1]).reduce(max),
    "countByValue": lambda s: s.countByValue(),
    "reduceByKey": lambda s: s.reduceByKey(max),
    "groupByKey": lambda s: s.groupByKey(),
    "partitionBy": lambda s: s.partitionBy(3),
    "repartition": lambda s: s.repartition(3),
    "union": lambda s: s.union(s),
    "cogroup": lambda s: s.cogroup(s),
    "join": lambda s: s.join(s),
    "leftOuterJoin": lambda s: s.leftOuterJoin(s),
    "fullOuterJoin": lambda s: s.fullOuterJoin(s),
}


@pytest.mark.deep
def test_stateless_operators_run_no_job_of_their_own(sc: SparkContext) -> None:
    """All of them together cost the one job of each output."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1), ("b", 2)], []])
        for operator in STATELESS.values():
            operator(pairs).foreachRDD(count)
        assert jobs_of(sc, driver, 2) == [len(STATELESS)] * 2


def test_a_started_context_runs_no_other_jobs(sc: SparkContext) -> None:
    """Its jobs are in a group of their own: one for each output and batch."""
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    seen: list[int] = []
    numbers = ssc.queueStream([[1], [2], [3]])
    numbers.foreachRDD(count)
    numbers.foreachRDD(lambda rdd: seen.append(rdd.count()))
    ssc.start()
    try:
        clock.advance(3000)
        wait_for(lambda: len(seen) == 3)
        assert ssc._life.scheduler is not None
        group = ssc._life.scheduler._job_group
    finally:
        ssc.stop(stopSparkContext=False)
    sc._jsc.sc().listenerBus().waitUntilEmpty()
    assert len(sc.statusTracker().getJobIdsForGroup(group)) == 6
