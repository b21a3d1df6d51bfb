"""The stream that ``mapWithState`` returns."""

from __future__ import annotations

from typing import Any

from pyspark import RDD

from dstreams.api.dstream import DStream
from dstreams.durations import require_duration_ms
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

    def stateStore(self) -> RDD[tuple[Any, Any, int | None]]:
        """Return the newest state as an RDD, for a look from a notebook while the stream runs.

        Returns:
            RDD of (key, state, when the key is due in milliseconds since the epoch or None), of the
            newest version there is now; what batches change later is not in it. Reading it while
            the stream runs on makes it read old versions, which is slow and works for as long as
            they are kept.

        Raises:
            StreamLifecycleError: the context does not run, or no batch has made a state yet.
        """
        engine = self._ssc._engine
        spark = self._ssc.sparkContext
        entries = None if engine is None else engine.history.stored().entries(self._node, spark)
        if entries is None:
            raise StreamLifecycleError(
                f"{self._node.operation} has no state yet, or the context has stopped"
            )
        return entries.map(_state_and_timeout)


def _state_and_timeout(entry: tuple[Any, Any, int | None]) -> tuple[Any, Any, int | None]:
    """Return (key, state, timeout) of a stored row, which begins with the state."""
    key, row, timeout_ms = entry
    return key, row[0], timeout_ms
