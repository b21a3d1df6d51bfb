"""Benchmark: operators of structured queries, compared with Spark's own in the JVM.

Both sides get the same records, made in Python: numbers become ``(event time, "user-17")``. On
Spark's side that is a source of numbers and a Python function for the user (without Arrow, as plain
PySpark has it), then Spark's operators in the JVM; here it is Python throughout. State is durable
on both sides, in files of the local disk. Both run in a context of ``tuned_context``; Spark's has
the second compiler of the JVM as well, as its documentation says for SQL over many rows.

    python benchmarks/structured.py                    # the table, some minutes
    python benchmarks/structured.py --case append      # one row
    python benchmarks/structured.py --case start       # from start() to the first row
    python benchmarks/structured.py --case static      # joins with static data
    python benchmarks/structured.py --case append --side unfused   # operators one after the other
    python benchmarks/structured.py --records 1000 --rounds 1   # a smoke test

The figure is the median time of a batch after a warm-up of 30 batches, because the JVM compiles
that long. In dstreams it covers plan, job and reading of all rows; in Spark ``addBatch``, which
does the same. Each side is a separate process; they take turns, and the ratio is the median over
rounds. ``native`` is Spark's time if it also makes the users in the JVM, a lower bound for Python
objects. ``cpu`` is the CPU time of a batch, on Spark's side including its logs: the better figure
on a busy machine.

``start`` is another table: the time from ``start()`` to the first row in the sink, for the first
and the second query of an existing SparkContext. The first one starts Python workers, and the JVM
loads its shuffle classes; ``plain job`` is the time for that alone, in another context: a PySpark
job with a shuffle, without a query.

``static`` is a third table: what a join with 100,000 static rows adds to a batch of 10,000 records,
in one context, each batch with and without the join in turn. Both ways are measured: a broadcast
table, and partitions of the static rows.

The exit status is 1 if a ratio is below its target, if the states of the sides differ, if a first
row is late, or if a broadcast join adds 30 ms or more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from update_state_by_key import PARTITIONS, start_tuned

KEYS = 200_000
BATCH_MS = 5_000
WINDOW_MS = 10_000
DELAY_MS = 5_000
WARM = 30
START = "start"
FIRST_ROW_S = 3.0
STATIC = "static"
STATIC_ROWS = 100_000
STATIC_RECORDS = 10_000
STATIC_MS = 30.0
WAYS = ("broadcast", "partitions")


@dataclass(frozen=True)
class Case:
    """One row.

    Args:
        mode: output mode.
        records: records of a batch.
        at_least: the target ratio.
    """

    mode: str
    records: int = 100_000
    at_least: float = 1.5


CASES = {
    "append": Case("append"),
    "update": Case("update"),
    "dedupe": Case("append"),
    "dedupe within": Case("append"),
}


def user_of(number: int) -> str:
    """Return the user of a record."""
    return f"user-{number % KEYS}"


@dataclass(frozen=True)
class MakeEvents:
    """Task: numbers -> (event time, user)."""

    records: int

    def __call__(self, numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
        records = self.records
        return ((number * BATCH_MS // records, user_of(number)) for number in numbers)


def plan_of(name: str, case: Case, events: Any) -> Any:
    """Return the physical plan of a case for the events of a batch."""
    from dstreams.state.group_state import OutputMode
    from dstreams.structured.named_rows import ResultRows
    from dstreams.structured.operators.aggregation import plan_aggregation
    from dstreams.structured.operators.deduplication import plan_deduplication
    from dstreams.structured.operators.grouping import Grouping
    from dstreams.structured.operators.physical_operator import RDDScanExec
    from dstreams.structured.operators.stateless import EventTimeWatermarkExec
    from dstreams.structured.operators.time_windows import TimeWindows

    marked = EventTimeWatermarkExec(RDDScanExec(events), lambda event: event[0], DELAY_MS)
    if name.startswith("dedupe"):
        within_ms = DELAY_MS if name == "dedupe within" else None
        return plan_deduplication(
            marked, lambda event: event[1], numPartitions=PARTITIONS, withinMs=within_ms
        )
    by_window = Grouping(key=lambda event: event[1], windows=TimeWindows(WINDOW_MS))
    return plan_aggregation(
        marked,
        by_window,
        numPartitions=PARTITIONS,
        outputMode=OutputMode(case.mode),
        result=ResultRows(("window", "user"), ("count",), has_window=True),
    )


def drain(rows: Iterable[Any]) -> None:
    """Read all rows of a partition."""
    for _ in rows:
        pass


def run_dstreams(
    name: str, case: Case, batches: int, directory: str, *, fuses: bool = True
) -> dict[str, Any]:
    """Run the case on our operators; returns milliseconds of each batch, and the last counts."""
    from checkpoint import open_files
    from checkpoint.state_store import LmdbBackend, StateStore
    from dstreams.state.state_versions import StateVersions
    from dstreams.structured.operators.execution_context import (
        ExecutionContext,
        StatefulOperatorStateInfo,
    )
    from dstreams.structured.operators.fusion import fuse_stateful_operators

    spark = start_tuned()
    store = StateStore(LmdbBackend(open_files(f"{directory}/files"), f"{directory}/local"))
    states = StateVersions(spark, store)
    info = StatefulOperatorStateInfo.empty(PARTITIONS)
    late_ms = watermark_ms = 0
    found, counts, cpu = [], {}, 0.0
    for number in range(batches):
        if number == WARM:
            cpu = cpu_ms()
        first = number * case.records
        numbers = spark.parallelize(range(first, first + case.records), PARTITIONS)
        events = numbers.mapPartitions(MakeEvents(case.records))

        started = time.perf_counter()
        context = ExecutionContext(spark, states, number)
        filled = plan_of(name, case, events).filled([info], late_ms, watermark_ms)
        rows = (fuse_stateful_operators(filled) if fuses else filled).execute(context)
        version = context.versions[0]
        rows.foreachPartition(drain)
        found.append((time.perf_counter() - started) * 1000)
        info = replace(info, before=version)
        states.evict("0", number)
        late_ms = watermark_ms
        watermark_ms = max(late_ms, context.event_times()["eventTime"].max_ms - DELAY_MS)
        counts = counts_of(version.metrics.as_dict())
    cpu = (cpu_ms() - cpu) / (batches - WARM)
    spark.stop()
    return {"ms": found, "counts": counts, "cpu": cpu}


def counts_of(metrics: dict[str, int]) -> dict[str, int]:
    """Return the values that must be equal on both sides."""
    return {
        "total": metrics["numTotalStateRows"],
        "updated": metrics["numUpdatedStateRows"],
        "removed": metrics["numRemovedStateRows"],
    }


def run_spark(name: str, case: Case, batches: int, directory: str, native: bool) -> dict[str, Any]:
    """Run the case on Spark's operators; returns the same."""
    context = start_tuned("-XX:TieredStopAtLevel=4")
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    session = SparkSession(context)
    session.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(batches + 10))
    numbers = (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", case.records)
        .option("numPartitions", PARTITIONS)
        .option("startTimestamp", 0)
        .option("advanceMillisPerBatch", BATCH_MS)
        .load()
    )
    in_jvm = f.concat(f.lit("user-"), (f.col("value") % KEYS).cast("string"))
    user = in_jvm if native else f.udf(user_of, "string")(f.col("value"))
    # The source gives all records of a batch one time; here they are spread over it.
    spread_ms = f.floor(f.col("value") * BATCH_MS / case.records)
    events = numbers.select(f.timestamp_millis(spread_ms).alias("time"), user.alias("user"))
    marked = events.withWatermark("time", f"{DELAY_MS} milliseconds")
    if name == "dedupe":
        result = marked.dropDuplicates(["user"])
    elif name == "dedupe within":
        result = marked.dropDuplicatesWithinWatermark(["user"])
    else:
        window = f.window("time", f"{WINDOW_MS} milliseconds")
        result = marked.groupBy(window, "user").count()
    query = (
        result.writeStream.format("noop")
        .outputMode(case.mode)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .start()
    )
    cpu = warm = 0.0
    while True:
        progress = [json.loads(p.json) for p in query.recentProgress]
        if warm == 0 and len(progress) >= WARM:
            warm, cpu = len(progress), cpu_ms()
        if len(progress) >= batches or not query.isActive:
            break
        time.sleep(0.05)
    cpu = (cpu_ms() - cpu) / (len(progress) - warm)
    query.stop()
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))
    progress = progress[:batches]
    state = progress[-1]["stateOperators"][0]
    counts = {
        "total": state["numRowsTotal"],
        "updated": state["numRowsUpdated"],
        "removed": state["numRowsRemoved"],
    }
    context.stop()
    found = [p["durationMs"]["addBatch"] for p in progress]
    return {"ms": found, "counts": counts, "cpu": cpu}


