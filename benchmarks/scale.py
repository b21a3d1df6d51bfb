"""Benchmark: the cost of a batch by partitions, executors and keys, and a model of larger clusters.

    python benchmarks/scale.py                        # all, an hour
    python benchmarks/scale.py --case partitions      # one case
    python benchmarks/scale.py --case keys --keys 5 20 50 --executors   # millions; 10 GB of disk

Cases:

    partitions  a batch with 20 records, by operation and number of partitions of the state. A line
                through two of the points predicts the others
    cluster     the same with mapWithState on a standalone cluster, where driver and executors are
                separate processes; and what the lines predict for larger clusters
    records     the commit record of ten operators with many partitions, without Spark
    keys        memory and disk while a state grows, the cost of a batch that touches few keys, and
                the cost of a restart on a host without replicas, by keys and executors

The figures are CPU times and counts, which depend little on what else the machine does, and
resident memory. Each measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

RECORDS, KEYS = 20, 1000
WARM, BATCHES = 5, 10
MANY, MANY_WARM, MANY_BATCHES = 1000, 2, 3
"""With that many partitions a batch has enough tasks to warm the JVM up, and takes long; so does a
batch on a cluster of this machine."""
OPERATIONS = ("updateStateByKey", "mapWithState", "query")
PARTITIONS = (2, 20, 200, 1000)
ON_CLUSTER = (2, 20, 100)
FITTED = (20, 200)
SNAPSHOT_S = 5


class Cpu(NamedTuple):
    """The CPU seconds of the driver's Python, of JVMs, and of Python workers."""

    driver: float
    jvm: float
    executors: float
    workers: float


def cpu_of(driver: psutil.Process, cluster: list[psutil.Process]) -> Cpu:
    """Return the CPU time that has been used so far."""
    found = {"driver": _seconds(driver), "jvm": 0.0, "executors": 0.0, "workers": 0.0}
    for process in driver.children(recursive=True):
        found["jvm" if _is_jvm(process) else "workers"] += _seconds(process)
    for executor in cluster:
        found["executors"] += _seconds(executor)
        for process in executor.children(recursive=True):
            found["workers"] += _seconds(process)
    return Cpu(**found)


