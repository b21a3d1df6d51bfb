"""The graph of a stream as values for people."""

from __future__ import annotations

from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node
from dstreams.graph.output import OutputOperation
from dstreams.graph.plan import Plan
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.monitoring.display import format_duration
from dstreams.monitoring.status import DURABLE_INPUT, DURABLE_STORE, GraphNode, NodeKind
from dstreams.sinks.promise import WITHOUT_CHECKPOINT, OutputPromise


def graph_nodes(plan: Plan, *, is_durable: bool) -> tuple[GraphNode, ...]:
    """Return the steps and outputs of a plan, parents first.

    Inputs that no output uses are among them: they are read, too.
    """
    numbers = node_numbers(plan)
    steps = [
        GraphNode(
            number,
            _kind(node),
            node.operation,
            plan.input_uids[node] if isinstance(node, InputDStream) else plan.nodes[node].uid,
            tuple(numbers[parent] for parent in node.parents),
            _durable(node, plan) if is_durable else "",
        )
        for node, number in numbers.items()
    ]
    outputs = [
        GraphNode(
            len(numbers) + output_id,
            "output",
            output.operation,
            plan.output_uids[output_id],
            (numbers[output.parent],),
            output_promise(output, is_durable=is_durable).guarantee,
        )
        for output_id, output in enumerate(plan.outputs)
    ]
    return (*steps, *outputs)


def node_numbers(plan: Plan) -> dict[Node, int]:
    """Return the number that :func:`graph_nodes` gives to each node."""
    nodes = dict.fromkeys((*plan.inputs, *plan.nodes))
    return {node: number for number, node in enumerate(nodes)}


def output_promise(output: OutputOperation, *, is_durable: bool) -> OutputPromise:
    """Return what an output of a stream promises, with or without a checkpoint directory."""
    return output.promise if is_durable else WITHOUT_CHECKPOINT


def _kind(node: Node) -> NodeKind:
    if isinstance(node, InputDStream):
        return "input"
    return "state" if node.is_stateful else "step"


def _durable(node: Node, plan: Plan) -> str:
    if isinstance(node, InputDStream):
        return DURABLE_INPUT
    interval_ms = plan.nodes[node].checkpoint_ms
    if interval_ms is None:
        return ""
    if isinstance(node, StateStoreDStream):
        return DURABLE_STORE
    return f"a snapshot every {format_duration(interval_ms)}"
