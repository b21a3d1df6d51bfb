"""Profile the time and the CPU of a batch in the driver, the JVM and the workers.

Each case runs in a separate process, in a context of :func:`tuned_context`. It is compared with a
yardstick: one Spark job with a shuffle and Python on both sides, on the same records. They take
turns, a few batches each, so that drift of the machine favours none. The output has

- the median of a batch and the CPU time of all its processes, and both as a ratio to the yardstick;
- the driver's steps in their order, with the calls of the JVM and the syncs of files in each;
- the jobs: from their submission to the first task, in tasks, and from the last task to their end;
- the CPU time by process, in the JVM by its threads (JIT and collector are threads of their own);
- the time of the tasks of workers in their function and around it.

    python benchmarks/where.py                       # all cases, five minutes
    python benchmarks/where.py --case update         # one case
    python benchmarks/where.py --case map --against spark.shuffle.compress=false
    python benchmarks/where.py --case map --tree ../before

With ``--against`` a case is compared with itself under other Spark settings, or JVM options if they
begin with ``-``; with ``--tree`` it is compared with the dstreams of another directory. Then only
medians, CPU time and counts of both are printed, by turns.

Cases:

    update    updateStateByKey, 1,000 keys and 1,000 records a batch
    map       mapWithState, 200,000 keys and 10,000 records a batch
    map1m     mapWithState, 200,000 keys and 1,000,000 records a batch; microseconds a record
    blocks    updateStateByKey over blocks of Arrow, 1,000,000 keys and as many records a batch; its
              yardstick moves their blocks through a shuffle

On a busy machine, compare the CPU time instead of the median; the counts do not drift.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARTITIONS = 2
FACTOR, MODULUS = 2_654_435_761, 1 << 32
TASKS = "DSTREAMS_BENCHMARK_TASKS"
"""Environment: the directory where workers write down what their tasks cost."""


@dataclass(frozen=True)
class Case:
    """The size of a batch: its records, the keys of the state, and the batches of the warm-up."""

    records: int
    keys: int
    warm: int


CASES = {
    "update": Case(1_000, 1_000, 60),
    "map": Case(10_000, 200_000, 40),
    "map1m": Case(1_000_000, 200_000, 4),
    "blocks": Case(1_000_000, 1_000_000, 12),
}


def records_of(name: str, number: int) -> list[Any]:
    """Return the records of a batch; the first has every key."""
    case = CASES[name]
    if name == "blocks":
        import blocks
        from stored_state_data import DIRECT, Span

        first = DIRECT if number == 0 else number * case.records
        return blocks.blocks_of(Span(first, case.records), case.keys)
    if number == 0:
        return [(f"key-{key}", 1) for key in range(case.keys)]
    first = number * case.records
    return [
        (f"key-{at * FACTOR % MODULUS % case.keys}", 1) for at in range(first, first + case.records)
    ]


# --- The side that runs batches: a separate process.


class Costs:
    """The work of the driver by step: seconds, calls of the JVM, syncs."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.calls: Counter[str] = Counter()
        self.called_s: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self.synced_s: Counter[str] = Counter()
        self.collected_s = 0.0
        self.names: Counter[str] = Counter()
        self.named_s: Counter[str] = Counter()
        self._step = "between"
        self._since = time.perf_counter()
        self._thread = threading.get_ident()
        self._in_batch = False

    def step(self, name: str) -> None:
        """Start a step of the driver, and close the previous one."""
        if threading.get_ident() != self._thread:
            return
        now = time.perf_counter()
        if self._in_batch:
            self.seconds[self._step].append(now - self._since)
        if name not in self.steps:
            self.steps.append(name)
        self._step, self._since = name, now

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Measure a batch."""
        self.step("before the plan")
        self._in_batch = True
        try:
            yield
        finally:
            self.step("between")
            self._in_batch = False

    def called(self, command: str, seconds: float) -> None:
        if self._in_batch:
            step = self._step if threading.get_ident() == self._thread else "other threads"
            self.calls[step] += 1
            self.called_s[step] += seconds
            name = name_of_call(command)
            self.names[name] += 1
            self.named_s[name] += seconds

    def synced(self, seconds: float) -> None:
        step = self._step if threading.get_ident() == self._thread else "other threads"
        self.syncs[step] += 1
        self.synced_s[step] += seconds


def name_of_call(command: str) -> str:
    """Return a short name of a command of py4j."""
    parts = command.split("\n")
    kind = {"c": "call", "i": "new", "r": "look up", "m": "let go", "a": "array"}.get(parts[0], "?")
    if kind == "call":
        target = re.sub(r"\d+$", "", parts[1])
        return f"call {parts[2]}" if target == "o" else f"call {target}.{parts[2]}"
    if kind == "let go":
        return kind
    name = parts[1].rpartition(".")[2] if kind == "new" else " ".join(parts[1:3])
    return f"{kind} {'' if kind == 'array' else name}".rstrip()


def watch_driver(costs: Costs) -> None:
    """Count calls of the JVM, syncs, collections and steps."""
    from py4j.clientserver import ClientServerConnection

    from dstreams.common import faults

    faults.watch(costs.step)
    send = ClientServerConnection.send_command

    def counting(self: Any, command: str) -> Any:
        started = time.perf_counter()
        try:
            return send(self, command)
        finally:
            costs.called(command, time.perf_counter() - started)

    ClientServerConnection.send_command = counting  # type: ignore[method-assign]
    watch_syncs(costs.synced)
    began = 0.0

    def collection(phase: str, _: Any) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            costs.collected_s += time.perf_counter() - began

    gc.callbacks.append(collection)


def watch_syncs(synced: Callable[[float], None]) -> None:
    """Report each sync of a file by this process."""

    def timed(sync: Callable[[int], None]) -> Callable[[int], None]:
        def run(fd: int) -> None:
            started = time.perf_counter()
            sync(fd)
            synced(time.perf_counter() - started)

        return run

    os.fsync, os.fdatasync = timed(os.fsync), timed(os.fdatasync)


def update(values: list[int], state: int | None) -> int:
    """Return the running sum."""
    return sum(values) + (state or 0)


def add(key: str, value: int, state: Any) -> tuple[str, int]:
    """Return the running sum after a record."""
    total = (state.getOption or 0) + value
    state.update(total)
    return key, total


def one_each(pairs: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The first stage of the yardstick."""
    return iter(pairs)


