"""Benchmark: reduceByKeyAndWindow with an inverse function, compared with pyspark.streaming.

Both sides run in child processes of one run, on the same data, the same number of partitions and
the same Spark settings; each batch ends with ``count()`` of the result. A first batch has every
key, and no filter drops one, so that every window has them all. The figure is the median time of a
batch after warm-up, from the moment it is due to the return of its output; warm-up is longer than
the window, so that in every measured batch as much leaves as enters.

    python benchmarks/windows.py                # both tables
    python benchmarks/windows.py --case 100k    # one row of the first
    python benchmarks/windows.py --case length  # the second

The second table compares windows of 60 and of 6 batches in dstreams. The cost of a batch depends on
the records that enter and leave, not on those in between.
"""

from __future__ import annotations

import argparse
import json
import operator
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from update_state_by_key import PARTITIONS, memory_of, start_spark, timed_batches


@dataclass(frozen=True)
class Case:
    """One row.

    Args:
        keys: keys of the result, all loaded by the first batch.
        records: records of each batch.
        window: batches in a window.
        batches: measured batches; before them, the load and a window plus ten batches run.
        at_least: the target ratio to pyspark.streaming.
    """

    keys: int
    records: int
    window: int
    batches: int
    at_least: float

    @property
    def warm(self) -> int:
        """Return the number of batches before the measured ones."""
        return 1 + self.window + 10


CASES = {
    "1k": Case(1_000, 1_000, 10, 20, 2.0),
    "100k": Case(100_000, 10_000, 10, 20, 5.0),
    "100k/60": Case(100_000, 10_000, 60, 20, 5.0),
}
LENGTHS = {window: Case(100_000, 10_000, window, 30, 0) for window in (6, 60)}


def batches_of(case: Case) -> Iterator[list[tuple[str, int]]]:
    """Yield the records of each batch, the load first."""
    randomness = random.Random(17)
    yield [(f"key-{number}", 1) for number in range(case.keys)]
    for _ in range(case.warm - 1 + case.batches):
        yield [(f"key-{randomness.randrange(case.keys)}", 1) for _ in range(case.records)]


def run_dstreams(case: Case, directory: str) -> list[float]:
    """Run the case on dstreams; return seconds for each batch."""
    from dstreams import StreamingContext
    from dstreams.testing import ManualClock

    spark = start_spark()
    rdds = [spark.parallelize(batch, PARTITIONS) for batch in batches_of(case)]
    spark.setCheckpointDir(directory)
    clock = ManualClock()
    ssc = StreamingContext(spark, 1, clock=clock)
    done = threading.Semaphore(0)
    window = ssc.queueStream(rdds).reduceByKeyAndWindow(
        operator.add, operator.sub, case.window, 1, PARTITIONS
    )
    window.foreachRDD(lambda rdd: (rdd.count(), done.release()))
    ssc.start()
    seconds = timed_batches(len(rdds), lambda: clock.advance(1000), done)
    ssc.stop()
    return seconds


def run_pyspark(case: Case, directory: str) -> list[float]:
    """Run the case on pyspark.streaming; return seconds for each batch."""
    warnings.simplefilter("ignore", FutureWarning)
    from pyspark.streaming import StreamingContext

    spark = start_spark()
    rdds = [spark.parallelize(batch, PARTITIONS) for batch in batches_of(case)]
    spark.setCheckpointDir(directory)  # of the result only, not of the graph, as on our side
    ssc = StreamingContext(spark, 1)
    done = threading.Semaphore(0)
    # It uses the inverse for windows of five slides or more, which all cases have.
    window = ssc.queueStream(rdds).reduceByKeyAndWindow(
        operator.add, operator.sub, case.window, 1, PARTITIONS
    )
    window.foreachRDD(lambda rdd: (rdd.count(), done.release()))
    ssc.start()
    clock = ssc._jssc.ssc().scheduler().clock()
    seconds = timed_batches(len(rdds), lambda: clock.advance(1000), done)
    ssc.stop()
    return seconds


SIDES = {"dstreams": run_dstreams, "pyspark": run_pyspark}


def run_side(side: str, case: Case) -> tuple[float, int]:
    """Run one side in a separate process; returns median seconds and peak memory in bytes."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--side", side, json.dumps(asdict(case)), directory]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        peak = 0
        while True:
            peak = max(peak, memory_of(child.pid))
            try:
                child.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        output = child.stdout.read() if child.stdout else b""
        if child.returncode:
            raise RuntimeError(f"{side} ended with exit status {child.returncode}")
        seconds: list[float] = json.loads(output.splitlines()[-1])
        return statistics.median(seconds[case.warm :]), peak


def compare(name: str, case: Case) -> bool:
    """Run one row and print it; return whether it reached the target."""
    measured = {side: run_side(side, case) for side in SIDES}
    (ours, our_peak), (theirs, their_peak) = measured["dstreams"], measured["pyspark"]
    print(
        f"{name:>8} {case.keys:>9} {case.records:>8} {case.window:>7} "
        f"{theirs * 1000:>9.0f} {ours * 1000:>9.0f} "
        f"{theirs / ours:>6.1f}x {case.at_least:>6.1f}x {their_peak >> 20:>8} {our_peak >> 20:>8}",
        flush=True,
    )
    return theirs / ours >= case.at_least


def compare_lengths() -> bool:
    """Run and print the second table; returns whether a long window costs about as much."""
    medians = {}
    print(f"{'window':>8} {'dstreams':>9}   (ms a batch)", flush=True)
    for window, case in LENGTHS.items():
        medians[window], _ = run_side("dstreams", case)
        print(f"{window:>8} {medians[window] * 1000:>9.0f}", flush=True)
    ratio = medians[60] / medians[6]
    print(f"{'60 to 6':>8} {ratio:>8.2f}x   (asked: about 1)", flush=True)
    return ratio <= 1.25


def main() -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=[*CASES, "length"], help="run one row or table only")
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, case, directory = arguments.side
        print(json.dumps(SIDES[side](Case(**json.loads(case)), directory)))
        return 0
    reached = []
    names = [arguments.case] if arguments.case else [*CASES, "length"]
    if names != ["length"]:
        print(
            f"{'case':>8} {'keys':>9} {'records':>8} {'window':>7} {'pyspark':>9} {'dstreams':>9} "
            f"{'ratio':>7} {'asked':>7} {'MB pys.':>8} {'MB dstr.':>8}   (ms a batch)",
            flush=True,
        )
    for name in names:
        reached.append(compare_lengths() if name == "length" else compare(name, CASES[name]))
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
