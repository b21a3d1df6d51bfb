"""Benchmark: updateStateByKey, compared with pyspark.streaming.

Both sides run in child processes of one run, on the same data, the same number of partitions and
the same Spark settings; each batch ends with ``count()`` of the state. The figure is the median
time of a batch after warm-up, from the moment it is due to the return of its output; in bulk it is
the mean, because there the batches differ as the state grows.

    python benchmarks/update_state_by_key.py             # the table
    python benchmarks/update_state_by_key.py --case 1M   # one row
    python benchmarks/update_state_by_key.py --tuned     # both sides in a context of tuned_context

For comparison, a plain dict in one process does the same work: a lower bound without durability.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import psutil

PARTITIONS = 2


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Args:
        keys: keys of state, all loaded by the first batch when *load* is set.
        records: records of each batch.
        batches: batches that are run, the load not counted.
        warm: how many of them come before the measured ones.
        load: whether a first batch puts every key into the state; without it the state grows, and
            the batches that warm the workers up have a thousand records each.
        at_least: the target ratio.
    """

    keys: int
    records: int
    batches: int
    warm: int
    load: bool
    at_least: float


CASES = {
    "1k": Case(1_000, 1_000, 100, 60, True, 2.0),
    "200k": Case(200_000, 10_000, 40, 20, True, 8.0),
    "1M": Case(1_000_000, 10_000, 22, 11, True, 12.0),
    "bulk": Case(200_000, 100_000, 20, 40, False, 6.0),
}


def update(values: list[int], state: int | None) -> int:
    """Return the running sum."""
    return sum(values) + (state or 0)


def batches_of(case: Case) -> Iterator[list[tuple[str, int]]]:
    """Yield the records of each batch, the load first."""
    randomness = random.Random(17)
    if case.load:
        yield [(f"key-{number}", 1) for number in range(case.keys)]
    else:
        for _ in range(case.warm):
            yield [("warm", 1)] * 1000
    for _ in range(case.batches):
        yield [(f"key-{randomness.randrange(case.keys)}", 1) for _ in range(case.records)]


def start_spark() -> Any:
    """Start Spark with the settings that both sides use, and with workers of this Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext

    conf = (
        SparkConf()
        .setMaster(f"local[{PARTITIONS}]")
        .setAppName("benchmark")
        .set("spark.ui.enabled", "false")
        .set("spark.driver.memory", "2g")
        .set("spark.python.unix.domain.socket.enabled", "true")
        .set("spark.streaming.clock", "org.apache.spark.util.ManualClock")
    )
    spark = SparkContext(conf=conf)
    spark.setLogLevel("ERROR")
    return spark


def start_tuned(*options: str) -> Any:
    """Start Spark as a program of dstreams does; *options* are of the JVM."""
    from dstreams.spark.spark_context import tuned_context

    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.streaming.clock": "org.apache.spark.util.ManualClock",
    }
    return tuned_context("benchmark", f"local[{PARTITIONS}]", conf)


def run_dstreams(case: Case, directory: str, start: Callable[[], Any]) -> list[float]:
    """Run the case on dstreams; return seconds for each batch."""
    from dstreams import StreamingContext
    from dstreams.testing import ManualClock

    spark = start()
    rdds = [spark.parallelize(batch, PARTITIONS) for batch in batches_of(case)]
    spark.setCheckpointDir(directory)
    clock = ManualClock()
    ssc = StreamingContext(spark, 1, clock=clock)
    done = threading.Semaphore(0)
    state = ssc.queueStream(rdds).updateStateByKey(update, PARTITIONS)
    state.foreachRDD(lambda rdd: (rdd.count(), done.release()))
    ssc.start()
    seconds = timed_batches(len(rdds), lambda: clock.advance(1000), done)
    ssc.stop()
    return seconds


def run_pyspark(case: Case, directory: str, start: Callable[[], Any]) -> list[float]:
    """Run the case on pyspark.streaming; return seconds for each batch."""
    warnings.simplefilter("ignore", FutureWarning)
    from pyspark.streaming import StreamingContext

    spark = start()
    rdds = [spark.parallelize(batch, PARTITIONS) for batch in batches_of(case)]
    spark.setCheckpointDir(directory)  # state only: no checkpoints of the graph, as on our side
    ssc = StreamingContext(spark, 1)
    done = threading.Semaphore(0)
    state = ssc.queueStream(rdds).updateStateByKey(update, PARTITIONS)
    state.foreachRDD(lambda rdd: (rdd.count(), done.release()))
    ssc.start()
    clock = ssc._jssc.ssc().scheduler().clock()
    seconds = timed_batches(len(rdds), lambda: clock.advance(1000), done)
    ssc.stop()
    return seconds


def run_dict(case: Case, *_: Any) -> list[float]:
    """Do the same work with a dict in this process; return seconds for each batch."""
    state: dict[str, int] = {}
    seconds = []
    for batch in batches_of(case):
        started = time.perf_counter()
        fresh: dict[str, list[int]] = {}
        for key, value in batch:
            fresh.setdefault(key, []).append(value)
        for key in state.keys() | fresh.keys():
            state[key] = update(fresh.get(key, []), state.get(key))
        seconds.append(time.perf_counter() - started)
    return seconds


def timed_batches(count: int, due: Callable[[], Any], done: threading.Semaphore) -> list[float]:
    """Let *count* batches become due, one after the other; return the seconds of each."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        due()
        if not done.acquire(timeout=300):
            raise TimeoutError("a batch did not end within 300 s")
        seconds.append(time.perf_counter() - started)
    return seconds


