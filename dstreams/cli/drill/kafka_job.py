"""The drill's job with Kafka: from a topic through state to a topic and SQLite, exactly once."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import RDD

from dstreams import DStream, StateSpec, StreamError, StreamingContext
from dstreams.cli.drill import oracle
from dstreams.cli.drill.application import KAFKA
from dstreams.cli.drill.job import (
    CORES,
    STREAM,
    add_records,
    by_key,
    count_visit,
    drill_context,
    interval_s,
)
from dstreams.cli.drill.oracle import completed_in, records_in, records_of_file, states_in
from dstreams.cli.drill.results import OutputFindings
from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies, client
from dstreams.sinks import TransactionalSink

PARTITIONS = 3
OUTPUTS = (oracle.RECORDS, oracle.VISITS, oracle.TOTALS, oracle.STATES)

_ANSWER_S = 120
_FED = "fed"
_QUIET = {"log_level": 0}

_TABLES = {
    oracle.TOTALS: "(time_ms INTEGER, name TEXT, count INTEGER, amount INTEGER, ids INTEGER)",
    oracle.STATES: "(time_ms INTEGER, name TEXT, count INTEGER)",
}


def setup(directory: str) -> StreamingContext:
    """Define the streams; called by the first driver only."""
    make_topics(directory)
    with closing(sqlite3.connect(_database(directory))) as database:
        for table, columns in _TABLES.items():
            database.execute(f"CREATE TABLE IF NOT EXISTS {table} {columns}")
        database.commit()
    ssc = StreamingContext(drill_context(STREAM), interval_s())
    ssc.checkpoint(f"{directory}/checkpoint")
    brokers = {"bootstrap.servers": os.environ[KAFKA]}
    reading = {**brokers, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    lines = KafkaUtils.createDirectStream(
        ssc,
        LocationStrategies.PreferConsistent,
        ConsumerStrategies.Subscribe([topic_in(directory)], reading),
    ).map(line_of)
    records = lines.map(by_key)
    totals = records.updateStateByKey(add_records, CORES, uid=oracle.TOTALS)
    totals.checkpoint(2 * interval_s())
    counting = StateSpec.function(count_visit).numPartitions(CORES)
    visits = records.mapWithState(counting, uid=oracle.VISITS)
    out = topic_out(directory)
    for name, stream in ((oracle.RECORDS, lines), (oracle.VISITS, visits)):
        timed = stream.transform(with_time)
        timed.saveToKafka(out, brokers, key=partial(output_key, name), value=output_text, name=name)
    kept: tuple[tuple[str, DStream[Any]], ...] = (
        (oracle.TOTALS, totals),
        (oracle.STATES, visits.stateSnapshots()),
    )
    for name, states in kept:
        marks = ", ".join("?" * len(_TABLES[name].split(",")))
        insert = f"INSERT INTO {name} VALUES ({marks})"  # noqa: S608 - names of our own
        sink = TransactionalSink(_database(directory), insert, name=name)
        states.transform(with_time).map(row_of).foreachRDD(sink)
    return ssc


def feed(directory: str, number: int) -> None:
    """Send a file of input to the topic."""
    if number == 0:
        make_topics(directory)
    producer = client.confluent_kafka().Producer(
        {"bootstrap.servers": os.environ[KAFKA], "enable.idempotence": True, **_QUIET}
    )
    for record in records_of_file(number):
        producer.produce(topic_in(directory), record.to_line(), key=record.key)
    left = producer.flush(_ANSWER_S)
    if left:
        raise StreamError(
            f"{left} records were not delivered to {os.environ[KAFKA]}; check the brokers"
        )
    with Path(directory, _FED).open("a") as fed:
        fed.write(f"{number}\n")


def is_done(directory: str) -> bool:
    """Return whether all input has been processed."""
    seen = (oracle.record_of(line) for _, name, line in _read(directory) if name == oracle.RECORDS)
    ids = {record.record_id for record in seen if record is not None}
    return records_in(_fed(directory)).keys() <= ids


def check(directory: str) -> OutputFindings:
    """Compare all outputs, and the state in the checkpoint, with the oracle."""
    outputs: dict[str, dict[int, list[str]]] = {name: {} for name in OUTPUTS}
    for time_ms, name, line in (*_read(directory), *_rows(directory)):
        outputs[name].setdefault(time_ms, []).append(line)
    final = {
        oracle.TOTALS: states_in(directory, oracle.TOTALS),
        oracle.STATES: [(key, count) for key, (count, _) in states_in(directory, oracle.VISITS)],
    }
    # A batch without records has none in a topic, but is compared too.
    for time_ms in sorted(set(completed_in(directory)).union(*outputs.values())):
        for lines in outputs.values():
            lines.setdefault(time_ms, [])
    return oracle.check_batches(outputs, _fed(directory), 0, (), final)


def clean(directory: str) -> None:
    """Delete the topics."""
    admin = _admin()  # requests are cancelled when it is garbage-collected
    for future in admin.delete_topics([topic_in(directory), topic_out(directory)]).values():
        with suppress(client.confluent_kafka().KafkaException):
            future.result(_ANSWER_S)


def make_topics(directory: str) -> None:
    """Create the topics if they are missing."""
    library = client.confluent_kafka()
    wanted = [
        library.admin.NewTopic(name, PARTITIONS)
        for name in (topic_in(directory), topic_out(directory))
    ]
    admin = _admin()
    for future in admin.create_topics(wanted).values():
        try:
            future.result(_ANSWER_S)
        except library.KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise StreamError(
                    f"cannot create the topics of the drill: {client.reason(error)}"
                ) from None


def topic_in(directory: str) -> str:
    """Return the name of the input topic."""
    return f"{Path(directory).name}-in"


def topic_out(directory: str) -> str:
    """Return the name of the output topic."""
    return f"{Path(directory).name}-out"


def line_of(record: Any) -> str:
    """Return the value of a Kafka record as text."""
    return bytes(record.value).decode()


def with_time(time: datetime, rdd: RDD[Any]) -> RDD[Any]:
    """Pair each record with the batch time in milliseconds."""
    return rdd.map(partial(_timed, round(time.timestamp() * 1000)))


def _timed(time_ms: int, record: Any) -> tuple[int, Any]:
    return time_ms, record


def output_key(name: str, timed: tuple[int, Any]) -> str:
    """Return the key of what an output has: its name, and the time of the batch."""
    return f"{name} {timed[0]}"


def output_text(timed: tuple[int, Any]) -> str:
    """Return what an output has."""
    return str(timed[1])


def row_of(timed: tuple[int, tuple[str, Any]]) -> tuple[Any, ...]:
    """Return a row of a table: time, key, and the state."""
    time_ms, (key, state) = timed
    return (time_ms, key, *(state if isinstance(state, tuple) else (state,)))


def _read(directory: str) -> Iterator[tuple[int, str, str]]:
    """Yield time, output and line of all that is in the topic, and committed."""
    library = client.confluent_kafka()
    consumer = library.Consumer(
        {
            "bootstrap.servers": os.environ[KAFKA],
            "group.id": "dstreams-drill",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **_QUIET,
        }
    )
    try:
        consumer.assign(
            [
                library.TopicPartition(topic_out(directory), part, library.OFFSET_BEGINNING)
                for part in range(PARTITIONS)
            ]
        )
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(_ANSWER_S)
            if message is None:
                raise StreamError(
                    f"{os.environ[KAFKA]} has not answered for {_ANSWER_S} s; check the brokers"
                )
            if message.error() is None:
                name, time_ms = message.key().decode().split()
                yield int(time_ms), name, message.value().decode()
            elif message.error().name() == "_PARTITION_EOF":
                ended.add(message.partition())
    finally:
        consumer.close()


def _rows(directory: str) -> Iterator[tuple[int, str, str]]:
    """Yield time, table and row of everything in the database."""
    with closing(sqlite3.connect(_database(directory))) as database:
        for table in _TABLES:
            for time_ms, key, *state in database.execute(f"SELECT * FROM {table}"):  # noqa: S608
                yield time_ms, table, repr((key, state[0] if len(state) == 1 else tuple(state)))


def _database(directory: str) -> str:
    return f"{directory}/results.db"


def _fed(directory: str) -> list[int]:
    path = Path(directory, _FED)
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _admin() -> Any:
    return client.confluent_kafka().admin.AdminClient(
        {"bootstrap.servers": os.environ[KAFKA], **_QUIET}
    )
