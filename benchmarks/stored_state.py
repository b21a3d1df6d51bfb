"""Benchmark: stored state, compared with Structured Streaming and Bytewax.

A running sum by key: batches of 10,000 records, two partitions, 200,000 keys of state, everything
durable. Each side is one process, on the same records; they take turns, a few batches each, so that
drift of the machine favours none. The figure is the median time of a batch. In dstreams it runs
from planning to the end of the work after the commit, with rows that Python reads. In Structured
Streaming it is the reported execution time of the trigger, with rows that are discarded. In Bytewax
it is the time between two batches of the source, with a snapshot of each. Input is in memory.

    python benchmarks/stored_state.py --peers-python VENV/bin/python   # all, half an hour
    python benchmarks/stored_state.py --case flat --case timeouts      # ours alone, minutes

The peers run in an interpreter that has pyspark, pandas, pyarrow, protobuf and bytewax. Cases:

    batch      a batch with 200,000 keys of state, and the first batch, which loads them; on a busy
               machine, compare the CPU time of all processes of a side
    flat       a batch with 50,000 and with 5,000,000 keys, and the memory of the workers
    elements   a batch that appends 1,000 rows to 10 lists, or sets 1,000 entries of 10 maps, with
               1,000 and with 100,000 elements each (transformWithState)
    states     as batch, but each record is added to a list, or counted in a map, of its key
               (transformWithState); one peer
    timeouts   a batch in which 100 of 1,000,000 timers are due, and one in which none are

The exit status is 1 if a target is missed or two sides have different sums.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from stored_state_data import (
    DIRECT,
    FACTOR,
    MODULUS,
    PARTITIONS,
    Span,
    ask,
    records,
    serve,
    spans_of,
)
from update_state_by_key import start_spark

KEYS = 200_000
TOUCHED = 10_000
WARM, PEERS_WARM = 40, 4
FEW, MANY = 50_000, 5_000_000
TIMERS, DUE = 1_000_000, 100
LOADS = 4
SETTLE = 10
"""Batches between the load and the measured ones."""
FAR_MS = 1 << 40
OWNERS, ELEMENTS_TOUCHED, ELEMENTS_WARM = 10, 1000, 10
FEW_ELEMENTS, MANY_ELEMENTS = 1000, 100_000

# Times that many of ours, for a batch and for the load.
ASKED = {
    "applyInPandasWithState": (20.0, 20.0),
    "transformWithState": (10.0, None),
    "groupBy().agg(sum)": (1.0, None),
    "bytewax": (2.0, None),
}
OURS = ("mapWithState", "flatMapGroupsWithState")
PROCESSOR = "ours: transformWithState"
FLAT, TIMED, PROCESSED = 1.3, 1.5, 1.1
ELEMENTS_ASKED = 20.0


def add(key: str, value: int, state: Any) -> tuple[str, int]:
    """The running sum of ``mapWithState``."""
    total = (state.getOption or 0) + value
    state.update(total)
    return key, total


def add_all(key: str, values: Iterator[int], state: Any) -> Iterator[tuple[str, int]]:
    """The running sum of ``flatMapGroupsWithState``."""
    total = sum(values) + (state.getOption or 0)
    state.update(total)
    yield key, total


def remind(key: str, values: Iterator[int], state: Any) -> Iterator[tuple[str, int]]:
    """Set a timer for as long as the value says, and return the key when it is due."""
    if state.hasTimedOut:
        state.remove()
        yield key, 1
        return
    state.update(1)
    state.setTimeoutDuration(max(values))


def processor_of(name: str) -> Any:
    """Return a stateful processor: the running sum, or one that adds elements."""
    from dstreams import StatefulProcessor

    class Sum(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Iterator[int], times: Any) -> Any:
            (total,) = self.total.get() or (0,)
            total += sum(rows)
            self.total.update((total,))
            yield key[0], total

    class Elements(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.list = handle.getListState("list", "element long")
            self.map = handle.getMapState("map", "element long", "count long")

        def handleInputRows(self, key: Any, rows: Iterator[int], times: Any) -> Any:
            elements = list(rows)
            for element in elements:
                if name in ("list", "lists"):
                    self.list.appendValue((element,))
                else:
                    (count,) = self.map.getValue((element,)) or (0,)
                    self.map.updateValue((element,), (count + 1,))
            yield key[0], len(elements)

    return Sum() if name == PROCESSOR else Elements()


def operation_of(name: str) -> Callable[[Any], Any]:
    """Return a stream of sums, or of keys that timed out, of a stream of pairs."""
    from dstreams import StateSpec

    if name in (PROCESSOR, "list", "map", "lists", "maps"):
        return lambda pairs: pairs.transformWithState(processor_of(name), numPartitions=PARTITIONS)
    return {
        "mapWithState": lambda pairs: pairs.mapWithState(
            StateSpec.function(add).numPartitions(PARTITIONS)
        ),
        "flatMapGroupsWithState": lambda pairs: pairs.flatMapGroupsWithState(
            add_all, numPartitions=PARTITIONS
        ),
        "timeouts": lambda pairs: pairs.flatMapGroupsWithState(
            remind, "append", "processingTime", numPartitions=PARTITIONS
        ),
    }[name]


def timer_records(spans: list[Span]) -> Iterator[list[tuple[str, int]]]:
    """Yield the batches of the case of timeouts; values are milliseconds that a key may wait.

    From the first measured batch on, every second one finds keys due; no record is of such a key.
    """
    first = WARM + LOADS
    for number, span in enumerate(spans):
        numbers = range(span.first, span.first + span.count)
        if WARM <= number < first:
            timers = {}
            if number == first - 1:
                for turn in range(first, len(spans), 2):
                    wait_ms = (turn - number) * 1000 - 500
                    timers.update({TIMERS - DUE * turn - n: wait_ms for n in range(DUE)})
            yield [(f"key-{n - DIRECT}", timers.get(n - DIRECT, FAR_MS)) for n in numbers]
        else:
            yield [(f"key-{n * FACTOR % MODULUS % (TIMERS // 2)}", FAR_MS) for n in numbers]


def element_records(span: Span, elements: int) -> list[tuple[str, int]]:
    """Return the records of a batch of elements: each element of each key, or random ones."""
    numbers = range(span.first, span.first + span.count)
    return [
        (f"key-{n % OWNERS}", (n - DIRECT) // OWNERS if n >= DIRECT else n * FACTOR % elements)
        for n in numbers
    ]


def serve_ours(name: str, keys: int, spans: list[Span], directory: str) -> None:
    """Run an operation on dstreams, batch by batch."""
    from dstreams import StreamingContext
    from dstreams.testing import ManualClock

    spark = start_spark()
    if name == "timeouts":
        batches: Iterator[Any] = timer_records(spans)
    elif name in ("list", "map"):
        batches = (element_records(span, keys) for span in spans)
    else:
        batches = (records(span, keys) for span in spans)
    ssc = StreamingContext(spark, 1, clock=ManualClock())
    ssc.checkpoint(directory)
    given: list[Any] = []
    total = 0

    def read(rdd: Any) -> None:
        nonlocal total
        total = sum(rdd.mapPartitions(sum_of_values).collect())

    # One batch at a time is made: all of them would not fit into memory.
    batch = ssc.queueStream([]).transform(lambda _: given.pop())
    operation_of(name)(batch).foreachRDD(read)

    def run(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            given.append(spark.parallelize(next(batches), PARTITIONS))
            started = time.perf_counter()
            ssc.step()
            seconds.append(time.perf_counter() - started)
        return seconds

    serve(run, lambda: {"total": total, "worker_mb": worker_mb()})
    ssc.stop()


def sum_of_values(pairs: Iterator[tuple[str, int]]) -> Iterator[int]:
    """Read all rows of a partition."""
    yield sum(value for _, value in pairs)


def worker_mb() -> float:
    """Return the memory of Spark's Python workers of this process, mapped files apart, in MB."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in " ".join(child.cmdline()):
                lines = Path(f"/proc/{child.pid}/smaps_rollup").read_text("ascii").splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))
        except (psutil.Error, OSError):
            continue
    return total / 1e3


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and all below it have used."""
    total = 0.0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # with that of children that have ended
        except psutil.Error:
            continue
    return total


class Side:
    """The process of a side.

    Args:
        name: its name.
        command: its command line.
        spans: its batches.
    """

    def __init__(self, name: str, command: list[str], keys: int, spans: list[Span]) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.cpu_s = 0.0
        self._child = subprocess.Popen(
            [*command, str(keys), json.dumps(spans)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, count: int) -> tuple[list[float], dict[str, float]]:
        """Run the next batches; return the seconds of each, and the other facts of the side."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            return ask(self._child.stdin, self._child.stdout, count)
        except (EOFError, BrokenPipeError) as error:
            status = self._child.wait()
            raise RuntimeError(f"{self.name} ended with exit status {status}") from error

    def median_ms(self) -> float:
        """Return the median of the measured batches."""
        return statistics.median(self.seconds) * 1000

    def cpu_ms(self) -> float:
        """Return the CPU time of a measured batch, of all processes of the side."""
        return self.cpu_s / len(self.seconds) * 1000

    def take_turn(self, batches: int) -> None:
        """Run batches that are measured."""
        before = cpu_seconds(self._child.pid)
        seconds, facts = self.run(batches)
        self.seconds += seconds
        # A side may report its CPU time without that of making its input.
        self.cpu_s += facts.get("cpu_s", cpu_seconds(self._child.pid) - before)

    def close(self) -> None:
        """End the process."""
        self._child.communicate()


