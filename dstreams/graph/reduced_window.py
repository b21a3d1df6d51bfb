"""ReducedWindowedDStream: a reduction over a window, made from that of the window before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD, StorageLevel

from dstreams.graph.node import STATE_STORAGE, BatchView, Node
from dstreams.graph.reduced import ReducedDStream
from dstreams.graph.window_times import WindowTimes
from dstreams.spark.blocks import Side
from dstreams.spark.frame_layout import PAIR_FRAMES, FrameLayout
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.window_step import WindowFunctions, slide_window


@dataclass(frozen=True, eq=False)
class ReducedWindowedDStream(Node):
    """The values of each key in a window, reduced: the previous result, minus left, plus entered.

    Parents: the reduction of each batch, nothing else. Slide: that of the window. RDD at time t,
    ``previous`` being this stream's own RDD at t - slide:

    ========================== ==========================================================
    key is in                  result
    ========================== ==========================================================
    previous                   previous, minus what left if any, plus what entered if any
    what entered               what entered
    what left, nothing else    nothing; by Scala's rule an error: the key was lost
    ========================== ==========================================================

    The first window has no previous one: its result is what entered. A key stays in the result when
    all of its values have left, until the filter drops its pair. Before the parent has its first
    RDD there is none, by Scala's rule an empty one. The cost is that of the keys that entered or
    left, and of copying the rest; it does not grow with the window.

    State: one value for each key until the filter drops it.
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
        """Where keys belong."""
        return self.reduced.partitioner

    @property
    def layout(self) -> FrameLayout:
        """As what the window lies in its frames."""
        return PAIR_FRAMES

    def earlier_times(self, time_ms: int) -> Iterable[int]:
        entered = [earlier_ms for earlier_ms in self.times.entered(time_ms) if earlier_ms < time_ms]
        return [*self.times.left(time_ms), *entered]

    def parents_remember_ms(self, remember_ms: int) -> int:
        return remember_ms + self.times.window_ms

    def compute(self, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        previous = self._blocks(rdds.before(self, time_ms))
        left = self._reductions(self.times.left(time_ms), rdds) if previous is not None else []
        entered = self._reductions(self.times.entered(time_ms), rdds)
        if previous is None and not entered:
            return rdds.spark.emptyRDD() if self.functions.is_scala else None
        blocks = slide_window(self.functions, previous, left=left, entered=entered)
        return BlockPairsRDD(blocks, Side.STATE)

    def over_gap(self, made_ms: int, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        """Make the RDD at *time_ms* from that at *made_ms*, with a gap in between; None for none.

        As if the batches in the gap had been empty: keys of which all values have left stay.
        """
        made = rdds.at(self, made_ms)
        previous = self._blocks(made)
        if made_ms == time_ms or previous is None:
            return made
        still = self.times.current(time_ms)
        gone = [past_ms for past_ms in self.times.current(made_ms) if past_ms not in still]
        left = self._reductions(gone, rdds)
        if not left:
            return made
        blocks = slide_window(self.functions, previous, left=left, entered=[])
        return BlockPairsRDD(blocks, Side.STATE)

    def _reductions(self, times: Iterable[int], rdds: BatchView) -> list[RDD[bytes]]:
        made = (self._blocks(rdds.at(self.reduced, time_ms)) for time_ms in times)
        return [blocks for blocks in made if blocks is not None]

    def _blocks(self, pairs: RDD[Any] | None) -> RDD[bytes] | None:
        """The blocks of an RDD; none of one without partitions, which has nothing in it."""
        return pairs.blocks if isinstance(pairs, BlockPairsRDD) else None
