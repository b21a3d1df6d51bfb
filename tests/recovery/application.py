"""A program that is killed: every kind of state over numbered rows, and a ledger of its outputs.

    python application.py DIRECTORY VERSION BATCHES [CHECKPOINT [FILES]]

The checkpoint is DIRECTORY/checkpoint unless a path or URL is given. Directories whose names begin
with the path or URL of FILES get the values of each batch.
Version 1 is taken up as it was. Version 2 is restored into new code: the sum of the values became
twice their sum, the state has other partitions, and a count of the rows was added.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import add, sub
from pathlib import Path
from typing import Any

from pyspark import RDD

from dstreams import (
    State,
    StatefulProcessor,
    StatefulProcessorHandle,
    StateSpec,
    StreamingContext,
    TimerValues,
    tuned_context,
)
from tests.support.jvms import OF_SPARK

ROWS = 20
KEYS = 5
WINDOW = 5
INTERVAL = 2
OUTPUTS = ("sums", "window", "counts", "kept")


def key_of(row: tuple[Any, int]) -> tuple[int, int]:
    return row[1] % KEYS, row[1]


def total(factor: int, values: list[int], state: int | None) -> int:
    return factor * sum(values) + (state or 0)


def count(key: int, value: int | None, state: State[int]) -> tuple[int, int]:
    state.update((state.getOption or 0) + 1)
    return key, state.get


class Collect(StatefulProcessor):
    """Keeps the number of values, the values, and how many of them leave each remainder by 3."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.number = handle.getValueState("number", "number long")
        self.values = handle.getListState("values", "value long")
        self.remainders = handle.getMapState("remainders", "remainder long", "number long")

    def handleInputRows(
        self, key: tuple[int], rows: Iterator[int], timerValues: TimerValues
    ) -> Iterator[tuple[int, ...]]:
        for value in rows:
            (number,) = self.number.get() or (0,)
            self.number.update((number + 1,))
            self.values.appendValue((value,))
            (times,) = self.remainders.getValue((value % 3,)) or (0,)
            self.remainders.updateValue((value % 3,), (times + 1,))
        (number,) = self.number.get() or (0,)
        listed = [value for (value,) in self.values.get()]
        times_of = {remainder: times for (remainder,), (times,) in self.remainders.iterator()}
        yield (*key, number, len(listed), sum(listed), *(times_of.get(n, 0) for n in range(3)))


def enter(directory: str, name: str, batch_id: int, rdd: RDD[Any]) -> None:
    """Write what an output saw into the ledger, durably."""
    line = {"output": name, "batch": batch_id, "rows": sorted(rdd.collect())}
    write_line(directory, line)


def write_line(directory: str, line: object) -> None:
    with Path(directory, "ledger").open("a", encoding="utf-8") as ledger:
        ledger.write(f"{json.dumps(line)}\n")
        ledger.flush()
        os.fsync(ledger.fileno())


def define(directory: str, version: int, checkpoint: str, files: str = "") -> StreamingContext:
    conf = {
        "spark.default.parallelism": "2",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": OF_SPARK,
    }
    ssc = StreamingContext(tuned_context("killed", "local[2,4]", conf), 1)
    ssc.checkpoint(checkpoint)
    define_streams(ssc, directory, version)
    if files:
        ssc.rateStream(ROWS, uid="lines").map(lambda row: row[1]).saveAsTextFiles(files)
    return ssc


def define_streams(ssc: StreamingContext, directory: str, version: int) -> None:
    partitions = version + 1
    pairs = ssc.rateStream(ROWS, uid="rows").map(key_of)
    sums = pairs.updateStateByKey(partial(total, version), partitions, uid="sums")
    window = pairs.reduceByKeyAndWindow(
        add, sub, WINDOW, numPartitions=partitions, uid="window"
    ).checkpoint(3)
    counts = pairs.mapWithState(StateSpec.function(count).numPartitions(partitions), uid="counts")
    kept = pairs.transformWithState(Collect(), numPartitions=partitions, uid="kept")
    outputs = {
        "sums": sums.checkpoint(INTERVAL),
        "window": window,
        "counts": counts,
        "kept": kept,
    }
    if version == 2:
        ones = pairs.mapValues(bool).mapValues(lambda _: 1)
        outputs["added"] = ones.updateStateByKey(partial(total, 1), uid="added")
    for name, stream in outputs.items():
        stream.foreachRDD(with_id(partial(enter, directory, name)))


def with_id(func: Callable[[int, RDD[Any]], None]) -> Callable[..., None]:
    def output(time: Any, rdd: RDD[Any], batch_id: int) -> None:
        func(batch_id, rdd)

    return output


def main() -> None:
    directory, version, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    checkpoint, *files = sys.argv[4:] or [f"{directory}/checkpoint"]
    setup = partial(define, directory, version, checkpoint, *files)
    if version == 1:
        ssc = StreamingContext.getOrCreate(checkpoint, setup)
    else:
        ssc = StreamingContext.restore(checkpoint, setup)
    for _ in range(batches):
        ssc.step()
    ssc.stop()


if __name__ == "__main__":
    main()
