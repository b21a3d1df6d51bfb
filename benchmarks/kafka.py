"""Benchmark: reading and counting Kafka topics, compared with other engines, on a real broker.

Records are JSON of 130 bytes, in two partitions of a topic, one topic per side. The broker is a
separate process, whose time is not counted. The input of a side is in its topic before it starts;
until then all of its processes are stopped with SIGSTOP. The figure is records per second of CPU
time of all processes of a side (the driver, its JVM and the workers), after warm-up. The sides take
turns, so that drift of the machine favours none.

    python benchmarks/kafka.py --peers-python VENV/bin/python             # all, half an hour
    python benchmarks/kafka.py --case read --case empty --case plan       # ours alone, minutes
    python benchmarks/kafka.py --case read --profile      # a profile of the workers

It has the requirements of the tests with a broker. The peers run in an interpreter that has
pyspark, pandas, pyarrow, protobuf, msgspec, bytewax and quixstreams. Cases:

    read     records that tasks read and discard
    count    a count by key with durable state in every batch of 100,000 records
    empty    a batch without new records, compared with an empty batch of a queue
    plan     planning a batch of a topic with 1,000 partitions

The exit status is 1 if a target is missed or two sides have different counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from stored_state import cpu_seconds
from stored_state_data import PARTITIONS, ask, serve
from update_state_by_key import start_spark

sys.path.insert(0, str(Path(__file__).parents[1]))  # the broker of the tests

if TYPE_CHECKING:
    from dstreams import StreamingContext
    from tests.support.kafka_cluster import KafkaCluster

RECORDS = 100_000
KEYS = 20_000
RECORD_BYTES = 130
OUR_WARM, QUERIES_WARM, OTHERS_WARM = 60, 10, 5  # batches: a JVM compiles what it runs often
EMPTY_WARM = 100
MANY_PARTITIONS = 1_000

READ_A_SECOND = 300_000
PLAN_MS = 50.0
EMPTY_TIMES = 1.2
OURS = ("updateStateByKey", "mapWithState")
QUERIES = ("applyInPandasWithState", "transformWithState")
ASKED = {  # times as many of ours
    "applyInPandasWithState": 10.0,
    "transformWithState": 4.0,
    "bytewax": 2.0,
    "quixstreams": 2.0,
}


@cache
def batch_records() -> list[tuple[bytes, bytes]]:
    """Return keys and values of a batch; every batch has the same ones."""
    randomness = random.Random(17)
    records = []
    for number in range(RECORDS):
        # A key is always in the same partition: Quix Streams counts within partitions.
        user = randomness.randrange(KEYS // PARTITIONS) * PARTITIONS + number % PARTITIONS
        fields = {"user": f"user-{user:06}", "page": f"/page/{number % 997}", "ms": number}
        start = f'{json.dumps(fields)[:-1]}, "agent": "'
        value = f'{start}{"x" * (RECORD_BYTES - len(start) - 2)}"}}'
        records.append((fields["user"].encode(), value.encode()))
    return records


def fill(kafka: KafkaCluster, topic: str, batches: int) -> None:
    """Add the records of some batches to a topic."""
    producer = kafka.producer(linger_ms=20, queue_buffering_max_messages=2 * RECORDS)
    for _ in range(batches):
        for number, (key, value) in enumerate(batch_records()):
            producer.produce(topic, value, key, number % PARTITIONS)
        if producer.flush(60):
            raise RuntimeError(f"the records of a batch are not in {topic} after a minute")


@dataclass
class View:
    """The fields of a record."""

    user: str


def user_and_one(record: Any) -> tuple[str, int]:
    """Return the key of a record with the count 1."""
    return record.value.user, 1


def add_up(new: list[int], count: int | None) -> int:
    """The count of ``updateStateByKey``."""
    return (count or 0) + sum(new)


def add_one(key: str, value: int, state: Any) -> tuple[str, int]:
    """The count of ``mapWithState``."""
    count = (state.getOption or 0) + value
    state.update(count)
    return key, count


def length_of(records: Iterable[Any]) -> Iterator[int]:
    """Read all records of a partition, and yield their number."""
    yield sum(1 for _ in records)


def highest_of(pairs: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Read all counts of a partition; yield the highest."""
    yield max(pairs, key=lambda pair: (pair[1], pair[0]), default=("", 0))


