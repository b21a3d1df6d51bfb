"""Properties of all nodes: identity, and that they stay in the driver; no Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dstreams.graph.node import InputDStream, Node, OutputOperation
from dstreams.graph.state import StateDStream
from dstreams.graph.transformed import TransformedDStream
from dstreams.sources.queue import QueueSource
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.update_function import UpdateFunction


def source() -> InputDStream:
    return InputDStream(0, QueueSource([]), 1000, "queueStream at a.py:1")


def mapped(parent: Node) -> TransformedDStream:
    return TransformedDStream((parent,), lambda time_ms, rdds: rdds[0], "map at a.py:2")


def state(parent: Node) -> StateDStream:
    operation = "updateStateByKey at a.py:3"
    update = UpdateFunction.checked(lambda values, known: known, "values", operation)
    return StateDStream(parent, update, StablePartitioner(2), True, None, operation)


NODES: dict[str, Node] = {
    "input": source(),
    "transformed": mapped(source()),
    "state": state(source()),
}


def test_parents_and_slides() -> None:
    """A stream depends on its parents only; by default it has the slide of its parent."""
    parent = source()
    child, kept = mapped(parent), state(parent)
    assert parent.parents == ()
    assert child.parents == kept.parents == (parent,)
    assert {node.slide_ms for node in (parent, child, kept)} == {1000}


def test_what_only_state_streams_do() -> None:
    """Stateful nodes read their own previous RDD, must be checkpointed, and are persisted."""
    facts = {
        name: (node.is_stateful, node.must_checkpoint, node.default_storage is not None)
        for name, node in NODES.items()
    }
    assert facts == {
        "input": (False, False, False),
        "transformed": (False, False, False),
        "state": (True, True, True),
    }


@pytest.mark.parametrize("name", NODES)
def test_nodes_are_compared_by_identity(name: str) -> None:
    """Two streams of one definition are two streams."""
    parent = source()
    make: dict[str, Any] = {"input": lambda p: source(), "transformed": mapped, "state": state}
    one, other = make[name](parent), make[name](parent)
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.parametrize("name", NODES)
def test_nodes_do_not_change(name: str) -> None:
    """They are values: later options are kept elsewhere."""
    with pytest.raises(AttributeError):
        NODES[name].operation = "something else"


@pytest.mark.parametrize("name", NODES)
def test_nodes_are_not_sent_to_workers(name: str) -> None:
    """Pickling a node raises an error that names the stream and the fix."""
    node = NODES[name]
    with pytest.raises(TypeError) as raised:
        pickle.dumps(node)
    assert str(raised.value) == (
        f"the stream {node.operation} was captured by a function that runs on the workers; use "
        "streams only to define the graph, and pass plain values to functions"
    )


def test_outputs_are_compared_by_identity() -> None:
    """The same function can be an output twice."""
    parent = source()
    one, other = (OutputOperation(parent, print, "foreachRDD at a.py:4") for _ in range(2))
    assert one != other
