"""The peers in ``kafka.py``: Structured Streaming, Bytewax and Quix Streams.

That benchmark runs them in an interpreter that has them. Each has its fastest safe settings, and
makes its state durable about every 100,000 records.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from stored_state_data import PARTITIONS, answer, serve
from stored_state_peers import start_session

RECORDS = 100_000
SCHEMA = "user string, page string, ms long, agent string"
ROW = "user string, count long"


def apply_in_pandas(records: Any) -> Any:
    """The count by applyInPandasWithState."""
    import pandas as pd
    from pyspark.sql.streaming.state import GroupStateTimeout

    def add(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        count = sum(len(frame) for frame in frames)
        count += state.getOption[0] if state.exists else 0
        state.update((count,))
        yield pd.DataFrame({"user": [key[0]], "count": [count]})

    return records.groupBy("user").applyInPandasWithState(
        add, ROW, "count long", "update", GroupStateTimeout.NoTimeout
    )


def transform_with_state(records: Any) -> Any:
    """The count by transformWithState, with rows."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Count(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "count long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
            before = self._count.get()
            count = sum(1 for _ in rows) + (before[0] if before else 0)
            self._count.update((count,))
            yield Row(user=key[0], count=count)

        def close(self) -> None:
            pass

    return records.groupBy("user").transformWithState(Count(), ROW, "Update", "None")


QUERIES = {"applyInPandasWithState": apply_in_pandas, "transformWithState": transform_with_state}


def serve_query(name: str, bootstrap: str, topic: str, directory: str, jars: str) -> None:
    """Run a query of Structured Streaming; the JVM reads the JSON, and the rows are discarded."""
    from pyspark.sql import functions

    session = start_session({"spark.driver.extraClassPath": jars})
    given = session.readStream.format("kafka").option("subscribe", topic)
    given = given.option("kafka.bootstrap.servers", bootstrap)
    given = given.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", RECORDS)
    fields = functions.from_json(functions.col("value").cast("string"), SCHEMA)
    counts = QUERIES[name](given.load().select(fields.alias("r")).select("r.user"))
    highest = functions.max("count").alias("highest")
    query = (
        counts.observe("look", highest)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", directory)
        .start()
    )
    found: dict[str, Any] = {}
    counted = -1

    def run(count: int) -> list[float]:
        nonlocal counted
        read = 0
        while read < count * RECORDS:
            query.processAllAvailable()
            for progress in query.recentProgress:
                if progress.batchId > counted and progress.numInputRows:
                    counted = progress.batchId
                    read += progress.numInputRows
                    looked = progress.observedMetrics["look"].asDict()
                    found["highest"] = ["", looked["highest"]]
        return []

    serve(run, lambda: found)
    query.stop()
    session.stop()


class Turns:
    """The number of records to read, from the standard input, for a side that reads by itself."""

    def __init__(self) -> None:
        self.highest = 0
        self._read = self._upto = 0

    def begin(self) -> bool:
        """Wait for the next turn; False at the end of the input."""
        line = sys.stdin.readline()
        if line:
            self._upto += int(line) * RECORDS
        return bool(line)

    def add(self, records: int) -> None:
        """Count records."""
        self._read += records

    @property
    def is_over(self) -> bool:
        """Return whether the records of the turn are read."""
        return self._read >= self._upto

    def end(self) -> None:
        """Print the result."""
        answer([], {"highest": ["", self.highest]})


def serve_bytewax(bootstrap: str, topic: str, directory: str) -> None:
    """Run a dataflow of Bytewax in this process, with a snapshot after each 100,000 records.

    There is only one thread, so the next batch is requested when the previous one is written.
    """
    import bytewax.operators as op
    import confluent_kafka
    import msgspec
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import run_main

    turns = Turns()

    class Partition(StatefulSourcePartition[Any, Any]):
        def __init__(self) -> None:
            self._consumer = confluent_kafka.Consumer(
                {"bootstrap.servers": bootstrap, "group.id": "bytewax", "enable.auto.commit": False}
            )
            self._offsets = dict.fromkeys(range(PARTITIONS), 0)
            self._consumer.assign(
                [confluent_kafka.TopicPartition(topic, number, 0) for number in self._offsets]
            )
            self._began = False

        def next_batch(self) -> list[Any]:
            if turns.is_over:
                if self._began:
                    turns.end()
                self._began = True
                if not turns.begin():
                    raise StopIteration
            values = []
            while len(values) < RECORDS:
                for message in self._consumer.consume(RECORDS - len(values), 0.05):
                    values.append(message.value())
                    self._offsets[message.partition()] = message.offset() + 1
            turns.add(len(values))
            return values

        def snapshot(self) -> Any:
            return dict(self._offsets)

    class Source(FixedPartitionedSource[Any, Any]):
        def list_parts(self) -> list[str]:
            return ["all"]

        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Partition:
            return Partition()

    class Written(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            turns.highest = max(turns.highest, *(count for _, count in items))

    class Sink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
            return Written()

    class View(msgspec.Struct):
        user: str

    decode = msgspec.json.Decoder(View).decode

    def add(count: int | None, value: Any) -> tuple[int, int]:
        count = (count or 0) + 1
        return count, count

    flow = Dataflow("benchmark")
    users = op.map("user", op.input("in", flow, Source()), lambda v: (decode(v).user, 1))
    op.output("out", op.stateful_map("count", users, add), Sink())
    init_db_dir(pathlib.Path(directory), 1)
    run_main(
        flow,
        epoch_interval=datetime.timedelta(0),
        recovery_config=RecoveryConfig(directory),
    )


def serve_quix(bootstrap: str, topic: str, directory: str) -> None:
    """Run an application of Quix Streams in this process, with its changelog topics.

    A commit comes after each 100,000 records; the one after the last of a turn is in its time.
    """
    from quixstreams import Application

    turns = Turns()

    def count(value: Any, state: Any) -> int:
        found: int = state.get("count", 0) + 1
        state.set("count", found)
        return found

    def look(found: int) -> None:
        turns.highest = max(turns.highest, found)
        turns.add(1)

    application = Application(
        broker_address=bootstrap,
        consumer_group=f"quix-{topic}",
        auto_offset_reset="earliest",
        consumer_extra_config={"max.poll.interval.ms": 3_600_000},
        state_dir=directory,
        commit_every=RECORDS,
        commit_interval=3600,
        loglevel="ERROR",
    )
    counts = application.dataframe(application.topic(topic, value_deserializer="json"))
    counts.apply(count, stateful=True).update(look)
    commit = application._processing_context.commit_checkpoint

    def committed(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        if turns.is_over:
            turns.end()
            if not turns.begin():
                application.stop()

    application._processing_context.commit_checkpoint = committed
    if turns.begin():
        application.run()


def main() -> None:
    """Run the side named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", choices=[*QUERIES, "bytewax", "quixstreams"], required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--jars", help="class path of Spark's source of Kafka")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if options.side == "bytewax":
            serve_bytewax(options.bootstrap, options.topic, directory)
        elif options.side == "quixstreams":
            serve_quix(options.bootstrap, options.topic, directory)
        else:
            serve_query(options.side, options.bootstrap, options.topic, directory, options.jars)


if __name__ == "__main__":
    main()
