"""Benchmark: state in blocks, compared with state in rows and with other engines.

A running sum and count by key: 1,000,000 keys of state, 1,000,000 records a batch, two partitions,
everything durable. Each side is one process; those without SQL have a context of ``tuned_context``.
They read the same records from memory, in the form that the side needs: Arrow blocks, pairs, or
numbers that Spark's SQL turns into records. The sides take turns, so that drift of the machine
favours none.

    python benchmarks/blocks.py --peers-python VENV/bin/python      # all, half an hour
    python benchmarks/blocks.py --sides blocks rows                 # ours alone, minutes
    python benchmarks/blocks.py --keys 10000 --records 10000        # small, to see that it runs

The figures are the median time of a batch and the mean CPU time of all processes of a side. Making
the input is not included, except for some CPU time of Structured Streaming. A batch of dstreams and
of pyspark.streaming ends when the keys of its state are counted. Every tenth batch writes a
snapshot, or every batch if the name says so; between two snapshots, the recorded input makes the
state durable. A trigger of Structured Streaming discards its rows, writes a RocksDB changelog each
time, and keeps only the sum.

The exit status is 1 when a ratio is missed or two sides have different sums.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stored_state import Side, cpu_seconds, take_turns
from stored_state_data import DIRECT, FACTOR, MODULUS, PARTITIONS, Span, records, serve
from update_state_by_key import start_tuned

# Times that many of ours.
ASKED = {
    "rows": 10.0,
    "pyspark.streaming": 40.0,
    "applyInPandasWithState": 30.0,
    "groupBy().agg(sum)": 1.0,
}
BLOCKS, OURS = "blocks", ("blocks", "blocks, a snapshot each", "blocks of rows", "rows")
QUERIES = ("applyInPandasWithState", "groupBy().agg(sum)")
SIDES = (*OURS, "pyspark.streaming", *QUERIES)
BLOCK_ROWS = 65_536
Sums = tuple[int, int]


def sum_and_count(values: list[int], state: Sums | None) -> Sums:
    """The update function of rows."""
    total, count = state or (0, 0)
    return total + sum(values), count + len(values)


def add(keys: Any, values: Any, state: Any) -> Any:
    """The update function of blocks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = pc.add(pc.fill_null(state.column("total"), 0), pc.fill_null(values.sum("value"), 0))
    count = pc.add(pc.fill_null(state.column("count"), 0), values.count())
    return pa.record_batch({"total": total, "count": count})


