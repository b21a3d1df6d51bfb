"""Batches as outputs are told of them."""

from __future__ import annotations

from dstreams.sinks.output_batch import OutputBatch


def batch_at(time_ms: int, stream_id: str = "stream-0-test", beginning: str = "") -> OutputBatch:
    """The batch at *time_ms* of a stream with a batch each second."""
    return OutputBatch(stream_id, time_ms // 1000 - 1, time_ms, beginning)
