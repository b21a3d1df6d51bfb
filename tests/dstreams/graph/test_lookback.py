"""Batches that a restart can recompute in one task, by a stream's place in the graph; no Spark."""

from __future__ import annotations

from typing import Any

import pytest

from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import depends_on_state_rdd
from dstreams.graph.state import StateDStream, StateStoreDStream
from dstreams.graph.transformed import TransformedDStream
from dstreams.sources.queue import QueueSource
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.update_function import UpdateFunction

PARTITIONER = StablePartitioner(2)


def update(values: list[Any], state: Any) -> Any:
    return state


def state(parent: Node) -> StateDStream:
    checked = UpdateFunction.checked(update, "values", "updateStateByKey at a.py:3")
    return StateDStream(parent, checked, PARTITIONER, True, None, "updateStateByKey at a.py:3")


def stored(parent: Node) -> StateStoreDStream:
    def function(batch: Any) -> Any:
        raise AssertionError("nothing runs")

    return StateStoreDStream(parent, function, PARTITIONER, None, "mapWithState at a.py:4")


def mapped(*parents: Node) -> TransformedDStream:
    return TransformedDStream(parents, lambda time_ms, rdds: rdds[0], "map at a.py:2")


INPUT = InputDStream(0, QueueSource([]), 1000, "queueStream at a.py:1")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (INPUT, False),
        (state(INPUT), False),
        (state(mapped(mapped(INPUT), INPUT)), False),
        (state(state(INPUT)), True),
        (state(mapped(INPUT, mapped(state(INPUT)))), True),
        (state(stored(INPUT)), False),
        (state(stored(state(INPUT))), True),
    ],
)
def test_a_state_that_is_made_of_another(node: Node, expected: bool) -> None:
    """For any ancestor; its own past and stored state do not count."""
    assert depends_on_state_rdd(node) is expected


def test_a_stream_is_looked_at_once() -> None:
    """For any number of paths to it."""
    node: Node = INPUT
    for _ in range(200):
        node = mapped(node, node)
    assert not depends_on_state_rdd(node)
