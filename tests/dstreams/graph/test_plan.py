"""Freezing a graph: intervals, remember durations, levels, and what cannot run. No Spark."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark import StorageLevel

from dstreams.errors import InvalidStreamError
from dstreams.graph.node import STATE_STORAGE, InputDStream, Node, OutputOperation
from dstreams.graph.plan import NO_STORAGE, Plan, StreamGraph
from dstreams.graph.state import StateDStream
from dstreams.graph.transformed import TransformedDStream
from dstreams.sources.queue import QueueSource
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.update_function import UpdateFunction


def update(values: list[Any], state: Any) -> Any:
    return state


class Graph:
    """A graph under construction, with short names for its streams."""

    def __init__(self, batch_ms: int = 1000) -> None:
        self.streams = StreamGraph(batch_ms)

    def input(self, name: str = "queueStream") -> InputDStream:
        number = len(self.streams.inputs)
        node = InputDStream(number, QueueSource([]), self.streams.batch_ms, f"{name} at a.py:1")
        self.streams.inputs.append(node)
        return node

    def map(self, *parents: Node) -> TransformedDStream:
        return TransformedDStream(parents, lambda time_ms, rdds: rdds[0], "map at a.py:2")

    def state(self, parent: Node) -> StateDStream:
        checked = UpdateFunction.checked(update, "values", "updateStateByKey at a.py:3")
        operation = "updateStateByKey at a.py:3"
        return StateDStream(parent, checked, StablePartitioner(2), True, None, operation)

    def output(self, node: Node) -> None:
        operation = OutputOperation(node, lambda time_ms, rdd: None, "pprint at a.py:4")
        self.streams.outputs.append(operation)

    def checkpoint(self, node: Node, interval_ms: int) -> None:
        self.streams.options_of(node).checkpoint_ms = interval_ms

    def persist(self, node: Node, level: StorageLevel) -> None:
        self.streams.options_of(node).storage_level = level

    def freeze(self, zero_ms: int = 0, *, directory: bool = True) -> Plan:
        return self.streams.freeze(zero_ms, has_checkpoint_directory=directory)


# Times ---------------------------------------------------------------------------------------


def test_streams_fire_at_multiples_after_zero_time() -> None:
    """Never at zero time, and never before it."""
    graph = Graph()
    node = graph.input()
    graph.output(node)
    plan = graph.freeze(5000)
    fires = [time_ms for time_ms in range(3000, 8001, 500) if plan.fires(node, time_ms)]
    assert fires == [6000, 7000, 8000]


@pytest.mark.parametrize(
    ("batch_ms", "interval_ms"),
    [
        (500, 10_000),
        (1000, 10_000),
        (3000, 12_000),
        (10_000, 10_000),
        (20_000, 20_000),
        (100, 2000),
        (7, 140),
    ],
)
def test_the_default_interval_of_state(batch_ms: int, interval_ms: int) -> None:
    """The smallest multiple of the slide that is at least ten seconds, at most twenty slides."""
    graph = Graph(batch_ms)
    state = graph.state(graph.input())
    graph.output(state)
    plan = graph.freeze()
    assert plan.nodes[state].checkpoint_ms == interval_ms
    due = [t for t in range(batch_ms, 3 * interval_ms, batch_ms) if plan.checkpoint_due(state, t)]
    assert due == [interval_ms, 2 * interval_ms]


def test_intervals_are_counted_from_zero_time() -> None:
    """A stream that begins at any time is due a whole interval later."""
    graph = Graph()
    state = graph.state(graph.input())
    graph.checkpoint(state, 3000)
    graph.output(state)
    plan = graph.freeze(7000)
    assert [t for t in range(7000, 17_000, 1000) if plan.checkpoint_due(state, t)] == [
        7000,
        10_000,
        13_000,
        16_000,
    ]


def test_streams_without_state_are_not_checkpointed_unasked() -> None:
    """Only state, and streams with an interval."""
    graph = Graph()
    source = graph.input()
    plain, asked = graph.map(source), graph.map(source)
    state = graph.state(plain)
    graph.checkpoint(asked, 2000)
    for node in (asked, state):
        graph.output(node)
    plan = graph.freeze()
    assert plan.checkpointed() == (asked, state)
    assert not plan.checkpoint_due(plain, 10_000)


# Remembering ---------------------------------------------------------------------------------


def test_without_state_one_batch_is_remembered() -> None:
    """The minimum is the slide."""
    graph = Graph()
    source = graph.input()
    node = graph.map(source)
    graph.output(node)
    plan = graph.freeze()
    assert (plan.nodes[source].remember_ms, plan.nodes[node].remember_ms) == (1000, 1000)


def test_state_and_what_it_is_made_from_is_remembered_for_two_intervals() -> None:
    """With the default of 10 s all ancestors are kept for 20 s; others for one batch."""
    graph = Graph()
    source, other = graph.input(), graph.input()
    parent = graph.map(source)
    state = graph.state(parent)
    child = graph.map(state)
    graph.output(child)
    graph.output(graph.map(other))
    plan = graph.freeze()
    kept = {node: plan.nodes[node].remember_ms for node in (source, parent, state, child, other)}
    assert list(kept.values()) == [20_000, 20_000, 20_000, 1000, 1000]


def test_asking_for_longer_is_for_outputs_and_their_parents() -> None:
    """remember() applies if it is longer."""
    graph = Graph()
    graph.streams.remember_ms = 30_000
    source = graph.input()
    state = graph.state(source)
    short = graph.map(state)
    graph.output(short)
    plan = graph.freeze()
    assert {plan.nodes[node].remember_ms for node in (source, state, short)} == {30_000}


def test_a_shared_parent_is_remembered_for_the_one_that_needs_it_longest() -> None:
    """The order of the outputs does not matter."""
    for order in (1, -1):
        graph = Graph()
        source = graph.input()
        asked = graph.map(source)
        graph.checkpoint(asked, 4000)
        for node in (graph.map(source), asked)[::order]:
            graph.output(node)
        assert graph.freeze().nodes[source].remember_ms == 8000


# Order and names -----------------------------------------------------------------------------


def test_parents_come_first_and_each_once() -> None:
    """Also if two paths meet; streams without an output are not in the plan."""
    graph = Graph()
    source, unused = graph.input(), graph.input()
    left, right = graph.map(source), graph.map(source)
    both = graph.map(left, right)
    graph.map(unused)
    graph.output(both)
    graph.output(left)
    plan = graph.freeze()
    assert list(plan.nodes) == [source, left, right, both]
    assert plan.inputs == (source, unused)
    assert [plan.nodes[node].uid for node in plan.nodes] == [
        "queueStream-0",
        "map-0",
        "map-1",
        "map-2",
    ]


def test_names_in_files_do_not_depend_on_where_the_code_is() -> None:
    """A state keeps its name if its program is moved, or if streams are added above it."""
    graph = Graph()
    source = graph.input("queueStream at elsewhere.py:99")
    first, second = graph.state(graph.map(graph.map(source))), graph.state(source)
    graph.output(first)
    graph.output(second)
    plan = graph.freeze()
    assert [plan.nodes[node].uid for node in (first, second)] == [
        "updateStateByKey-0",
        "updateStateByKey-1",
    ]


# Storage -------------------------------------------------------------------------------------


def test_storage_levels() -> None:
    """State has a default, others are persisted on request; a level that stores nothing is none."""
    graph = Graph()
    source = graph.input()
    plain, cached, none = graph.map(source), graph.map(source), graph.map(source)
    state = graph.state(source)
    graph.persist(cached, StorageLevel.DISK_ONLY)
    graph.persist(none, NO_STORAGE)
    for node in (plain, cached, none, state):
        graph.output(node)
    plan = graph.freeze()
    levels = [plan.nodes[node].storage_level for node in (plain, cached, none, state)]
    assert levels == [None, StorageLevel.DISK_ONLY, None, STATE_STORAGE]


# Graphs that cannot run ----------------------------------------------------------------------


def refused(graph: Graph, *, directory: bool = True) -> str:
    with pytest.raises(InvalidStreamError) as raised:
        graph.freeze(directory=directory)
    return str(raised.value)


def test_a_graph_without_output() -> None:
    """The error lists outputs."""
    graph = Graph()
    graph.map(graph.input())
    assert refused(graph).startswith("no output operations registered, so nothing to execute; ")


def test_state_without_a_directory() -> None:
    """State is always durable, so it needs a directory."""
    graph = Graph()
    graph.output(graph.state(graph.input()))
    assert refused(graph, directory=False) == (
        "updateStateByKey at a.py:3 makes its state durable, but the checkpoint directory has not "
        "been set; set it with StreamingContext.checkpoint(directory)"
    )


@pytest.mark.parametrize(
    ("interval_ms", "told"),
    [
        (500, "is 500 ms, lower than its slide of 1000 ms; set it to at least 1000 ms"),
        (1500, "is 1500 ms, which is not a multiple of its slide of 1000 ms; set it to 2000 ms"),
        (2001, "is 2001 ms, which is not a multiple of its slide of 1000 ms; set it to 3000 ms"),
    ],
)
def test_intervals_that_are_no_multiples(interval_ms: int, told: str) -> None:
    """The error has both durations and the next valid one."""
    graph = Graph()
    state = graph.state(graph.input())
    graph.checkpoint(state, interval_ms)
    graph.output(state)
    assert refused(graph) == f"the checkpoint interval of updateStateByKey at a.py:3 {told}"


def test_state_that_is_not_stored() -> None:
    """It would be computed from the first batch in every batch."""
    graph = Graph()
    state = graph.state(graph.input())
    graph.persist(state, NO_STORAGE)
    graph.output(state)
    assert refused(graph) == (
        "updateStateByKey at a.py:3 is checkpointed, but its storage level keeps nothing; choose "
        "one with persist(level) that does"
    )


def test_what_no_output_uses_is_not_checked() -> None:
    """Streams without an output never run."""
    graph = Graph()
    source = graph.input()
    graph.checkpoint(graph.state(source), 1)
    graph.output(source)
    assert len(graph.freeze(directory=False).nodes) == 1


class EveryOther(Node):
    """A stream with a slide of two batches."""

    operation = "everyOther at a.py:5"

    def __init__(self, parent: Node) -> None:
        self.parent = parent

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)

    @property
    def slide_ms(self) -> int:
        return 2 * self.parent.slide_ms

    def compute(self, time_ms: int, rdds: Any) -> Any:
        return rdds.at(self.parent, time_ms)


def test_slides_of_two_batches() -> None:
    """A stream with a slide of two batches fires, is due and is remembered by its own slide."""
    graph = Graph()
    slow = EveryOther(graph.input())
    state = graph.state(slow)
    graph.output(state)
    plan = graph.freeze()
    assert [t for t in range(0, 6001, 1000) if plan.fires(state, t)] == [2000, 4000, 6000]
    assert plan.nodes[state].checkpoint_ms == 10_000
    graph.checkpoint(state, 3000)
    assert re.search("not a multiple of its slide of 2000 ms; set it to 4000 ms", refused(graph))


def test_streams_of_two_slides_are_not_combined() -> None:
    """The error has each stream with its slide."""
    graph = Graph()
    source = graph.input()
    with pytest.raises(InvalidStreamError) as raised:
        graph.map(source, EveryOther(source))
    assert str(raised.value) == (
        "map at a.py:2 needs streams of one slide duration, got: queueStream at a.py:1 every "
        "1000 ms, everyOther at a.py:5 every 2000 ms"
    )