def sum_of_values(pairs: Iterator[tuple[str, Any]]) -> Iterator[int]:
    """Read all rows of a partition."""
    yield sum(value for _, value in pairs)


def batches_of(name: str, directory: str, spark: Any) -> Callable[[Any], None]:
    """Return a function that runs a batch, given the RDD of its records."""
    if name.startswith("yardstick"):
        return run_yardstick_of_blocks if name.endswith("blocks") else run_yardstick
    from dstreams import StateSpec, StreamingContext
    from dstreams.testing import ManualClock

    ssc = StreamingContext(spark, 1, clock=ManualClock())
    ssc.checkpoint(directory)
    given: list[Any] = []
    pairs = ssc.queueStream([]).transform(lambda _: given.pop())
    if name == "update":
        state = pairs.updateStateByKey(update, PARTITIONS)
        state.foreachRDD(lambda rdd: rdd.count())
    elif name == "blocks":
        import blocks

        state = pairs.toBlocks({"key": str, "value": int}).updateStateByKey(
            blocks.add, PARTITIONS, key="key", state={"total": int, "count": int}
        )
        state.foreachRDD(lambda rdd: rdd.mapPartitions(blocks.count_rows).sum())
    else:
        rows = pairs.mapWithState(StateSpec.function(add).numPartitions(PARTITIONS))
        rows.foreachRDD(lambda rdd: rdd.mapPartitions(sum_of_values).collect())

    def run(rdd: Any) -> None:
        given.append(rdd)
        ssc.step()

    return run


def run_yardstick(rdd: Any) -> None:
    """Run one stateless job with a shuffle, and Python on both sides of it."""
    rdd.mapPartitions(one_each).partitionBy(PARTITIONS).mapPartitions(sum_of_values).collect()


