"""Benchmark: a restart with a million keys of state, compared with pyspark.streaming.

    python benchmarks/recovery.py                       # all, ten minutes; status 1: missed
    python benchmarks/recovery.py --side dstreams       # one row
    python benchmarks/recovery.py --metadata            # the cost of batch records
    python benchmarks/recovery.py --request-ms 30       # batches and restarts on slow storage

A program reads that many keys from a file, runs one-second batches, and is killed. The next
process, made with ``getOrCreate``, is measured from its start to the end of the output of its first
new batch, which is later than every batch whose output had ended before. The program is killed and
measured several times in a row, always five batches after a snapshot of the state is due, so that
every restart has the same number of batches to catch up with. The rows:

    dstreams   ``updateStateByKey``; the output counts the keys
    pyspark    the same program with ``pyspark.streaming``: same source, conf, memory and interval.
               It needs several seconds per batch, so it falls behind; ``lag_s`` is the delay.
               Only its work before the first new batch counts. ``first_output_s`` is its first
               output of any batch, even of an old one
    stored     ``mapWithState``, which reads state lazily. An empty batch shows little of that, so
               the new batch is the first one with records, from a file that arrived in the meantime

The figures of each restart are seconds, CPU seconds of all its processes until then, and the end of
each phase. On a busy machine compare the CPU seconds. The cost of begin and commit records is
measured in a stream that does nothing else. The exit status is 1 if the median of pyspark is less
than three times that of dstreams or stored.

With ``--request-ms`` each request of the driver to the checkpoint takes so long, as on an object
store; files of state are written by workers, without a delay. The figures are the milliseconds that
this adds to a batch of a stream with stored state, which is stepped, and to a batch of a query that
has more records waiting; and the seconds that it adds to a restart with 100 kept batches, from
``getOrCreate`` to the end of the first new batch.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

ASKED = 3.0
LOADED_BATCHES, NEW_BATCHES = 10, 3
INTERVAL, KILLED_AT = 10, 5
"""Batches from one copy to the next, and how many after one the program is killed."""
TOUCHED = 10_000
PARTITIONS = 2
SIDES = ("dstreams", "pyspark", "stored")


# The program -------------------------------------------------------------------------------------


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def add(key: int, value: int, state: Any) -> int:
    state.update(value + (state.getOption or 0))
    return key


def mark(directory: str, name: str) -> None:
    with Path(directory, "marks").open("a", encoding="utf-8") as out:
        out.write(f"{os.getpid()} {name} {time.time()}\n")


def note(directory: str, when: Any, rdd: Any) -> None:
    mark(directory, "asked")
    count = rdd.count()
    with Path(directory, "batches").open("a", encoding="utf-8") as out:
        out.write(f"{time.time()} {round(1000 * when.timestamp())} {count}\n")


def spark_context() -> Any:
    from dstreams import tuned_context

    return tuned_context("recovery", "local[2,4]", {"spark.driver.memory": "2g"})


def keys_of(line: str) -> Any:
    """Return the keys of a line, which has their step, start and end."""
    first, end, step = map(int, line.split())
    return ((key, 1) for key in range(first, end, step))


def define(kind: Any, directory: str, side: str) -> Any:
    ssc = kind(spark_context(), 1)
    ssc.checkpoint(f"{directory}/checkpoint")
    pairs = ssc.textFileStream(f"{directory}/input").flatMap(keys_of)
    if side == "stored":
        from dstreams import StateSpec

        states = pairs.mapWithState(StateSpec.function(add).numPartitions(PARTITIONS))
    else:
        states = pairs.updateStateByKey(total, numPartitions=PARTITIONS)
    states.foreachRDD(lambda when, rdd: note(directory, when, rdd))
    return ssc


def run(directory: str, side: str, keys: int) -> None:
    """The program, which resumes from an existing checkpoint."""
    if side == "pyspark":
        from pyspark.streaming import StreamingContext
    else:
        from dstreams import StreamingContext
    mark(directory, "imported")
    checkpoint = f"{directory}/checkpoint"
    ssc = StreamingContext.getOrCreate(
        checkpoint, lambda: define(StreamingContext, directory, side)
    )
    mark(directory, "made")
    ssc.start()
    mark(directory, "started")
    if not Path(directory, "input").exists():
        Path(directory, "input").mkdir()
        time.sleep(3)  # a file that exists before the first batch is not new
        give(directory, [f"{part} {keys} {PARTITIONS}" for part in range(PARTITIONS)])
    ssc.awaitTermination()


def give(directory: str, lines: list[str], at: float | None = None) -> None:
    """Move a file to the input, with *at* as its time."""
    hidden = Path(directory, "input", ".new")
    hidden.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if at is not None:
        os.utime(hidden, (at, at))
    hidden.rename(Path(directory, "input", f"keys-{time.time_ns()}"))


# Its lives ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """A batch whose output has ended, with its end time and count."""

    ended: float
    time_ms: int
    count: int


def batches(directory: str) -> list[Batch]:
    path = Path(directory, "batches")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = (line.split() for line in lines)
    return [Batch(float(ended), int(time_ms), int(count)) for ended, time_ms, count in rows]


def processes(session: int) -> tuple[int, float]:
    """Return the number of processes of a session, and their CPU seconds."""
    count, ticks = 0, 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            count += 1
            ticks += sum(map(int, fields[11:15]))
    return count, ticks / os.sysconf("SC_CLK_TCK")


def surroundings(directory: str) -> dict[str, str]:
    """Write the modules that pyspark.streaming needs at a restart, compiled for all sides."""
    given = {**os.environ, "PYTHONPYCACHEPREFIX": f"{directory}/compiled"}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    given["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 2g pyspark-shell"
    return given


def live(directory: str, side: str, keys: int, least: int) -> dict[str, Any]:
    """Run the program until it has run some new batches, kill it, and return its start."""
    old = batches(directory)
    newest_ms = max((batch.time_ms for batch in old), default=0)
    counts = range(1, keys) if side == "stored" and old else range(keys, keys + 1)
    if side == "stored" and old:
        # The next batch reads it, not one at the end of a backlog.
        give(directory, [f"0 {keys} {max(1, keys // TOUCHED)}"], newest_ms / 1000 + 0.1)
    began, used = time.time(), None
    command = [sys.executable, __file__, "--run", directory, "--side", side, "--keys", str(keys)]
    with subprocess.Popen(command, start_new_session=True, env=surroundings(directory)) as process:
        while True:
            now = batches(directory)
            new = [batch for batch in now[len(old) :] if batch.time_ms > newest_ms]
            reached = next((at for at, batch in enumerate(new) if batch.count in counts), len(new))
            new = new[reached:]
            if new and used is None:
                used = processes(process.pid)[1]
            if len(new) >= least and is_halfway(now[0], new[-1]):
                break
            if process.poll() is not None:
                raise SystemExit(f"the program ended with {process.returncode}")
            time.sleep(0.03)
        os.killpg(process.pid, signal.SIGKILL)
    while processes(process.pid)[0]:
        time.sleep(0.05)
    marks = Path(directory, "marks").read_text(encoding="utf-8").splitlines()
    phases: dict[str, float] = {}
    for pid, name, at in map(str.split, marks):
        if int(pid) == process.pid:
            phases.setdefault(name, round(float(at) - began, 1))
    return {
        "seconds": round(new[0].ended - began, 1),
        "cpu_s": round(used or 0.0, 1),
        **phases,
        "first_output_s": round(now[len(old)].ended - began, 1),
        "lag_s": round(new[-1].ended - new[-1].time_ms / 1000, 1),
    }


def is_halfway(first: Batch, newest: Batch) -> bool:
    """Return whether a batch is halfway between two snapshots of the state."""
    number = (newest.time_ms - first.time_ms) // 1000 + 1
    return number % INTERVAL == KILLED_AT


def restarts(side: str, keys: int, repeat: int) -> list[dict[str, Any]]:
    """Return the figures of each restart of a program."""
    with tempfile.TemporaryDirectory() as directory:
        live(directory, side, keys, LOADED_BATCHES)
        rows = []
        for _ in range(repeat):
            rows.append(live(directory, side, keys, NEW_BATCHES))
            print(json.dumps({"side": side, **rows[-1]}), flush=True)
        return rows


def metadata_ms() -> float:
    """Return the time that records add to a batch, as the median of many."""
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


KEPT_BATCHES = 100
REQUESTS = ("create", "read", "read_chunks", "exists", "list", "directories", "delete")


@contextmanager
def taking(request_s: float) -> Iterator[None]:
    """Let each request to local files take so long, as if many were worth making at a time."""
    from checkpoint import LocalFiles

    methods = {name: getattr(LocalFiles, name) for name in REQUESTS}

    def delayed(name: str) -> Any:
        def request(self: Any, *arguments: Any) -> Any:
            time.sleep(request_s)
            return methods[name](self, *arguments)

        return request

    LocalFiles.at_once = 128
    for name in REQUESTS:
        setattr(LocalFiles, name, delayed(name))
    try:
        yield
    finally:
        LocalFiles.at_once = 1
        for name, method in methods.items():
            setattr(LocalFiles, name, method)


def stepped(spark: Any, directory: str, steps: int) -> float:
    """Return the median duration of a batch of a stream with stored state, in ms."""
    from dstreams import StateSpec, StreamingContext

    def define() -> Any:
        ssc = StreamingContext(spark, 1)
        ssc.checkpoint(directory)
        pairs = ssc.queueStream([[(1, 1)]] * 300, replayable=True)
        states = pairs.mapWithState(StateSpec.function(add).numPartitions(PARTITIONS))
        states.foreachRDD(lambda rdd: None)
        return ssc

    ssc = StreamingContext.getOrCreate(directory, define)
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        ssc.step()
        seconds.append(time.perf_counter() - began)
    ssc.stop(stopSparkContext=False)
    return 1000 * median(seconds)


def queried(spark: Any, directory: str, batches: int) -> float:
    """Return the median time between outputs of a query that has more records waiting, in ms."""
    from dstreams.structured import StreamSession

    session = StreamSession(spark)
    Path(directory, "input").mkdir()
    for number in range(batches):
        Path(directory, "input", f"{number}.txt").write_text("a\n", encoding="utf-8")
    lines = session.readStream.option("maxFilesPerTrigger", 1).text(f"{directory}/input")
    rows = lines.groupByKey(keys_by_text).count()
    times: list[float] = []
    writer = rows.writeStream.outputMode("update")
    writer = writer.foreachBatch(lambda rdd, batch: times.append(time.perf_counter()))
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    return 1000 * median(later - earlier for earlier, later in pairwise(times))


def keys_by_text(line: str) -> str:
    return line


def slow_storage(request_s: float) -> dict[str, float]:
    """Return what a request that takes so long adds to batches and to a restart."""
    spark = spark_context()
    found: dict[str, list[float]] = {"stream_batch_ms": [], "query_batch_ms": [], "restart_s": []}
    for delay_s in (0.0, 0.0, request_s):  # the first round warms up
        with tempfile.TemporaryDirectory() as directory:
            stepped(spark, f"{directory}/stream", KEPT_BATCHES)
            Path(directory, "query").mkdir()
            with taking(delay_s):
                began = time.perf_counter()
                stepped(spark, f"{directory}/stream", 1)
                found["restart_s"].append(time.perf_counter() - began)
                found["stream_batch_ms"].append(stepped(spark, f"{directory}/again", 20))
                found["query_batch_ms"].append(queried(spark, f"{directory}/query", 20))
    spark.stop()
    return {name: round(slow - fast, 2) for name, (_, fast, slow) in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=3, help="restarts of a program in a row")
    parser.add_argument("--rounds", type=int, default=1, help="programs of each side, in turn")
    parser.add_argument("--metadata", action="store_true")
    parser.add_argument("--request-ms", type=float, help="duration of a request to storage")
    given = parser.parse_args()
    if given.run:
        run(given.run, given.side, given.keys)
        return 0
    if given.request_ms is not None:
        print(json.dumps(slow_storage(given.request_ms / 1000)))
        return 0
    results: dict[str, Any] = {}
    if given.metadata or not given.side:
        results["metadata_ms"] = round(metadata_ms(), 2)
    sides = [given.side] if given.side else [] if given.metadata else SIDES
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(given.rounds):
        for side in sides:
            rows[side] += restarts(side, given.keys, given.repeat)
    for side in sides:
        results[side] = [row["seconds"] for row in rows[side]]
    ratios = {}
    if len(sides) == len(SIDES):
        for side in ("dstreams", "stored"):
            for what in ("seconds", "cpu_s", "first_output_s"):
                theirs, ours = (
                    median(row[what] for row in rows[each]) for each in ("pyspark", side)
                )
                ratios[f"{side} {what}"] = round(theirs / ours, 1)
        results["ratios"] = ratios
    print(json.dumps(results))
    missed = [what for what in ratios if what.endswith(" seconds") and ratios[what] < ASKED]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
