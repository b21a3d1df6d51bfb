"""The text of the demo, and the socket or Kafka topic that a stream receives it from."""

from __future__ import annotations

import re
import socket
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from checkpoint import new_attempt
from dstreams import DStream, Settings, StreamingContext
from dstreams.errors import EnvironmentNotReadyError, StreamError
from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies, client
from dstreams.kafka.parameters import BROKERS, ProducerParameters

END_WORD = "_here_ends_the_text_of_the_dstreams_demo_"
"""Last word sent: once a state contains it, every earlier word has been counted."""

PARTITIONS = 4
"""Of the topic; librdkafka's mock cluster creates a topic with as many on first use."""

_ANSWER_S = 10.0
_WAIT_S = 0.1
_JOIN_S = 5.0
_QUIET = {"log_level": 0}
_TESTS = {"idle_test", "test", "tests"}
_WORD = re.compile(r"[a-z_]\w*")


def words_of(line: str) -> list[str]:
    """Return the identifiers and similar words of a line, in lower case."""
    return _WORD.findall(line.lower())


def count_words(text: bytes) -> Counter[str]:
    """Count the words of a text without Spark."""
    return Counter(words_of(text.decode()))


def library_text(limit_bytes: int, library: Path | None = None) -> bytes:
    """Return whole lines of the standard library's sources, the same at each call.

    Raises:
        EnvironmentNotReadyError: this Python has no sources, or they cannot be read.
    """
    root = library or Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    try:
        for path in _library_files(root):
            text += path.read_bytes().decode("utf-8", "replace").encode()
            if not text.endswith(b"\n"):
                text += b"\n"
            if len(text) >= limit_bytes:
                break
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"cannot read the sources of the standard library, which the demo sends: {error}"
        ) from error
    whole_lines = text.rfind(b"\n", 0, limit_bytes) + 1
    if not whole_lines:
        raise EnvironmentNotReadyError(
            f"the demo sends the sources of the standard library, but {root} has none; "
            "use a Python installed with its .py files"
        )
    return bytes(text[:whole_lines])


def _library_files(root: Path) -> Iterator[Path]:
    for name in sorted(sys.stdlib_module_names - _TESTS):
        module = root / f"{name}.py"
        if module.is_file():
            yield module
        for path in sorted((root / name).rglob("*.py")):
            if not _TESTS.intersection(path.relative_to(root).parts):
                yield path


class TextServer:
    """A TCP server that sends a text to its first client and keeps the connection open."""

    end_words = 1
    settings = Settings(
        on_failure="stop",
        receiver_max_buffer_bytes=1 << 20,  # small, so that the text fills many batches
        max_queued_batches=1,
    )

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._connection: socket.socket | None = None
        self._is_closing = False
        self._thread = threading.Thread(  # noqa: TID251
            target=self._serve, name="dstreams-demo-server", daemon=True
        )
        self._thread.start()

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    def lines(self, ssc: StreamingContext) -> DStream[str]:
        return ssc.socketTextStream(self.host, self.port)

    def lag(self) -> int | None:
        """Return None: the amount of data in TCP's buffers is unknown."""
        return None

    def __enter__(self) -> TextServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        for one in (self._listener, self._connection):
            if one is not None:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)  # wakes accept and sendall in the thread
        self._thread.join(_JOIN_S)
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def _serve(self) -> None:
        with suppress(OSError):  # the client left, or the server was closed
            self._connection, _ = self._listener.accept()
            if not self._is_closing:
                self._connection.sendall(self._text)


