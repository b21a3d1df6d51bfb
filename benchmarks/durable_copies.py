"""Benchmark: making a state durable with state files, compared with Spark's ``RDD.checkpoint``.

A state of a given number of keys is updated batch by batch. Every tenth batch makes it durable: by
``write_rdd``, a commit record and ``read_rdd``, or by ``RDD.checkpoint``. The table has the time of
a batch without durability, of the batch that writes, and of the next batch, which reads the copy.

    python benchmarks/durable_copies.py [KEYS]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from pyspark import RDD, SparkConf, SparkContext, StorageLevel

from checkpoint import CommitLog, CommitRecord, OperatorSnapshot, StatePartition, open_files
from dstreams import StablePartitioner
from dstreams.spark.blocks import Side
from dstreams.spark.cogroup import cogroup_with_state
from dstreams.spark.rdd_files import read_rdd, write_rdd
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.state.update_function import UpdateFunction

ROUNDS, INTERVAL, PARTITIONS = 6, 10, 2


def update(values: list[int], state: int | None) -> int:
    """Return the running sum."""
    return sum(values) + (state or 0)


class Stream:
    """A running sum, stepped by hand on plain RDDs."""

    def __init__(self, spark: SparkContext, keys: int) -> None:
        self._spark = spark
        self._partitioner = StablePartitioner(PARTITIONS)
        self._update = UpdateFunction.checked(update, "values", "benchmark")
        self._state: BlockPairsRDD | None = None
        self._touched = spark.parallelize([(f"key-{n}", 1) for n in range(0, keys, 100)], 2)
        self._older: list[BlockPairsRDD] = []
        self.step(spark.parallelize([(f"key-{n}", 1) for n in range(keys)], 2))

    def step(
        self,
        batch: RDD[Any] | None = None,
        durable: Callable[[BlockPairsRDD], BlockPairsRDD] | None = None,
    ) -> float:
        """Run a batch, make its state durable if asked to, and return the seconds it took."""
        started = time.perf_counter()
        blocks = shuffle_pairs(batch or self._touched, self._partitioner)
        before = None if self._state is None else self._state.blocks
        task = self._update.task(0, True, self._partitioner)
        state = BlockPairsRDD(cogroup_with_state(blocks, before, task), Side.STATE)
        state.persist(StorageLevel.MEMORY_ONLY)
        if durable is not None:
            state = durable(state)
        state.count()
        self._older.append(state)
        self._state = state
        seconds = time.perf_counter() - started
        if len(self._older) > 2:
            self._older.pop(0).unpersist()
        return seconds


def with_files(directory: str) -> Callable[[BlockPairsRDD], BlockPairsRDD]:
    """Return the way this project makes a state durable."""
    files = open_files(directory)
    versions = iter(range(1, ROUNDS + 2))

    def durable(state: BlockPairsRDD) -> BlockPairsRDD:
        version = next(versions)
        first = StatePartition("benchmark", "sum", version, 0, PARTITIONS, "stable-hash-1")
        written = write_rdd(state, files, first, epoch=1)
        operators = {"sum": OperatorSnapshot("stable-hash-1", written.files)}
        CommitLog(files).commit(CommitRecord("benchmark", version, version, 1, operators, {}))
        copy = read_rdd(state.context, files, written, like=state)
        return copy.persist(StorageLevel.MEMORY_ONLY)  # type: ignore[return-value]

    return durable


def with_spark(state: BlockPairsRDD) -> BlockPairsRDD:
    """Make a state durable as Spark does, when the next job computes it."""
    state.blocks.checkpoint()
    return state


def measure(
    stream: Stream, ways: dict[str, Callable[[BlockPairsRDD], BlockPairsRDD]]
) -> dict[str, list[float]]:
    """Return median seconds of a plain batch, of one that writes and of the one after it.

    The methods take turns, so that a JVM that is still warming up favours none.
    """
    seconds: dict[str, list[list[float]]] = {name: [[], [], []] for name in ways}
    for _ in range(ROUNDS):
        for name, durable in ways.items():
            plain, writing, after = seconds[name]
            plain += [stream.step() for _ in range(INTERVAL - 2)]
            writing.append(stream.step(durable=durable))
            after.append(stream.step())
    return {name: [statistics.median(times) for times in kinds] for name, kinds in seconds.items()}


def main() -> None:
    """Print the table."""
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setMaster("local[2]").setAppName("durable").set("spark.ui.enabled", "false")
    conf.set("spark.driver.memory", "4g").set("spark.python.unix.domain.socket.enabled", "true")
    spark = SparkContext(conf=conf)
    spark.setLogLevel("ERROR")
    print(f"{keys} keys, {PARTITIONS} partitions, milliseconds (median)")
    print(f"{'':>20} {'plain':>8} {'writing':>8} {'after':>8}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        spark.setCheckpointDir(f"{directory}/spark")
        stream = Stream(spark, keys)
        for _ in range(15):
            stream.step()
        ways = {"files + record": with_files(f"{directory}/ours"), "RDD.checkpoint": with_spark}
        for name, times in measure(stream, ways).items():
            print(f"{name:>20} " + " ".join(f"{seconds * 1000:>8.0f}" for seconds in times))
    spark.stop()


if __name__ == "__main__":
    main()