def our_side(name: str, keys: int, spans: list[Span]) -> Side:
    """Start a side of ours."""
    return Side(name, [sys.executable, __file__, "--side", name], keys, spans)


def take_turns(sides: list[Side], rounds: int, batches: int) -> None:
    """Let the sides run batches in turn, the first of them first in every second round."""
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.take_turn(batches)


def compare_batches(options: argparse.Namespace) -> bool:
    """Compare all sides at 200,000 keys."""
    batches = options.rounds * options.batches
    own_spans = spans_of(KEYS, TOUCHED, WARM, batches)
    ours = [our_side(name, KEYS, own_spans) for name in (*OURS, PROCESSOR)]
    peers = str(Path(__file__).with_name("stored_state_peers.py"))
    spans = spans_of(KEYS, TOUCHED, PEERS_WARM, batches)
    command = [options.peers_python, peers]
    others = [Side(name, [*command, name], KEYS, spans) for name in options.peers]
    sides = [*ours, *others]
    loads, sums = {}, {}
    try:
        for side in sides:
            side.run(WARM if side in ours else PEERS_WARM)
            loads[side.name] = side.run(1)[0][0] * 1000
        take_turns(sides, options.rounds, options.batches)
        for side in sides:
            sums[side.name] = side.run(1)[1]["total"]
    finally:
        for side in sides:
            side.close()
    *grouped, processor = ours
    best_ms = max(side.median_ms() for side in grouped)
    best_load_ms = max(loads[side.name] for side in grouped)
    is_good = len(set(sums.values())) == 1
    print(f"sums {'are equal' if is_good else f'differ: {sums}'}; times that of the slower of ours")
    head = ("ms a batch", "times", "asked", "ms of CPU", "ms to load", "times", "asked")
    print(f"{'':26}" + "".join(f"{word:>11}" for word in head))
    for side in sides:
        ratio, load_ratio = side.median_ms() / best_ms, loads[side.name] / best_load_ms
        asked, load_asked = ASKED.get(side.name, (None, None))
        is_good &= ratio >= (asked or 0) and load_ratio >= (load_asked or 0)
        print(
            f"{side.name:26}{side.median_ms():>11.0f}{ratio:>11.1f}{asked or '':>11}"
            f"{side.cpu_ms():>11.0f}{loads[side.name]:>11.0f}{load_ratio:>11.1f}"
            f"{load_asked or '':>11}",
            flush=True,
        )
    ratio = processor.cpu_ms() / grouped[-1].cpu_ms()
    print(f"{PROCESSOR}: {ratio:.2f} times the CPU time of {OURS[-1]} (asked: {PROCESSED} at most)")
    return is_good and ratio <= PROCESSED


