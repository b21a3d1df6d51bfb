"""The rows of all batches, kept by the driver."""

from __future__ import annotations

import threading
from typing import Any

from pyspark import RDD

from dstreams.sinks.output_batch import OutputBatch
from dstreams.state.group_state import OutputMode
from dstreams.structured.sinks.sink import Sink


class MemorySink(Sink):
    """Keeps the rows of each batch; those of a complete result replace the ones before.

    A query that goes on in the same session takes over the rows of the *earlier* sink.
    """

    def __init__(self, table: str, earlier: MemorySink | None = None) -> None:
        self._table = table
        self._earlier = earlier
        self._query_id: str | None = None
        self._lock = threading.Lock()
        self._batches: dict[int, list[Any]] = {}

    @property
    def name(self) -> str:
        return f"MemorySink[{self._table}]"

    def begin(self, query_id: str) -> None:
        """Go on with what a run of the same query has kept."""
        earlier, self._earlier = self._earlier, None
        self._query_id = query_id
        if earlier is not None and earlier._query_id == query_id:
            with self._lock:
                self._batches = earlier.batches()

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Keep a batch in the place of an earlier run of it."""
        found = rows.collect()
        with self._lock:
            if mode is OutputMode.Complete:
                self._batches.clear()
            self._batches[batch.batch_id] = found
        return len(found)

    def rows(self) -> list[Any]:
        """Return all rows, in the order of the batches."""
        with self._lock:
            return [row for _, rows in sorted(self._batches.items()) for row in rows]

    def batches(self) -> dict[int, list[Any]]:
        """Return the rows of each batch that is kept, by its number."""
        with self._lock:
            return dict(self._batches)
