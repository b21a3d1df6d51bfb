"""Windows: unions of a stream's RDDs, and reductions that are updated incrementally.

A window at time t covers (t - window, t]: the start is excluded, the end included. The previous
window ended one slide earlier. With a window of five slides of the parent and a slide of two::

    previous window      (------------------]                  (t - slide - window, t - slide]
    window at t                  (------------------]          (t - window, t]
                         (-left--]          (entered]
    parent's times    -  1   2   3   4   5   6   7   8  ->     at t = 7: 1 2 left, 6 7 entered

If the slide is longer than the window, the times between two windows are in neither, and nothing
is shared: all of the previous window left, all of this one entered::

    previous window      (-------]                             window of two, slide of three
    window at t                      (-------]
                         (-left--]   (entered]
    parent's times    -  1   2   3   4   5   6   7   8  ->     at t = 5: 1 2 left, 4 5 entered
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD, StorageLevel

from dstreams.common.durations import require_duration_ms, require_multiple
from dstreams.graph.node import STATE_STORAGE, ChildNode, Node, Previous
from dstreams.graph.transformed import ReducedDStream
from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.partitions import unite
from dstreams.spark.shuffle import PAIR_FRAMES, BlockPairsRDD, FrameLayout
from dstreams.spark.window_step import WindowFunctions, slide_window


@dataclass(frozen=True)
class WindowTimes:
    """The times of a parent stream that are in a sliding window, in order.

    They may be zero time or earlier, where no stream has an RDD: the first windows are shorter.
    """

    window_ms: int
    slide_ms: int
    parent_slide_ms: int

    @classmethod
    def of(
        cls, window: float, slide: float | None, parent_slide_ms: int, operation: str
    ) -> WindowTimes:
        """Return a window given in seconds; the default *slide* is the parent's."""
        window_ms = require_duration_ms(window, f"{operation}: windowDuration")
        slide_name = f"{operation}: slideDuration"
        slide_ms = parent_slide_ms if slide is None else require_duration_ms(slide, slide_name)
        parents = "the parent stream's slide"
        require_multiple(window_ms, parent_slide_ms, f"{operation}: windowDuration", parents)
        require_multiple(slide_ms, parent_slide_ms, slide_name, parents)
        return cls(window_ms, slide_ms, parent_slide_ms)

    @property
    def slides(self) -> int:
        """The number of whole slides in a window."""
        return self.window_ms // self.slide_ms

    def current(self, time_ms: int) -> range:
        """Return the times in the window at *time_ms*."""
        return self._after(time_ms - self.window_ms, time_ms)

    def entered(self, time_ms: int) -> range:
        """Return the times in the window at *time_ms* that were not in the previous window."""
        return self._after(time_ms - min(self.slide_ms, self.window_ms), time_ms)

    def left(self, time_ms: int) -> range:
        """Return the times in the previous window that are not in the one at *time_ms*."""
        previous_ms = time_ms - self.slide_ms
        return self._after(previous_ms - self.window_ms, min(previous_ms, time_ms - self.window_ms))

    def _after(self, after_ms: int, upto_ms: int) -> range:
        return range(after_ms + self.parent_slide_ms, upto_ms + 1, self.parent_slide_ms)


@dataclass(frozen=True, eq=False)
class WindowedDStream(ChildNode):
    """The union of the parent's RDDs in a window, oldest first.

    If the parent has no RDD in the window, the result is an empty RDD, or None unless
    *empty_for_none*. The union keeps the partitioner that all RDDs share. The parent's RDDs are
    persisted and kept for the length of the window, so each is computed once.

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

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        made = [previous.get(self.parent, earlier_ms) for earlier_ms in self.earlier_times(time_ms)]
        rdds = [rdd for rdd in (*made, *parents) if rdd is not None]
        return unite(previous.spark, rdds) if rdds or self.empty_for_none else None


@dataclass(frozen=True, eq=False)
class ReducedWindowedDStream(Node):
    """The reduced values of each key in a window, updated from the previous window.

    ========================== ==========================================================
    key is in                  result
    ========================== ==========================================================
    previous                   previous, minus what left if any, plus what entered if any
    only what entered          what entered
    only what left             nothing; by Scala's rule an error: the key was lost
    ========================== ==========================================================

    The first window has no previous one: its result is what entered. A key stays in the result when
    all of its values have left, until the filter drops its pair. Until the parent has an RDD, the
    window has none, or by Scala's rule an empty one. The cost is that of the keys that entered or
    left, and of copying the rest; it does not grow with the window.

    Semantics: PythonReducedWindowedDStream of org.apache.spark.streaming.api.python, by Scala's
    rule org.apache.spark.streaming.dstream.ReducedWindowedDStream (4.3); differs from both in a
    gap between windows, whose batches are in no window and so neither enter nor leave.
    """

    must_checkpoint: ClassVar[bool] = True
    is_stateful: ClassVar[bool] = True
    rereads_parents: ClassVar[bool] = True
    default_storage: ClassVar[StorageLevel | None] = STATE_STORAGE

    reduced: ReducedDStream
    functions: WindowFunctions
    times: WindowTimes
    operation: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.reduced,)

    @property
    def slide_ms(self) -> int:
        return self.times.slide_ms

    @property
    def partitioner(self) -> StablePartitioner:
        """The partitioner of the keys."""
        return self.reduced.partitioner

    @property
    def layout(self) -> FrameLayout:
        """The layout of the window's records in frames."""
        return PAIR_FRAMES

    def earlier_times(self, time_ms: int) -> Iterable[int]:
        entered = [earlier_ms for earlier_ms in self.times.entered(time_ms) if earlier_ms < time_ms]
        return [*self.times.left(time_ms), *entered]

    def parents_remember_ms(self, remember_ms: int) -> int:
        return remember_ms + self.times.window_ms

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        own = _blocks(previous.before(self, time_ms))
        left = self._reductions(self.times.left(time_ms), previous) if own is not None else []
        entered = self._reductions(self.times.entered(time_ms), previous)
        if own is None and not entered:
            return previous.spark.emptyRDD() if self.functions.is_scala else None
        return BlockPairsRDD(
            slide_window(self.functions, own, left=left, entered=entered), Side.STATE
        )

    def over_gap(
        self, made_ms: int, time_ms: int, at: Callable[[Node, int], RDD[Any] | None]
    ) -> RDD[Any] | None:
        """Return the RDD at *time_ms* from that at *made_ms*; batches between count as empty."""
        made = at(self, made_ms)
        own = _blocks(made)
        if made_ms == time_ms or own is None:
            return made
        current = self.times.current(time_ms)
        gone = [past_ms for past_ms in self.times.current(made_ms) if past_ms not in current]
        reductions = (_blocks(at(self.reduced, past_ms)) for past_ms in gone)
        left = [blocks for blocks in reductions if blocks is not None]
        if not left:
            return made
        return BlockPairsRDD(slide_window(self.functions, own, left=left, entered=[]), Side.STATE)

    def _reductions(self, times: Iterable[int], previous: Previous) -> list[RDD[bytes]]:
        made = (_blocks(previous.get(self.reduced, time_ms)) for time_ms in times)
        return [blocks for blocks in made if blocks is not None]


def _blocks(pairs: RDD[Any] | None) -> RDD[bytes] | None:
    """Return the blocks of an RDD, None for an empty RDD without partitions."""
    return pairs.blocks if isinstance(pairs, BlockPairsRDD) else None
