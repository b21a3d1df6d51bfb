"""A driver with a large stored state, for :mod:`tests.cluster.test_rebuild`.

Its arguments are the master, the number of keys and the checkpoint. It runs a batch for each line
it is sent, of all keys first, then of a few, and answers with its keys and seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time

from dstreams import State, StateSpec, tuned_context
from dstreams.testing import BatchDriver
from tests.support.gates import DIRECTORY
from tests.support.jvms import OF_SPARK

PARTITIONS, TOUCHED, BATCHES = 3, 1_000, 20


def count(key: int, number: int | None, state: State[int]) -> int:
    state.update((state.getOption or 0) + (number or 0))
    return 1


def main(master: str, keys: int, checkpoint: str) -> None:
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
        "spark.default.parallelism": str(PARTITIONS),
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": "dstreams.spark.worker_daemon",
        "spark.executor.extraJavaOptions": OF_SPARK,
        "spark.driver.extraJavaOptions": OF_SPARK,
        f"spark.executorEnv.{DIRECTORY}": os.environ[DIRECTORY],
    }
    spark = tuned_context("a large state", master, settings)
    with BatchDriver(spark, checkpoint=checkpoint) as driver:
        sizes = (keys, *[TOUCHED] * BATCHES)
        inputs = [spark.parallelize(range(size), PARTITIONS) for size in sizes]
        pairs = driver.input(inputs).map(lambda number: (number, 1))
        counted = pairs.mapWithState(StateSpec.function(count), uid="counts")
        rows = driver.output(counted.count())
        print(json.dumps({"ready": os.getpid()}), flush=True)
        while sys.stdin.readline().strip():
            started = time.monotonic()
            driver.run(1)
            seconds = time.monotonic() - started
            (state,) = driver.context.status().states
            print(
                json.dumps({"rows": rows[-1], "keys": state.keys, "seconds": seconds}), flush=True
            )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