def run_yardstick_of_blocks(rdd: Any) -> None:
    """Do the same for blocks, each sent to one partition as a whole."""
    import blocks

    rdd.map(lambda block: (block.num_rows, block)).partitionBy(PARTITIONS).map(
        lambda pair: pair[1]
    ).mapPartitions(blocks.count_rows).collect()


def context_of(settings: list[str], directory: str, *, is_watched: bool) -> Any:
    """Start the context of a side."""
    from dstreams.spark.spark_context import tuned_context

    os.environ[TASKS] = os.path.join(directory, "tasks")
    os.makedirs(os.environ[TASKS])
    options = [setting for setting in settings if setting.startswith("-")]
    conf = {"spark.driver.memory": "2g", "spark.driver.extraJavaOptions": " ".join(options)}
    if is_watched:
        os.makedirs(os.path.join(directory, "events"))
        conf |= {
            "spark.python.daemon.module": "where",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{directory}/events",
        }
    conf |= dict(setting.split("=", 1) for setting in settings if not setting.startswith("-"))
    return tuned_context("benchmark", f"local[{PARTITIONS}]", conf)


def serve(name: str, settings: list[str], directory: str, *, is_watched: bool) -> None:
    """Run the batches requested on the standard input, and report their figures."""
    from dstreams.spark import jvm
    from dstreams.spark.job_labels import labelled_jobs

    spark = context_of(settings, directory, is_watched=is_watched)
    run = batches_of(name, os.path.join(directory, "checkpoint"), spark)
    around = ExitStack()  # as the thread of a stream has it, once
    around.enter_context(jvm.rewriting_outputs(spark))
    around.enter_context(labelled_jobs(spark))
    costs = Costs()
    if is_watched:
        watch_driver(costs)
    number = 0
    for line in sys.stdin:
        count = int(line)
        made = [records_of(name.removeprefix("yardstick-"), number + at) for at in range(count)]
        rdds = [spark.parallelize(one, PARTITIONS) for one in made]
        del made
        number += count
        if count > 0:
            gc.collect()
        before, seconds = cpu_of_all(), []
        events = events_of(directory).stat().st_size if is_watched else 0
        tasks_before = len(tasks_of(directory)) if is_watched else 0
        costs.clear()
        for rdd in rdds:
            started = time.perf_counter()
            with costs.batch():
                run(rdd)
            seconds.append(time.perf_counter() - started)
        cpu = {who: value - before.get(who, 0) for who, value in cpu_of_all().items()}
        told: dict[str, Any] = {"seconds": seconds, "cpu": cpu}
        if is_watched and count:
            told["driver"] = {
                step: [
                    sum(costs.seconds[step]) / count * 1e3,
                    costs.calls[step] / count,
                    costs.called_s[step] / count * 1e3,
                    costs.syncs[step] / count,
                    costs.synced_s[step] / count * 1e3,
                ]
                for step in [*costs.steps, "other threads"]
            }
            told["names"] = [
                (name, calls / count, costs.named_s[name] / count * 1e3)
                for name, calls in costs.names.most_common(40)
            ]
            told["collected_ms"] = costs.collected_s / count * 1e3
            time.sleep(1)  # the event log is behind
            told["jobs"] = jobs_of(directory, events, count)
            told["tasks"] = summary_of_tasks(tasks_of(directory)[tasks_before:], count)
        sys.stdout.write(f"answer {json.dumps(told)}\n")
        sys.stdout.flush()
    os._exit(0)


# --- CPU time by process and thread.


def cpu_of_all() -> dict[str, float]:
    """Return the CPU time in ms of this process and all below it, the JVM's by thread."""
    total: dict[str, float] = defaultdict(float)
    for pid in below(os.getpid()):
        is_jvm = "java" in Path(f"/proc/{pid}/comm").read_text() if pid != os.getpid() else False
        for task in _listed(f"/proc/{pid}/task"):
            try:
                ns = int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
                thread = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
            except OSError:
                continue
            who = f"JVM: {_group(thread)}" if is_jvm else "workers"
            total["driver" if pid == os.getpid() else who] += ns / 1e6
    return total