def cpu_ms() -> float:
    """Return the processor time of this process and all below it, in milliseconds."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended in the meantime
            continue
        number = int(path.parent.name)
        # Of itself, and of children that have ended.
        parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while found := {number for number, parent in parents.items() if parent in family} - family:
        family |= found
    return 1000 * sum(ticks.get(number, 0) for number in family) / os.sysconf("SC_CLK_TCK")


def run_start(source: str) -> dict[str, Any]:
    """Return the seconds to the first row of the first and the second query of a context."""
    spark = start_tuned()
    if source == "plain job":
        return {"seconds": [seconds_of(partial(first_shuffle, spark)) for _ in range(2)]}
    from dstreams.structured import StreamSession

    session = StreamSession(spark, {"spark.sql.shuffle.partitions": str(PARTITIONS)})
    found = []
    for number in range(2):
        stream: Any = session.memoryStream()
        stream.addData("a", "b")
        dataset = stream.toDS().groupByKey(str).count()
        if source == "rate":
            dataset = session.readStream.format("rate").option("rowsPerSecond", 100).load()
        table = f"table{number}"
        writer = dataset.writeStream.format("memory").queryName(table).outputMode("append")
        if source == "memory":
            writer = writer.outputMode("update")
        found.append(seconds_of(partial(first_row, session, writer, table)))
        session.stop()
    spark.stop()
    return {"seconds": found}


def first_row(session: Any, writer: Any, table: str) -> None:
    """Start a query, and wait for its first row."""
    query = writer.start()
    while not session.table(table):
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.002)


def first_shuffle(spark: Any) -> None:
    """Run a job with two stages in Python workers."""
    spark.parallelize(["a", "b"], PARTITIONS).map(lambda word: (word, 1)).groupByKey(
        PARTITIONS
    ).mapValues(list).collect()


def seconds_of(action: Callable[[], None]) -> float:
    """Return the duration of a call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


