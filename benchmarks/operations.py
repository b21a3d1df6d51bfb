"""Benchmark: every operation, compared with pyspark.streaming.

Each side is one process with one SparkContext, of the same settings, that runs all operations one
after the other, each in a StreamingContext of its own, on the same data. The sides take turns by
operation, so that drift of the machine favours none; while one runs, the other waits. Each batch
ends with ``count()`` of the result. The figure is the median time of a batch after warm-up, from
the moment it is due to the return of its output. Windows are full when measuring begins.

    python benchmarks/operations.py                        # the table, some minutes
    python benchmarks/operations.py --only map join        # some rows
    python benchmarks/operations.py --records 100 --batches 2   # a smoke test

An operation counts as slower if its ratio is below 0.95, twice, the second time with twice as many
batches. The exit status is 1 if one is, or if the two sides count different numbers of results.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from update_state_by_key import PARTITIONS, start_spark, timed_batches

SLOWER = 0.95
KEYS = 10_000
DISTINCT = 4
"""Batches that differ; they come again and again."""


def size(records: Any) -> list[int]:
    """Return the number of records of a partition."""
    return [sum(1 for _ in records)]


def swapped(index: int, records: Any) -> Iterator[Any]:
    """Return the records of a partition with key and value swapped."""
    return ((value, key) for key, value in records)


def update(values: list[int], state: int | None) -> int:
    """Return the running sum."""
    return sum(values) + (state or 0)


def merge(total: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the sum of two sums and counts."""
    return total[0] + other[0], total[1] + other[1]


@dataclass(frozen=True)
class Streams:
    """The inputs of an operation.

    Args:
        ssc: the StreamingContext.
        pairs: stream of pairs of a string and a number, all records of the batch.
        keys: stream of pairs, one for each key, for joins.
        numbers: stream of numbers.
    """

    ssc: Any
    pairs: Any
    keys: Any
    numbers: Any


OPERATIONS: dict[str, Callable[[Streams], Any]] = {
    "map": lambda s: s.pairs.map(lambda pair: pair[0]),
    "flatMap": lambda s: s.pairs.flatMap(lambda pair: pair),
    "filter": lambda s: s.pairs.filter(lambda pair: pair[1] > 2),
    "mapPartitions": lambda s: s.pairs.mapPartitions(size),
    "mapPartitionsWithIndex": lambda s: s.pairs.mapPartitionsWithIndex(swapped),
    "glom": lambda s: s.pairs.glom(),
    "repartition": lambda s: s.pairs.repartition(PARTITIONS),
    "reduce": lambda s: s.numbers.reduce(operator.add),
    "count": lambda s: s.pairs.count(),
    "countByValue": lambda s: s.pairs.map(lambda pair: pair[0]).countByValue(),
    "union": lambda s: s.pairs.union(s.numbers),
    "ssc.union": lambda s: s.ssc.union(s.pairs.map(hash), s.numbers.map(hash)),
    "transform": lambda s: s.pairs.transform(lambda rdd: rdd.map(lambda pair: pair[1])),
    "transformWith": lambda s: s.pairs.transformWith(lambda a, b: a.union(b), s.numbers),
    "ssc.transform": lambda s: s.ssc.transform(
        [s.pairs, s.numbers], lambda rdds: rdds[0].union(rdds[1])
    ),
    "mapValues": lambda s: s.pairs.mapValues(lambda value: value + 1),
    "flatMapValues": lambda s: s.pairs.flatMapValues(lambda value: (value, value)),
    "reduceByKey": lambda s: s.pairs.reduceByKey(operator.add),
    "combineByKey": lambda s: s.pairs.combineByKey(
        lambda value: (value, 1), lambda total, value: (total[0] + value, total[1] + 1), merge
    ),
    "groupByKey": lambda s: s.pairs.groupByKey(),
    "partitionBy": lambda s: s.pairs.partitionBy(PARTITIONS),
    "cogroup": lambda s: s.pairs.cogroup(s.keys),
    "join": lambda s: s.pairs.join(s.keys),
    "leftOuterJoin": lambda s: s.pairs.leftOuterJoin(s.keys),
    "rightOuterJoin": lambda s: s.pairs.rightOuterJoin(s.keys),
    "fullOuterJoin": lambda s: s.pairs.fullOuterJoin(s.keys),
    "updateStateByKey": lambda s: s.pairs.updateStateByKey(update),
    "window": lambda s: s.pairs.window(3, 1),
    "reduceByWindow": lambda s: s.numbers.reduceByWindow(operator.add, None, 3, 1),
    "reduceByWindow, inverse": lambda s: s.numbers.reduceByWindow(operator.add, operator.sub, 6, 1),
    "countByWindow": lambda s: s.pairs.countByWindow(6, 1),
    "countByValueAndWindow": lambda s: s.pairs.map(lambda pair: pair[0]).countByValueAndWindow(
        6, 1
    ),
    "groupByKeyAndWindow": lambda s: s.pairs.groupByKeyAndWindow(3, 1),
    "reduceByKeyAndWindow": lambda s: s.pairs.reduceByKeyAndWindow(operator.add, None, 3, 1),
    "reduceByKeyAndWindow, inverse": lambda s: s.pairs.reduceByKeyAndWindow(
        operator.add, operator.sub, 6, 1
    ),
}


def warm_batches(name: str) -> int:
    """Return how many batches run before the measured ones: a window must be full."""
    return 7 if "Window" in name else 4