def serve_ours(name: str, bootstrap: str, topic: str, directory: str, profiled: bool) -> None:
    """Run a stream of dstreams, batch by batch."""
    from dstreams import Settings, StateSpec, StreamingContext
    from dstreams.kafka import ConsumerStrategies, JsonDecoder, KafkaUtils, LocationStrategies
    from dstreams.testing import ManualClock

    if profiled:
        os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.python.profile=true pyspark-shell"
    spark = start_spark()
    settings = Settings(kafka_max_rate=RECORDS // PARTITIONS)
    ssc = StreamingContext(spark, 1, clock=ManualClock(), settings=settings)
    ssc.checkpoint(directory)
    found: dict[str, Any] = {}

    def count(rdd: Any) -> None:
        found["total"] = sum(rdd.mapPartitions(length_of).collect())

    def look(rdd: Any) -> None:
        found["highest"] = max(rdd.mapPartitions(highest_of).collect(), key=lambda pair: pair[1])

    if name == "queue":
        ssc.queueStream([]).foreachRDD(count)
    else:
        parameters: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "auto.offset.reset": "earliest",
        }
        if name != "read":
            parameters["value.deserializer"] = JsonDecoder(View)
        records = KafkaUtils.createDirectStream(
            ssc,
            LocationStrategies.PreferConsistent,
            ConsumerStrategies.Subscribe([topic], parameters),
        )
        if name == "read":
            records.foreachRDD(count)
        elif name == "updateStateByKey":
            counts = records.map(user_and_one).updateStateByKey(add_up, PARTITIONS)
            counts.checkpoint(1)
            counts.foreachRDD(look)
        else:
            spec = StateSpec.function(add_one).numPartitions(PARTITIONS)
            records.map(user_and_one).mapWithState(spec).foreachRDD(look)

    serve(partial(timed_steps, ssc), lambda: found)
    ssc.stop(stopSparkContext=False)
    if profiled:
        number, newest, _ = spark.profiler_collector.profilers[-1]
        newest.show(number)
    spark.stop()


def timed_steps(ssc: StreamingContext, batches: int) -> list[float]:
    """Run batches; return the seconds of each."""
    seconds = []
    for _ in range(batches):
        started = time.perf_counter()
        ssc.step()
        seconds.append(time.perf_counter() - started)
    return seconds


