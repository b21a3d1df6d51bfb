"""How long a restart takes with a million keys of state, here and in pyspark.streaming.

    python tests/benchmarks/recovery.py [--keys 1000000] [--side dstreams|pyspark]

A program puts that many keys into ``updateStateByKey``, runs ten batches, and is killed. Measured
is the next process: from its start to the end of its first new batch. What it costs to write down
what a batch reads and that it is done is measured in a stream that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

BATCHES = 10
PARTITIONS = 2
SIDES = ("dstreams", "pyspark")


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def spark_context() -> Any:
    from dstreams import tuned_context

    return tuned_context("recovery", "local[2,4]", {"spark.driver.memory": "2g"})


def note(directory: str, count: int) -> None:
    with Path(directory, "batches").open("a", encoding="utf-8") as out:
        out.write(f"{time.time()} {count}\n")


def pairs_of(rdd: Any, keys: int) -> Any:
    return rdd.flatMap(lambda _: ((key, 1) for key in range(keys)))


def of_dstreams(directory: str, keys: int) -> Any:
    from dstreams import StreamingContext

    ssc = StreamingContext(spark_context(), 1)
    ssc.checkpoint(f"{directory}/checkpoint")
    first = [list(range(PARTITIONS))]
    ticks = ssc.queueStream([*first, *[[]] * 10_000], replayable=True)
    pairs = ticks.flatMap(lambda part: ((key, 1) for key in range(part, keys, PARTITIONS)))
    pairs.updateStateByKey(total, PARTITIONS).foreachRDD(lambda rdd: note(directory, rdd.count()))
    return ssc


def of_pyspark(directory: str, keys: int) -> Any:
    from pyspark.streaming import StreamingContext

    ssc = StreamingContext(spark_context(), 1)
    ssc.checkpoint(f"{directory}/checkpoint")
    lines = ssc.textFileStream(f"{directory}/input")
    pairs = lines.flatMap(lambda part: ((key, 1) for key in range(int(part), keys, PARTITIONS)))
    pairs.updateStateByKey(total, PARTITIONS).foreachRDD(lambda rdd: note(directory, rdd.count()))
    return ssc


def run(directory: str, side: str, keys: int) -> None:
    """The program: taken up when it was there before."""
    if side == "dstreams":
        from dstreams import StreamingContext
    else:
        from pyspark.streaming import StreamingContext
    define = of_dstreams if side == "dstreams" else of_pyspark
    ssc = StreamingContext.getOrCreate(f"{directory}/checkpoint", lambda: define(directory, keys))
    ssc.start()
    if side == "pyspark" and not Path(directory, "input").exists():
        Path(directory, "input").mkdir()
        time.sleep(3)
        hidden = Path(directory, "input", ".keys")
        hidden.write_text("".join(f"{part}\n" for part in range(PARTITIONS)))
        hidden.rename(Path(directory, "input", "keys"))
    ssc.awaitTermination()


def batches(directory: str, keys: int) -> list[float]:
    """When the batches with all keys ended."""
    path = Path(directory, "batches")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [float(line.split()[0]) for line in lines if line.split()[1:] == [str(keys)]]


def live(directory: str, side: str, keys: int, more: int) -> float:
    """Run the program until it did some more batches; kill it; return seconds to the first."""
    before = len(batches(directory, keys))
    began = time.time()
    command = [sys.executable, __file__, "--run", directory, "--side", side, "--keys", str(keys)]
    with subprocess.Popen(command, start_new_session=True) as process:
        while len(batches(directory, keys)) < before + more:
            if process.poll() is not None:
                raise SystemExit(f"the program ended with {process.returncode}")
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    return batches(directory, keys)[before] - began


def metadata_ms() -> float:
    """What a batch takes longer when it is written down, median of many."""
    from dstreams import StreamingContext

    spark = spark_context()
    found: dict[bool, float] = {}
    for is_durable in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            ssc = StreamingContext(spark, 1)
            if is_durable:
                ssc.checkpoint(directory)
            ssc.queueStream([[]] * 200, replayable=True).foreachRDD(lambda rdd: None)
            ssc.step(20)
            seconds = []
            for _ in range(150):
                began = time.perf_counter()
                ssc.step()
                seconds.append(time.perf_counter() - began)
            ssc.stop(stopSparkContext=False)
            found[is_durable] = median(seconds)
    spark.stop()
    return 1000 * (found[True] - found[False])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--metadata", action="store_true")
    given = parser.parse_args()
    if given.run:
        run(given.run, given.side, given.keys)
        return
    results: dict[str, Any] = {}
    if given.metadata or not given.side:
        results["metadata_ms"] = round(metadata_ms(), 2)
    for side in [given.side] if given.side else () if given.metadata else SIDES:
        with tempfile.TemporaryDirectory() as directory:
            live(directory, side, given.keys, BATCHES)
            restarts = [live(directory, side, given.keys, 3) for _ in range(given.repeat)]
        results[side] = [round(seconds, 1) for seconds in restarts]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
