"""Driving streams by hand, for tests of ours and of yours.

A test of a stream is a table: batches in, batches out.

>>> from dstreams.testing import run_batches
>>> run_batches(sc, [["a", "b"], ["a"], []], lambda words: words.map(lambda w: (w, 1)))
[[('a', 1), ('b', 1)], [('a', 1)], []]

A started context is driven by a clock that stands still until it is told to go:

>>> clock = ManualClock()
>>> ssc = StreamingContext(sc, 1, clock=clock)
>>> ssc.start()
>>> clock.advance(1000)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.common.settings import Settings
from dstreams.context import StreamingContext
from dstreams.dstream import DStream
from dstreams.engine.lifecycle import StreamingContextState
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.events import BatchInfo

Records = Sequence[Any]
Batches = Sequence["Records | RDD[Any] | None"]


class ManualClock:
    """A clock that moves only when it is told to.

    Args:
        start_ms: what it shows first, milliseconds since the epoch.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms
        self._times_set_back = 0
        self._changed = threading.Condition()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        with self._changed:
            return self._now_ms

    def advance(self, ms: int) -> None:
        """Move the clock forward.

        Raises:
            InvalidStreamError: *ms* is negative; :meth:`set_back` is for that.
        """
        if ms < 0:
            raise InvalidStreamError(f"a clock cannot advance by {ms} ms; set_back({-ms}) it")
        with self._changed:
            self._now_ms += ms
            self._changed.notify_all()

    def set_back(self, ms: int) -> None:
        """Set the clock back, as that of a machine may be: batch times grow nevertheless.

        Raises:
            InvalidStreamError: *ms* is not positive.
        """
        if ms <= 0:
            raise InvalidStreamError(f"a clock is set back by 1 ms or more, got {ms} ms")
        with self._changed:
            self._now_ms -= ms
            self._times_set_back += 1
            self._changed.notify_all()

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        """Wait until the clock shows *time_ms*, or is set back; False when *interrupted* is set."""
        with self._changed:
            before = self._times_set_back
            while not interrupted.is_set():
                if self._now_ms >= time_ms or self._times_set_back > before:
                    return True
                # Setting the event does not wake this condition, so look again now and then.
                self._changed.wait(0.02)
        return False


class BatchDriver:
    """Runs given batches through a graph and keeps what each output saw.

    >>> driver = BatchDriver(sc)
    >>> numbers = driver.input([[1, 2], None, []])
    >>> doubled = driver.output(numbers.map(lambda x: 2 * x))
    >>> driver.run(3)
    >>> doubled
    [[2, 4], None, []]

    Args:
        spark: the SparkContext.
        batch_duration: seconds.
        checkpoint: directory for durable state. None: a temporary one, gone after :meth:`run`.
        settings: settings to use instead of those that the SparkConf says.
    """

    def __init__(
        self,
        spark: SparkContext,
        batch_duration: float = 1,
        checkpoint: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._scratch = TemporaryDirectory() if checkpoint is None else None
        self.clock = ManualClock()
        if self._scratch is not None:
            settings = settings or Settings.from_conf(dict(spark.getConf().getAll()))
            if settings.state_local_directory is None:  # those copies are of this run alone, too
                local = os.path.join(self._scratch.name, "local")
                settings = settings.replace(state_local_directory=local)
            checkpoint = os.path.join(self._scratch.name, "checkpoint")
        self.context = StreamingContext(spark, batch_duration, clock=self.clock, settings=settings)
        self.context.checkpoint(str(checkpoint))
        self.context._life.has_lasting_checkpoint = self._scratch is None
        self._outputs: list[tuple[list[list[Any] | None], dict[int, list[Any]]]] = []

    def input(self, batches: Batches) -> DStream[Any]:
        """Return a stream that has these batches: None for no RDD, ``[]`` for an empty one.

        A list is split over two partitions. After the last batch come empty RDDs.
        """
        spark = self.context.sparkContext
        rdds = [
            spark.parallelize(batch, 2) if isinstance(batch, (list, tuple)) else batch
            for batch in batches
        ]
        return self.context.queueStream(rdds)

    def output(self, stream: DStream[Any]) -> list[list[Any] | None]:
        """Collect *stream*; the list that is returned holds each batch's records after a run.

        A batch in which the stream has no RDD is None.
        """
        seen: dict[int, list[Any]] = {}
        collected: list[list[Any] | None] = []

        def collect(rdd: RDD[Any]) -> None:
            seen[len(collected)] = rdd.collect()

        stream.foreachRDD(collect)
        self._outputs.append((collected, seen))
        return collected

    def run(self, n: int) -> list[BatchInfo]:
        """Run the next *n* batches; may be called again, after a batch that failed as well.

        Raises:
            BatchFailedError: a batch failed; outputs that did not see it have None for it. With
                ``on_failure="stop"`` the context is stopped, and runs no further batch.
        """
        infos: list[BatchInfo] = []
        for _ in range(n):
            try:
                infos += self.context.step()
            finally:
                for collected, seen in self._outputs:
                    collected.append(seen.pop(len(collected), None))
        return infos

    def stop(self) -> None:
        """Stop the context, not Spark, and remove what was temporary."""
        if self.context.getState() is StreamingContextState.ACTIVE:
            self.context.stop(stopSparkContext=False)
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> BatchDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def run_batches(
    spark: SparkContext,
    batches: Batches,
    operation: Callable[..., DStream[Any]],
    *others: Batches,
    n: int | None = None,
    batch_duration: float = 1,
) -> list[list[Any] | None]:
    """Run batches through an operation and return what came out, batch by batch.

    Args:
        spark: the SparkContext.
        batches: the input: lists, RDDs, or None for a batch without an RDD.
        operation: from the input stream, and a stream for each of *others*, to the output stream.
        others: further inputs.
        n: how many batches to run. None: as many as the longest input has.
        batch_duration: seconds.

    Returns:
        The output's records for each batch, None where it had no RDD.

    Raises:
        BatchFailedError: a batch failed, whatever ``spark.dstreams.onFailure`` is; none after it
            runs.
    """
    inputs: Iterable[Batches] = (batches, *others)
    with BatchDriver(spark, batch_duration) as driver:
        output = driver.output(operation(*(driver.input(given) for given in inputs)))
        driver.run(max(map(len, inputs)) if n is None else n)
        return output
