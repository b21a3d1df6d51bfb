"""The cost of a restart until its first batch has run, in jobs, stages and files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from operator import add, sub
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import StreamingContext
from dstreams.testing import ManualClock
from tests.dstreams.spark.lineage import workers_of_a_task
from tests.support.jobs import count_jobs

made: list[int] = []
"""Python workers that a task needs at the same time, for each state that an output saw."""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    made.clear()
    yield
    active = StreamingContext.getActive()
    if active is not None:
        active.stop(stopSparkContext=False)


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def look(rdd: Any) -> None:
    made.append(workers_of_a_task(rdd))
    assert rdd.collect() == [("a", len(made))]


def begin(sc: SparkContext, directory: Path) -> StreamingContext:
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(directory))
    ticks = ssc.queueStream([[("a", 1)]] * 30, replayable=True)
    ticks.updateStateByKey(total, 2).foreachRDD(look)
    return ssc


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


def run(ssc: StreamingContext, batches: int) -> int:
    """Run batches and crash; return the number of their jobs."""
    jobs = count_jobs(ssc.sparkContext, lambda: ssc.step(batches))
    ssc.stop(stopSparkContext=False)
    return jobs


@pytest.mark.deep
@pytest.mark.parametrize("lives", [(2, 8), (12, 18)], ids=["no copy", "copy"])
def test_the_first_batch_costs_the_same_wherever_the_last_copy_is(
    sc: SparkContext, tmp_path: Path, lives: tuple[int, ...]
) -> None:
    """Batches since the last snapshot are recomputed in one worker per task, without own jobs."""
    costs = []
    for lived in lives:
        directory = tmp_path / str(lived)
        made.clear()
        run(begin(sc, directory), lived)
        jobs = run(StreamingContext.getOrCreate(str(directory), never), 1)
        costs.append((jobs, made[-1]))
    assert len(set(costs)) == 1, costs


@pytest.mark.deep
def test_restarts_in_a_row_cost_the_same(sc: SparkContext, tmp_path: Path) -> None:
    """A program that is killed after each batch does not restart more and more slowly."""
    run(begin(sc, tmp_path), 2)
    costs = []
    for _ in range(6):
        jobs = run(StreamingContext.getOrCreate(str(tmp_path), never), 1)
        costs.append((jobs, made[-1]))
    assert len(set(costs)) == 1, costs


sums: list[Any] = []
"""Return the output of a state that is computed from another state."""


def note(rdd: Any) -> None:
    sums.append(rdd.collect())


@pytest.mark.deep
@pytest.mark.parametrize("lives", [(2, 1, 3), (9, 3), (13, 2)], ids=["short", "no copy", "copy"])
def test_a_state_over_a_state(sc: SparkContext, tmp_path: Path, lives: tuple[int, ...]) -> None:
    """A restart continues: each batch adds the state below it as of that batch."""
    sums.clear()
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    ticks = ssc.queueStream([[("a", 1)]] * 30, replayable=True)
    ticks.updateStateByKey(total, 2).updateStateByKey(total, 2).foreachRDD(note)
    run(ssc, lives[0])
    for batches in lives[1:]:
        run(StreamingContext.getOrCreate(str(tmp_path), never), batches)
    assert sums == [[("a", n * (n + 1) // 2)] for n in range(1, sum(lives) + 1)]


transformed: list[datetime] = []
"""The batches that a function of transform was called for."""


def keep_time(time: datetime, rdd: Any) -> Any:
    transformed.append(time)
    return rdd


def compare_time(time: datetime, rdd: Any) -> None:
    rdd.collect()
    sums.append((time, transformed[-1]))


@pytest.mark.deep
def test_transform_is_called_for_a_batch_after_those_before_it(
    sc: SparkContext, tmp_path: Path
) -> None:
    """A function sees batches in order after a restart: programs store Kafka offsets that way."""
    sums.clear()
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    ticks = ssc.queueStream([[("a", 1)]] * 30, replayable=True).transform(keep_time)
    ticks.updateStateByKey(total, 2).checkpoint(1).foreachRDD(compare_time)
    ticks.reduceByKeyAndWindow(add, sub, 6, 1, 2).checkpoint(1).foreachRDD(compare_time)
    ticks.window(4, 2).foreachRDD(compare_time)
    run(ssc, 9)
    transformed.clear()
    run(StreamingContext.getOrCreate(str(tmp_path), never), 8)
    assert len(sums) == 2 * 17 + 8
    assert all(time == kept for time, kept in sums)
    assert len(transformed) == len(set(transformed))
