"""States and windows across a gap of skipped batches; no Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from dstreams.graph.generated_rdds import carry_over_gap
from dstreams.graph.node import InputDStream, Node, OutputOperation
from dstreams.graph.plan import StreamGraph
from dstreams.graph.state import StateDStream, StateStoreDStream
from dstreams.graph.windowed import WindowedDStream, WindowTimes
from dstreams.sources.queue import QueueSource
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.update_function import UpdateFunction

INPUT = InputDStream(0, QueueSource([]), 1000, "queueStream at a.py:1")
PARTITIONER = StablePartitioner(2)


def update(values: list[Any], state: Any) -> Any:
    return state


def window(slide_s: int) -> Node:
    times = WindowTimes(1000 * slide_s, 1000 * slide_s, 1000)
    return WindowedDStream(INPUT, times, "window at a.py:2")


@dataclass
class Made:
    """States as the seconds of their batches, instead of RDDs.

    Args:
        newest_s: the second of the newest one.
    """

    newest_s: int
    restored: dict[int, Any] = field(default_factory=dict)

    @property
    def states(self) -> Made:
        return self

    def times(self, node: Node) -> list[int]:
        return [1000 * self.newest_s]

    def reuse(self, uid: str, made_ms: int, time_ms: int) -> None:
        self.restored[time_ms // 1000] = self.at(uid, made_ms)

    def at(self, node: Node | str, time_ms: int) -> Any:
        self.newest_s = max(self.newest_s, time_ms // 1000)
        return f"of {time_ms // 1000} s"

    def put(self, node: Node, time_ms: int, made: Any) -> None:
        self.restored[time_ms // 1000] = made


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(
    ("slide_s", "after_s", "restored"),
    [
        (1, 4, {9: "of 4 s"}),
        (2, 4, {8: "of 4 s"}),
        (3, 4, {9: "of 6 s"}),  # a window that ends at 6 s had begun
        (4, 3, {8: "of 4 s"}),
        (5, 4, {5: "of 5 s"}),
        (12, 4, {}),  # the window continues after the gap
    ],
)
def test_what_the_batch_after_a_gap_stands_on(
    is_stored: bool, slide_s: int, after_s: int, restored: dict[int, str]
) -> None:
    """The gap ends with the batch at 10 s; no batch before it is missing in a state."""
    node: Node
    if is_stored:
        node = StateStoreDStream(window(slide_s), lambda _: None, PARTITIONER, None, "a", None)
    else:
        checked = UpdateFunction.checked(update, "values", "a")
        node = StateDStream(window(slide_s), checked, PARTITIONER, True, None, "a")
    graph = StreamGraph(1000)
    graph.outputs.append(OutputOperation(node, lambda time_ms, rdd: None, "pprint at a.py:4"))
    plan = graph.freeze(0, has_checkpoint_directory=True)
    made = Made(after_s - after_s % slide_s)
    rdds: Any = made
    carry_over_gap(plan, rdds, 1000 * after_s, 10_000)
    assert made.restored == restored


def test_what_nobody_asks_for_is_not_made() -> None:
    """A restart that finds a snapshot from after the gap computes nothing before the gap."""
    checked = UpdateFunction.checked(update, "values", "a")
    node = StateDStream(INPUT, checked, PARTITIONER, True, None, "a")
    graph = StreamGraph(1000)
    graph.outputs.append(OutputOperation(node, lambda time_ms, rdd: None, "pprint at a.py:4"))
    plan = graph.freeze(0, has_checkpoint_directory=True)
    for asked_ms, restored in ((10_000, {}), (4000, {9: "of 4 s"}), (0, {9: "of 4 s"})):
        rdds: Any = Made(4)
        carry_over_gap(plan, rdds, 4000, 10_000, dict.fromkeys(plan.nodes, asked_ms))
        assert rdds.restored == restored