def compare_elements(options: argparse.Namespace) -> bool:
    """Compare batches that change a few elements of small and of large lists and maps."""
    is_good, batches = True, options.rounds * options.batches
    for name in ("list", "map"):
        sides = [
            our_side(
                name,
                count,
                spans_of(
                    OWNERS * count, ELEMENTS_TOUCHED, ELEMENTS_WARM, SETTLE + batches, 100_000
                ),
            )
            for count in (FEW_ELEMENTS, MANY_ELEMENTS)
        ]
        try:
            for side, count in zip(sides, (FEW_ELEMENTS, MANY_ELEMENTS), strict=True):
                side.run(ELEMENTS_WARM + -(-OWNERS * count // 100_000) + SETTLE)
            take_turns(sides, options.rounds, options.batches)
        finally:
            for side in sides:
                side.close()
        few_ms, many_ms = (side.median_ms() for side in sides)
        is_good &= many_ms <= FLAT * few_ms
        print(
            f"{name:26} {FEW_ELEMENTS:,} elements {few_ms:.0f} ms, {MANY_ELEMENTS:,} elements "
            f"{many_ms:.0f} ms: {many_ms / few_ms:.2f} (asked: {FLAT} at most); CPU "
            f"{sides[0].cpu_ms():.0f} and {sides[1].cpu_ms():.0f} ms",
            flush=True,
        )
    return is_good


def compare_states(options: argparse.Namespace) -> bool:
    """Compare lists and maps of 200,000 keys with those of Spark."""
    is_good, batches = True, options.rounds * options.batches
    peers = str(Path(__file__).with_name("stored_state_peers.py"))
    for name in ("lists", "maps"):
        own = our_side(name, KEYS, spans_of(KEYS, TOUCHED, WARM, batches))
        spans = spans_of(KEYS, TOUCHED, PEERS_WARM, batches)
        peer = Side(name, [options.peers_python, peers, name], KEYS, spans)
        try:
            own.run(WARM + 1)
            peer.run(PEERS_WARM + 1)
            take_turns([own, peer], options.rounds, options.batches)
            sums = [side.run(1)[1]["total"] for side in (own, peer)]
        finally:
            own.close()
            peer.close()
        ratio = peer.median_ms() / own.median_ms()
        is_good &= ratio >= ELEMENTS_ASKED and sums[0] == sums[1]
        print(
            f"{name:26} {own.median_ms():.0f} ms, Structured Streaming {peer.median_ms():.0f} ms: "
            f"{ratio:.1f} (asked: {ELEMENTS_ASKED:.0f}); CPU {own.cpu_ms():.0f} and "
            f"{peer.cpu_ms():.0f} ms; sums {'are equal' if sums[0] == sums[1] else sums}",
            flush=True,
        )
    return is_good


def compare_sizes(options: argparse.Namespace) -> bool:
    """Compare batches of ours with few keys and with many."""
    sides, memory = [], []
    is_good = True
    for name in OURS:
        batches = options.rounds * options.batches
        sides = [
            our_side(name, keys, spans_of(keys, TOUCHED, WARM, SETTLE + batches, FEW))
            for keys in (FEW, MANY)
        ]
        try:
            for side, keys in zip(sides, (FEW, MANY), strict=True):
                side.run(WARM)
                side.run(keys // FEW)
                side.run(SETTLE)
            take_turns(sides, options.rounds, options.batches)
            memory = [side.run(1)[1]["worker_mb"] for side in sides]
        finally:
            for side in sides:
                side.close()
        few_ms, many_ms = (side.median_ms() for side in sides)
        is_good &= many_ms <= FLAT * few_ms and memory[1] <= FLAT * memory[0]
        print(
            f"{name:26} {FEW:,} keys {few_ms:.0f} ms, {MANY:,} keys {many_ms:.0f} ms: "
            f"{many_ms / few_ms:.2f} (asked: {FLAT} at most); workers {memory[0]:.0f} and "
            f"{memory[1]:.0f} MB",
            flush=True,
        )
    return is_good


def compare_timeouts(options: argparse.Namespace) -> bool:
    """Compare batches in which timers are due with batches in which none are."""
    batches = 2 * options.rounds * options.batches
    spans = spans_of(TIMERS, TOUCHED, WARM, batches, TIMERS // LOADS)
    side = our_side("timeouts", TIMERS, spans)
    due, none = [], []
    try:
        side.run(WARM + LOADS)
        for _ in range(batches // 2):
            for measured, wanted in ((due, DUE), (none, 0)):
                seconds, facts = side.run(1)
                measured.extend(seconds)
                if facts["total"] != wanted:
                    raise RuntimeError(f"{facts['total']} keys timed out, {wanted} were due")
    finally:
        side.close()
    due_ms, none_ms = (statistics.median(seconds) * 1000 for seconds in (due, none))
    print(
        f"{DUE} of {TIMERS:,} timers due {due_ms:.0f} ms, none {none_ms:.0f} ms: "
        f"{due_ms / none_ms:.2f} (asked: {TIMED} at most)",
        flush=True,
    )
    return due_ms <= TIMED * none_ms


CASES = {
    "batch": compare_batches,
    "flat": compare_sizes,
    "elements": compare_elements,
    "states": compare_states,
    "timeouts": compare_timeouts,
}


def main() -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument("--peers", nargs="*", choices=ASKED, default=list(ASKED))
    parser.add_argument("--rounds", type=int, default=4, help="turns of each side")
    parser.add_argument("--batches", type=int, default=5, help="batches of a turn")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("keys", nargs="?", type=int, help=argparse.SUPPRESS)
    parser.add_argument("spans", nargs="?", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            spans = [Span(*span) for span in options.spans]
            serve_ours(options.side, options.keys, spans, directory)
        return 0
    good = [CASES[name](options) for name in options.case or CASES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