class Side:
    """A side: its topic, its process and child processes, and their measurements.

    Args:
        kafka: the broker.
        name: its name.
        python: the interpreter.
        warm: batches that it runs first.
    """

    def __init__(self, kafka: KafkaCluster, name: str, python: str, warm: int) -> None:
        self.name = name
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.batches = 0
        self.read = 0
        self._kafka = kafka
        self._warm = warm
        self._topic = kafka.create_topic(PARTITIONS)
        program = __file__ if name not in ASKED else str(Path(__file__).with_name("kafka_peers.py"))
        command = [python, program, "--side", name, "--bootstrap", kafka.bootstrap]
        profile = ["--profile"] if "--profile" in sys.argv else []
        if name in QUERIES:
            from tests.support.maven_jars import KAFKA, class_path

            command += ["--jars", class_path(KAFKA, "peers")]
        self._child = subprocess.Popen(
            [*command, "--topic", self._topic, *profile],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if profile or os.environ.get("VERBOSE") else subprocess.DEVNULL,
            text=True,
        )

    def run(self, batches: int) -> dict[str, Any]:
        """Let it read one batch, and then the measured ones; return its results.

        The first batch restarts workers, which end after an idle minute.
        """
        self._hold(psutil.Process.suspend)
        try:
            fill(self._kafka, self._topic, 1 + batches)
        finally:
            self._hold(psutil.Process.resume)
        self._ask(1)
        self.read += 1 + batches
        before_s, started = cpu_seconds(self._child.pid), time.perf_counter()
        _, found = self._ask(batches)
        self.seconds += time.perf_counter() - started
        self.cpu_s += cpu_seconds(self._child.pid) - before_s
        self.batches += batches
        return found

    def run_empty(self, batches: int) -> list[float]:
        """Let it run batches without records; return the seconds of each."""
        before_s = cpu_seconds(self._child.pid)
        seconds, _ = self._ask(batches)
        self.seconds += sum(seconds)
        self.cpu_s += cpu_seconds(self._child.pid) - before_s
        self.batches += batches
        return seconds

    def _ask(self, batches: int) -> tuple[list[float], dict[str, Any]]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            return ask(self._child.stdin, self._child.stdout, batches)
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError(f"{self.name} ended with status {self._child.wait()}") from error

    def _hold(self, act: Any) -> None:
        try:
            processes = [psutil.Process(self._child.pid)]
            processes += processes[0].children(recursive=True)
        except psutil.NoSuchProcess:
            return
        for process in processes:
            try:
                act(process)
            except psutil.NoSuchProcess:
                continue

    def warm_up(self) -> None:
        """Run the first batches, which are not measured."""
        self.run(self._warm)
        self.forget()

    def forget(self) -> None:
        """Begin to measure."""
        self.seconds = self.cpu_s = 0.0
        self.batches = 0

    @property
    def a_cpu_second(self) -> float:
        """Records that it reads in a second of CPU time."""
        return self.batches * RECORDS / self.cpu_s

    @property
    def a_second(self) -> float:
        """Records that it reads in a second, on as many cores as it gets."""
        return self.batches * RECORDS / self.seconds

    def close(self) -> None:
        """End its process."""
        told, _ = self._child.communicate()
        if told.strip():
            print(told)


def ours(kafka: KafkaCluster, name: str) -> Side:
    """Return a side of dstreams."""
    return Side(kafka, name, sys.executable, OUR_WARM)


def compare_reading(kafka: KafkaCluster, options: argparse.Namespace) -> bool:
    """Measure reading alone."""
    side = ours(kafka, "read")
    try:
        side.warm_up()
        for _ in range(options.rounds):
            assert side.run(options.batches)["total"] == RECORDS
    finally:
        side.close()
    print(
        f"reading: {side.a_cpu_second:,.0f} records a second and core (asked: {READ_A_SECOND:,}), "
        f"{side.a_second:,.0f} a second; a batch took {side.cpu_s / side.batches * 1000:.0f} ms of "
        f"CPU, {side.seconds / side.batches * 1000:.0f} ms",
        flush=True,
    )
    return side.a_cpu_second >= READ_A_SECOND


def compare_counts(kafka: KafkaCluster, options: argparse.Namespace) -> bool:
    """Compare counts by key."""
    sides = [ours(kafka, name) for name in OURS]
    for name in options.peers:
        warm = QUERIES_WARM if name in QUERIES else OTHERS_WARM
        sides.append(Side(kafka, name, options.peers_python, warm))
    found: dict[str, Any] = {}
    try:
        for side in sides:
            side.warm_up()
        for number in range(options.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                found[side.name] = side.run(options.batches)
    finally:
        for side in sides:
            side.close()
    is_good = True
    of_ours = [side.a_cpu_second for side in sides if side.name in OURS]
    print(f"{'':24}{'a CPU second':>14}{'a second':>12}{'ours are':>16}{'asked':>7}{'highest':>10}")
    for side in sides:
        count = found[side.name]["highest"][1]
        ratios, asked = [one / side.a_cpu_second for one in of_ours], ASKED.get(side.name)
        is_good &= min(ratios) >= (asked or 0) and count == side.read * highest_count()
        times = " and ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{side.name:24}{side.a_cpu_second:>14,.0f}{side.a_second:>12,.0f}{times:>16}"
            f"{asked or '':>7}{count / side.read:>10.1f}",
            flush=True,
        )
    print(f"the highest count of a batch is {highest_count()}")
    return is_good