def executors_of(spark: Any) -> list[psutil.Process]:
    """Return the executors of an application; none with a local master."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if "--app-id" in command and spark.applicationId in command and _is_jvm(process):
                found.append(process)
    return found


def connections_between(executors: list[psutil.Process]) -> int:
    """Return the number of connections that executors have opened to each other."""
    listening: dict[int, set[Any]] = {}
    opened: list[tuple[int, Any]] = []
    for executor in executors:
        for one in executor.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN:
                listening.setdefault(executor.pid, set()).add(one.laddr.port)
            elif one.status == psutil.CONN_ESTABLISHED and one.raddr:
                opened.append((executor.pid, one.raddr.port))
    return sum(
        any(port in ports for pid, ports in listening.items() if pid != own) for own, port in opened
    )


def _is_jvm(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.Error:
        return False


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    # A daemon of workers reports the time of those that have ended.
    ended = 0.0 if _is_jvm(process) else times.children_user + times.children_system
    return float(times.user + times.system + (0.0 if process.pid == os.getpid() else ended))


# One measurement: a process of its own ------------------------------------------------------------


def start(master: str, directory: str) -> Any:
    """Start Spark with everything that it keeps below *directory*."""
    from dstreams import tuned_context

    conf = {
        "spark.ui.enabled": "false",
        "spark.dstreams.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.default.parallelism": "2",
        "spark.local.dir": f"{directory}/local",
        "spark.dstreams.state.localDirectory": f"{directory}/replicas",
    }
    return tuned_context("scale", master, conf)


def add(new: list[int], count: int | None) -> int:
    """The function of ``updateStateByKey``."""
    return sum(new) + (count or 0)


def put(key: int, value: int, state: Any) -> int:
    """The function of ``mapWithState``."""
    state.update(value + (state.getOption or 0))
    return key


def batches_of(operation: str, partitions: int, spark: Any, directory: str) -> Callable[[], None]:
    """Return a function that runs the next batch: 20 records of 1,000 keys."""
    checkpoint = f"{directory}/checkpoint"
    if operation == "query":
        from dstreams.structured import StreamSession

        session = StreamSession(spark, {"spark.sql.shuffle.partitions": str(partitions)})
        source: Any = session.memoryStream()
        counts = source.toDS().groupByKey(lambda number: number % KEYS).count()
        writer = counts.writeStream.outputMode("update").foreachBatch(lambda rows, _: rows.count())
        query = writer.start(checkpointLocation=checkpoint)
        numbers = iter(range(1_000_000))

        def run() -> None:
            source.addData(*(next(numbers) for _ in range(RECORDS)))
            query.processAllAvailable()

        return run

    from dstreams import StateSpec, StreamingContext
    from dstreams.testing import ManualClock

    ssc = StreamingContext(spark, 1, clock=ManualClock())
    ssc.checkpoint(checkpoint)
    pairs = ssc.rateStream(RECORDS, uid="numbers", numPartitions=2).map(lambda r: (r[1] % KEYS, 1))
    states = (
        pairs.updateStateByKey(add, partitions).checkpoint(SNAPSHOT_S)
        if operation == "updateStateByKey"
        else pairs.mapWithState(StateSpec.function(put).numPartitions(partitions))
    )
    states.foreachRDD(lambda rdd: rdd.count())
    return ssc.step


def files_below(directory: str) -> dict[str, int]:
    """Return the size of each file."""
    found = {}
    for path, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # deleted in the meantime
                found[f"{path}/{name}"] = os.path.getsize(f"{path}/{name}")
    return found


def measure_batches(operation: str, partitions: int, master: str) -> dict[str, float]:
    """Return the medians of a batch: CPU by process in ms, tasks, files, bytes, commit record."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        spark = start(master, directory)
        run = batches_of(operation, partitions, spark, directory)
        is_many = partitions >= MANY or not master.startswith("local")
        for _ in range(MANY_WARM if is_many else WARM):
            run()
        scheduler = spark._jsc.sc().dagScheduler()
        me, cluster = psutil.Process(), executors_of(spark)
        known = files_below(f"{directory}/checkpoint")
        rows: list[dict[str, float]] = []
        for _ in range(MANY_BATCHES if is_many else BATCHES):
            before, jobs = cpu_of(me, cluster), scheduler.numTotalJobs()
            run()
            after = cpu_of(me, cluster)
            row = {name: 1000 * (after[at] - before[at]) for at, name in enumerate(Cpu._fields)}
            found = files_below(f"{directory}/checkpoint")
            new = {name: size for name, size in found.items() if name not in known}
            known.update(new)
            records = [size for name, size in new.items() if name.endswith(".commit")]
            row |= {"jobs": scheduler.numTotalJobs() - jobs, "files": len(new)}
            row |= {"bytes": sum(new.values()), "record": max(records, default=0)}
            rows.append(row)
        connections = connections_between(cluster)
        spark.stop()
    facts = {"executors_found": len(cluster), "connections": connections}
    return facts | {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def run_child(name: str, *arguments: object) -> dict[str, float]:
    """Run one measurement in a process of its own, and return what it prints."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", name, *map(str, arguments)]
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} {arguments} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# The commit record: without Spark ----------------------------------------------------------------


def measure_records(partitions: int, operators: int) -> dict[str, float]:
    """Return bytes of a commit record, and CPU ms to write it and to read it after a restart."""
    from checkpoint import CommitLog, FileRef, PartitionCommit, StoreCommit, open_files
    from checkpoint.log.batch_records import CommitRecord, VersionId

    def store(uid: str, version: int) -> StoreCommit:
        made = []
        for partition in range(partitions):
            attempt = f"00000001{secrets.token_hex(8)}"
            name = f"stores/{uid}/default/p{partition:05d}/{version:016d}-{attempt}.changes"
            file = FileRef(name, 400, secrets.token_hex(16), 1)
            made.append(PartitionCommit(partition, VersionId(version, attempt), file, 5))
        return StoreCommit(uid, "default", "stable-hash-1", tuple(made))

    with tempfile.TemporaryDirectory() as directory:
        files = open_files(directory)
        log = CommitLog(files)
        cpu_ms = []
        for batch in range(1, 4):
            stores = tuple(store(f"mapWithState-{each}", batch) for each in range(operators))
            record = CommitRecord("stream", batch, 1000 * batch, 1, {}, {}, stores)
            before = time.process_time()
            log.commit(record)
            cpu_ms.append(1000 * (time.process_time() - before))
        sizes = [path.stat().st_size for path in Path(directory).rglob("*.commit")]
        before = time.process_time()
        CommitLog(files).latest()
        read_ms = 1000 * (time.process_time() - before)
    return {"record": max(sizes), "write_ms": statistics.median(cpu_ms), "read_ms": read_ms}


# Keys and restarts -------------------------------------------------------------------------------

LOADED, TOUCHED = 500_000, 1000
"""Keys that a batch adds, and that a batch afterwards touches."""


def store_program(spark: Any, directory: str, millions: int) -> Any:
    """Return a stream that loads keys, and then touches few of them in each batch."""
    from dstreams import StateSpec, StreamingContext
    from dstreams.testing import ManualClock

    keys = millions * 1_000_000
    loads = keys // LOADED

    def keys_of(row: Any) -> Iterator[tuple[int, int]]:
        batch, part = divmod(row[1], 4)
        if batch < loads:
            first = batch * LOADED + part * (LOADED // 4)
            return ((key, 1) for key in range(first, first + LOADED // 4))
        return (((row[1] * 7919 + each * 104729) % keys, 1) for each in range(TOUCHED // 4))

    def define() -> Any:
        ssc = StreamingContext(spark, 1, clock=ManualClock())
        pairs = ssc.rateStream(4, uid="numbers", numPartitions=2).flatMap(keys_of)
        states = pairs.mapWithState(StateSpec.function(put).numPartitions(2))
        states.foreachRDD(lambda rdd: rdd.count())
        return ssc

    return StreamingContext.restore(f"{directory}/checkpoint", define)


def resident_mb() -> dict[str, float]:
    """Return the resident memory of the driver's Python, its JVM, and the largest worker."""
    found = {"driver_mb": psutil.Process().memory_info().rss / 1e6, "jvm_mb": 0.0, "worker_mb": 0.0}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            if _is_jvm(process):
                found["jvm_mb"] = max(found["jvm_mb"], process.memory_info().rss / 1e6)
            else:
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii").splitlines()
                # Pages of replicas are a cache that the operating system drops when it needs to.
                own = sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))
                found["worker_mb"] = max(found["worker_mb"], own / 1e3)
    return found


