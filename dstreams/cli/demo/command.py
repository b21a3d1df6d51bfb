"""``dstreams demo``: the command, its stream, and the comparison of the counts."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from tempfile import TemporaryDirectory
from threading import Event
from typing import TextIO

from pyspark import RDD, SparkContext

from checkpoint.cli import CommandParser
from dstreams import Settings, StreamError, StreamingContext, StreamingContextState, tuned_context
from dstreams.cli.common import FAILED, MISUSED, SUCCEEDED, add_brokers, add_quiet, number
from dstreams.cli.demo.sources import (
    END_WORD,
    TextServer,
    TextTopic,
    count_words,
    library_text,
    words_of,
)
from dstreams.common.clock import SystemClock
from dstreams.common.durations import batch_time_ms
from dstreams.kafka.parameters import KafkaParameters, client_settings
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


def configure(demo: CommandParser) -> None:
    """Add the arguments of the command."""
    demo.description = (
        "Counts the words of the standard library's sources with updateStateByKey. The text "
        "arrives over a local TCP socket or through a Kafka topic. The streamed counts are "
        "compared with a count made without Spark."
    )
    demo.add_below(["--megabytes 1", "--bootstrap-server localhost:9092"], _STATUS)
    demo.add_argument(
        "--megabytes",
        type=number(0.01, "megabytes"),
        default=10.0,
        metavar="N",
        help="maximum size of the text (default: %(default)g)",
    )
    demo.add_argument(
        "--cores",
        type=number(1, "cores", int),
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="number of parallel Spark tasks (default on this machine: %(default)s)",
    )
    demo.add_argument(
        "--timeout",
        type=number(1, "seconds"),
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
    demo.set_defaults(run=run, invalid_status=MISUSED)


def run(options: argparse.Namespace) -> int:
    """Run the demo, and return its exit status."""
    given = None
    if options.bootstrap_server is not None or options.config is not None:
        given = client_settings(options.bootstrap_server, options.config)
        KafkaParameters.of(given, "dstreams demo")
    tell = _silent if options.quiet else _print
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
        tell(f"counting the words of {size} of Python sources, received from {source.place}")
        count = StreamedCount(spark, source, directory, tell)
        streamed = count.run(options.timeout)
        tell(f"received the last word in batch {count.batches}, after {count.elapsed_s:.1f} s")
        is_equal = compare(streamed, counted, sys.stdout)
        if options.stay:
            _print("serving the live page until Ctrl-C")
            with suppress(KeyboardInterrupt):
                Event().wait()
    return SUCCEEDED if is_equal else FAILED


@contextmanager
def _without_warnings(logger: logging.Logger) -> Iterator[None]:
    """Hide that the stop drops records: the text has been counted by then."""
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
        tell: Callable[[str], None],
    ) -> None:
        self._source = source
        self._tell = tell
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
        words, distinct, end_words = summarize(counts)
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
            self._tell(line)
        except BrokenPipeError as error:
            self._closed_output = error
        has_end = end_words >= self._source.end_words
        if has_end:
            self._final = counts.collect()
        if has_end or self._closed_output is not None:
            self._ssc.stop(stopSparkContext=False)  # called in a batch: stops after this batch


def summarize(counts: RDD[WordCount]) -> list[int]:
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


def _silent(line: str) -> None:
    pass
