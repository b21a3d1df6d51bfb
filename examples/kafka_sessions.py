"""Sessions of clicks: from Kafka, by user, to Kafka, each session exactly once.

    pip install '.[kafka]'
    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic clicks --partitions 4
    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic sessions --partitions 4
    python examples/kafka_sessions.py localhost:9092 --checkpoint checkpoints

The values of the topic ``clicks`` are JSON objects, such as ``{"user": "ann", "page": "/shop"}``.
Any other value is printed with its offset. The session of a user ends when no click has arrived for
``--gap`` seconds. It is written to the topic ``sessions``, with the user as key:

    kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic sessions \\
        --isolation-level read_committed --from-beginning

Kill the program with ``kill -9`` at any time and start it again. It resumes where it stopped: no
click counts twice, and no session is written twice. This prints its lag, even while it runs:

    dstreams kafka checkpoints --bootstrap-server localhost:9092
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TypedDict

from pyspark import RDD

from dstreams import GroupState, StreamingContext, tuned_context
from dstreams.kafka import (
    ConsumerRecord,
    ConsumerStrategies,
    DeadLetter,
    JsonDecoder,
    KafkaUtils,
    LocationStrategies,
)


class Session(TypedDict):
    """The clicks of a user since their session began."""

    user: str
    pages: list[str]
    first_ms: int
    last_ms: int


def track(
    gap_s: float, user: str, clicks: Iterator[tuple[int, str]], state: GroupState[Session]
) -> Iterable[Session]:
    """Add clicks, as (time, page), to the user's session. Return the session when it ends."""
    if state.hasTimedOut:
        session = state.get
        state.remove()
        return [session]
    for time_ms, page in sorted(clicks):
        session = state.getOption or Session(user=user, pages=[], first_ms=time_ms, last_ms=0)
        session["pages"].append(page)
        session["last_ms"] = max(session["last_ms"], time_ms)
        state.update(session)
    state.setTimeoutDuration(round(gap_s * 1000))
    return []


def by_user(click: ConsumerRecord) -> tuple[str, tuple[int, str]]:
    """Return the time and page of a click, keyed by user."""
    return click.value["user"], (click.timestamp, click.value["page"])


def user_of(session: Session) -> str:
    """Return the key of a session."""
    return session["user"]


def where_and_why(letter: DeadLetter) -> str:
    """Describe a record that could not be decoded."""
    return f"{letter.topic}-{letter.partition}, offset {letter.offset}: {letter.reason}"


def print_some(letters: RDD[DeadLetter]) -> None:
    """Print the first undecodable records of a batch."""
    for line in letters.map(where_and_why).take(10):
        print(line)


def setup(options: argparse.Namespace) -> StreamingContext:
    """Define the streams. Called only at the first start."""
    conf = {"spark.streaming.stopGracefullyOnShutdown": "true"}
    ssc = StreamingContext(tuned_context("kafka_sessions", "local[2,4]", conf=conf), 1)
    ssc.checkpoint(options.checkpoint)
    consumer = {
        "bootstrap.servers": options.brokers,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "value.deserializer": JsonDecoder(dict[str, str]),
    }
    clicks = KafkaUtils.createDirectStream(
        ssc,
        LocationStrategies.PreferConsistent,
        ConsumerStrategies.Subscribe([options.clicks], consumer),
        badRecords="DROPMALFORMED",
    )
    clicks.deadLetters().foreachRDD(print_some)
    sessions = clicks.map(by_user).flatMapGroupsWithState(
        partial(track, options.gap), "append", "processingTime"
    )
    producer = {"bootstrap.servers": options.brokers}
    sessions.saveToKafka(options.sessions, producer, key=user_of, value=json.dumps)
    return ssc


def main() -> None:
    """Run until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("brokers", metavar="HOST:PORT", help="Kafka brokers")
    parser.add_argument("--clicks", default="clicks", metavar="TOPIC", help="topic to read")
    parser.add_argument("--sessions", default="sessions", metavar="TOPIC", help="topic to write")
    parser.add_argument("--gap", type=float, default=30, metavar="SECONDS", help="idle time")
    parser.add_argument("--checkpoint", default="checkpoints", metavar="DIRECTORY")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("dstreams.kafka").setLevel(logging.INFO)  # logs the starting offsets
    ssc = StreamingContext.getOrCreate(options.checkpoint, partial(setup, options))
    ssc.start()
    ssc.awaitTermination()


if __name__ == "__main__":
    main()
