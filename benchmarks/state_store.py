"""Benchmark: the state store, compared with a plain dict in the same process.

A case with a number of keys makes a store of that many, then runs batches in turn with a dict that
holds the same values. A batch reads, changes and commits random keys, and opens the version that
the previous batch committed, which applies it. The table has the medians of CPU time (of the whole
process, including the work for LMDB and the disk) and of wall time, and their ratio to the dict.

    python benchmarks/state_store.py [--case 1M] [--rounds 15] [--memory] [--directory DIR]
"""

from __future__ import annotations

import argparse
import gc
import glob
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, cast

import lmdb

from checkpoint import open_files
from checkpoint.state_store import (
    EMPTY,
    DataValues,
    LmdbBackend,
    MemoryBackend,
    Shapes,
    StateStore,
    StoreId,
    VersionId,
    replica_files,
)
from checkpoint.state_store.backend import StateBackend
from checkpoint.state_store.classes import Classes
from checkpoint.state_store.lmdb_backend import LmdbVersion
from checkpoint.state_store.maintenance import take_snapshot
from checkpoint.state_store.store_files import Compression

ID = StoreId("benchmark", "counts", "default", 0, 1)
TIMEOUT_MS = 1_000_000

Value = Any


def small(number: int) -> Value:
    """A tuple of 30 bytes when pickled."""
    return (number, number * 0.5, 7)


def large(number: int) -> Value:
    """A dict of 9 fields and about 200 bytes when pickled."""
    return {
        "name": f"user-{number}",
        "count": number,
        "total": number * 0.5,
        "tags": ("a", "b", "c"),
        "first_ms": 1_768_000_000_000 + number,
        "last_ms": 1_770_000_000_000 + number * 7,
        "city": "Dresden",
        "active": True,
        "ratio": 0.25,
    }


@dataclass
class Total:
    """The same fields as of :func:`small`, in a dataclass."""

    count: int
    total: float
    kind: int


def of_class(number: int) -> Value:
    """A dataclass of the fields of :func:`small`."""
    return Total(number, number * 0.5, 7)


def step_of_class(given: float, value: Value) -> Value:
    """The user's function on dataclasses."""
    value.count += 1
    value.total += given
    return value


def text(number: int) -> Value:
    """A tuple that is not a row: with a string, and paired with a time, as operators store it."""
    return ((f"user-{number}", number, number * 0.5), 1_770_000_000_000)


def step_text(given: float, value: Value) -> Value:
    """The user's function on those."""
    (name, count, total), time_ms = value
    return ((name, count + 1, total + given), time_ms)


@dataclass
class Text:
    """The same fields as of :func:`text`, in a dataclass."""

    name: str
    count: int
    total: float


def text_of_class(number: int) -> Value:
    """A dataclass with the fields of :func:`text`, paired with the time."""
    return (Text(f"user-{number}", number, number * 0.5), 1_770_000_000_000)


def step_text_of_class(given: float, value: Value) -> Value:
    """The user's function on those."""
    state, time_ms = value
    state.count += 1
    state.total += given
    return (state, time_ms)


def step_small(given: float, value: Value) -> Value:
    """The user's function on tuples."""
    return (value[0] + 1, value[1] + given, value[2])


def step_large(given: float, value: Value) -> Value:
    """The user's function on dicts."""
    value["count"] += 1
    value["total"] += given
    return value


@dataclass(frozen=True)
class Case:
    """A size to measure.

    Args:
        keys: keys of the store.
        touched: keys of a batch.
        make: makes a value of a number.
        step: the user's function.
    """

    keys: int
    touched: int
    make: Callable[[int], Value] = small
    step: Callable[[float, Value], Value] = step_small


BATCHES = {
    "10k": Case(10_000, 10_000),
    "100k": Case(100_000, 10_000),
    "1M": Case(1_000_000, 10_000),
    "5M": Case(5_000_000, 10_000),
    "100k-dicts": Case(100_000, 10_000, large, step_large),
    "1M-dicts": Case(1_000_000, 10_000, large, step_large),
    "1M-50k": Case(1_000_000, 50_000),
    "100k-class": Case(100_000, 10_000, of_class, step_of_class),
    "100k-text": Case(100_000, 10_000, text, step_text),
    "100k-text-class": Case(100_000, 10_000, text_of_class, step_text_of_class),
    "one": Case(1_000_000, 1),
}
FLOORS = ("100k", "1M", "100k-dicts")


