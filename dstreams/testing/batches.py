"""Batches of records through a stream, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.common.manual_clock import ManualClock
from dstreams.common.settings import Settings
from dstreams.context import StreamingContext
from dstreams.dstream import DStream
from dstreams.engine.lifecycle import StreamingContextState
from dstreams.monitoring.events import BatchInfo

Records = Sequence[Any]
Batches = Sequence["Records | RDD[Any] | None"]


class BatchDriver:
    """Runs given batches through a graph and collects the records of each output.

    >>> driver = BatchDriver(sc)
    >>> numbers = driver.input([[1, 2], None, []])
    >>> doubled = driver.output(numbers.map(lambda x: 2 * x))
    >>> driver.run(3)
    >>> doubled
    [[2, 4], None, []]

    Args:
        spark: the SparkContext.
        batch_duration: seconds.
        checkpoint: directory for durable state. None: a temporary one, deleted by :meth:`stop`.
        settings: settings that replace those of the SparkConf.
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
            if settings.state_local_directory is None:
                local = os.path.join(self._scratch.name, "local")
                settings = settings.replace(state_local_directory=local)
            checkpoint = os.path.join(self._scratch.name, "checkpoint")
        self.context = StreamingContext(spark, batch_duration, clock=self.clock, settings=settings)
        self.context.checkpoint(str(checkpoint))
        self.context._life.has_lasting_checkpoint = self._scratch is None
        self._outputs: list[tuple[list[list[Any] | None], dict[int, list[Any]]]] = []

    def input(self, batches: Batches) -> DStream[Any]:
        """Return a stream of these batches: None for no RDD, ``[]`` for an empty one.

        A list is split over two partitions. After the last batch, RDDs are empty.
        """
        spark = self.context.sparkContext
        rdds = [
            spark.parallelize(batch, 2) if isinstance(batch, (list, tuple)) else batch
            for batch in batches
        ]
        return self.context.queueStream(rdds)

    def output(self, stream: DStream[Any]) -> list[list[Any] | None]:
        """Return a list that each run extends by the records of *stream*, one list per batch.

        The entry of a batch without an RDD is None.
        """
        seen: dict[int, list[Any]] = {}
        collected: list[list[Any] | None] = []

        def collect(rdd: RDD[Any]) -> None:
            seen[len(collected)] = rdd.collect()

        stream.foreachRDD(collect)
        self._outputs.append((collected, seen))
        return collected

    def run(self, n: int) -> list[BatchInfo]:
        """Run the next *n* batches. Can be called again, also after a failed batch.

        Raises:
            BatchFailedError: if a batch failed; outputs that did not run have None for it. With
                ``on_failure="stop"`` the context is stopped and runs no further batch.
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
        """Stop the context but not Spark, and delete temporary directories."""
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
    """Run batches through an operation and return the records of its output, batch by batch.

    Args:
        spark: the SparkContext.
        batches: the input: lists, RDDs, or None for a batch without an RDD.
        operation: ``f(input stream, one stream per other input...) -> output stream``.
        others: further inputs.
        n: number of batches to run. None: that of the longest input.
        batch_duration: seconds.

    Returns:
        The records of the output for each batch; None for a batch without an RDD.

    Raises:
        BatchFailedError: if a batch failed, regardless of ``spark.dstreams.onFailure``; later
            batches do not run.
    """
    inputs: Iterable[Batches] = (batches, *others)
    with BatchDriver(spark, batch_duration) as driver:
        output = driver.output(operation(*(driver.input(given) for given in inputs)))
        driver.run(max(map(len, inputs)) if n is None else n)
        return output
