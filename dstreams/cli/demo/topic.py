"""A topic of Kafka that one text is sent to."""

from __future__ import annotations

import threading
from typing import Any

from checkpoint import new_attempt
from dstreams import DStream, Settings, StreamingContext
from dstreams.cli.demo.brokers import DemoBrokers
from dstreams.cli.demo.mock_cluster import KEPT_RECORDS, PARTITIONS
from dstreams.errors import SourceError
from dstreams.kafka import (
    ConsumerRecord,
    ConsumerStrategies,
    KafkaUtils,
    LocationStrategies,
)

_WAIT_S = 0.1
_JOIN_S = 5.0
_POLL_RECORDS = 1_000

# A mock cluster keeps more than batches have not read, and what they may read once more.
_MOST_UNREAD = PARTITIONS * KEPT_RECORDS // 3


class TextTopic:
    """Sends the lines of a text to a topic, by turns to its partitions, and reads them as a stream.

    Args:
        text: whole lines of UTF-8.
        brokers: where the topic is made, and deleted at the end; a mock cluster keeps few records,
            so there the text is sent as batches read it.

    Raises:
        EnvironmentNotReadyError: the brokers do not answer, or refuse to make a topic.

    >>> with TextTopic(b"to be\\n", brokers) as topic:
    ...     lines = topic.lines(ssc)
    """

    end_words = PARTITIONS  # one is the last record of each
    settings = Settings(
        on_failure="stop",
        kafka_max_rate=10_000,  # so that the text fills many batches
        max_queued_batches=1,
    )

    def __init__(self, text: bytes, brokers: DemoBrokers) -> None:
        self._text = text
        self._brokers = brokers
        self.name = f"dstreams-demo-{new_attempt()}"
        self._sent_bytes = self._sent_records = 0
        self._read: dict[int, int] = {}
        self._closing = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(  # noqa: TID251
            target=self._send, name="dstreams-demo-topic", daemon=True
        )
        brokers.make_topic(self.name)

    @property
    def place(self) -> str:
        return f"the topic {self.name} of {self._brokers.place}"

    @property
    def sent_bytes(self) -> int:
        """How much of the text was handed to the client so far."""
        return self._sent_bytes

    def lines(self, ssc: StreamingContext) -> DStream[str]:
        strategy = ConsumerStrategies.Subscribe(
            [self.name], {**self._brokers.given, "auto.offset.reset": "earliest"}
        )
        records = KafkaUtils.createDirectStream(ssc, LocationStrategies.PreferConsistent, strategy)
        records.foreachRDD(self._after_read)
        return records.map(_line)

    def lag(self) -> int:
        """How many records were sent that no batch has read."""
        return self._sent_records - sum(self._read.values())

    def start(self) -> None:
        """Send the text, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop sending, and delete the topic if it was made here."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self._brokers.delete_topics(self.name)

    def __enter__(self) -> TextTopic:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        return {}  # an output has it, and nothing restarts a demo

    def _after_read(self, rdd: Any) -> None:  # a KafkaRDD
        if self._failure is not None:
            raise SourceError(self._failure)
        self._read.update((one.partition, one.untilOffset) for one in rdd.offsetRanges)

    def _send(self) -> None:
        producer = self._brokers.producer()

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                self._failure = f"the text could not be sent to {self.place}: {error.str()}"

        for number, line in enumerate(self._text.split(b"\n")[:-1]):
            while self._is_ahead() and not self._closing.is_set():
                producer.poll(_WAIT_S)
            while not self._closing.is_set():
                try:
                    producer.produce(
                        self.name, line, partition=number % PARTITIONS, on_delivery=delivered
                    )
                    break
                except BufferError:  # the client has as much as it takes
                    producer.poll(_WAIT_S)
            self._sent_bytes += len(line) + 1
            self._sent_records += 1
            if number % _POLL_RECORDS == 0:
                producer.poll(0)
        while not self._closing.is_set() and producer.flush(_WAIT_S):
            pass

    def _is_ahead(self) -> bool:
        return self._brokers.is_mock and self.lag() >= _MOST_UNREAD


def _line(record: ConsumerRecord) -> str:
    return str(record.value, "utf-8")