def measure_keys(millions: int, directory: str) -> None:
    """Return peak memory, disk, and the CPU ms of a batch, after loading that many keys."""
    spark = start("local[2,4]", directory)
    ssc = store_program(spark, directory, millions)
    peak: dict[str, float] = {}
    me = psutil.Process()
    began = sum(cpu_of(me, []))
    for _ in range(millions * 1_000_000 // LOADED):
        ssc.step()
        peak = {name: max(peak.get(name, 0), mb) for name, mb in resident_mb().items()}
    loaded = sum(cpu_of(me, []))
    small = []
    for _ in range(10):
        before = sum(cpu_of(me, []))
        ssc.step()
        small.append(1000 * (sum(cpu_of(me, [])) - before))
    sizes = {
        f"{name}_mb": sum(
            os.stat(path).st_blocks * 512 for path in files_below(f"{directory}/{name}")
        )
        / 1e6
        for name in ("replicas", "checkpoint")
    }
    print(
        json.dumps(
            {
                "load_us": 1e6 * (loaded - began) / (millions * 1e6),
                "batch_ms": statistics.median(small),
                **peak,
                **sizes,
            }
        ),
        flush=True,
    )
    os._exit(0)  # as a crash, for the restart that follows


def measure_restart(millions: int, directory: str, master: str) -> None:
    """Return CPU seconds until the first batch after a restart has ended, without replicas."""
    spark = start(master, directory)
    me, cluster = psutil.Process(), executors_of(spark)
    before = cpu_of(me, cluster)
    ssc = store_program(spark, directory, millions)
    ssc.step()
    after = cpu_of(me, cluster)
    spent = {name: after[at] - before[at] for at, name in enumerate(Cpu._fields)}
    print(json.dumps(spent), flush=True)
    os._exit(0)


# Tables ------------------------------------------------------------------------------------------


@contextmanager
def cluster_of(executors: int) -> Iterator[str]:
    """Start a standalone cluster on this machine, and return its master."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.cluster import StandaloneCluster

    hosts = tuple(f"127.0.0.{number + 2}" for number in range(executors))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        StandaloneCluster(Path(directory), hosts) as cluster,
    ):
        yield cluster.url


def print_row(*cells: object) -> None:
    """Print a row of a table of Markdown."""
    print(
        "| "
        + " | ".join(f"{cell:,.0f}" if isinstance(cell, float) else str(cell) for cell in cells)
        + " |",
        flush=True,
    )


def print_head(*names: str) -> None:
    """Print the head of a table."""
    print()
    print_row(*names)
    print_row(*["---"] * len(names))


class Line(NamedTuple):
    """A cost that grows linearly with partitions."""

    fixed: float
    each: float

    def at(self, partitions: int) -> float:
        """Return the cost with that many partitions."""
        return self.fixed + self.each * partitions


def line_through(costs: dict[int, float], first: int, last: int) -> Line:
    """Return the line through the costs with two numbers of partitions."""
    each = (costs[last] - costs[first]) / (last - first)
    return Line(costs[first] - each * first, each)


def table_of_partitions(options: argparse.Namespace) -> None:
    """Print the cost of a batch with a local master, and what the line predicts."""
    print_head(
        "operation",
        "partitions",
        "driver, ms",
        "JVM, ms",
        "predicted",
        "workers, ms",
        "predicted",
        "jobs",
        "files",
        "predicted",
        "bytes",
        "commit record",
    )
    for operation in options.operations:
        rows = {}
        for count in options.partitions:
            rows[count] = run_child("batches", operation, count, "local[2,4]")
            print(f"{operation} {count}: {rows[count]}", file=sys.stderr, flush=True)
        lines = {
            name: line_through({count: row[name] for count, row in rows.items()}, *FITTED)
            for name in ("jvm", "workers", "files")
        }
        for count, row in rows.items():
            print_row(
                operation,
                count,
                row["driver"],
                row["jvm"],
                lines["jvm"].at(count),
                row["workers"],
                lines["workers"].at(count),
                row["jobs"],
                row["files"],
                lines["files"].at(count),
                row["bytes"],
                row["record"],
            )


def table_of_cluster(options: argparse.Namespace) -> None:
    """Print the cost of a batch on two executors, and what a model predicts for a thousand."""
    rows: dict[int, dict[str, float]] = {}
    print_head(
        "partitions",
        "driver, ms",
        "predicted",
        "executors, ms",
        "predicted",
        "workers, ms",
        "predicted",
        "files",
        "predicted",
        "connections",
        "predicted",
    )
    with cluster_of(2) as master:
        for count in ON_CLUSTER:
            rows[count] = run_child("batches", "mapWithState", count, master)
            print(f"cluster {count}: {rows[count]}", file=sys.stderr, flush=True)
    _, *fitted = ON_CLUSTER
    driver, jvms, workers = (
        line_through(
            {count: sum(row[name] for name in names) for count, row in rows.items()}, *fitted
        )
        for names in (("driver", "jvm"), ("executors",), ("workers",))
    )
    for count, row in rows.items():
        print_row(
            count,
            row["driver"] + row["jvm"],
            driver.at(count),
            row["executors"],
            jvms.at(count),
            row["workers"],
            workers.at(count),
            row["files"],
            float(count + 2),
            row["connections"],
            connections_of(int(row["executors_found"])),
        )
    print_head(
        "executors",
        "partitions",
        "interval, s",
        "requests/s",
        "driver, cores",
        "executor, cores",
        "shuffle connections",
    )
    for executors, interval_s in ((10, 1), (100, 1), (100, 10), (1000, 10), (1000, 60)):
        partitions = executors * CORES
        per_executor = (jvms.at(partitions) + workers.at(partitions)) / executors
        print_row(
            executors,
            partitions,
            interval_s,
            float((partitions + 4) / interval_s),
            f"{driver.at(partitions) / 1000 / interval_s:.1f}",
            f"{per_executor / 1000 / interval_s:.2f}",
            float(connections_of(executors)),
        )


CORES = 4
"""Cores of an executor in the model; the state has a partition for each."""


def connections_of(executors: int) -> int:
    """Return the connections if each executor fetches from each other one."""
    return executors * (executors - 1)


def table_of_records(_: argparse.Namespace) -> None:
    """Print size and CPU time of commit records with ten operators."""
    print_head("operators", "partitions", "commit record, bytes", "to write, ms", "to read, ms")
    for partitions in (100, 1000, 10_000):
        found = run_child("records", partitions, 10)
        print_row(10, partitions, found["record"], found["write_ms"], found["read_ms"])


def table_of_keys(options: argparse.Namespace) -> None:
    """Print memory and disk by keys, and the cost of restarts."""
    masters = ["local[1,4]", "local[2,4]"]
    print_head(
        "millions of keys",
        "load, CPU us a key",
        "batch of 1,000, CPU ms",
        "driver, MB",
        "JVM, MB",
        "largest worker, MB",
        "replicas, MB",
        "checkpoint, MB",
    )
    restarts = []
    for millions in options.keys:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            found = run_child("keys", millions, directory)
            names = ("batch_ms", "driver_mb", "jvm_mb", "worker_mb", "replicas_mb", "checkpoint_mb")
            print_row(millions, f"{found['load_us']:.1f}", *(found[name] for name in names))
            for master in masters:
                shutil.rmtree(f"{directory}/replicas")
                restarts.append(
                    (millions, master, run_child("restart", millions, directory, master))
                )
            for executors in options.executors:
                shutil.rmtree(f"{directory}/replicas")
                with cluster_of(executors) as master:
                    cost = run_child("restart", millions, directory, master)
                restarts.append((millions, f"{executors} executors", cost))
    print_head(
        "millions of keys",
        "master",
        "driver, CPU s",
        "JVM, CPU s",
        "executors, CPU s",
        "workers, CPU s",
    )
    for millions, master, cost in restarts:
        print_row(millions, master, *(f"{cost[name]:.1f}" for name in Cpu._fields))


CASES = {
    "partitions": table_of_partitions,
    "cluster": table_of_cluster,
    "records": table_of_records,
    "keys": table_of_keys,
}


def child(name: str, arguments: list[str]) -> None:
    """Run one measurement in this process."""
    first, *others = arguments
    if name == "batches":
        print(json.dumps(measure_batches(first, int(others[0]), others[1])))
    elif name == "records":
        print(json.dumps(measure_records(int(first), int(others[0]))))
    elif name == "keys":
        measure_keys(int(first), others[0])
    else:
        measure_restart(int(first), *others)


def main() -> None:
    """Print the tables that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--partitions", nargs="+", type=int, default=PARTITIONS)
    parser.add_argument("--keys", nargs="+", type=int, default=[1, 5], help="millions")
    parser.add_argument("--executors", nargs="*", type=int, default=[2, 3])
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], options.child[1:])
        return
    for name in options.case or CASES:
        CASES[name](options)


if __name__ == "__main__":
    main()
