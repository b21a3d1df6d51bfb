"""Programs of pyspark.streaming whose checkpoints are adopted, and the process that runs them.

``python -m tests.recovery.spark_streams FD`` takes pickled commands: ``(group, directory)`` starts
the programs of a group, None runs a batch, and is answered by its outputs.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from tests.conformance.oracle_process import OracleProcess, oracle_context
from tests.support.waiting import wait_for

LAST = 11
"""The number of batches of a run, of a second each."""

Outputs = dict[str, str]
"""The elements of the RDD of each program, as text."""

QUEUE = [[("q", number), (f"q{number % 3}", 1)] for number in range(1, LAST + 1)]
_EVERY_S, _LIMIT_S = 3, 600


def _total(values: Iterable[int], state: int | None) -> int | None:
    total = sum(values) + (state or 0)
    return None if total == 7 else total  # now and again a key is dropped


def _sum(values: Iterable[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def _longest(values: list[int], state: list[int] | None) -> list[int]:
    return [*(state or []), *values][-4:]


def _add(one: Any, other: Any) -> Any:
    return one + other


def _subtract(one: Any, other: Any) -> Any:
    return one - other


def _has_count(pair: tuple[Any, int]) -> bool:
    return pair[1] > 0


def _first_letter(key: str) -> int:
    return ord(key[0])


def _words(ssc: Any, directory: Path, name: str = "in") -> Any:
    lines = ssc.textFileStream(f"file://{directory}/{name}")
    return lines.flatMap(str.split).map(lambda word: (word, 1))


def _states(ssc: Any, directory: Path, _: Any) -> dict[str, Any]:
    """States: plain, a second one that is checkpointed less often, initial ones, partitioned."""
    words = _words(ssc, directory)
    totals = words.updateStateByKey(_total, 2)
    seldom = words.updateStateByKey(_longest, 3)
    begun = words.updateStateByKey(_total, initialRDD=[("a", 100), ("never", 1)])
    placed = words.partitionBy(3, _first_letter).updateStateByKey(_total, 3)
    for one in (totals, begun, placed):
        one.checkpoint(_EVERY_S)
    seldom.checkpoint(5)
    return {"totals": totals, "seldom": seldom, "begun": begun, "placed": placed}


def _windows(ssc: Any, directory: Path, _: Any) -> dict[str, Any]:
    """Windows: with an inverse and a filter, of values, counted, grouped, from scratch."""
    words = _words(ssc, directory)
    reduced = words.reduceByKeyAndWindow(_add, _subtract, 6, 1, 2, _has_count)
    values = words.countByValueAndWindow(5, 1, 2)
    counted = words.countByWindow(6, 1)
    for one in (reduced, values, counted):
        one.checkpoint(_EVERY_S)
    grouped = words.groupByKeyAndWindow(5, 1, 2).mapValues(sorted).filter(lambda pair: pair[1])
    plain = words.window(3, 1).reduceByKey(_add, 2)
    return {
        "reduced": reduced,
        "values": values,
        "counted": counted,
        "grouped": grouped,
        "plain": plain,
    }


def _chains(ssc: Any, directory: Path, queue: Any) -> dict[str, Any]:
    """A state of a state, a window of a state, a queue, and two directories."""
    words = _words(ssc, directory)
    totals = words.updateStateByKey(_total, 2)
    sums = totals.map(lambda pair: (pair[0][0], pair[1])).updateStateByKey(_total, 2)
    recent = totals.window(2, 1).reduceByKey(max, 2)
    queued = queue.updateStateByKey(_total, 2)
    both = words.union(_words(ssc, directory, "more")).updateStateByKey(_total, 2)
    for one in (totals, sums, queued, both):
        one.checkpoint(_EVERY_S)
    return {
        "sums": sums,
        "recent": recent,
        "queued": queued,
        "both": both,
    }


def _kafka(_: Any, __: Path, lines: Any) -> dict[str, Any]:
    """A state of the records of a topic."""
    totals = lines.flatMap(str.split).map(lambda word: (word, 1)).updateStateByKey(_sum, 2)
    totals.checkpoint(_EVERY_S)
    return {"totals": totals}


GROUPS: dict[str, Callable[[Any, Path, Any], dict[str, Any]]] = {
    "states": _states,
    "windows": _windows,
    "chains": _chains,
    "kafka": _kafka,
}
FILES = ("states", "windows", "chains")
"""The groups that read files."""


def define(group: str, ssc: Any, directory: Path, queue: Any, outputs: dict[int, Outputs]) -> None:
    """Define the programs of a group; *outputs* gets what each makes, by batch time.

    Outputs wait as long as *directory* has a file ``hold``.
    """

    def output(name: str) -> Callable[[Any, Any], None]:
        def keep(at: Any, rdd: Any) -> None:
            wait_for(lambda: not (directory / "hold").exists())
            outputs.setdefault(int(at.timestamp() * 1000), {})[name] = str(sorted(rdd.collect()))

        return keep

    for name, stream in GROUPS[group](ssc, directory, queue).items():
        stream.foreachRDD(output(name))


def write_input(directory: Path, number: int) -> None:
    """Write the files of a batch, before it is due."""
    words = [f"a b{number % 4} c{number}", "d " * (number % 3)]
    for name, text in zip(("in", "more"), words, strict=True):
        (directory / name).mkdir(exist_ok=True)
        if number == 4 and name == "in":
            continue  # a batch without a file
        draft = directory / f"draft-{name}"
        draft.write_text(text)
        os.utime(draft, (number - 0.5, number - 0.5))
        draft.rename(directory / name / f"file-{number:02d}")


class SparkStreams(OracleProcess):
    """The process; *jars* has Spark's stream of Kafka, if that is needed."""

    def __init__(self, directory: Path, *jars: str) -> None:
        super().__init__(__name__, directory, *jars)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._child.pid

    def start(self, group: str, directory: Path) -> None:
        """Start the programs of a group, with the checkpoint in the directory ``checkpoint``."""
        self._ask((group, directory))
        assert self.answer() == {}

    def run_batch(self) -> None:
        """Begin to run a batch."""
        self._ask(None)

    def answer(self) -> Outputs:
        """Return the outputs of the batch."""
        try:
            outputs: Outputs = pickle.load(self.results)
        except EOFError:
            raise self.death() from None
        return outputs

    def _ask(self, command: object) -> None:
        pickle.dump(command, self.questions)
        self.questions.flush()