SIDES = ("dstreams", "spark", "native")
SOURCES = ("plain job", "memory", "rate")


def run_static(way: str, batches: int) -> dict[str, Any]:
    """Return milliseconds, and of CPU, of batches without and with a join with static rows."""
    from dstreams.state.group_state import OutputMode
    from dstreams.state.store_maintenance import values_of
    from dstreams.structured import StreamSession
    from dstreams.structured.execution.static_data import StaticData
    from dstreams.structured.operators.execution_context import ExecutionContext
    from dstreams.structured.operators.stateless import StreamingRelationExec
    from dstreams.structured.operators.static_join import StaticJoinExec
    from dstreams.structured.plan.planning import plan_query

    spark = start_tuned()
    threshold = {"broadcast": "100MB", "partitions": "-1"}[way]
    conf = {
        "spark.sql.autoBroadcastJoinThreshold": threshold,
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }
    session = StreamSession(spark, conf)
    static = [(f"user-{number}", number) for number in range(STATIC_ROWS)]
    stream = session.memoryStream().toDS().map(lambda event: event)
    joined = stream.join(static, lambda event: event[1], otherOn=lambda row: row[0])
    settings = session.conf.frozen()
    data: dict[str, Any] = {}
    plans = []
    for dataset in (stream, joined):
        planned = plan_query(dataset.plan, OutputMode.Append, settings)
        if planned.static:
            rows = StaticData(planned.static, spark, settings, None, values_of(settings))
            rows.refresh(0)
            data = rows.newest()
        plans.append(planned.root)
    times: tuple[list[float], list[float]] = ([], [])
    cpu = [0.0, 0.0]
    for number in range(batches):
        first = number * STATIC_RECORDS
        numbers = spark.parallelize(range(first, first + STATIC_RECORDS), PARTITIONS)
        events = numbers.map(lambda n: (n, f"user-{n * 7919 % STATIC_ROWS}"))

        def fill(operator: Any, rdd: Any = events) -> Any:
            if isinstance(operator, StreamingRelationExec):
                return replace(operator, rdd=rdd)
            is_join = isinstance(operator, StaticJoinExec)
            return replace(operator, rows=data[operator.static.uid]) if is_join else operator

        for place in (0, 1) if number % 2 else (1, 0):
            before, started = cpu_ms(), time.perf_counter()
            plan = plans[place].transform(fill)
            plan.execute(ExecutionContext(spark, None, number)).foreachPartition(drain)
            times[place].append((time.perf_counter() - started) * 1000)
            cpu[place] += cpu_ms() - before if number >= WARM else 0
    spark.stop()
    return {"ms": times, "cpu": [each / (batches - WARM) for each in cpu]}


