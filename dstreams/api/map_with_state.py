"""The stream that ``mapWithState`` returns."""

from __future__ import annotations

from typing import Any

from dstreams.api.dstream import DStream


class MapWithStateDStream(DStream[Any]):
    """What the function of ``mapWithState`` emits, and a way to all of the state.

    Semantics: org.apache.spark.streaming.dstream.MapWithStateDStream (4.3).
    """

    def stateSnapshots(self) -> DStream[tuple[Any, Any]]:
        """Return the stream of (key, state) of every key, after each batch.

        It reads the whole state, so a batch costs as much as there is.
        """
        return self._snapshots(self._node)
