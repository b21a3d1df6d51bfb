"""Runs a query over records that are added step by step, and restarts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dstreams.structured import StreamingDataset, StreamingQuery, StreamSession

Build = Callable[..., StreamingDataset]


class QueryRun:
    """A query on memory streams, into a memory sink.

    Args:
        session: where it runs.
        build: from the datasets of the inputs to the query.
        mode: output mode.
        checkpoint: directory, for restarts.
        inputs: how many memory streams.
        trigger: as keyword arguments; None for one batch after the other.
    """

    def __init__(
        self,
        session: StreamSession,
        build: Build,
        mode: str,
        checkpoint: Path | None = None,
        inputs: int = 1,
        trigger: dict[str, Any] | None = None,
    ) -> None:
        self.session = session
        self._build = build
        self._mode = mode
        self._checkpoint = checkpoint
        self._trigger = trigger
        self.streams = [session.memoryStream(f"input{number}") for number in range(inputs)]
        self._seen = -1
        self.query = self._start()

    def _start(self) -> StreamingQuery:
        dataset = self._build(*(stream.toDS() for stream in self.streams))
        writer = dataset.writeStream.format("memory").queryName("run").outputMode(self._mode)
        if self._checkpoint is not None:
            writer = writer.option("checkpointLocation", str(self._checkpoint))
        if self._trigger is not None:
            writer = writer.trigger(**self._trigger)
        return writer.start()

    def add(self, *records: Any) -> list[Any]:
        """Add records to the first input; return what came out, sorted."""
        return self.add_to(0, *records)

    def add_to(self, number: int, *records: Any) -> list[Any]:
        """Add records to an input; return what came out since the last call, sorted."""
        self.streams[number].addAll(records)
        return self.outputs()

    def outputs(self) -> list[Any]:
        """Process what there is, and return what came out since the last call, sorted."""
        self.query.processAllAvailable()
        found = self.session.tableBatches("run")
        new = [row for batch, rows in sorted(found.items()) if batch > self._seen for row in rows]
        self._seen = max([self._seen, *found])
        return sorted(new, key=repr)

    def forget(self) -> None:
        """Forget what came out, so that what comes again is seen again."""
        self.session._tables.pop("run", None)
        self._seen = -1

    def restart(self, build: Build | None = None) -> StreamingQuery:
        """Stop the query and start it again, or another one, on its checkpoint."""
        self.query.stop()
        self._build = build or self._build
        self.query = self._start()
        return self.query

    def state(self, number: int = 0) -> dict[str, int]:
        """Return tot, upd, rem and drop of a stateful operator in the newest batch."""
        assert self.query.lastProgress is not None
        counts = self.query.lastProgress["stateOperators"][number]
        return {
            "tot": counts["numRowsTotal"],
            "upd": counts["numRowsUpdated"],
            "rem": counts["numRowsRemoved"],
            "drop": counts["numRowsDroppedByWatermark"],
        }

    def watermark(self) -> int:
        """Return the query's watermark after the newest batch, in seconds."""
        return self.query._execution._watermarks.query_ms // 1000