def blocks_of(span: Span, keys: int) -> list[Any]:
    """Return the records of a batch in blocks, by the rule of :mod:`stored_state_data`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    blocks = []
    for start in range(span.first, span.first + span.count, BLOCK_ROWS):
        numbers = np.arange(start, min(start + BLOCK_ROWS, span.first + span.count))
        of_key = numbers - DIRECT if start >= DIRECT else numbers * FACTOR % MODULUS % keys
        texts = pc.binary_join_element_wise("key", pa.array(of_key).cast(pa.string()), "-")
        ones = pa.array(np.ones(len(numbers), np.int64))
        blocks.append(pa.record_batch({"key": texts, "value": ones}))
    return blocks


def count_rows(blocks: Iterator[Any]) -> Iterator[int]:
    """Count the rows of the blocks of a partition."""
    yield sum(block.num_rows for block in blocks)


def sums_of_blocks(blocks: Iterator[Any]) -> Iterator[int]:
    """Add up the totals and counts of a partition."""
    import pyarrow.compute as pc

    yield sum(pc.sum(block.column(name)).as_py() for block in blocks for name in ("total", "count"))


def sums_of_rows(pairs: Iterator[tuple[str, Sums]]) -> Iterator[int]:
    """Add up the totals and counts of a partition."""
    yield sum(total + count for _, (total, count) in pairs)


def serve_ours(name: str, keys: int, spans: list[Span], directory: str) -> None:
    """Run a side of ours, batch by batch."""
    from dstreams import StreamingContext
    from dstreams.testing import ManualClock

    spark = start_tuned()
    ssc = StreamingContext(spark, 1, clock=ManualClock())
    ssc.checkpoint(directory)
    given: list[Any] = []
    facts: dict[str, float] = {"total": 0, "cpu_s": 0.0}
    batches = blocks_of if name.startswith("blocks,") or name == BLOCKS else records
    read = ssc.queueStream([]).transform(lambda _: given.pop())
    if name == "rows":
        state = read.updateStateByKey(sum_and_count, PARTITIONS)
    else:
        columns = {"key": str, "value": int}
        state = read.toBlocks(columns).updateStateByKey(
            add, PARTITIONS, key="key", state={"total": int, "count": int}
        )
    if name.endswith("each"):
        state.checkpoint(1)
    sums = sums_of_rows if name == "rows" else sums_of_blocks
    rest = iter(spans)
    last = [False]

    def look(rdd: Any) -> None:
        if last[0]:
            facts["total"] = sum(rdd.mapPartitions(sums).collect())
        elif name == "rows":
            rdd.count()
        else:
            rdd.mapPartitions(count_rows).sum()

    state.foreachRDD(look)

    def run(count: int) -> list[float]:
        seconds = []
        facts["cpu_s"] = 0.0
        for _ in range(count):
            span = next(rest)
            last[0] = span is spans[-1]
            given.append(spark.parallelize(batches(span, keys), PARTITIONS))
            before_s, started = cpu_seconds(os.getpid()), time.perf_counter()
            ssc.step()
            seconds.append(time.perf_counter() - started)
            facts["cpu_s"] += cpu_seconds(os.getpid()) - before_s
        return seconds

    serve(run, lambda: facts)
    ssc.stop()


def serve_pyspark(keys: int, spans: list[Span], directory: str) -> None:
    """Run pyspark.streaming, batch by batch."""
    warnings.simplefilter("ignore", FutureWarning)
    from pyspark.streaming import StreamingContext

    spark = start_tuned()
    spark.setCheckpointDir(directory)  # of the state: those of the graph would cost more
    ssc = StreamingContext(spark, 1)
    given: list[Any] = []
    facts: dict[str, float] = {"total": 0, "cpu_s": 0.0}
    done = threading.Semaphore(0)
    empty = spark.parallelize([], PARTITIONS)
    read = ssc.queueStream([empty], oneAtATime=True, default=empty).transform(
        lambda _: given.pop() if given else empty
    )
    state = read.updateStateByKey(sum_and_count, PARTITIONS)
    rest = iter(spans)
    last = [False]

    def look(rdd: Any) -> None:
        if last[0]:
            facts["total"] = sum(rdd.mapPartitions(sums_of_rows).collect())
        else:
            rdd.count()
        done.release()

    state.foreachRDD(look)
    ssc.start()
    clock = ssc._jssc.ssc().scheduler().clock()

    def run(count: int) -> list[float]:
        seconds = []
        facts["cpu_s"] = 0.0
        for _ in range(count):
            span = next(rest)
            last[0] = span is spans[-1]
            given.append(spark.parallelize(records(span, keys), PARTITIONS))
            before_s, started = cpu_seconds(os.getpid()), time.perf_counter()
            clock.advance(1000)
            if not done.acquire(timeout=600):
                raise TimeoutError("a batch did not end within 600 s")
            seconds.append(time.perf_counter() - started)
            facts["cpu_s"] += cpu_seconds(os.getpid()) - before_s
        return seconds

    serve(run, lambda: facts)
    ssc.stop()


def side_of(name: str, options: argparse.Namespace, spans: list[Span]) -> Side:
    """Start a side."""
    if name in QUERIES:
        peers = str(Path(__file__).with_name("stored_state_peers.py"))
        return Side(name, [options.peers_python, peers, name], options.keys, spans)
    return Side(name, [sys.executable, __file__, "--side", name], options.keys, spans)


def compare(options: argparse.Namespace) -> bool:
    """Run the sides in turn and print the table; return whether all targets are met."""
    batches = options.rounds * options.batches
    load = Span(DIRECT, options.keys)
    measured = [
        Span(options.records * number, options.records)
        for number in range(batches + options.settle)
    ]
    spans = [load, *measured, Span(DIRECT, 1)]
    names = list(dict.fromkeys([BLOCKS, *options.sides]))
    sides = [side_of(name, options, spans) for name in names]
    loads, sums = {}, {}
    try:
        for side in sides:
            loads[side.name] = side.run(1)[0][0] * 1000
            side.run(options.settle)
        take_turns(sides, options.rounds, options.batches)
        sums = {side.name: side.run(1)[1]["total"] for side in sides}
    finally:
        for side in sides:
            side.close()
    return report(sides, loads, sums, options)


def report(
    sides: list[Side], loads: dict[str, float], sums: dict[str, float], options: argparse.Namespace
) -> bool:
    """Print the table; return whether all targets are met."""
    batches = options.settle + options.rounds * options.batches
    wanted = 2 * (options.keys + options.records * batches + 1)
    is_good = all(sums[name] == wanted for name in sums if name not in QUERIES)
    said = "are equal" if is_good else f"differ: {sums}"
    print(f"{options.keys:,} keys, {options.records:,} records a batch; sums {said}")
    head = ("ms a batch", "times", "ms of CPU", "times", "asked", "ms to load")
    print(f"{'':26}" + "".join(f"{word:>11}" for word in head))
    first = sides[0]
    for side in sides:
        ratio, cpu = side.median_ms() / first.median_ms(), side.cpu_ms() / first.cpu_ms()
        asked = ASKED.get(side.name)
        is_good &= ratio >= (asked or 0)
        print(
            f"{side.name:26}{side.median_ms():>11.0f}{ratio:>11.1f}{side.cpu_ms():>11.0f}"
            f"{cpu:>11.1f}{asked or '':>11}{loads[side.name]:>11.0f}",
            flush=True,
        )
    return is_good


def main() -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter of the queries")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--batches", type=int, default=3, help="batches of a turn")
    parser.add_argument(
        "--settle",
        type=int,
        default=12,
        help="batches before those that are measured; by twelve the JVM has compiled what it runs",
    )
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("key_count", nargs="?", type=int, help=argparse.SUPPRESS)
    parser.add_argument("spans", nargs="?", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is None:
        return 0 if compare(options) else 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        spans = [Span(*span) for span in options.spans]
        if options.side == "pyspark.streaming":
            serve_pyspark(options.key_count, spans, directory)
        else:
            serve_ours(options.side, options.key_count, spans, directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
