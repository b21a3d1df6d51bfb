"""StreamTester: a whole stream, batch by batch, over kills and restarts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.common.faults import FaultError, watch
from dstreams.common.manual_clock import ManualClock
from dstreams.common.settings import Settings
from dstreams.context import StreamingContext
from dstreams.dstream import DStream
from dstreams.engine.lifecycle import StreamingContextState
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.sources.queue import QueueSource

Setup = Callable[..., "DStream[Any] | Mapping[str, DStream[Any]]"]
"""``f(context, stream, ...)`` returns an output stream, or a dict of names and output streams."""

_ALL_KEYS = 1 << 40
_ONLY = ""  # the name of an output without a name


class StreamTester:
    """Runs a stream batch by batch, kills its driver, and recovers it from its checkpoint.

    >>> def setup(ssc, words):
    ...     pairs = words.map(lambda word: (word, 1))
    ...     return pairs.updateStateByKey(lambda new, count: sum(new) + (count or 0), uid="counts")
    >>> with StreamTester(sc, setup) as tester:
    ...     first = tester.batch(["a", "b"])
    ...     tester.kill(["a"], at="out.start")
    ...     again = tester.recover()
    ...     counts = tester.state("counts")
    >>> sorted(first), [sorted(rows) for rows in again], sorted(counts.items())
    ([('a', 1), ('b', 1)], [[('a', 2), ('b', 1)]], [('a', 2), ('b', 1)])

    Inputs keep their records over restarts. Batch times are one batch duration apart; no batch
    waits for its time.

    Args:
        spark: the SparkContext; it keeps running.
        setup: a function that defines the streams, called at each start with the context and a
            stream of records for each input. It returns the output stream, or a dict of names and
            output streams.
        inputs: number of inputs.
        batch_duration: seconds.
        settings: settings that replace those of the SparkConf.
    """

    def __init__(
        self,
        spark: SparkContext,
        setup: Setup,
        inputs: int = 1,
        batch_duration: float = 1,
        settings: Settings | None = None,
    ) -> None:
        self._spark = spark
        self._setup = setup
        self._batch_duration = batch_duration
        self._scratch = TemporaryDirectory(prefix="dstreams-test-")
        self.checkpoint = os.path.join(self._scratch.name, "checkpoint")
        """The directory of the checkpoint."""
        settings = settings or Settings.from_conf(dict(spark.getConf().getAll()))
        if settings.state_local_directory is None:
            local = os.path.join(self._scratch.name, "local")
            settings = settings.replace(state_local_directory=local)
        self._settings = settings
        self._fed: list[list[list[Any]]] = [[] for _ in range(inputs)]
        self._outputs: dict[str, list[list[Any]]] = {}
        self._context: StreamingContext | None = None
        try:
            self._start()
        except BaseException:
            self._scratch.cleanup()
            raise

    @property
    def context(self) -> StreamingContext:
        """The context that runs now.

        Raises:
            StreamLifecycleError: it was killed.
        """
        if self._context is None:
            raise StreamLifecycleError("the driver was killed; call recover() first")
        return self._context

    def batch(self, *records: Sequence[Any] | None) -> Any:
        """Run the next batch, and return the records of its output.

        Args:
            records: for each input, the records that arrive before the batch; none by default.

        Returns:
            The records, in no particular order, or None if the output has no RDD in this batch.
            With several outputs, a dict of their names and records.

        Raises:
            BatchFailedError: the batch fails.
            InvalidStreamError: there are more lists than inputs.
        """
        context = self.context
        self._feed(records)
        for batches in self._outputs.values():
            batches.clear()
        context.step()
        found = {name: seen.pop() if seen else None for name, seen in self._outputs.items()}
        return found[_ONLY] if list(found) == [_ONLY] else found

    def state(self, uid: str | None = None) -> dict[Any, Any]:
        """Return all states of an operator after the last committed batch, by key.

        Args:
            uid: the operator; None if only one has state.

        Raises:
            InvalidStreamError: the operator is unknown, or has no state yet.
        """
        return dict(self.context.state(uid).range(limit=_ALL_KEYS))

    def kill(self, *records: Sequence[Any] | None, at: str | None = None) -> None:
        """Kill the driver, as a crash would: what it writes from now on is lost.

        Args:
            records: as of :meth:`batch`; only with *at*.
            at: run a batch, and kill the driver at this step: ``plan.start``, ``begin.start``,
                ``begin.done``, ``state.start``, ``state.done``, ``out.start``, ``out.done``,
                ``commit.start`` or ``commit.done``. None kills the driver between two batches.

        Raises:
            InvalidStreamError: the batch does not reach the step.
        """
        context, saved = self.context, f"{self.checkpoint}.saved"
        if at is None:
            _copy(self.checkpoint, saved)
        else:
            self._feed(records)

            def die(step: str) -> None:
                if step == at and not os.path.exists(saved):
                    _copy(self.checkpoint, saved)
                    raise FaultError(f"killed at {at}")

            end = watch(die)
            try:
                with suppress(Exception):  # a dead driver reports no errors
                    context.step()
            finally:
                end()
            if not os.path.exists(saved):
                raise InvalidStreamError(f"the batch has no step {at!r}, at which it could end")
        self._stop(context)
        shutil.rmtree(self.checkpoint)
        os.rename(saved, self.checkpoint)

    def recover(self, setup: Setup | None = None) -> list[Any]:
        """Start again from the checkpoint, and return the outputs of the batches that run again.

        Args:
            setup: the definition of changed streams; None for the same.

        Returns:
            For each batch that was begun and not committed, what :meth:`batch` returns.

        Raises:
            RestartError: the checkpoint does not fit the streams.
            StreamLifecycleError: the driver is running.
        """
        if self._context is not None:
            raise StreamLifecycleError("the driver is running; kill() it first")
        self._setup = setup or self._setup
        return [self.batch() for _ in range(self._start())]

    def stop(self) -> None:
        """Stop the context but not Spark, and delete the checkpoint."""
        if self._context is not None:
            self._stop(self._context)
        self._scratch.cleanup()

    def __enter__(self) -> StreamTester:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> int:
        """Start, and return the number of batches to run again."""
        context = StreamingContext.restore(self.checkpoint, self._define)
        found = context._recovered_stream
        self._context = context
        return 0 if found is None else len(found.records.in_flight)

    def _define(self) -> StreamingContext:
        ssc = StreamingContext(
            self._spark, self._batch_duration, clock=ManualClock(), settings=self._settings
        )
        ssc.checkpoint(self.checkpoint)
        streams = [
            ssc._input(_fed_by(batches), "StreamTester", f"input-{number}")
            for number, batches in enumerate(self._fed)
        ]
        defined = self._setup(ssc, *streams)
        outputs = defined if isinstance(defined, Mapping) else {_ONLY: defined}
        for name, stream in outputs.items():
            if not isinstance(stream, DStream):
                raise InvalidStreamError(
                    "setup must return a DStream, or a dict of names and DStreams, got "
                    f"{type(stream).__name__}"
                )
            self._outputs[name] = _collected(stream)
        return ssc

    def _feed(self, records: Sequence[Sequence[Any] | None]) -> None:
        if len(records) > len(self._fed):
            raise InvalidStreamError(
                f"the stream has {len(self._fed)} inputs, got records for {len(records)}"
            )
        for batches, fed in zip(self._fed, records, strict=False):
            if fed is not None:
                batches.append(list(fed))

    def _stop(self, context: StreamingContext) -> None:
        if context.getState() is StreamingContextState.ACTIVE:
            context.stop(stopSparkContext=False)
        self._context, self._outputs = None, {}


def _fed_by(batches: list[list[Any]]) -> QueueSource:
    """Return a source of all records in a list that grows."""
    source = QueueSource((), one_at_a_time=False, replayable=True)
    object.__setattr__(source, "queue", batches)  # not a copy of it
    return source


def _collected(stream: DStream[Any]) -> list[list[Any]]:
    """Return a list that gets the records of each batch."""
    seen: list[list[Any]] = []

    def collect(rdd: RDD[Any]) -> None:
        seen.append(rdd.collect())

    stream.foreachRDD(collect)
    return seen


def _copy(source: str, target: str) -> None:
    """Copy a checkpoint while its driver may delete files of it."""

    def copy(path: str, to: str) -> None:
        with suppress(FileNotFoundError):
            shutil.copy2(path, to)

    os.makedirs(source, exist_ok=True)
    shutil.copytree(source, target, copy_function=copy)