SIDES = {"dstreams": run_dstreams, "pyspark": run_pyspark, "dict": run_dict}


def run_side(side: str, case: Case, is_tuned: bool) -> tuple[list[float], int]:
    """Run one side in a separate process; returns seconds by batch and peak memory in bytes."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--side", side, json.dumps(asdict(case)), directory]
        command += ["--tuned"] if is_tuned else []
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        peak = 0
        while child.poll() is None:
            peak = max(peak, memory_of(child.pid))
            time.sleep(0.1)
        output = child.stdout.read() if child.stdout else b""
        if child.returncode:
            raise RuntimeError(f"{side} ended with exit status {child.returncode}")
        return json.loads(output.splitlines()[-1]), peak


def memory_of(pid: int) -> int:
    """Return the proportional memory of a process and all below it, in bytes."""
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def compare(name: str, case: Case, is_tuned: bool) -> bool:
    """Run one row and print it; return whether it reached the target."""
    medians, peaks = {}, {}
    for side in SIDES:
        seconds, peaks[side] = run_side(side, case, is_tuned)
        measured = seconds[case.warm + case.load :]
        medians[side] = statistics.median(measured) if case.load else statistics.mean(measured)
    ratio = medians["pyspark"] / medians["dstreams"]
    print(
        f"{name:>5} {case.keys:>9} {case.records:>8} "
        f"{medians['pyspark'] * 1000:>9.0f} {medians['dstreams'] * 1000:>9.0f} "
        f"{ratio:>6.1f}x {case.at_least:>6.1f}x "
        f"{medians['dstreams'] / medians['dict']:>8.1f}x "
        f"{peaks['pyspark'] >> 20:>8} {peaks['dstreams'] >> 20:>8}",
        flush=True,
    )
    return ratio >= case.at_least and peaks["dstreams"] <= peaks["pyspark"]


def main() -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, help="run one row only")
    parser.add_argument(
        "--tuned", action="store_true", help="both sides in a context of tuned_context"
    )
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, case, directory = arguments.side
        start = start_tuned if arguments.tuned else start_spark
        print(json.dumps(SIDES[side](Case(**json.loads(case)), directory, start)))
        return 0
    print(
        f"{'case':>5} {'keys':>9} {'records':>8} {'pyspark':>9} {'dstreams':>9} {'ratio':>7} "
        f"{'asked':>7} {'to dict':>9} {'MB pys.':>8} {'MB dstr.':>8}   (ms a batch)",
        flush=True,
    )
    names = [arguments.case] if arguments.case else list(CASES)
    reached = [compare(name, CASES[name], arguments.tuned) for name in names]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