def _run_batch(ssc: Any, outputs: dict[int, Outputs], count: int, directory: Path) -> Outputs:
    clock = ssc._jssc.ssc().scheduler().clock()
    time_ms = clock.getTimeMillis() + 1000
    clock.advance(1000)
    deadline = time.monotonic() + _LIMIT_S
    done = directory / "checkpoint" / f"checkpoint-{time_ms}.bk"  # the second checkpoint is there
    while len(outputs.get(time_ms, {})) < count or not done.exists():
        ssc.awaitTerminationOrTimeout(0.005)
        if time.monotonic() > deadline:
            raise SystemExit("pyspark.streaming did not run a batch")
    return outputs[time_ms]


def _direct_stream(ssc: Any, directory: Path) -> Any:
    """Return the values of a topic: Spark's direct stream plans them, and this process reads."""
    from pyspark.serializers import NoOpSerializer  # noqa: PLC0415 - not where the tests run
    from pyspark.streaming.dstream import DStream  # noqa: PLC0415

    from tests.support.kafka_cluster import KafkaCluster  # noqa: PLC0415 - skips without parts

    bootstrap, topic = (directory / "topic").read_text().split()
    jvm = ssc._jvm
    given, topics = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
    parameters = {
        "bootstrap.servers": bootstrap,
        "group.id": "adopted",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
        "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    }
    for key, value in parameters.items():
        given.put(key, value)
    topics.add(topic)
    kafka = jvm.org.apache.spark.streaming.kafka010
    stream = kafka.KafkaUtils.createDirectStream(
        ssc._jssc,
        kafka.LocationStrategies.PreferConsistent(),
        kafka.ConsumerStrategies.Subscribe(topics, given),
    )

    def read(rdd: Any) -> Any:
        ranges = {
            one.partition(): (one.fromOffset(), one.untilOffset())
            for one in rdd._jrdd.rdd().offsetRanges()
        }
        found = KafkaCluster(bootstrap).read(topic)
        values = [
            one.value.decode()
            for one in found
            if ranges[one.partition][0] <= one.offset < ranges[one.partition][1]
        ]
        return rdd.context.parallelize(values, 2)

    return DStream(stream, ssc, NoOpSerializer()).transform(read)


def main() -> None:
    """Run the commands of the standard input until it ends."""
    from pyspark.streaming import StreamingContext  # noqa: PLC0415 - not where the tests run

    warnings.simplefilter("ignore", FutureWarning)
    settings = {
        "spark.streaming.clock": "org.apache.spark.util.ManualClock",
        "spark.default.parallelism": "2",
        "spark.python.daemon.module": "dstreams.spark.worker_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if sys.argv[2:]:
        settings["spark.driver.extraClassPath"] = sys.argv[2]
    spark = oracle_context("streams", 2, settings)
    results: IO[bytes] = os.fdopen(int(sys.argv[1]), "wb")
    ssc: Any = None
    outputs: dict[int, Outputs] = {}
    count, directory = 0, Path()
    while True:
        try:
            command = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        if command is None:
            answer = _run_batch(ssc, outputs, count, directory)
        else:
            group, directory = command
            if ssc is not None:
                ssc.stop(stopSparkContext=False)
            ssc = StreamingContext(spark, 1)
            ssc.checkpoint(f"file://{directory}/checkpoint")
            outputs, answer = {}, {}
            queue = ssc.queueStream(QUEUE) if group == "chains" else None
            queue = _direct_stream(ssc, directory) if group == "kafka" else queue
            define(group, ssc, directory, queue, outputs)
            count = len(ssc._jssc.ssc().graph().getOutputStreams())
            ssc.start()
        pickle.dump(answer, results)
        results.flush()
    spark.stop()


if __name__ == "__main__":
    main()
