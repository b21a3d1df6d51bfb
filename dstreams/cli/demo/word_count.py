"""The stream of the demo: from a socket or a topic to the final state."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from operator import add
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, TextIO

from pyspark import RDD, SparkContext

from checkpoint.cli.progress import Progress, is_terminal, progress_on
from dstreams import StreamError, StreamingContext, StreamingContextState, tuned_context
from dstreams.cli.demo.brokers import DemoBrokers
from dstreams.cli.demo.counts_topic import CountsTopic
from dstreams.cli.demo.mock_cluster import MockCluster
from dstreams.cli.demo.origin import Origin
from dstreams.cli.demo.report import BatchProgress, DemoReport, JsonReport
from dstreams.cli.demo.server import TextServer
from dstreams.cli.demo.summary import Summary, WordCount, summarize_counts
from dstreams.cli.demo.text import END_WORD, count_words, library_text, words_of
from dstreams.cli.demo.topic import TextTopic
from dstreams.common.clock import Clock, SystemClock
from dstreams.common.durations import batch_time_ms
from dstreams.common.settings import Settings
from dstreams.kafka.parameters import BROKERS
from dstreams.monitoring.web.page import page

BATCH_S = 1
CHECKPOINT_S = 5 * BATCH_S


def run_demo(
    cores: int,
    limit_bytes: int,
    limit_s: float,
    out: TextIO,
    kafka: Mapping[str, Any] | None = None,
    *,
    as_json: bool = False,
    is_quiet: bool = False,
    stays: bool = False,
) -> bool:
    """Run the demo; True when the streamed counts are those of the independent count.

    Brokers of Kafka get the counts in a topic, too, and what is in it is compared as well.

    Args:
        cores: tasks at a time.
        limit_bytes: of text, at most.
        limit_s: how long the stream may take, seconds.
        out: what is told goes there.
        kafka: parameters of the clients of brokers, to send the text through a topic; empty for a
            mock cluster of the demo's own. None: a socket.
        as_json: tell it to programs, in a JSON object a line.
        is_quiet: tell the result alone.
        stays: keep Spark and the page after the result, until a signal.

    Raises:
        InvalidStreamError: a parameter of Kafka cannot be.
        EnvironmentNotReadyError: Java, Spark, the text, Kafka's client or its brokers are missing.
        StreamError: a batch failed, or the text was not counted in time.
        BrokenPipeError: nobody reads *out* any more.
        KeyboardInterrupt: a signal ended the stream.
    """
    with ExitStack() as stack:
        # Elsewhere than on a terminal the batches themselves say how far it is.
        progress: Progress = stack.enter_context(
            progress_on(
                sys.stderr, "dstreams demo", is_quiet=is_quiet or not is_terminal(sys.stderr)
            )
        )
        progress.begin("reading the text")
        text = library_text(limit_bytes)
        written: CountsTopic | None = None
        if kafka is None:
            text += _end(TextServer.end_words)
            origin: Origin = stack.enter_context(TextServer(text))
        else:
            text += _end(TextTopic.end_words)
            brokers = DemoBrokers(kafka) if kafka else _mock_brokers(stack)
            origin = stack.enter_context(TextTopic(text, brokers))
            if not brokers.is_mock:
                written = stack.enter_context(CountsTopic(brokers))
        progress.begin("counting without Spark")
        counted = count_words(text)
        kind = JsonReport if as_json else DemoReport
        report = kind(out, len(text), counted.total(), progress, is_quiet=is_quiet)
        clock = SystemClock()
        progress.begin("starting Spark")
        # Nobody looks at Spark's page in so short a time.
        spark_page = {"spark.ui.enabled": "true" if stays else "false"}
        spark = tuned_context("dstreams demo", f"local[{cores},4]", spark_page)
        stack.callback(spark.stop)
        stack.callback(page.close)
        page.show(spark, Settings(ui_enabled=True))
        scratch = stack.enter_context(
            TemporaryDirectory(prefix="dstreams-demo-", ignore_cleanup_errors=True)
        )
        report.begin(origin.place)
        if kafka is not None:
            report.output(None if written is None else written.name)
        count = StreamedCount(spark, origin, scratch, report.batch, clock, written)
        streamed = count.run(limit_s)
        report.end(count.batches, count.elapsed_ms)
        progress.begin("comparing")
        sums = None if written is None else written.sums()
        if stays:
            is_equal = report.verdict(streamed, counted, sums)
            progress.begin("the page stays until Ctrl-C")
            with suppress(KeyboardInterrupt):
                Event().wait()
            return is_equal
    return report.verdict(streamed, counted, sums)


def _mock_brokers(stack: ExitStack) -> DemoBrokers:
    cluster = stack.enter_context(MockCluster())
    return DemoBrokers({BROKERS: cluster.brokers}, is_mock=True)


def _end(words: int) -> bytes:
    return f"{END_WORD}\n".encode() * words


class StreamedCount:
    """Counts the words of a text, until its last word is in the state."""

    def __init__(
        self,
        spark: SparkContext,
        origin: Origin,
        directory: str,
        tell: Callable[[BatchProgress], None],
        clock: Clock,
        written: CountsTopic | None = None,
    ) -> None:
        self._origin = origin
        self._tell = tell
        self._clock = clock
        self._words = 0
        self._started_ms = self._ended_ms = clock.now_ms()
        self._final: list[WordCount] | None = None
        self._unheard: BrokenPipeError | None = None
        self.batches = 0
        self._ssc = StreamingContext(spark, BATCH_S, clock=clock, settings=origin.settings)
        self._ssc.checkpoint(directory)
        words = origin.lines(self._ssc).flatMap(words_of).map(with_one)
        if written is not None:
            words = words.reduceByKey(add)
            written.take(words)
        counts = words.updateStateByKey(add_up)
        counts.checkpoint(CHECKPOINT_S)
        counts.foreachRDD(self._after_batch)

    def __getstate__(self) -> dict[str, object]:
        # Outputs are written to the checkpoint with all that they use. Nothing restarts a demo, and
        # its origin and its clock are of this process alone.
        return {}

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds from the start of the stream to the end of its last batch."""
        return self._ended_ms - self._started_ms

    def run(self, limit_s: float) -> Counter[str]:
        """Run the stream to the end of the text and return the final state.

        Raises:
            StreamError: a batch failed, or the last word did not come within *limit_s*.
            BrokenPipeError: nobody is there to be told.
            KeyboardInterrupt: a signal ended the stream.
        """
        self._started_ms = self._ended_ms = self._clock.now_ms()
        self._ssc.start()
        try:
            if not self._ssc.awaitTerminationOrTimeout(limit_s):
                raise StreamError(
                    f"the last word of the text was not counted within {limit_s:g} s, only "
                    f"{self._words:,} words were; allow more with --timeout"
                )
        finally:
            if self._ssc.getState() is StreamingContextState.ACTIVE:
                self._ssc.stop(stopSparkContext=False)
        if self._unheard is not None:
            raise self._unheard
        if self._final is None:
            raise KeyboardInterrupt
        totals: Counter[str] = Counter()
        for word, count in self._final:
            totals[word] += count  # a word that came twice is not to be hidden
        return totals

    def _after_batch(self, time: datetime, counts: RDD[WordCount]) -> None:
        summary = summarize_counts(counts)
        has_end = summary.end_words >= self._origin.end_words
        progress = self._progress(time, summary)
        self.batches += 1
        self._words = summary.words
        self._ended_ms = self._clock.now_ms()
        try:
            self._tell(progress)
        except BrokenPipeError as error:
            self._unheard = error
        if has_end:
            self._final = counts.collect()
        if has_end or self._unheard is not None:
            self._ssc.stop(stopSparkContext=False)  # inside a batch: after this batch

    def _progress(self, time: datetime, summary: Summary) -> BatchProgress:
        # Batches run one after another: this one could begin when the one before it had ended.
        could_begin_ms = max(batch_time_ms(time, "time"), self._ended_ms)
        return BatchProgress(
            batch_time=time,
            batch_words=summary.words - self._words,
            processing_ms=self._clock.now_ms() - could_begin_ms,
            sent_bytes=self._origin.sent_bytes,
            summary=summary,
            lag=self._origin.lag(),
        )


def with_one(word: str) -> WordCount:
    """Return the word as a pair with the number of times it is there: once."""
    return word, 1


def add_up(new: list[int], count: int | None) -> int:
    """Return the count of a word, which is kept for ever."""
    return sum(new) + (count or 0)
