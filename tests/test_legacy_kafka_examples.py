"""Programs that read Kafka by ``pyspark.streaming.kafka`` of Spark 2.4, run as they are."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.programs import LIMIT_S, running
from tests.support.waiting import wait_for
from tests.test_legacy_examples import RUN, ended_by_sigterm, example, latest, replaced

pytestmark = pytest.mark.spark


@pytest.mark.deep
def test_direct_kafka_wordcount(kafka: KafkaCluster) -> None:
    """It begins at the end of the topic, and each batch counts the words of its own seconds."""
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, ["before it began"])
    with example(RUN, "direct_kafka_wordcount.py", kafka.bootstrap, topic) as program:
        wait_for(program.batches, LIMIT_S)
        kafka.produce(topic, ["to be or not to be"])
        wait_for(
            lambda: program.has_printed("('to', 2)", "('be', 2)", "('or', 1)", "('not', 1)"),
            LIMIT_S,
        )
        kafka.produce(topic, ["or so"])
        wait_for(lambda: program.has_printed("('or', 1)", "('so', 1)"), LIMIT_S)
        ended_by_sigterm(program, RUN)
    assert "before" not in "".join(program.lines)


@pytest.mark.deep
def test_kafka_wordcount(kafka: KafkaCluster) -> None:
    """Two receivers of one group have each message once, and a second run what the first had not.

    There is no checkpoint: the group says where it goes on. The program knows ZooKeeper alone, and
    is told of the brokers from outside.
    """
    topic = kafka.create_topic(partitions=2)
    arguments = ("kafka_wordcount.py", "localhost:2181", f"of-{topic}", topic)
    run = (*RUN, "--conf", f"spark.dstreams.kafka.bootstrapServers={kafka.bootstrap}")
    kafka.produce(topic, ["to be or not to be"])
    with example(run, *arguments) as program:
        wait_for(
            lambda: program.has_printed("('to', 2)", "('be', 2)", "('or', 1)", "('not', 1)"),
            LIMIT_S,
        )
        ended_by_sigterm(program, RUN)
    assert any("ignoring zkQuorum='localhost:2181'" in line for line in program.lines)
    assert any("another stream of this program reads all" in line for line in program.lines)
    kafka.produce(topic, ["or so"])
    with example(run, *arguments) as again:
        wait_for(lambda: again.has_printed("('or', 1)", "('so', 1)"), LIMIT_S)
        ended_by_sigterm(again, RUN)
    assert "('to', 2)" not in again.lines


@pytest.mark.deep
def test_stateful_kafka_wordcount(kafka: KafkaCluster, tmp_path: Path) -> None:
    """After a kill -9 the counts go on: no word is lost, and none counts twice."""
    topic = kafka.create_topic(partitions=2)
    arguments = ("stateful_kafka_wordcount.py", kafka.bootstrap, topic, tmp_path / "checkpoint")
    kafka.produce(topic, ["to be", "or not", "to be"])
    with example(RUN, *arguments) as program:
        wanted = ["('be', 2)", "('not', 1)", "('or', 1)", "('to', 2)"]
        wait_for(lambda: sorted(latest(program)) == wanted, LIMIT_S)
        kafka.produce(topic, ["or so"])
        program.end(signal.SIGKILL)
    assert "Creating new context" in program.lines
    kafka.produce(topic, ["so be it"])
    with example(RUN, *arguments) as again:
        wanted = ["('be', 3)", "('it', 1)", "('not', 1)", "('or', 2)", "('so', 2)", "('to', 2)"]
        wait_for(lambda: sorted(latest(again)) == wanted, LIMIT_S)
        ended_by_sigterm(again, RUN)
    assert "Creating new context" not in again.lines


def order(customer: str, amount: int) -> str:
    return json.dumps({"customer": customer, "amount": amount})


def sums_in(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(database)) as connection:
        try:
            return dict(connection.execute("SELECT customer, amount FROM sums").fetchall())
        except sqlite3.OperationalError:  # it is not made yet
            return {}


@pytest.mark.deep
def test_kafka_offsets_to_database(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Offsets that a program keeps beside its results: a next run goes on at them, also killed."""
    topic = kafka.create_topic(partitions=2)
    database = tmp_path / "orders.db"
    arguments = ("kafka_offsets_to_database.py", kafka.bootstrap, topic, database)
    kafka.produce(topic, [order("ann", 3), order("bob", 4), order("ann", 5)], partition=0)
    with example(RUN, *arguments) as program:
        wait_for(lambda: sums_in(database) == {"ann": 8, "bob": 4}, LIMIT_S)
        wait_for(lambda: f"{topic} 0 0 3" in program.lines, LIMIT_S)
        program.end(signal.SIGKILL)
    kafka.produce(topic, [order("bob", 6)], partition=1)
    with example(RUN, *arguments) as again:
        wait_for(lambda: sums_in(database) == {"ann": 8, "bob": 10}, LIMIT_S)
        wait_for(lambda: f"{topic} 1 0 1" in again.lines, LIMIT_S)
        ended_by_sigterm(again, RUN)
    assert f"{topic} 0 3 3" in again.lines
    assert f"{topic} 1 0 1" in again.lines


@pytest.mark.deep
def test_kafka_batch_report(kafka: KafkaCluster) -> None:
    """A range of offsets as an RDD, by pairs and by the handler of messages."""
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [Sent(f"m{n}", None if n == 4 else f"k{n % 2}", 1) for n in range(8)])
    arguments = ("kafka_batch_report.py", kafka.bootstrap, topic, 1, 1, 7)
    with example(RUN, *arguments) as program:
        assert program.wait() == 0, "\n".join(program.lines)
    said = [line for line in program.lines if line[:1] in "Nk123456789"]
    assert said == ["k0: 2", "k1: 3", "None: 1", "6 k0 m6", "5 k1 m5", "4 None m4"]


@pytest.mark.deep
def test_with_imports_replaced(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Calls of 2.4 are understood by dstreams.kafka: streams, ranges of offsets, and RDDs of them.

    An RDD of a batch says its ranges as it did then.
    """
    topic, database = kafka.create_topic(), tmp_path / "orders.db"
    kafka.produce(topic, [Sent(order("ann", 3), "k0"), Sent(order("bob", 4), "k1")])
    program = replaced("kafka_batch_report.py", tmp_path)
    with running(str(program), kafka.bootstrap, topic, "0", "0", "2") as started:
        assert started.wait() == 0, "\n".join(started.lines)
    assert [line for line in started.lines if line[:1] == "k"] == ["k0: 1", "k1: 1"]
    program = replaced("kafka_offsets_to_database.py", tmp_path)
    with running(str(program), kafka.bootstrap, topic, str(database)) as started:
        wait_for(lambda: sums_in(database) == {"ann": 3, "bob": 4}, LIMIT_S)
        ended_by_sigterm(started, RUN)
    assert f"{topic} 0 0 2" in started.lines


@pytest.mark.deep
def test_a_range_that_is_not_there(kafka: KafkaCluster) -> None:
    """The program ends at once, with what the topic has."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["only one"])
    with example(RUN, "kafka_batch_report.py", kafka.bootstrap, topic, 0, 0, 5) as program:
        assert program.wait() == 1
    assert "Offsets not available on leader: " in program.lines[-1]
    assert f"{topic}-0 from 0 until 5, where it has 0 to 1" in program.lines[-1]