def static_table(args: argparse.Namespace) -> bool:
    """Print what joins with static rows add to a batch; returns whether that is little enough."""
    print("| static rows | without join, ms | with join, ms | added, ms | added CPU, ms |")
    print("| --- | --- | --- | --- | --- |")
    fine = True
    for way in WAYS:
        rounds = [run_side(way, STATIC, args) for _ in range(args.rounds)]
        medians = [[statistics.median(each[WARM:]) for each in found["ms"]] for found in rounds]
        pairs = [
            (alone, both)
            for found in rounds
            for alone, both in zip(*(each[WARM:] for each in found["ms"]), strict=True)
        ]
        added = statistics.median(both - alone for alone, both in pairs)
        cpu = statistics.median(both - alone for alone, both in (found["cpu"] for found in rounds))
        alone, both = (statistics.median(each) for each in zip(*medians, strict=True))
        fine = fine and (way != "broadcast" or added < STATIC_MS)
        print(f"| {way} | {alone:.0f} | {both:.0f} | {added:.1f} | {cpu:.1f} |", flush=True)
    return fine


def run_side(side: str, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one side in a separate process."""
    command = [sys.executable, __file__, "--side", side, "--case", name]
    command += ["--records", str(args.records), "--batches", str(args.batches)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{side} of {name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(args: argparse.Namespace) -> None:
    """Run one side in this process, and print its result."""
    if args.case == START:
        print(json.dumps(run_start(args.side)))
        return
    if args.case == STATIC:
        print(json.dumps(run_static(args.side, WARM + args.batches)))
        return
    case = replace(CASES[args.case], records=args.records)
    batches = WARM + args.batches
    with tempfile.TemporaryDirectory() as directory:
        if args.side in ("dstreams", "unfused"):
            fuses = args.side == "dstreams"
            found = run_dstreams(args.case, case, batches, directory, fuses=fuses)
        else:
            found = run_spark(args.case, case, batches, directory, args.side == "native")
    print(json.dumps(found))


def table(args: argparse.Namespace) -> bool:
    """Run the cases and print the table; returns whether all is well."""
    print(
        "| case | native | Spark | dstreams | ratio | rounds | cpu Spark / dstreams | state rows |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    fine = True
    for name in [args.case] if args.case else CASES:
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        cpu: dict[str, list[float]] = {side: [] for side in SIDES}
        counts: dict[str, Any] = {}
        for number in range(args.rounds):
            for side in SIDES if number == 0 else SIDES[:2]:
                found = run_side(side, name, args)
                times[side].append(statistics.median(found["ms"][WARM:]))
                cpu[side].append(found["cpu"])
                counts[side] = found["counts"]
        ratios = [b / a for a, b in zip(times["dstreams"], times["spark"], strict=True)]
        ratio = statistics.median(ratios)
        same = counts["dstreams"] == counts["spark"] == counts["native"]
        fine = fine and same and ratio >= CASES[name].at_least
        shown = [f"{statistics.median(times[side]):.0f}" for side in ("native", "spark")]
        shown += [f"{statistics.median(times['dstreams']):.0f}", f"{ratio:.2f}"]
        shown.append(", ".join(f"{each:.2f}" for each in ratios))
        shown.append(" / ".join(f"{statistics.median(cpu[side]):.0f}" for side in SIDES[1::-1]))
        shown.append(f"{counts['dstreams']['total']:,}" if same else f"DIFFER {counts}")
        print(f"| {' | '.join([name, *shown])} |", flush=True)
    return fine


def start_table(args: argparse.Namespace) -> bool:
    """Print how long queries take to their first row; returns whether all come in time."""
    print("| first row of | first query, s | rounds | second query, s |")
    print("| --- | --- | --- | --- |")
    fine = True
    for source in SOURCES:
        rounds = [run_side(source, START, args)["seconds"] for _ in range(args.rounds)]
        first, second = (statistics.median(times) for times in zip(*rounds, strict=True))
        fine = fine and (source == SOURCES[0] or first < FIRST_ROW_S)
        every = ", ".join(f"{times[0]:.2f}" for times in rounds)
        print(f"| {source} | {first:.2f} | {every} | {second:.2f} |", flush=True)
    return fine


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=[*CASES, START, STATIC])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=10, help="that are measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--side", choices=[*SIDES, "unfused", *SOURCES, *WAYS], help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if args.side:
        child(args)
    else:
        shown = {START: start_table, STATIC: static_table}.get(args.case, table)
        sys.exit(0 if shown(args) else 1)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