def highest_count() -> int:
    """Return the number of records in a batch with the most frequent key."""
    counts: dict[bytes, int] = {}
    for key, _ in batch_records():
        counts[key] = counts.get(key, 0) + 1
    return max(counts.values())


def compare_empty(kafka: KafkaCluster, options: argparse.Namespace) -> bool:
    """Compare batches without new records."""
    sides = [ours(kafka, name) for name in ("read", "queue")]
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    try:
        for side in sides:
            side.run_empty(EMPTY_WARM)
            side.forget()
        for number in range(2 * options.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                times[side.name] += side.run_empty(10 * options.batches)
    finally:
        for side in sides:
            side.close()
    kafka_ms, queue_ms = (statistics.median(times[side.name]) * 1000 for side in sides)
    kafka_cpu_ms, queue_cpu_ms = (side.cpu_s / side.batches * 1000 for side in sides)
    ratio = kafka_ms / queue_ms
    print(
        f"a batch without new records {kafka_ms:.1f} ms ({kafka_cpu_ms:.1f} of CPU), an empty one "
        f"of a queue {queue_ms:.1f} ms ({queue_cpu_ms:.1f} of CPU): {ratio:.2f} times (asked: "
        f"{EMPTY_TIMES} at most)",
        flush=True,
    )
    return ratio <= EMPTY_TIMES


def compare_planning(kafka: KafkaCluster, options: argparse.Namespace) -> bool:
    """Measure the time to plan a batch of many partitions."""
    from types import SimpleNamespace

    from dstreams import Settings
    from dstreams.common.clock import SystemClock
    from dstreams.kafka.decoding import AsRecords
    from dstreams.kafka.kafka_source import KafkaSource
    from dstreams.kafka.parameters import KafkaParameters
    from dstreams.kafka.topics import TopicSelection
    from tests.support.waiting import wait_for

    topic = kafka.create_topic(MANY_PARTITIONS)
    fill(kafka, topic, 1)
    wait_for(lambda: has_leaders(kafka, topic))
    parameters = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
    source = KafkaSource(
        KafkaParameters.of(parameters, "planning"), TopicSelection((topic,)), {}, AsRecords()
    )
    environment: Any = SimpleNamespace(
        spark=None, clock=SystemClock(), settings=Settings(), batch_ms=1000, newest=None
    )
    reader = source.open(environment)
    reader.start()
    seconds: list[float] = []
    end = None
    for number in range(10 * options.rounds * options.batches):
        started = time.perf_counter()
        planned = reader.plan(end, 1000 * number)
        seconds.append(time.perf_counter() - started)
        end = planned.end
    reader.close()
    kafka.delete_topic(topic)
    median_ms = statistics.median(seconds) * 1000
    print(
        f"planning {MANY_PARTITIONS:,} partitions takes {median_ms:.1f} ms (asked: {PLAN_MS:g}), "
        f"{max(seconds) * 1000:.1f} ms at most",
        flush=True,
    )
    return median_ms <= PLAN_MS


def has_leaders(kafka: KafkaCluster, topic: str) -> bool:
    """Return whether the offsets of all partitions of a topic are available."""
    from confluent_kafka import KafkaException

    try:
        return len(kafka.end_offsets(topic)) == MANY_PARTITIONS
    except KafkaException:
        return False


CASES = {
    "read": compare_reading,
    "count": compare_counts,
    "empty": compare_empty,
    "plan": compare_planning,
}


def main() -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument("--peers", nargs="*", choices=ASKED, default=list(ASKED))
    parser.add_argument("--rounds", type=int, default=4, help="turns of each side")
    parser.add_argument("--batches", type=int, default=3, help="batches of a turn")
    parser.add_argument("--profile", action="store_true", help="show what our workers do")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        if options.side:
            serve_ours(options.side, options.bootstrap, options.topic, directory, options.profile)
            return 0
        from tests.support.kafka_broker import KafkaBroker

        kafka = stack.enter_context(KafkaBroker(Path(directory)))
        good = [CASES[name](kafka, options) for name in options.case or CASES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
