"""The oracle: random programs, run by the real pyspark.streaming in a process of its own.

``python -m tests.conformance.oracle`` reads pickled programs from its standard input and writes,
for each, the state after every batch.
"""

from __future__ import annotations

import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Pairs = list[tuple[Any, Any]]

_LIMIT_S = 60


def running_sum(values: list[int], state: int | None) -> int:
    """Add up; a state may be 0, which is a state."""
    return sum(values) + (0 if state is None else state)


def bounded_list(values: list[int], state: list[int] | None) -> list[int] | None:
    """Collect in order, change the state in place, and drop the key when there are too many."""
    collected = [] if state is None else state
    collected.extend(values)
    collected.sort()
    return None if len(collected) > 6 else collected


def idle_batches(values: list[int], state: tuple[int, int] | None) -> tuple[int, int] | None:
    """Count values and batches without, drop the key when a third such batch comes."""
    count, idle = (0, 0) if state is None else state
    if values:
        return count + len(values), 0
    return None if idle == 2 else (count, idle + 1)


def last_text(values: list[int], state: str | None) -> str | None:
    """Keep a text, which may be empty, and drop the key for a 9."""
    if 9 in values:
        return None
    return "x" * (max(values) % 3) if values else state


UPDATES: dict[str, Callable[[list[int], Any], Any]] = {
    function.__name__: function for function in (running_sum, bounded_list, idle_batches, last_text)
}


@dataclass(frozen=True)
class Program:
    """One random program.

    Args:
        update: name of the update function.
        partitions: partitions of the state.
        initial: states to begin with, None for none.
        batches: the input.
    """

    update: str
    partitions: int
    initial: Pairs | None
    batches: list[Pairs]


def random_program(seed: int) -> Program:
    """Make the program of a seed; the update functions take turns."""
    chance = random.Random(seed)
    keys: list[Any] = ["a", "b", "", 0, -7, 2**40, 1.5, None, ("a", 1), (), "Grüße"]
    update = sorted(UPDATES)[seed % len(UPDATES)]
    initial = None
    if seed % 2:
        some = chance.sample(keys, 3)
        initial = [(key, UPDATES[update]([chance.randrange(9)], None)) for key in some]
    batches = []
    for _ in range(8):
        size = chance.choice([0, 1, 3, 10])
        few = chance.sample(keys, chance.randrange(1, 6))
        batches.append([(chance.choice(few), chance.randrange(-3, 10)) for _ in range(size)])
    return Program(update, chance.randrange(1, 4), initial, batches)


def _run(spark: Any, program: Program) -> list[Pairs]:
    from pyspark.streaming import StreamingContext  # noqa: PLC0415 - not in the process of the tests

    seen: list[Pairs] = []
    ssc = StreamingContext(spark, 1)
    initial = None if program.initial is None else spark.parallelize(program.initial)
    states = ssc.queueStream(program.batches).updateStateByKey(
        UPDATES[program.update], program.partitions, initial
    )
    states.foreachRDD(lambda rdd: seen.append(rdd.collect()))
    ssc.start()
    clock = ssc._jssc.ssc().scheduler().clock()
    deadline = time.monotonic() + _LIMIT_S
    for batch in range(len(program.batches)):
        clock.advance(1000)
        while len(seen) == batch:
            if time.monotonic() > deadline:
                raise SystemExit(f"pyspark.streaming ran {batch} batches of {program}")
            time.sleep(0.005)
    ssc.stop(stopSparkContext=False)
    return seen


def main() -> None:
    """Run the programs of the standard input."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    programs = pickle.load(sys.stdin.buffer)
    settings = {
        "spark.streaming.clock": "org.apache.spark.util.ManualClock",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    conf = SparkConf(loadDefaults=False).setMaster("local[2]").setAppName("oracle")
    spark = SparkContext(conf=conf.setAll(list(settings.items())))
    with tempfile.TemporaryDirectory() as directory:
        spark.setCheckpointDir(directory)
        states = [_run(spark, program) for program in programs]
    Path(sys.argv[1]).write_bytes(pickle.dumps(states))
    spark.stop()


if __name__ == "__main__":
    main()
