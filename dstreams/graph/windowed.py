"""WindowedDStream: what a stream had within a sliding window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.graph.node import BatchView, ChildNode, Node
from dstreams.graph.window_times import WindowTimes
from dstreams.spark.union import unite


@dataclass(frozen=True, eq=False)
class WindowedDStream(ChildNode):
    """The union of the parent's RDDs in a window, oldest first.

    Parents: the parent, nothing else. Slide: that of the window. RDD at time t: union of the
    parent's RDDs at times in (t - window, t], left out where it has none; when it has none at all,
    an empty RDD, or no RDD where that is asked for. The union has the partitioner that all of them
    share.

    The parent's RDDs are persisted, and remembered for a window longer than this stream's: each is
    made once and read by every window that it is in. This stream itself is never persisted.

    Semantics: org.apache.spark.streaming.dstream.WindowedDStream (4.3).
    """

    rereads_parents: ClassVar[bool] = True

    parent: Node
    times: WindowTimes
    operation: str
    empty_for_none: bool = True

    @property
    def slide_ms(self) -> int:
        return self.times.slide_ms

    @property
    def holder(self) -> Node:
        return self.parent.holder

    def earlier_times(self, time_ms: int) -> Iterable[int]:
        return [earlier_ms for earlier_ms in self.times.current(time_ms) if earlier_ms < time_ms]

    def parents_remember_ms(self, remember_ms: int) -> int:
        return remember_ms + self.times.window_ms

    def compute(self, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        made = [rdds.at(self.parent, parents_ms) for parents_ms in self.times.current(time_ms)]
        there = [rdd for rdd in made if rdd is not None]
        return unite(rdds.spark, there) if there or self.empty_for_none else None
