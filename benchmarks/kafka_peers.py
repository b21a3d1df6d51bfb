"""The sides of ``kafka.py`` that others made: Bytewax and Quix Streams.

Run by that benchmark, in an interpreter that has them. Each has its fastest settings that are safe,
and makes its state durable about every 100,000 records.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import sys
import tempfile
from typing import Any

from stored_state_data import PARTITIONS, answer

RECORDS = 100_000


class Turns:
    """How many records are to be read, for a side that reads by itself: told by the input."""

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
        """Take note of records."""
        self._read += records

    @property
    def is_over(self) -> bool:
        """Whether those of the turn are read."""
        return self._read >= self._upto

    def end(self) -> None:
        """Tell what was found."""
        answer([], {"highest": ["", self.highest]})


def serve_bytewax(bootstrap: str, topic: str, directory: str) -> None:
    """Run a dataflow of Bytewax in this process, with a snapshot after each 100,000 records.

    One thread does everything, so the next batch is asked for when the one before is written.
    """
    import bytewax.operators as op
    import confluent_kafka
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

    def add(count: int | None, value: Any) -> tuple[int, int]:
        count = (count or 0) + 1
        return count, count

    flow = Dataflow("benchmark")
    users = op.map("user", op.input("in", flow, Source()), lambda v: (json.loads(v)["user"], 1))
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
    """Be the side that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", choices=["bytewax", "quixstreams"], required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if options.side == "bytewax":
            serve_bytewax(options.bootstrap, options.topic, directory)
        else:
            serve_quix(options.bootstrap, options.topic, directory)


if __name__ == "__main__":
    main()
