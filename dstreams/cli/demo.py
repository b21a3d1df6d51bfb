"""``dstreams demo``: count words received over a socket or through Kafka, and check the counts."""

from __future__ import annotations

import argparse
import logging
import os
import re
import socket
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from pyspark import RDD, SparkContext

from checkpoint import new_attempt
from checkpoint.cli import CommandParser
from dstreams import DStream, Settings, StreamingContext, StreamingContextState, tuned_context
from dstreams.cli.common import FAILED, MISUSED, SUCCEEDED, add_brokers, add_quiet, number_type
from dstreams.common.clock import SystemClock
from dstreams.common.durations import batch_time_ms
from dstreams.errors import EnvironmentNotReadyError, StreamError
from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies, client
from dstreams.kafka.parameters import (
    BROKERS,
    KafkaParameters,
    ProducerParameters,
    client_settings,
)
from dstreams.monitoring.web.page import page

WordCount = tuple[str, int]

_SHOWN_DIFFERENCES = 10

_STATUS = """\
exit status:
  0    the streamed counts equal the independent count
  1    they differ, or the stream failed
  2    usage error
  3    Java, Spark, the text or, with --kafka, Kafka is missing
  130  interrupted by Ctrl-C or SIGTERM
"""

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


def configure_demo(demo: CommandParser) -> None:
    """Add the arguments of the command."""
    demo.description = (
        "Counts the words of the standard library's sources with updateStateByKey. The text "
        "arrives over a local TCP socket or through a Kafka topic. The streamed counts are "
        "compared with a count made without Spark."
    )
    demo.add_below(["--megabytes 1", "--bootstrap-server localhost:9092"], _STATUS)
    demo.add_argument(
        "--megabytes",
        type=number_type(0.01, "megabytes"),
        default=10.0,
        metavar="N",
        help="maximum size of the text (default: %(default)g)",
    )
    demo.add_argument(
        "--cores",
        type=number_type(1, "cores", int),
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="number of parallel Spark tasks (default on this machine: %(default)s)",
    )
    demo.add_argument(
        "--timeout",
        type=number_type(1, "seconds"),
        default=300.0,
        metavar="SECONDS",
        help="maximum duration of the stream (default: %(default)g)",
    )
    demo.add_argument(
        "--kafka",
        action="store_true",
        help="send the text through a mock Kafka cluster inside this process",
    )
    add_brokers(demo, "send it through these brokers; the topic is created and deleted again")
    add_quiet(demo)
    demo.add_argument("--stay", action="store_true", help="keep serving the live page until Ctrl-C")
    demo.set_defaults(run=run_demo, invalid_status=MISUSED)


def run_demo(options: argparse.Namespace) -> int:
    """Run the demo, and return its exit status."""
    given = None
    if options.bootstrap_server is not None or options.config is not None:
        given = client_settings(options.bootstrap_server, options.config)
        KafkaParameters.of(given, "dstreams demo")
    report: Callable[[str], object] = (lambda _: None) if options.quiet else _print
    with ExitStack() as stack:
        stack.enter_context(_without_warnings(logging.getLogger("dstreams.engine.lifecycle")))
        text = library_text(round(options.megabytes * 1e6))
        source: TextServer | TextTopic
        if options.kafka or given is not None:
            text += f"{END_WORD}\n".encode() * TextTopic.end_words
            source = stack.enter_context(TextTopic(text, given))
        else:
            text += f"{END_WORD}\n".encode() * TextServer.end_words
            source = stack.enter_context(TextServer(text))
        counted = count_words(text)
        spark_page = {"spark.ui.enabled": "true" if options.stay else "false"}
        spark = tuned_context("dstreams demo", f"local[{options.cores},4]", spark_page)
        stack.callback(spark.stop)
        page.prints = not options.quiet
        stack.callback(page.close)
        page.show(spark, Settings(ui_enabled=True))
        directory = stack.enter_context(
            TemporaryDirectory(prefix="dstreams-demo-", ignore_cleanup_errors=True)
        )
        size = f"{len(text) / 1e6:.1f} MB"
        report(f"counting the words of {size} of Python sources, received from {source.place}")
        count = StreamedCount(spark, source, directory, report)
        streamed = count.run(options.timeout)
        report(f"received the last word in batch {count.batches}, after {count.elapsed_s:.1f} s")
        is_equal = compare(streamed, counted, sys.stdout)
        if options.stay:
            _print("serving the live page until Ctrl-C")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    return SUCCEEDED if is_equal else FAILED


