"""A stream with stored state that runs a batch for each line it is sent; a child of the drill.

Its standard output is one JSON object a line: ``{"ready": ...}``, ``{"batch": n, ...}`` for each
batch, and ``{"states": ...}`` at the end.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext

from dstreams import GroupState, State, StateSpec, tuned_context
from dstreams.testing import BatchDriver
from tests.support.jvms import OF_SPARK

KEYS, RECORDS, BATCHES = 60, 120, 80
IDLE_S = 3
WORK = 60_000
"""Steps of work for each record, so that a batch has a middle to be killed in."""


def records_of(batch: int) -> list[tuple[str, int]]:
    """The records of batch 1, 2, ...: the same in every process."""
    chance = random.Random(batch)
    return [(f"k{chance.randrange(KEYS)}", chance.randrange(100)) for _ in range(RECORDS)]


def work() -> int:
    return sum(range(WORK))


def add(key: str, value: int | None, state: State[int]) -> list[Any]:
    """Adds values up; says so when a key ends."""
    work()
    if state.isTimingOut:
        return [key, "ended", state.get]
    state.update((state.getOption or 0) + (value or 0))
    return [key, value, state.get]


def sessions(key: str, values: Iterator[int], state: GroupState[list[int]]) -> list[Any]:
    """Counts calls and values; says so when a key ends."""
    if state.hasTimedOut:
        state.remove()
        return [[key, "ended"]]
    seen = list(values)
    for _ in seen:
        work()
    calls, total = state.getOption or [0, 0]
    state.update([calls + 1, total + sum(seen)])
    state.setTimeoutDuration(IDLE_S * 1000)
    return [[key, *state.get]]


def slowly(row: Any) -> Any:
    """Takes time, so that outputs have a middle to be killed in as well."""
    work()
    return row


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def run(spark: SparkContext, checkpoint: str) -> None:
    with BatchDriver(spark, checkpoint=checkpoint) as driver:
        pairs = driver.input([records_of(batch) for batch in range(1, BATCHES + 1)])
        sums = pairs.mapWithState(StateSpec.function(add).timeout(IDLE_S).numPartitions(2))
        groups = pairs.flatMapGroupsWithState(sessions, timeout="processingTime", numPartitions=2)
        stored = [sums, groups]
        outputs = [driver.output(stream.map(slowly)) for stream in stored]
        tell(ready=True)
        batch = 0
        while sys.stdin.readline().strip() == "go":
            batch += 1
            driver.run(1)
            tell(batch=batch, rows=[output[-1] for output in outputs])
        tell(
            states=[
                sorted((key, state) for key, state, _ in stream.stateStore().collect())
                for stream in stored
            ]
        )


def main(master: str, checkpoint: str, local: str) -> None:
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
        "spark.default.parallelism": "2",
        "spark.task.maxFailures": "8",
        "spark.local.dir": local,
        "spark.dstreams.state.localDirectory": f"{local}/state",
        "spark.executor.extraJavaOptions": OF_SPARK,
        "spark.driver.extraJavaOptions": OF_SPARK,
    }
    spark = tuned_context("cluster kills", master, settings)
    try:
        run(spark, checkpoint)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
