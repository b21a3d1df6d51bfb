"""What Spark's own stream of Kafka plans: DirectKafkaInputDStream, in a process of its own.

``python -m tests.conformance.kafka_oracle FD`` reads questions from its standard input, a line of
JSON each, and writes an answer for each to the file descriptor. The streams are asked for batches
without a scheduler, so no batch waits for a clock and no job runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.oracle_process import OracleProcess, oracle_context
from tests.support.maven_jars import KAFKA, class_path

Ranges = dict[tuple[str, int], tuple[int, int]]
"""By topic and partition: from which offset to which a batch reads."""


class KafkaOracle(OracleProcess):
    """The process; it has one stream at a time."""

    def __init__(self, directory: Path) -> None:
        super().__init__(__name__, directory, class_path(KAFKA, "peers"))  # skips without

    def begin(
        self,
        settings: Mapping[str, Any],
        batch_ms: int,
        parameters: Mapping[str, Any],
        topics: Sequence[str] = (),
        partitions: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Start a stream of topics, or of partitions."""
        self._ask("begin", settings, batch_ms, parameters, topics, partitions)

    def completed(self, time_ms: int, records: int, delay_ms: int, waited_ms: int) -> None:
        """Let backpressure know of a batch: when it ended, and how long it ran and waited."""
        self._ask("completed", time_ms, records, delay_ms, waited_ms)

    def plan(self, time_ms: int) -> Ranges:
        """Return what the next batch reads."""
        found = self._ask("plan", time_ms)
        return {(topic, part): (start, until) for topic, part, start, until in found}

    def end(self) -> None:
        """End the stream."""
        self._ask("end")

    def cut(self, counts: Sequence[int], least: int) -> list[tuple[int, int, int]]:
        """Return partition, begin and end of the pieces of ranges, as queries cut them."""
        return [(part, start, until) for part, start, until in self._ask("cut", counts, least)]

    def _ask(self, question: str, *arguments: Any) -> Any:
        self.questions.write(json.dumps([question, arguments]).encode() + b"\n")
        self.questions.flush()
        answer = self.results.readline()
        if not answer:
            raise self.death()
        return json.loads(answer)


class _Stream:
    """Spark's stream, in the JVM; what is private to Spark's packages is public there."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._jvm = spark._jvm
        self._conf = spark._jsc.sc().conf()
        self._settings: Mapping[str, Any] = {}

    def begin(
        self,
        settings: Mapping[str, Any],
        batch_ms: int,
        parameters: Mapping[str, Any],
        topics: Sequence[str],
        partitions: Sequence[tuple[str, int]],
    ) -> None:
        self._settings = settings
        for key, value in settings.items():
            self._conf.set(key, str(value))
        streaming, kafka = self._jvm.org.apache.spark.streaming, self._jvm.org.apache.kafka
        context = streaming.StreamingContext(self._spark._jsc.sc(), streaming.Duration(batch_ms))
        scheduler = context.scheduler()
        tracker = streaming.scheduler.InputInfoTracker(context)
        getattr(scheduler, "inputInfoTracker_$eq")(tracker)
        given = self._jvm.java.util.HashMap()
        deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        names = ("key.deserializer", "value.deserializer")
        for key, value in {**parameters, **dict.fromkeys(names, deserializer)}.items():
            given.put(key, value)
        strategies = streaming.kafka010.ConsumerStrategies
        chosen = self._jvm.java.util.ArrayList()
        if topics:
            for topic in topics:
                chosen.add(topic)
            strategy = strategies.Subscribe(chosen, given)
        else:
            for topic, number in partitions:
                chosen.add(kafka.common.TopicPartition(topic, number))
            strategy = strategies.Assign(chosen, given)
        self._stream = streaming.kafka010.KafkaUtils.createDirectStream(
            context, streaming.kafka010.LocationStrategies.PreferConsistent(), strategy
        )
        self._stream.start()

    def completed(self, *measured: int) -> None:
        controller = self._stream.rateController().get()
        kind = controller.getClass().getSuperclass()
        long = self._jvm.java.lang.Long.TYPE
        compute = kind.getDeclaredMethod("computeAndPublish", self._array("Class", [long] * 4))
        compute.setAccessible(True)
        compute.invoke(controller, self._array("Object", measured))
        # The estimate is made on a thread; a task of nothing is done after it.
        field = kind.getDeclaredField("executionContext")
        field.setAccessible(True)
        done = self._jvm.java.util.concurrent.FutureTask(self._jvm.java.lang.Thread(), None)
        field.get(controller).execute(done)
        done.get()

    def _array(self, kind: str, values: Sequence[Any]) -> Any:
        array = self._spark._gateway.new_array(getattr(self._jvm.java.lang, kind), len(values))
        for place, value in enumerate(values):
            array[place] = value
        return array

    def plan(self, time_ms: int) -> list[tuple[str, int, int, int]]:
        rdd = self._stream.compute(self._jvm.org.apache.spark.streaming.Time(time_ms)).get()
        return [
            (one.topic(), one.partition(), one.fromOffset(), one.untilOffset())
            for one in rdd.offsetRanges()
        ]

    def cut(self, counts: Sequence[int], least: int) -> list[tuple[int, int, int]]:
        kafka, none = self._jvm.org.apache.spark.sql.kafka010, self._jvm.scala.Option.empty()
        ranges = self._jvm.java.util.ArrayList()
        for number, count in enumerate(counts):
            partition = self._jvm.org.apache.kafka.common.TopicPartition("t", number)
            ranges.add(kafka.KafkaOffsetRange(partition, 0, count, none))
        calculator = kafka.KafkaOffsetRangeCalculator(self._jvm.scala.Some(least), none)
        hosts = getattr(calculator, "getRanges$default$2")()
        found = calculator.getRanges(
            self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(ranges), hosts
        )
        pieces = [found.apply(number) for number in range(found.length())]
        return [(one.partition(), one.fromOffset(), one.untilOffset()) for one in pieces]

    def end(self) -> None:
        self._stream.stop()
        for key in self._settings:
            self._conf.remove(key)


def main() -> None:
    """Answer the questions of the standard input until it ends."""
    spark = oracle_context("oracle of Kafka", 1, {"spark.driver.extraClassPath": sys.argv[2]})
    stream = _Stream(spark)
    with os.fdopen(int(sys.argv[1]), "w") as results:
        for line in sys.stdin:
            question, arguments = json.loads(line)
            answer = getattr(stream, question)(*arguments)
            print(json.dumps(answer), file=results, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
