"""What ``explain`` says of a stream: its graph, what is durable when, what its outputs promise."""

from __future__ import annotations

from textwrap import wrap

from dstreams.common.settings import Settings
from dstreams.engine.graph_nodes import graph_nodes, output_promise
from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.monitoring.display import format_duration, one_line
from dstreams.monitoring.graph_drawing import graph_text

_WIDTH = 92


def explanation(plan: Plan, is_durable: bool, problem: str | None, settings: Settings) -> str:
    """Return all that is known of a plan, which runs or will; *problem* says why it cannot."""
    parts = {
        "Graph": [graph_text(graph_nodes(plan, is_durable=is_durable)) or "no streams"],
        "Durable": _durable(plan) if is_durable else [_NOTHING],
        "Outputs": _outputs(plan, is_durable, settings) or ["none"],
    }
    if problem is not None:
        parts = {"Cannot run yet": wrap(problem, _WIDTH), **parts}
    return "\n\n".join("\n".join([f"== {title} ==", *lines]) for title, lines in parts.items())


_NOTHING = "nothing: there is no checkpoint directory, a restart begins anew"


def _durable(plan: Plan) -> list[str]:
    lines = ["each batch: what it reads, before it runs; what it made, after its outputs"]
    for stream in plan.inputs:
        lines += _entry(plan.input_uids[stream], stream.operation, _input_facts(stream))
    for node, planned in plan.nodes.items():
        if planned.checkpoint_ms is not None:
            facts = _state_facts(node, planned.checkpoint_ms)
            lines += _entry(planned.uid, node.operation, facts)
    return lines


def _input_facts(stream: InputDStream) -> str:
    refusal = stream.source.restart_refusal
    if refusal is not None:
        return f"a restart is refused: {refusal}"
    return "a restart goes on after it; what a batch has read is read again where it runs again"


def _state_facts(node: Node, interval_ms: int) -> str:
    if isinstance(node, StateStoreDStream):
        return (
            "the state after each batch, before any output of it runs: its changes, and now and "
            "then a snapshot"
        )
    batches = interval_ms // node.slide_ms
    every = "every batch" if batches == 1 else f"every {batches} batches"
    return (
        f"a snapshot of the whole {'state' if node.is_stateful else 'stream'} {every} "
        f"({format_duration(interval_ms)}); a restart computes what came after it again, from the "
        "same input"
    )


def _outputs(plan: Plan, is_durable: bool, settings: Settings) -> list[str]:
    lines = []
    for uid, output in zip(plan.output_uids, plan.outputs, strict=True):
        promise = output_promise(output, is_durable=is_durable)
        lines += _entry(uid, output.operation, f"{promise.guarantee}: {promise.condition}")
    if plan.outputs and is_durable:
        lines += wrap(_AFTER_FAILURE[settings.on_failure == "stop"], _WIDTH)
    return lines


_AFTER_FAILURE = {
    False: "an output that fails has lost its batch: the batch is committed without it, and later "
    "ones run (spark.dstreams.onFailure=continue; stop ends the stream, to run the batch again)",
    True: "an output that fails stops the stream, and a restart runs its batch again, all of its "
    "outputs included (spark.dstreams.onFailure=stop)",
}


def _entry(uid: str, operation: str, facts: str) -> list[str]:
    indent = "  "
    told = wrap(one_line(facts, 1000), _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return [f"{one_line(uid)}, {one_line(operation)}", *told]
