"""Which batch an output operation is called for, and outputs that want to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pyspark import RDD


@dataclass(frozen=True)
class OutputBatch:
    """A batch of one stream, the same in every run of it, also after a restart.

    Args:
        stream_id: identity of the stream over all its restarts; a stream that begins anew has
            another one.
        batch_id: 0, 1, 2, ...
        time_ms: batch time in milliseconds since the epoch.
    """

    stream_id: str
    batch_id: int
    time_ms: int


class BatchSink(ABC):
    """An output that knows its batches, to be handed to ``foreachRDD``.

    Attributes:
        identity: what tells apart the batches of this output from those of others of the stream,
            for people to read; two with one identity are refused. None: nothing needs to.
    """

    identity: str | None = None

    @abstractmethod
    def write_batch(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        """Write one batch, on the driver; a batch that is there already is not written again."""