@contextmanager
def _without_warnings(logger: logging.Logger) -> Iterator[None]:
    """Hide the warning that the stop drops records: the text has been counted by then."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class StreamedCount:
    """Counts the words of a text as a stream, until the last word is in the state."""

    def __init__(
        self,
        spark: SparkContext,
        source: TextServer | TextTopic,
        directory: str,
        report: Callable[[str], object],
    ) -> None:
        self._source = source
        self._report = report
        self._clock = SystemClock()
        self._words = 0
        self._started_ms = self._ended_ms = 0
        self._final: list[WordCount] | None = None
        self._closed_output: BrokenPipeError | None = None
        self.batches = 0
        self._ssc = StreamingContext(spark, 1, clock=self._clock, settings=source.settings)
        self._ssc.checkpoint(directory)
        counts = source.lines(self._ssc).flatMap(words_of).map(with_one).updateStateByKey(add_up)
        counts.checkpoint(5)
        counts.foreachRDD(self._after_batch)

    def __getstate__(self) -> dict[str, object]:
        return {}  # outputs are pickled into the checkpoint, and a demo never restarts

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start of the stream to the end of its last batch."""
        return (self._ended_ms - self._started_ms) / 1000

    def run(self, limit_s: float) -> Counter[str]:
        """Run the stream to the end of the text and return the final state.

        Raises:
            StreamError: a batch failed, or the last word did not arrive within *limit_s*.
            BrokenPipeError: the output was closed.
            KeyboardInterrupt: a signal stopped the stream.
        """
        self._started_ms = self._ended_ms = self._clock.now_ms()
        self._ssc.start()
        try:
            if not self._ssc.awaitTerminationOrTimeout(limit_s):
                raise StreamError(
                    f"only {self._words:,} words were counted within {limit_s:g} s; "
                    "increase --timeout"
                )
        finally:
            if self._ssc.getState() is StreamingContextState.ACTIVE:
                self._ssc.stop(stopSparkContext=False)
        if self._closed_output is not None:
            raise self._closed_output
        if self._final is None:
            raise KeyboardInterrupt
        totals: Counter[str] = Counter()
        for word, count in self._final:
            totals[word] += count  # adding makes a duplicate key visible
        return totals

    def _after_batch(self, time: datetime, counts: RDD[WordCount]) -> None:
        words, distinct, end_words = total_counts(counts)
        could_begin_ms = max(batch_time_ms(time, "time"), self._ended_ms)
        lag = self._source.lag()
        line = (
            f"{time:%H:%M:%S} batch_words={words - self._words} "
            f"processing_ms={self._clock.now_ms() - could_begin_ms} words={words} "
            f"distinct={distinct}{'' if lag is None else f' lag={lag}'}"
        )
        self.batches += 1
        self._words = words
        self._ended_ms = self._clock.now_ms()
        try:
            self._report(line)
        except BrokenPipeError as error:
            self._closed_output = error
        has_end = end_words >= self._source.end_words
        if has_end:
            self._final = counts.collect()
        if has_end or self._closed_output is not None:
            self._ssc.stop(stopSparkContext=False)  # called in a batch: stops after this batch


def total_counts(counts: RDD[WordCount]) -> list[int]:
    """Return the number of words, distinct words and END_WORDs, computed in one Spark job."""

    def totals(pairs: Iterable[WordCount]) -> Iterator[tuple[int, int, int]]:
        found = dict(pairs)
        yield sum(found.values()), len(found), found.get(END_WORD, 0)

    parts = counts.mapPartitions(totals).collect()
    return [sum(part[column] for part in parts) for column in range(3)]


def compare(streamed: Counter[str], counted: Counter[str], out: TextIO) -> bool:
    """Compare the streamed counts with the independent ones, word by word, and print the result."""
    lines = [
        f"{name:<12} {counts.total():,} words, {len(counts):,} distinct"
        for name, counts in (("streamed:", streamed), ("independent:", counted))
    ]
    words = sorted(streamed.keys() | counted.keys())
    different = [word for word in words if streamed[word] != counted[word]]
    lines += [
        f"  {word!a}: streamed {streamed[word]:,}, independent {counted[word]:,}"
        for word in different[:_SHOWN_DIFFERENCES]
    ]
    if different:
        lines.append(f"the counts differ for {len(different):,} of {len(words):,} words")
    else:
        lines.append("the counts are equal, word by word")
    out.write("".join(f"{line}\n" for line in lines))
    out.flush()
    return not different


def with_one(word: str) -> WordCount:
    """Return a pair of the word and 1."""
    return word, 1


def add_up(new: list[int], count: int | None) -> int:
    """Return the new count of a word."""
    return sum(new) + (count or 0)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


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
                    one.shutdown(socket.SHUT_RDWR)  # ends accept and sendall in the thread
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

        lines = self._text.split(b"\n")[:-1]
        for place, line in enumerate(lines):
            partition = place % PARTITIONS
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
        self._sent = len(lines)

    def _after_read(self, rdd: Any) -> None:  # a KafkaRDD
        self._read.update((one.partition, one.untilOffset) for one in rdd.offsetRanges)