class Stopwatch:
    """Median CPU and wall times in ms, by name."""

    def __init__(self) -> None:
        self._laps: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Measure the body of the with statement."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        lap = (time.process_time() - cpu, time.perf_counter() - wall)
        self._laps.setdefault(name, []).append(lap)

    def cpu_ms(self, name: str) -> float:
        """Median CPU time."""
        return statistics.median(cpu for cpu, _ in self._laps[name]) * 1e3

    def wall_ms(self, name: str) -> float:
        """Median wall time."""
        return statistics.median(wall for _, wall in self._laps[name]) * 1e3


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def make_backend(directory: str | None) -> StateBackend:
    """Return contents in memory, or on files below *directory*."""
    if directory is None:
        return MemoryBackend()
    local = os.path.join(directory, "local")
    os.makedirs(local, mode=0o700, exist_ok=True)
    return LmdbBackend(open_files(os.path.join(directory, "files")), local)


def fill(store: StateStore, case: Case, timeouts: bool = False) -> VersionId:
    """Commit a store of all keys, in parts as batches would."""
    version_id = EMPTY
    for start in range(0, case.keys, 250_000):
        with store.writer(ID, version_id) as writer:
            for number in range(start, min(start + 250_000, case.keys)):
                timeout_ms = TIMEOUT_MS + number if timeouts else None
                writer.put(f"user-{number}", case.make(number), timeout_ms)
            version_id = writer.commit().version_id
    store.reader(ID, version_id).close()
    return version_id


def batch_of(case: Case) -> list[tuple[str, float]]:
    """Return the touched keys and their new values."""
    return [(f"user-{n}", 1.5) for n in random.sample(range(case.keys), case.touched)]


def run_batches(name: str, case: Case, store: StateStore, rounds: int) -> None:
    """Measure batches on a store and on a dict, in turn."""
    version_id = fill(store, case)
    plain = {f"user-{number}": case.make(number) for number in range(case.keys)}
    gc.collect()
    gc.freeze()
    watch, step = Stopwatch(), case.step
    for _ in range(rounds):
        pairs = batch_of(case)
        gc.collect()
        with watch.lap("dict"):
            for key, given in pairs:
                plain[key] = step(given, plain.get(key))
        pairs = batch_of(case)
        with watch.lap("update"):
            with watch.lap("update.open"):
                writer = store.writer(ID, version_id)
            with watch.lap("update.update"):
                writer.update(sorted(pairs, key=itemgetter(0)), step)
            with watch.lap("update.commit"):
                version_id = writer.commit().version_id
        pairs = batch_of(case)
        with watch.lap("get/put"):
            writer = store.writer(ID, version_id)
            get, put = writer.get, writer.put
            for key, given in pairs:
                put(key, step(given, get(key)))
            version_id = writer.commit().version_id
    say(f"{name}: {case.touched} of {case.keys} keys, {rounds} rounds")
    for what in ("dict", "update", "update.open", "update.update", "update.commit", "get/put"):
        cpu, wall = watch.cpu_ms(what), watch.wall_ms(what)
        ratio = cpu / watch.cpu_ms("dict")
        say(f"  {what:14} cpu {cpu:8.2f} ms  wall {wall:8.2f} ms  x {ratio:5.2f}")
    gc.unfreeze()


def run_floor(name: str, case: Case, directory: str, rounds: int) -> None:
    """Measure LMDB alone: to read and to write the records of a batch, keys encoded and sorted."""
    encode = DataValues().encoder(Shapes())
    path = os.path.join(directory, "floor")
    with lmdb.open(path, 4 << 30, sync=False, metasync=False, meminit=False, writemap=True) as env:
        pairs = ((b"suser-%d" % number, encode(case.make(number))) for number in range(case.keys))
        with env.begin(write=True) as txn:
            txn.cursor().putmulti(sorted(pairs), append=True)
        plain = {f"user-{number}": case.make(number) for number in range(case.keys)}
        gc.collect()
        gc.freeze()
        watch = Stopwatch()
        for _ in range(rounds):
            batch = batch_of(case)
            with watch.lap("dict"):
                for key, given in batch:
                    plain[key] = case.step(given, plain.get(key))
            keys = sorted(b"s" + key.encode() for key, _ in batch_of(case))
            with watch.lap("LMDB"):
                with watch.lap("LMDB.get"), env.begin() as txn:
                    records = cast("list[bytes]", list(map(txn.get, keys)))
                with watch.lap("LMDB.put"), env.begin(write=True) as txn:
                    txn.cursor().putmulti(zip(keys, records, strict=True))
        gc.unfreeze()
    say(f"floor of {name}: {case.touched} of {case.keys} keys, {rounds} rounds")
    for what in ("dict", "LMDB", "LMDB.get", "LMDB.put"):
        cpu = watch.cpu_ms(what)
        say(f"  {what:14} cpu {cpu:8.2f} ms  x {cpu / watch.cpu_ms('dict'):5.2f}")


