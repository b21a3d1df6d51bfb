"""The stream of the drill: every kind of state, and files written exactly once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import RDD, SparkContext

from dstreams import DStream, State, StateSpec, StreamingContext, tuned_context
from dstreams.cli.drill import oracle
from dstreams.cli.drill.application import INTERVAL
from dstreams.cli.drill.oracle import (
    Record,
    completed_in,
    files_written,
    parse_record,
    records_in,
    states_in,
    write_file,
)
from dstreams.cli.drill.results import OutputFindings

INTERVAL_S = 2
CORES = 2

WINDOW_BATCHES = 5
"""Batches in a window: enough for the inverse function to be used."""

BROKEN = "DSTREAMS_DRILL_BROKEN"
"""Environment variable that breaks the output of records, which a drill must detect."""

STREAM = {
    "spark.default.parallelism": str(CORES),
    "spark.streaming.stopGracefullyOnShutdown": "true",
    "spark.dstreams.stop.batchTimeout": "180s",
}

Total = tuple[int, int, int]


def drill_context(settings: Mapping[str, str]) -> SparkContext:
    """Return the SparkContext of a driver, whose life is too short for an optimizing JVM."""
    jvm = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    own = {"spark.driver.extraJavaOptions": jvm, "spark.ui.enabled": "false"}
    return tuned_context("dstreams drill", f"local[{CORES},4]", {**own, **settings})


def setup(directory: str) -> StreamingContext:
    """Define the streams; called by the first driver only."""
    batch_s = interval_s()
    window_s, checkpoint_s = WINDOW_BATCHES * batch_s, 2 * batch_s
    # Drivers may be down for long.
    spark = drill_context({**STREAM, "spark.dstreams.fileStream.maxFileAge": "unlimited"})
    ssc = StreamingContext(spark, batch_s)
    ssc.checkpoint(f"{directory}/checkpoint")
    # Includes files that are older than the first driver, as the oracle does.
    lines: DStream[str] = ssc.fileStream(f"{directory}/input", newFilesOnly=False)
    records = lines.map(by_key)
    totals = records.updateStateByKey(add_records, CORES, uid=oracle.TOTALS)
    totals.checkpoint(checkpoint_s)
    amounts = records.mapValues(amount_of)
    window = amounts.reduceByKeyAndWindow(
        plus, minus, window_s, batch_s, CORES, filterFunc=is_there
    )
    recent = amounts.window(window_s, batch_s).reduceByKey(plus, CORES)
    counting = StateSpec.function(count_visit).numPartitions(CORES)
    visits = records.mapWithState(counting, uid=oracle.VISITS)
    save(lines, f"{directory}/output/{oracle.RECORDS}")
    totals.saveAsTextFiles(f"{directory}/output/{oracle.TOTALS}")
    window.saveAsTextFiles(f"{directory}/output/{oracle.WINDOW}")
    recent.saveAsTextFiles(f"{directory}/output/{oracle.RECENT}")
    visits.saveAsTextFiles(f"{directory}/output/{oracle.VISITS}")
    visits.stateSnapshots().saveAsTextFiles(f"{directory}/output/{oracle.STATES}")
    return ssc


def feed(directory: str, number: int) -> None:
    """Add a file of input."""
    folder = Path(directory, "input")
    folder.mkdir(exist_ok=True)
    write_file(folder, number)


def is_done(directory: str) -> bool:
    """Return whether all input has been processed."""
    given = records_in(files_written(Path(directory, "input")))
    return given.keys() <= oracle.seen_ids(Path(directory, "output"))


def check(directory: str) -> OutputFindings:
    """Compare all outputs, and the state in the checkpoint, with the oracle."""
    fed = files_written(Path(directory, "input"))
    completed = completed_in(directory)
    visits = states_in(directory, oracle.VISITS)
    final = {
        oracle.TOTALS: states_in(directory, oracle.TOTALS),
        oracle.STATES: [(key, count) for key, (count, _) in visits],
    }
    window_ms = 1000 * WINDOW_BATCHES * interval_s()
    return oracle.check_outputs(Path(directory, "output"), fed, window_ms, completed, final)


def interval_s() -> int:
    """Return the seconds between two batches."""
    return int(os.environ.get(INTERVAL, INTERVAL_S))


def save(lines: DStream[str], prefix: str) -> None:
    """Write the records of each batch exactly once, unless a test breaks that."""
    if os.environ.get(BROKEN):
        lines.foreachRDD(Appending(prefix))
    else:
        lines.saveAsTextFiles(prefix)


class Appending:
    """A broken output: a batch that runs again appends its records twice."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __call__(self, time: Any, rdd: RDD[str]) -> None:
        directory = Path(f"{self.prefix}-{round(time.timestamp() * 1000)}")
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "part-00000").open("a") as part:
            part.writelines(f"{line}\n" for line in rdd.collect())
        (directory / "_SUCCESS").touch()


def by_key(line: str) -> tuple[str, Record]:
    """Return a record with its key."""
    record = parse_record(line)
    return record.key, record


def add_records(new: Sequence[Record], total: Total | None) -> Total:
    """Return the new state of a key."""
    result = oracle.NOTHING if total is None else total
    for record in new:
        result = oracle.add_record(result, record)
    return result


def amount_of(record: Record) -> int:
    """Return the amount of a record, for windows."""
    return record.amount


def plus(one: int, other: int) -> int:
    """Add an amount that enters a window."""
    return one + other


def minus(one: int, other: int) -> int:
    """Subtract an amount that leaves a window."""
    return one - other


def is_there(pair: tuple[str, int]) -> bool:
    """Return whether the amount of a key in a window is not 0."""
    return pair[1] != 0


def count_visit(key: str, record: Record | None, state: State[int]) -> tuple[str, int]:
    """Count the visits of a key."""
    count = (state.get if state.exists else 0) + 1
    state.update(count)
    return key, count
