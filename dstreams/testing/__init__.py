"""Tools for testing streams: run batches by hand, under a clock that you control.

A test is a table of batches in and batches out:

>>> from dstreams.testing import run_batches
>>> run_batches(sc, [["a", "b"], ["a"], []], lambda words: words.map(lambda w: (w, 1)))
[[('a', 1), ('b', 1)], [('a', 1)], []]

A started context runs its batches as you advance the clock:

>>> clock = ManualClock()
>>> ssc = StreamingContext(sc, 1, clock=clock)
>>> ssc.start()
>>> clock.advance(1000)

Functions with state, and processors, run without Spark:

>>> from dstreams.testing import MapWithStateTester
>>> def count(key, value, state):
...     state.update((state.getOption or 0) + value)
...     return key, state.get
>>> counts = MapWithStateTester(count)
>>> counts.test("a", [1, 5]), counts.peekState("a")
([('a', 1), ('a', 6)], 6)
"""

from __future__ import annotations

from dstreams.common.manual_clock import ManualClock
from dstreams.engine.replay import Replay, ReplayedBatch
from dstreams.testing.batches import BatchDriver, run_batches
from dstreams.testing.replay import replay
from dstreams.testing.state_testers import (
    FlatMapGroupsWithStateTester,
    MapGroupsWithStateTester,
    MapWithStateTester,
    TransformWithStateTester,
)
from dstreams.testing.stream_tester import StreamTester

__all__ = [
    "BatchDriver",
    "FlatMapGroupsWithStateTester",
    "ManualClock",
    "MapGroupsWithStateTester",
    "MapWithStateTester",
    "Replay",
    "ReplayedBatch",
    "StreamTester",
    "TransformWithStateTester",
    "replay",
    "run_batches",
]