class Data:
    """The input, made once.

    Args:
        spark: the SparkContext.
        records: records of a batch.
    """

    def __init__(self, spark: Any, records: int) -> None:
        randomness = random.Random(17)
        keys = [f"key-{number}" for number in range(min(KEYS, records))]
        batches = [
            [(randomness.choice(keys), number % 10) for number in range(records)]
            for _ in range(DISTINCT)
        ]
        self.pairs = [spark.parallelize(batch, PARTITIONS) for batch in batches]
        self.numbers = [spark.parallelize([n for _, n in batch], PARTITIONS) for batch in batches]
        self.keys = [spark.parallelize([(key, 1) for key in keys], PARTITIONS)]

    def streams(self, ssc: Any, batches: int) -> Streams:
        """Return the input streams of a context for so many batches."""
        queues = (
            ssc.queueStream([rdds[number % len(rdds)] for number in range(batches)])
            for rdds in (self.pairs, self.keys, self.numbers)
        )
        return Streams(ssc, *queues)


def measure(
    data: Data, ssc: Any, name: str, batches: int, advance: Callable[[], Any]
) -> dict[str, Any]:
    """Run an operation; returns the seconds of the measured batches, and what the last counted."""
    warm = warm_batches(name)
    counts: list[int] = []
    done = threading.Semaphore(0)

    def output(rdd: Any) -> None:
        try:
            counts.append(rdd.count())
        finally:
            done.release()

    OPERATIONS[name](data.streams(ssc, warm + batches)).foreachRDD(output)
    ssc.start()
    try:
        seconds = timed_batches(warm + batches, advance, done)
    finally:
        ssc.stop(stopSparkContext=False)
    if len(counts) < warm + batches:
        raise RuntimeError(f"a batch of {name} failed")
    return {"seconds": seconds[warm:], "count": counts[-1]}


def serve_dstreams(data: Data, spark: Any, name: str, batches: int) -> dict[str, Any]:
    """Run an operation on dstreams."""
    from dstreams import StreamingContext
    from dstreams.testing import ManualClock

    clock = ManualClock()
    ssc = StreamingContext(spark, 1, clock=clock)
    return measure(data, ssc, name, batches, lambda: clock.advance(1000))


def serve_pyspark(data: Data, spark: Any, name: str, batches: int) -> dict[str, Any]:
    """Run an operation on pyspark.streaming."""
    warnings.simplefilter("ignore", FutureWarning)
    from pyspark.streaming import StreamingContext

    ssc = StreamingContext(spark, 1)
    clock = ssc._jssc.ssc().scheduler()
    return measure(data, ssc, name, batches, lambda: clock.clock().advance(1000))


SIDES = {"dstreams": serve_dstreams, "pyspark": serve_pyspark}


def serve(side: str, records: int) -> None:
    """Run the operation on each line of the standard input, and print a line for it."""
    spark = start_spark()
    data = Data(spark, records)
    with tempfile.TemporaryDirectory() as directory:
        spark.setCheckpointDir(directory)  # of states only, not of the graph, on both sides
        for line in sys.stdin:
            name, batches = json.loads(line)
            print("answer", json.dumps(SIDES[side](data, spark, name, batches)), flush=True)
    spark.stop()


class Side:
    """The process of a side."""

    def __init__(self, side: str, records: int) -> None:
        self.name = side
        self._child = subprocess.Popen(
            [sys.executable, __file__, "--side", side, "--records", str(records)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, name: str, batches: int) -> tuple[float, int]:
        """Return the median milliseconds of a batch of an operation, and what the last counted."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(json.dumps([name, batches]), file=self._child.stdin, flush=True)
        for line in self._child.stdout:
            if line.startswith("answer "):
                answer = json.loads(line.removeprefix("answer "))
                return statistics.median(answer["seconds"]) * 1000, answer["count"]
        raise RuntimeError(f"{self.name} ended in {name} with exit status {self._child.wait()}")

    def close(self) -> None:
        """End the process."""
        self._child.communicate()


def compare(sides: list[Side], name: str, batches: int) -> bool:
    """Run an operation on both sides and print its row; returns whether ours is not slower."""
    for count in (batches, 2 * batches):
        (ours, our_count), (theirs, their_count) = (side.run(name, count) for side in sides)
        ratio = theirs / ours
        if ratio >= SLOWER:
            break
    verdict = "" if ratio >= SLOWER else "slower"
    if our_count != their_count:
        verdict = f"counted {our_count} here and {their_count} there"
    print(f"{name:<32} {theirs:>9.0f} {ours:>9.0f} {ratio:>7.2f}x  {verdict}", flush=True)
    return not verdict


def main() -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, help="operations to run")
    parser.add_argument("--records", type=int, default=100_000, help="records of a batch")
    parser.add_argument("--batches", type=int, default=7, help="batches that are measured")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(arguments.side, arguments.records)
        return 0
    print(f"{arguments.records} records a batch, milliseconds a batch")
    print(f"{'operation':<32} {'pyspark':>9} {'dstreams':>9} {'ratio':>8}", flush=True)
    sides = [Side(side, arguments.records) for side in SIDES]
    try:
        names = arguments.only or list(OPERATIONS)
        for side in sides:  # warm-up of a new process
            side.run(names[0], 2 * arguments.batches)
        good = [compare(sides, name, arguments.batches) for name in names]
    finally:
        for side in sides:
            side.close()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
