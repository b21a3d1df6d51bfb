"""Benchmark: look-ups of stored state, without batches, and while batches run one after the other.

``mapWithState`` over many keys. Also the duration of batches, with and without look-ups, as both
share the processor.

Usage: python benchmarks/look_ups.py [--keys 200000] [--records 10000] [--batches 40]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

from pyspark import SparkContext

from dstreams import State, StateSpec, StreamingContext, tuned_context
from dstreams.testing import ManualClock


def total(key: int, value: int | None, state: State[int]) -> None:
    state.update((state.getOption or 0) + (value or 0))


def shown(times: list[float]) -> str:
    ordered = sorted(1000 * each for each in times)
    return (
        f"{statistics.median(ordered):.2f} ms, 99 of 100 in {ordered[len(ordered) * 99 // 100]:.2f}"
        f" ms, at most {ordered[-1]:.2f} ms ({len(ordered):,} look-ups)"
    )


def timed(action: Callable[[], Any], times: list[float]) -> None:
    started = perf_counter()
    action()
    times.append(perf_counter() - started)


def run(spark: SparkContext, args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ssc = StreamingContext(spark, 1, clock=ManualClock())
        ssc.checkpoint(f"{directory}/checkpoint")
        random.seed(1)
        first = [(key, 1) for key in range(args.keys)]
        more = [
            [(random.randrange(args.keys), 1) for _ in range(args.records)]
            for _ in range(2 * args.batches)
        ]
        pairs = ssc.queueStream([first, *more])
        pairs.mapWithState(StateSpec.function(total), uid="totals").foreachRDD(lambda rdd: None)
        ssc.step(5)
        state = ssc.state("totals")
        alone: list[float] = []
        cpu = thread_time()
        for _ in range(2000):
            timed(lambda: state.get(random.randrange(args.keys)), alone)
        cpu = thread_time() - cpu
        quiet: list[float] = []
        for _ in range(args.batches):
            timed(ssc.step, quiet)
        is_over = threading.Event()
        during: list[float] = []

        def look() -> None:
            while not is_over.wait(1 / args.per_second):
                timed(lambda: state.get(random.randrange(args.keys)), during)

        looker = threading.Thread(target=look)
        looker.start()
        busy: list[float] = []
        for _ in range(args.batches):
            timed(ssc.step, busy)
        is_over.set()
        looker.join()
        ssc.stop(stopSparkContext=False)
    print(f"{args.keys:,} keys, {args.records:,} records a batch")
    print(f"between batches: {shown(alone)}, {cpu / 2:.2f} ms of CPU each")
    print(f"while batches run: {shown(during)}")
    print(
        f"batches: {1000 * statistics.median(quiet):.0f} ms without look-ups, "
        f"{1000 * statistics.median(busy):.0f} ms with {args.per_second} a second"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--per-second", type=int, default=100)
    args = parser.parse_args()
    spark = tuned_context("look-ups", "local[2]")
    try:
        run(spark, args)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
