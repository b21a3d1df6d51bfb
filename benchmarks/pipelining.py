"""Batches that wait for each other: with and without the map side of the next one running early.

A stream has a backlog, as after an outage: all batches are due at once, and run one after another.
Their records are lines of JSON, decoded by a map function; behind it is a state by key. Both sides
run by turns in one SparkContext, each turn in a new context of the stream. Printed are the time
from the first batch to the end of the last, the CPU time of all processes, and both as a ratio.

    python benchmarks/pipelining.py                          # all cases, six minutes
    python benchmarks/pipelining.py --case one --rounds 5    # one case

Cases, on two cores, with four partitions of records where nothing else is said:

    one       updateStateByKey with one partition: the other core has nothing to do meanwhile
    skewed    updateStateByKey with two, one of which has nine tenths of the keys
    full      updateStateByKey with two equal ones: every core is busy anyway
    three     as full, with three partitions of records, so that one core waits for the third
    stored    mapWithState with one partition
    small     as full, with a hundredth of the records: what the driver does between jobs

With few records, where each map task waits 150 ms, as for a service, and each task of the state 300
ms. What these say does not depend on who else uses the machine:

    waits-one, waits-full, waits-stored
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from where import context_of, cpu_of_all


@dataclass(frozen=True)
class Case:
    """Records of a batch and the partitions they come in; keys and partitions of the state."""

    records: int = 300_000
    given: int = 4
    keys: int = 200_000
    partitions: int = 2
    is_skewed: bool = False
    is_stored: bool = False
    wait_s: float = 0


CASES = {
    "one": Case(partitions=1),
    "skewed": Case(is_skewed=True),
    "full": Case(),
    "three": Case(given=3),
    "stored": Case(partitions=1, is_stored=True),
    "small": Case(records=3_000, keys=2_000),
    "waits-one": Case(records=400, keys=400, partitions=1, wait_s=0.15),
    "waits-full": Case(records=400, keys=400, wait_s=0.15),
    "waits-stored": Case(records=400, keys=400, partitions=1, is_stored=True, wait_s=0.15),
}


def lines_of(case: Case, part: int) -> list[str]:
    """Return the lines of a partition of a batch."""
    count = case.records // case.given
    return [
        json.dumps(
            {"key": (part * count + at) * 48_271 % case.keys, "value": at, "tags": ["a"] * 8}
        )
        for at in range(count)
    ]


def decoded(line: str) -> tuple[int, int]:
    """Return the pair of a line."""
    record = json.loads(line)
    return record["key"], record["value"]


def mostly_first(key: int) -> int:
    """Put nine tenths of the keys into the first partition."""
    return int(key % 10 == 0)


def total(values: list[int], state: int | None) -> int:
    """Return the running sum."""
    return sum(values) + (state or 0)


def waited(wait_s: float, pairs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Give pairs after a time."""
    time.sleep(wait_s)
    return pairs


def waited_total(wait_s: float, pairs: Iterator[Any]) -> Iterator[tuple[int, int]]:
    """Give running sums after a time."""
    time.sleep(wait_s)
    return ((key, total(values, state)) for key, values, state in pairs)


def add(wait_s: float, key: int, value: int, state: Any) -> int:
    """Return the running sum after a record, for one of the keys after a time."""
    if key == 0 and wait_s:
        time.sleep(wait_s)
    now: int = (state.getOption or 0) + value
    state.update(now)
    return now


class Ends:
    """A listener that knows how many batches have ended, and when."""

    def __init__(self) -> None:
        self.infos: list[Any] = []
        self.changed = threading.Condition()

    def onBatchCompleted(self, completed: Any) -> None:
        with self.changed:
            self.infos.append(completed.batchInfo())
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.infos) >= count, 600):
                raise SystemExit("the batches did not end within ten minutes")


def run(case: Case, spark: Any, batches: int, *, is_early: bool) -> tuple[float, float, list[int]]:
    """Run a backlog, and return its seconds, its CPU time in ms and the sums of its outputs."""
    from dstreams import Settings, StateSpec, StreamingContext
    from dstreams.testing import ManualClock

    said: list[int] = []
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as directory:
        ssc = StreamingContext(spark, 1, clock=clock, settings=Settings(pipelining=is_early))
        ssc.checkpoint(directory)
        lines = spark.parallelize(range(case.given), case.given).flatMap(
            lambda part: lines_of(case, part)
        )
        lines.persist().count()
        pairs = ssc.queueStream([lines] * batches).map(decoded)
        if case.wait_s:
            pairs = pairs.mapPartitions(partial(waited, case.wait_s))
        if case.is_stored:
            function = partial(add, 2 * case.wait_s)
            rows = pairs.mapWithState(StateSpec.function(function).numPartitions(case.partitions))
            rows.foreachRDD(lambda rdd: said.append(rdd.count()))
        elif case.wait_s:
            state = pairs.updateStateByKey(
                partial(waited_total, 2 * case.wait_s), case.partitions, form="iterator"
            )
            state.foreachRDD(lambda rdd: said.append(rdd.values().sum()))
        else:
            place: Callable[[int], int] | None = mostly_first if case.is_skewed else None
            state = pairs.updateStateByKey(total, case.partitions, partitionFunc=place)
            state.foreachRDD(lambda rdd: said.append(rdd.values().sum()))
        ends = Ends()
        ssc.addStreamingListener(ends)
        ssc.start()
        before, started = sum(cpu_of_all().values()), time.perf_counter()
        clock.advance(1000 * batches)
        ends.wait(batches)
        seconds = time.perf_counter() - started
        cpu = sum(cpu_of_all().values()) - before
        ssc.stop(stopSparkContext=False, stopGraceFully=False)
        lines.unpersist()
    return seconds, cpu, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=10)
    asked = parser.parse_args()
    logging.getLogger("dstreams").setLevel(logging.ERROR)  # no queue goes on after a restart
    with tempfile.TemporaryDirectory() as directory:
        spark = context_of([], directory, is_watched=False)
        print("case          without: s, s of CPU    with: s, s of CPU    time    CPU")
        for name in asked.case or CASES:
            case = CASES[name]
            took: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            answers = []
            for turn in range(asked.rounds + 1):
                for is_early in (False, True) if turn % 2 else (True, False):
                    seconds, cpu, said = run(case, spark, asked.batches, is_early=is_early)
                    answers.append(said)
                    if turn:  # the first warms up
                        took[is_early].append((seconds, cpu / 1e3))
            if any(said != answers[0] for said in answers):
                raise SystemExit(f"{name}: the outputs differ")
            (slow, slow_cpu), (fast, fast_cpu) = (
                tuple(map(statistics.median, zip(*took[side], strict=True)))
                for side in (False, True)
            )
            print(
                f"{name:12}  {slow:10.2f} {slow_cpu:10.2f}  {fast:10.2f} {fast_cpu:8.2f}"
                f"  {fast / slow:6.2f} {fast_cpu / slow_cpu:6.2f}",
                flush=True,
            )
        spark.stop()


if __name__ == "__main__":
    main()