_GROUPS = (
    ("JIT", r"C[12] Compiler|Sweeper"),
    ("collector", r"G1|GC|ParGC|VM Thread|VM Periodic"),
    ("tasks", r"Executor task|stdout writer|Worker Monitor|Idle Worker"),
    ("calls of the driver", r"Thread-|py4j|main|serve|java"),
    ("scheduler", r"dag-sched|dispatcher|task-result|task-starvation"),
    ("listeners", r"spark-listener|SparkUI|element-tracking"),
)


def _group(thread: str) -> str:
    return next((name for name, like in _GROUPS if re.match(like, thread)), "the rest")


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def below(pid: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = defaultdict(list)
    for name in _listed("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(fields[1])].append(int(name))
    found = [pid]
    for one in found:
        found += parents[one]
    return found


# --- Events of Spark's jobs and of the workers' tasks.


def events_of(directory: str) -> Path:
    """Return the event log of the one application."""
    return next(path for path in Path(directory, "events").iterdir() if path.is_file())


def jobs_of(directory: str, start: int, batches: int) -> dict[str, float]:
    """Read the jobs that the event log has from a byte on; times in ms, each for a batch."""
    jobs: dict[int, dict[str, Any]] = {}
    of_stage: dict[int, int] = {}
    total: Counter[str] = Counter()
    with events_of(directory).open("rb") as log:
        log.seek(start)
        for line in log:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            kind = event["Event"]
            if kind == "SparkListenerJobStart":
                job = event["Job ID"]
                jobs[job] = {"at": event["Submission Time"], "tasks": []}
                of_stage |= dict.fromkeys(event["Stage IDs"], job)
            elif kind == "SparkListenerStageCompleted":
                total["stages"] += 1
            elif kind == "SparkListenerTaskEnd" and event["Stage ID"] in of_stage:
                info, metrics = event["Task Info"], event["Task Metrics"]
                jobs[of_stage[event["Stage ID"]]]["tasks"].append(
                    (info["Launch Time"], info["Finish Time"])
                )
                total["tasks"] += 1
                total["task: from launch to end"] += info["Finish Time"] - info["Launch Time"]
                total["task: run"] += metrics["Executor Run Time"]
                total["task: run, CPU of its JVM thread"] += metrics["Executor CPU Time"] / 1e6
                total["task: deserialize, CPU"] += metrics["Executor Deserialize CPU Time"] / 1e6
                total["task: result, serialized"] += metrics["Result Serialization Time"]
                total["task: collector"] += metrics["JVM GC Time"]
            elif kind == "SparkListenerJobEnd" and event["Job ID"] in jobs:
                jobs[event["Job ID"]]["end"] = event["Completion Time"]
    for job in jobs.values():
        total["jobs"] += 1
        if job["tasks"] and "end" in job:
            first, last = min(t[0] for t in job["tasks"]), max(t[1] for t in job["tasks"])
            total["job: submission to the first task"] += first - job["at"]
            total["job: first task to the end of the last"] += last - first
            total["job: end of the last task to the end"] += job["end"] - last
    return {name: value / batches for name, value in total.items()}


def tasks_of(directory: str) -> list[list[float]]:
    """Return the cost of each worker task in ms, with parts in the order of ``_PARTS``."""
    lines = []
    for path in sorted(Path(directory, "tasks").glob("*")):
        lines += [list(map(float, line.split())) for line in path.read_text().splitlines()]
    return sorted(lines)


_PARTS = (
    "all, CPU",
    "commands deserialized, CPU",
    "data read, function, data written, CPU",
    "the same, with waits",
    "garbage after the task, CPU",
    "syncs",
    "syncs, with waits",
)


def summary_of_tasks(tasks: list[list[float]], batches: int) -> dict[str, float]:
    """Add the tasks up, for a batch."""
    summed = {name: sum(task[1 + at] for task in tasks) / batches for at, name in enumerate(_PARTS)}
    return {"tasks": len(tasks) / batches, **summed}


def be_daemon() -> None:
    """Run as the worker daemon of dstreams, and record the cost of each task."""
    from pyspark import daemon, worker

    from dstreams.spark import worker_daemon

    spent: Counter[str] = Counter()
    clock = time.process_time

    def synced(seconds: float) -> None:
        spent["syncs"] += 1
        spent["synced"] += seconds * 1e3

    watch_syncs(synced)
    read, capture, collect = worker.read_command, worker.capture_outputs, gc.collect

    def read_command(*arguments: Any) -> Any:
        started = clock()
        try:
            return read(*arguments)
        finally:
            spent["read"] += (clock() - started) * 1e3

    @contextmanager
    def capture_outputs() -> Iterator[None]:
        started, since = clock(), time.perf_counter()
        with capture():
            yield
        spent["run"] += (clock() - started) * 1e3
        spent["run, waits"] += (time.perf_counter() - since) * 1e3

    def collecting(*arguments: Any) -> int:
        started = clock()
        found = collect(*arguments)
        spent["collect"] += (clock() - started) * 1e3
        return found

    worker.read_command, worker.capture_outputs = read_command, capture_outputs
    run_task = daemon.worker

    def timed(*arguments: Any) -> int:
        # The garbage collection after the previous task belongs to that task, but ends only now.
        spent.clear()
        started = clock()
        code = run_task(*arguments)
        collecting()
        parts = ["read", "run", "run, waits", "collect", "syncs", "synced"]
        facts = [time.time(), (clock() - started) * 1e3, *(spent[part] for part in parts)]
        with open(os.path.join(os.environ[TASKS], str(os.getpid())), "a") as lines:
            lines.write(" ".join(map(repr, facts)) + "\n")
        return code

    daemon.worker = timed
    worker_daemon.main()


# --- The parent process.


class Side:
    """The process of a side."""

    def __init__(
        self, label: str, name: str, settings: list[str], *, tree: str = "", is_watched: bool
    ) -> None:
        self.label = label
        self.seconds: list[float] = []
        self.cpu: Counter[str] = Counter()
        self.turns: list[float] = []
        self.last: dict[str, Any] = {}
        self._directory = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # Workers begin as modules, which search the working directory first.
        home = os.path.abspath(tree or Path(__file__).parents[1])
        here = str(Path(__file__).resolve().parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([home, here])}
        told = json.dumps([name, settings, self._directory.name, is_watched])
        self._child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--side", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("SHOW_ERRORS") else subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=home,
        )

    def ask(self, count: int) -> dict[str, Any]:
        """Let the side run its next batches."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{count}\n")
        self._child.stdin.flush()
        for line in self._child.stdout:
            if line.startswith("answer "):
                told: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return told
        raise RuntimeError(f"{self.label} ended with exit status {self._child.wait()}")

    def take_turn(self, count: int) -> None:
        """Run batches that are measured."""
        self.last = self.ask(count)
        self.seconds += self.last["seconds"]
        self.cpu.update(self.last["cpu"])
        self.turns.append(sum(self.last["cpu"].values()) / count)

    @property
    def median_ms(self) -> float:
        """Median of a batch."""
        return statistics.median(self.seconds) * 1e3

    @property
    def cpu_ms(self) -> float:
        """CPU time of a batch, all processes; the median of the turns."""
        return statistics.median(self.turns)

    def close(self) -> None:
        """End the process."""
        self._child.communicate()
        self._directory.cleanup()


def take_turns(sides: list[Side], case: Case, rounds: int, batches: int) -> None:
    """Warm up the sides, then let them run batches in turn, and print their progress."""
    for side in sides:
        side.ask(1)
    for _ in range(max(1, case.warm // batches)):
        for side in sides:
            side.ask(min(batches, case.warm))
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.take_turn(batches)
        if number + 1 < rounds:
            print_sides(sides, case)


def profile(name: str, options: argparse.Namespace) -> None:
    """Profile a case and the yardstick, with and without instrumentation."""
    case = CASES[name]
    labels = (name, "yardstick", f"{name}, watched")
    names = (name, f"yardstick-{name}", name)
    sides = [
        Side(label, of, options.setting, is_watched=label.endswith("watched"))
        for label, of in zip(labels, names, strict=True)
    ]
    batches = options.batches or (3 if CASES[name].records > 100_000 else 10)
    try:
        take_turns(sides, case, options.rounds, batches)
    finally:
        for side in sides:
            side.close()
    say(f"\n== {name}: {case.records:,} records a batch, {case.keys:,} keys")
    ours, yardstick, watched = sides
    print_sides([ours, yardstick, watched], case)
    say(
        f"ratio to the yardstick: {ours.median_ms / yardstick.median_ms:.2f} in time, "
        f"{ours.cpu_ms / yardstick.cpu_ms:.2f} in CPU"
    )
    print_cpu([ours, yardstick], batches * options.rounds)
    print_driver(watched.last)


def print_sides(sides: list[Side], case: Case) -> None:
    """Print medians and CPU time."""
    say(f"{'':32}{'ms a batch':>12}{'ms of CPU':>12}{'us of CPU a record':>20}   turns")
    for side in sides:
        turns = " ".join(f"{turn:.0f}" for turn in side.turns)
        say(
            f"{side.label:32}{side.median_ms:>12.1f}{side.cpu_ms:>12.1f}"
            f"{side.cpu_ms * 1e3 / case.records:>20.2f}   {turns}"
        )


def print_cpu(sides: list[Side], count: int) -> None:
    """Print the CPU time of the sides by part."""
    say("CPU by process and thread, ms a batch" + "".join(f"{side.label:>26}" for side in sides))
    for who in sorted({who for side in sides for who in side.cpu}):
        say(f"  {who:35}" + "".join(f"{side.cpu[who] / count:>26.1f}" for side in sides))


def print_driver(last: dict[str, Any]) -> None:
    """Print the profile of the last turn of an instrumented side."""
    say("steps of the driver, each a batch, until the next one")
    say(f"  {'':24}{'ms':>8}{'calls':>8}{'ms':>8}{'syncs':>8}{'ms':>8}")
    for step, (took, calls, called, syncs, synced) in last["driver"].items():
        say(f"  {step:24}{took:>8.1f}{calls:>8.1f}{called:>8.1f}{syncs:>8.1f}{synced:>8.1f}")
    say(f"  garbage of the driver: {last['collected_ms']:.2f} ms a batch")
    calls = (f"{name} {count:.1f} {took:.1f} ms" for name, count, took in last["names"])
    say("  calls: " + ", ".join(calls))
    say("jobs and tasks by Spark's event log, sums of a batch, ms")
    for name in sorted(last["jobs"]):
        say(f"  {name:44}{last['jobs'][name]:>10.1f}")
    say("tasks in Python workers, sums of a batch, ms")
    for name, value in last["tasks"].items():
        say(f"  {name:44}{value:>10.1f}")


def compare(name: str, options: argparse.Namespace) -> None:
    """Compare a case with itself, with other settings or another tree."""
    case = CASES[name]
    sides = [Side("as it is", name, options.setting, is_watched=False)]
    for against in options.against:
        sides.append(Side(against, name, [*options.setting, *against.split()], is_watched=False))
    for tree in options.tree:
        sides.append(Side(tree, name, options.setting, tree=tree, is_watched=False))
    batches = options.batches or (3 if CASES[name].records > 100_000 else 10)
    try:
        take_turns(sides, case, options.rounds, batches)
    finally:
        for side in sides:
            side.close()
    say(f"\n== {name}: {case.records:,} records a batch, {case.keys:,} keys")
    print_sides(sides, case)
    print_cpu(sides, batches * options.rounds)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each side")
    parser.add_argument("--batches", type=int, help="batches of a turn")
    parser.add_argument("--setting", action="append", default=[], help="of all sides: key=value")
    parser.add_argument("--against", action="append", default=[], help="of one more side")
    parser.add_argument("--tree", action="append", default=[], help="directory with a dstreams")
    parser.add_argument("--side", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        name, settings, directory, is_watched = options.side
        serve(name, settings, directory, is_watched=is_watched)
    for name in options.case or CASES:
        (compare if options.against or options.tree else profile)(name, options)
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("pyspark"):
        be_daemon()
    sys.exit(main())