def run_scan(store: StateStore) -> None:
    """Measure scans of a million keys, and timeouts of as many."""
    case = Case(1_000_000, 0)
    version_id = fill(store, case, timeouts=True)
    watch = Stopwatch()
    with store.reader(ID, version_id) as reader:
        for _ in range(3):
            with watch.lap("due"):
                due = sum(1 for _ in reader.due(TIMEOUT_MS + 100))
    say(f"due: {due} of {case.keys} keys in {watch.cpu_ms('due'):.2f} ms of CPU")
    version_id = fill(store, case)
    with store.reader(ID, version_id) as reader:
        for _ in range(3):
            with watch.lap("scan"):
                found = sum(1 for _ in reader.items())
    rate = found / watch.cpu_ms("scan") / 1e3
    say(f"scan: {found} keys, decoded: {rate:.2f} M/s of CPU")


OPEN = """
import sys, time
from checkpoint.state_store import VersionId
from checkpoint.state_store import StateStore
from state_store import ID, make_backend
store = StateStore(make_backend(sys.argv[1]))
start = time.perf_counter()
reader = store.reader(ID, VersionId(int(sys.argv[2]), sys.argv[3]))
reader.get("user-7")
sys.stdout.write(f"{(time.perf_counter() - start) * 1e3:.2f}")
"""


def run_open(store: StateStore, directory: str, rounds: int) -> None:
    """Measure opening a warm store from new processes, and rebuilding it from its files."""
    case = Case(1_000_000, 0)
    version_id = fill(store, case)
    command = [sys.executable, "-c", OPEN, directory, str(version_id.version), version_id.uid]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    times = [
        float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
        for _ in range(rounds)
    ]
    say(f"open warm in a new process, with one get: {statistics.median(times):.2f} ms (wall)")
    run_rebuild("changelogs", case, directory, version_id, Compression.NONE)
    for compression in Compression:
        files = os.path.join(directory, "files")
        backend = LmdbBackend(open_files(files), fresh(directory), compression=compression)
        with backend.open_apart(ID, version_id) as base:
            size_bytes = take_snapshot(backend, ID, cast(LmdbVersion, base))
        name = f"a snapshot of {(size_bytes or 0) / 1e6:.0f} MB ({compression.value})"
        run_rebuild(name, case, directory, version_id, compression)
        for snapshot in glob.glob(os.path.join(files, "**", "*.snapshot"), recursive=True):
            os.unlink(snapshot)


def run_rebuild(
    source: str, case: Case, directory: str, version_id: VersionId, compression: Compression
) -> None:
    """Measure building the replicas of hosts that have none."""
    watch = Stopwatch()
    for _ in range(5):
        local = fresh(directory)
        files = open_files(os.path.join(directory, "files"))
        backend = LmdbBackend(files, local, compression=compression)
        with watch.lap("rebuild"):
            StateStore(backend).reader(ID, version_id).close()
        for path in list(replica_files._table.open):
            replica_files._table.open.pop(path).env.close()
        shutil.rmtree(local)
    rate = case.keys / watch.cpu_ms("rebuild") / 1e3
    say(f"rebuild: {case.keys} keys from {source}: {rate:.2f} M/s of CPU")


def fresh(directory: str) -> str:
    """Return an empty local directory."""
    return tempfile.mkdtemp(prefix="other-host-", dir=directory)


def private_mb() -> float:
    """Return the private memory of this process, without mapped files."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        facts = dict(line.split(":") for line in list(lines)[1:])
    return int(facts["Anonymous"].split()[0]) / 1e3


def run_memory(store: StateStore, rounds: int) -> None:
    """Measure the memory of a process that runs batches, for several sizes of state."""
    for keys in (10_000, 100_000, 1_000_000):
        case = Case(keys, 10_000)
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            continue
        version_id = fill(store, case)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
        before = private_mb()
        for _ in range(rounds):
            with store.writer(ID, version_id) as writer:
                writer.update(batch_of(case), step_small)
                version_id = writer.commit().version_id
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        say(f"memory, {keys} keys: +{private_mb() - before:.1f} MB private, peak {peak:.0f} MB")
        os._exit(0)


def main() -> None:
    """Run the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*BATCHES, "floor", "scan", "open", "memory"]
    parser.add_argument("--case", action="append", choices=names)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory", action="store_true", help="contents in memory, not on files")
    parser.add_argument("--directory", help="directory for files; a temporary one by default")
    options = parser.parse_args()
    random.seed(7)
    for name in options.case or names:
        directory = tempfile.mkdtemp(prefix="state-store-", dir=options.directory)
        try:
            run(name, options, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def run(name: str, options: argparse.Namespace, directory: str) -> None:
    """Run one case below a directory of its own."""
    classes = Classes(frozenset({__name__}))
    store = StateStore(make_backend(None if options.memory else directory), DataValues(classes))
    if name == "scan":
        run_scan(store)
    elif name == "floor":
        for floor in FLOORS:
            run_floor(floor, BATCHES[floor], fresh(directory), options.rounds)
    elif name == "open":
        run_open(store, directory, options.rounds)
    elif name == "memory":
        run_memory(store, options.rounds)
    else:
        run_batches(name, BATCHES[name], store, options.rounds)


if __name__ == "__main__":
    main()
