"""Freezing a graph: what is refused, and what follows from the whole of it. No Spark is started."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark import RDD, StorageLevel

from dstreams.errors import InvalidStreamError
from dstreams.graph.node import Node, Rdds
from dstreams.graph.output import OutputOperation
from dstreams.graph.plan import NO_STORAGE, Plan, StreamGraph
from dstreams.graph.state import StateDStream
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.state.update_function import UpdateFunction


@dataclass(frozen=True, eq=False)
class Tick(Node):
    """A stream without parents that fires every *slide_ms*."""

    every_ms: int
    operation: str = "tick at app.py:1"

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def slide_ms(self) -> int:
        return self.every_ms

    def compute(self, time_ms: int, rdds: Rdds) -> RDD[Any] | None:
        return None


def keep(values: list[int], state: int | None) -> int | None:
    return state


def state_of(parent: Node) -> StateDStream:
    operation = "updateStateByKey at app.py:2"
    return StateDStream(
        parent=parent,
        update=UpdateFunction.checked(keep, "values", operation),
        partitioner=StablePartitioner(2),
        preserves_partitioning=True,
        initial=None,
        operation=operation,
    )


def graph_of(*nodes: Node, batch_ms: int = 1000) -> StreamGraph:
    graph = StreamGraph(batch_ms)
    for node in nodes:
        graph.outputs.append(OutputOperation(node, lambda time_ms, rdd: None, "pprint at app.py:9"))
    return graph


def frozen(graph: StreamGraph) -> Plan:
    return graph.freeze(0, has_checkpoint_directory=True)


def test_a_graph_without_output_is_refused() -> None:
    """Nothing would ever run; the message names outputs to choose from."""
    with pytest.raises(InvalidStreamError, match=r"no output operations registered.*foreachRDD"):
        frozen(graph_of())


@pytest.mark.parametrize(
    ("slide_ms", "interval_ms"),
    [(500, 10_000), (1000, 10_000), (3000, 12_000), (10_000, 10_000), (20_000, 20_000)],
)
def test_the_default_interval_of_a_state(slide_ms: int, interval_ms: int) -> None:
    """The first multiple of the slide that is ten seconds or more (table 1.5)."""
    state = state_of(Tick(slide_ms))
    assert frozen(graph_of(state, batch_ms=slide_ms)).nodes[state].checkpoint_ms == interval_ms


@pytest.mark.parametrize(
    ("interval_ms", "message"),
    [
        (500, "interval of updateStateByKey at app.py:2 is 500 ms, lower than its slide of 1000"),
        (1500, "is 1500 ms, which is not a multiple of its slide of 1000 ms; set it to 2000 ms"),
    ],
)
def test_an_interval_that_does_not_fit_the_slide(interval_ms: int, message: str) -> None:
    """Both numbers, the stream and a value that would do are named."""
    state = state_of(Tick(1000))
    graph = graph_of(state)
    graph.options_of(state).checkpoint_ms = interval_ms
    with pytest.raises(InvalidStreamError, match=message):
        frozen(graph)


def test_a_state_without_a_checkpoint_directory_is_refused() -> None:
    """The message names the stream and the call that helps."""
    graph = graph_of(state_of(Tick(1000)))
    with pytest.raises(InvalidStreamError, match=r"app.py:2 .* StreamingContext.checkpoint\("):
        graph.freeze(0, has_checkpoint_directory=False)


def test_a_state_that_is_not_kept_is_refused() -> None:
    """A storage level that keeps nothing would compute the whole past in every batch."""
    state = state_of(Tick(1000))
    graph = graph_of(state)
    graph.options_of(state).storage_level = NO_STORAGE
    with pytest.raises(InvalidStreamError, match="its storage level keeps nothing"):
        frozen(graph)


def test_a_state_and_its_ancestors_are_remembered_for_two_intervals() -> None:
    """What came after a durable copy must be there until the next copy is safe (2.6, M-6)."""
    tick = Tick(1000)
    state = state_of(tick)
    graph = graph_of(state)
    graph.options_of(state).checkpoint_ms = 3000
    plan = frozen(graph)
    assert plan.nodes[state].remember_ms == 6000
    assert plan.nodes[tick].remember_ms == 6000


def test_a_stateless_stream_is_remembered_for_its_slide() -> None:
    """Or as long as the context was told to remember, its outputs and all above them."""
    tick = Tick(1000)
    assert frozen(graph_of(tick)).nodes[tick].remember_ms == 1000
    longer = replace(graph_of(tick), remember_ms=4000)
    assert frozen(longer).nodes[tick].remember_ms == 4000


def test_a_node_fires_after_zero_time_at_multiples_of_its_slide() -> None:
    """Zero time itself is no batch time."""
    tick = Tick(2000)
    plan = graph_of(tick).freeze(1000, has_checkpoint_directory=False)
    assert [time for time in range(0, 8000, 500) if plan.fires(tick, time)] == [3000, 5000, 7000]


def test_a_copy_is_due_at_multiples_of_the_interval() -> None:
    """Counted from zero time; a stream without an interval is never due."""
    tick = Tick(1000)
    state = state_of(tick)
    graph = graph_of(state)
    graph.options_of(state).checkpoint_ms = 2000
    plan = graph.freeze(1000, has_checkpoint_directory=True)
    times = range(2000, 7000, 1000)
    assert [time for time in times if plan.checkpoint_due(state, time)] == [3000, 5000]
    assert not any(plan.checkpoint_due(tick, time) for time in times)
    assert plan.checkpointed() == (state,)


def test_storage_levels_are_those_that_were_chosen_or_the_defaults() -> None:
    """State is serialized in memory by default; other streams are not persisted."""
    tick = Tick(1000)
    state, on_disk = state_of(tick), state_of(tick)
    graph = graph_of(state, on_disk)
    graph.options_of(on_disk).storage_level = StorageLevel.DISK_ONLY
    plan = frozen(graph)
    assert plan.nodes[tick].storage_level is None
    assert plan.nodes[state].storage_level == StorageLevel(False, True, False, False, 1)
    assert plan.nodes[on_disk].storage_level == StorageLevel.DISK_ONLY


def test_each_node_has_a_name_of_its_own_on_disk() -> None:
    """Two states of one parent do not share files; what stands above them does not matter."""
    tick = Tick(1000)
    first, second = state_of(tick), state_of(tick)
    plan = frozen(graph_of(first, second))
    assert [plan.nodes[node].uid for node in (tick, first, second)] == [
        "tick-0",
        "updateStateByKey-0",
        "updateStateByKey-1",
    ]


def test_parents_come_before_their_children() -> None:
    """The order in which copies are written and names are given."""
    tick = Tick(1000)
    upper = state_of(tick)
    lower = state_of(upper)
    assert list(frozen(graph_of(lower, upper)).nodes) == [tick, upper, lower]