class MockCluster:
    """A Kafka cluster inside this process: librdkafka's mock, without transactions.

    >>> with MockCluster() as cluster:
    ...     parameters = {"bootstrap.servers": cluster.brokers}

    Raises:
        EnvironmentNotReadyError: confluent-kafka is not installed.
    """

    def __init__(self) -> None:
        config = {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", **_QUIET}
        self._owner: Any = client.make("Producer", config, "the mock cluster")
        found = self._owner.list_topics(timeout=_ANSWER_S).brokers.values()
        self.brokers = ",".join(f"{broker.host}:{broker.port}" for broker in found)

    def close(self) -> None:
        self._owner = None

    def __enter__(self) -> MockCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TextTopic:
    """A Kafka topic that receives the lines of a text, round-robin over its partitions.

    Args:
        text: whole lines of UTF-8.
        given: parameters of the Kafka clients; None starts a mock cluster. On given brokers the
            topic is created here and deleted at the end.

    Raises:
        EnvironmentNotReadyError: the brokers do not answer, or reject the client or the topic.
    """

    end_words = PARTITIONS  # one is the last record of each
    settings = Settings(
        on_failure="stop",
        kafka_max_rate=10_000,  # so that the text fills many batches
        max_queued_batches=1,
    )

    def __init__(self, text: bytes, given: Mapping[str, Any] | None = None) -> None:
        self._text = text
        self._mock = MockCluster() if given is None else None
        self._given = {BROKERS: self._mock.brokers} if self._mock else dict(given or {})
        self._parameters = ProducerParameters.of(self._given, "dstreams demo")
        self.name = f"dstreams-demo-{new_attempt()}"
        self._sent = 0
        self._read: dict[int, int] = {}

    @property
    def place(self) -> str:
        brokers = "a mock Kafka cluster" if self._mock else self._parameters.given[BROKERS]
        return f"topic {self.name} of {brokers}"

    def lines(self, ssc: StreamingContext) -> DStream[str]:
        strategy = ConsumerStrategies.Subscribe(
            [self.name], {**self._given, "auto.offset.reset": "earliest"}
        )
        records = KafkaUtils.createDirectStream(ssc, LocationStrategies.PreferConsistent, strategy)
        records.foreachRDD(self._after_read)
        return records.map(lambda record: str(record.value, "utf-8"))

    def lag(self) -> int | None:
        """Return how many sent records no batch has read yet."""
        return self._sent - sum(self._read.values())

    def __enter__(self) -> TextTopic:
        if not self._mock:
            self._create()
        self._send()
        return self

    def __exit__(self, *_: object) -> None:
        if self._mock:
            self._mock.close()
        else:
            admin = self._client("AdminClient", self._parameters.for_admin())
            admin.delete_topics([self.name], request_timeout=_ANSWER_S)[self.name].result()

    def __getstate__(self) -> dict[str, object]:
        return {}  # an output refers to it, and a demo never restarts

    def _client(self, kind: str, config: Mapping[str, Any]) -> Any:
        return client.make(kind, {**config, **_QUIET}, "dstreams demo")

    def _create(self) -> None:
        library, brokers = client.confluent_kafka(), self._parameters.given[BROKERS]
        errors = client.ClientErrors()
        admin = self._client("AdminClient", {**self._parameters.for_admin(), "error_cb": errors})
        topic = library.admin.NewTopic(self.name, PARTITIONS, -1)
        created = admin.create_topics([topic], request_timeout=_ANSWER_S)[self.name]
        while not created.done() and errors.refusal is None:
            admin.poll(_WAIT_S)  # calls back with the errors of its connections
        if errors.lasting is not None:
            raise EnvironmentNotReadyError(client.refused("dstreams demo", brokers, errors.lasting))
        try:
            created.result()
        except library.KafkaException as error:
            raise EnvironmentNotReadyError(
                f"brokers {brokers}: cannot create topic {self.name}: {client.reason(error)}; "
                "give host and port of a running broker that allows this client to create topics"
            ) from error

    def _send(self) -> None:
        producer = self._client("Producer", self._parameters.for_producers())
        failures: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error.str())

        for number, line in enumerate(self._text.split(b"\n")[:-1]):
            partition = number % PARTITIONS
            while True:
                try:
                    producer.produce(self.name, line, partition=partition, on_delivery=delivered)
                    break
                except BufferError:  # the client's queue is full
                    producer.poll(_WAIT_S)
            producer.poll(0)
        producer.flush()
        if failures:
            raise StreamError(f"{self.place}: cannot send the text: {failures[0]}")
        self._sent = number + 1

    def _after_read(self, rdd: Any) -> None:  # a KafkaRDD
        self._read.update((one.partition, one.untilOffset) for one in rdd.offsetRanges)
