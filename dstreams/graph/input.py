"""Streams that come from a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.graph.node import BatchView, Node
from dstreams.sources.source import Source


@dataclass(frozen=True, eq=False)
class InputDStream(Node):
    """A stream of what a source delivers.

    Parents: none. Slide: the batch duration. RDD at time t: what was planned for the batch
    at t before it began; none for a time that was never planned.
    """

    stream_id: int
    source: Source
    batch_ms: int
    operation: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def slide_ms(self) -> int:
        return self.batch_ms

    def compute(self, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        return None
