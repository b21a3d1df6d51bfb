"""The stream that ``mapWithState`` returns."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark import RDD

from dstreams.api.dstream import DStream
from dstreams.durations import batch_time_ms, require_duration_ms
from dstreams.errors import StreamLifecycleError


class MapWithStateDStream(DStream[Any]):
    """What the function of ``mapWithState`` emits, and a way to all of the state.

    Semantics: org.apache.spark.streaming.dstream.MapWithStateDStream (4.3).
    """

    def checkpoint(self, interval: float) -> MapWithStateDStream:
        """Say in which batches ``mapWithState`` looks for timeouts, where it does as Spark does.

        That is, where ``spark.dstreams.mapWithState.timeouts`` is ``checkpoint``. The state is made
        durable in every batch all the same.

        Args:
            interval: seconds, a multiple of this stream's slide; ten slides unless it is set.

        Raises:
            InvalidStreamError: *interval* is no positive duration; that it is a multiple of the
                slide is checked at start.
            StreamLifecycleError: the context has started.
        """
        self._ssc._require_initialized("the checkpoint interval of a stream cannot be changed")
        interval_ms = require_duration_ms(interval, "interval")
        self._ssc._graph.options_of(self._node).checkpoint_ms = interval_ms
        return self

    def stateSnapshots(self) -> DStream[tuple[Any, Any]]:
        """Return the stream of (key, state) of every key, after each batch.

        It reads the whole state, so a batch costs as much as there is.
        """
        return self._snapshots(self._node)

    def stateStore(
        self, batchTime: datetime | float | None = None
    ) -> RDD[tuple[Any, Any, int | None]]:
        """Return the state as an RDD, for a look from a notebook, also while the stream runs.

        Args:
            batchTime: the batch after which the state is wanted, as a datetime (naive: local time)
                or in seconds since the epoch; a time between two batches is floored. At least the
                batches since the last but one snapshot of the state are kept. None: the newest
                state there is now.

        Returns:
            RDD of (key, state, when the key is due in milliseconds since the epoch or None), of one
            version; what batches change later is not in it. Reading a version that is not the
            newest is slow, and works for as long as it is kept.

        Raises:
            InvalidStreamError: the state after that batch is not kept, or was never there.
            StreamLifecycleError: the context does not run, or no batch has made a state yet.
        """
        time_ms = None if batchTime is None else batch_time_ms(batchTime, "batchTime")
        engine = self._ssc._engine
        entries = None
        if engine is not None:
            if time_ms is not None:
                since_ms = time_ms - engine.plan.zero_ms
                time_ms -= since_ms % self._node.slide_ms
            states = engine.history.stored()
            entries = states.entries(self._node, self._ssc.sparkContext, time_ms)
        if entries is None:
            raise StreamLifecycleError(
                f"{self._node.operation} has no state yet, or the context has stopped"
            )
        return entries.map(_state_and_timeout)


def _state_and_timeout(entry: tuple[Any, Any, int | None]) -> tuple[Any, Any, int | None]:
    """Return (key, state, timeout) of a stored row, which begins with the state."""
    key, row, timeout_ms = entry
    return key, row[0], timeout_ms
