"""Benchmark: a restart with a million keys of state, compared with pyspark.streaming.

    python benchmarks/recovery.py                       # all, ten minutes; status 1: missed
    python benchmarks/recovery.py --side dstreams       # one row
    python benchmarks/recovery.py --metadata            # the cost of batch records

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
from dataclasses import dataclass
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
    given = parser.parse_args()
    if given.run:
        run(given.run, given.side, given.keys)
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
