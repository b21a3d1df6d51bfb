"""The inputs of batches on their way to the RDDs that are made of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyspark import RDD

from dstreams.engine.batch import Batch, InputFailure
from dstreams.engine.input_offsets import InputEnds
from dstreams.errors import MissingInputError
from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.monitoring.events import InputInfo
from dstreams.sources.source import PlannedInput, SourceReader, merge_info, remedy_of
from dstreams.spark.counting import RecordCount, counted_unless_known

logger = logging.getLogger(__name__)


class BatchInputs:
    """Feeds the history with the RDDs of inputs, and knows what became of them.

    An input of which files are missing is looked for again in each later batch, as long as anything
    may ask for it: a state that is made of it waits, and loses no record.

    Args:
        history: what is fed.
        readers: the opened source of each input stream.
        uids: of the input streams.
        ends: up to where batches read them.
    """

    def __init__(
        self,
        history: History,
        readers: Mapping[InputDStream, SourceReader],
        uids: Mapping[InputDStream, str],
        ends: InputEnds,
    ) -> None:
        self._history = history
        self._readers = readers
        self._uids = uids
        self._ends = ends
        self._counts = InputCounts()
        self._unread: set[InputDStream] = set()
        self._missing: dict[tuple[InputDStream, int], PlannedInput] = {}

    @property
    def unread(self) -> Iterable[InputDStream]:
        """Streams whose input the last batch could not read, and which later ones do without."""
        return self._unread

    def feed(self, batch: Batch) -> InputFailure | None:
        """Feed the inputs of a batch, all that can be made; return why one could not be."""
        failure = batch.failure
        self._counts.clear()
        for (stream, _), planned in tuple(self._missing.items()):
            with suppress(MissingInputError):  # who needs it meets the error in the history
                self._feed(stream, planned)
        self._unread = set(self._readers)
        for stream, planned in batch.inputs.items():
            try:
                self._feed(stream, planned)
            except Exception as error:
                where = f"reading the input of {stream.operation}"
                failure = failure or InputFailure(where, error)
        return failure

    def _feed(self, stream: InputDStream, planned: PlannedInput) -> None:
        key = stream, planned.time_ms
        try:
            rdd = self._readers[stream].read(planned)
        except MissingInputError as error:
            self._history.withhold(*key, error)
            self._missing[key] = planned
            self._unread.discard(stream)
            raise
        self._history.feed(*key, self._counts.watch(stream, planned, rdd))
        self._unread.discard(stream)
        self._missing.pop(key, None)

    def committed(self, batch: Batch) -> None:
        """Let sources know that a batch counts; never raises."""
        for stream, planned in batch.inputs.items():
            try:
                self._readers[stream].commit(planned.end)
            except Exception:
                logger.warning("%s could not be told", stream.operation, exc_info=True)

    def forget(self, stream: InputDStream, upto_ms: int) -> None:
        """Nobody asks for inputs up to a time any more."""
        self._ends.release(self._uids[stream], upto_ms)
        for one, time_ms in tuple(self._missing):
            if one is stream and time_ms <= upto_ms:
                del self._missing[one, time_ms]

    def ended(
        self, planned: Mapping[InputDStream, PlannedInput], infos: Iterable[InputInfo]
    ) -> tuple[InputInfo, ...]:
        """Return what is told of the inputs of a batch, with what is known once it has run."""
        return self._counts.complete(
            merge_info(info, self._readers[stream].after_batch_info(one))
            for info, (stream, one) in zip(infos, planned.items(), strict=True)
        )

    def explain(self, error: BaseException) -> str | None:
        """Say what to do about an error, None where no input has to do with it."""
        return remedy_of(error, self._readers.values())


class InputCounts:
    """Record counts that sources could not say, or not exactly: a batch's own jobs find out."""

    def __init__(self) -> None:
        self._counts: dict[int, RecordCount] = {}

    def clear(self) -> None:
        """Forget the batch before: what its tasks may still say is dropped."""
        self._counts.clear()

    def watch(
        self, stream: InputDStream, planned: PlannedInput, rdd: RDD[Any] | None
    ) -> RDD[Any] | None:
        """Return the RDD to run instead of *rdd*, which counts where the count is not known."""
        if rdd is None:
            return None
        watched, count = counted_unless_known(rdd, planned.records)
        if count is not None:
            self._counts[stream.stream_id] = count
        return watched

    def complete(self, infos: Iterable[InputInfo]) -> tuple[InputInfo, ...]:
        """Return *infos* with the counts that are known now."""
        counts = self._counts
        found = {stream_id: count.records() for stream_id, count in counts.items()}
        return tuple(
            info
            if found.get(info.stream_id) is None
            else replace(info, records=found[info.stream_id])
            for info in infos
        )
