"""A stream for people: its graph, the text of ``explain``, and its states while it runs."""

from __future__ import annotations

from functools import partial
from textwrap import wrap
from typing import Any

from pyspark import RDD

from dstreams.common.settings import Settings
from dstreams.engine.engine import Engine
from dstreams.graph.node import InputDStream, Node, OutputOperation
from dstreams.graph.plan import Plan
from dstreams.graph.state import StateStoreDStream
from dstreams.monitoring.display import format_duration, one_line
from dstreams.monitoring.graph_drawing import graph_text
from dstreams.monitoring.state_queries import ReadableState, SnapshotState, StateQueries
from dstreams.monitoring.status import DURABLE_INPUT, DURABLE_STORE, GraphNode, NodeKind
from dstreams.sinks.output_batch import WITHOUT_CHECKPOINT, DeliveryGuarantee
from dstreams.state.processor_states import StateOfProcessor
from dstreams.state.transform_groups import TransformGroups

_WIDTH = 92


def graph_nodes(plan: Plan, *, is_durable: bool) -> tuple[GraphNode, ...]:
    """Return the nodes and outputs of a plan, parents first, including unused inputs."""
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
    """Return the number of each node in :func:`graph_nodes`."""
    nodes = dict.fromkeys((*plan.inputs, *plan.nodes))
    return {node: number for number, node in enumerate(nodes)}


def output_promise(output: OutputOperation, *, is_durable: bool) -> DeliveryGuarantee:
    """Return the delivery guarantee of an output, with or without a checkpoint directory."""
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


# Explain -------------------------------------------------------------------------------------


def explanation(plan: Plan, is_durable: bool, problem: str | None, settings: Settings) -> str:
    """Return a description of a plan; *problem* is the reason why it cannot run, if any."""
    parts = {
        "Graph": [graph_text(graph_nodes(plan, is_durable=is_durable)) or "no streams"],
        "Durable": _durable_lines(plan) if is_durable else [_NOTHING],
        "Outputs": _outputs(plan, is_durable, settings) or ["none"],
    }
    if problem is not None:
        parts = {"Cannot run yet": wrap(problem, _WIDTH), **parts}
    return "\n\n".join("\n".join([f"== {title} ==", *lines]) for title, lines in parts.items())


_NOTHING = "nothing: there is no checkpoint directory, a restart starts from scratch"


def _durable_lines(plan: Plan) -> list[str]:
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
    return "a restart continues after the last batch; a batch that runs again reads the same input"


def _state_facts(node: Node, interval_ms: int) -> str:
    if isinstance(node, StateStoreDStream):
        return (
            "the state after each batch, before its outputs run: its changes, and from time to "
            "time a snapshot"
        )
    batches = interval_ms // node.slide_ms
    every = "every batch" if batches == 1 else f"every {batches} batches"
    return (
        f"a snapshot of the whole {'state' if node.is_stateful else 'stream'} {every} "
        f"({format_duration(interval_ms)}); a restart computes later batches again, "
        "from the same input"
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
    False: "if an output fails, it misses the batch: the batch is committed without it, and later "
    "batches run (spark.dstreams.onFailure=continue; stop ends the stream to run the batch again)",
    True: "if an output fails, the stream stops, and a restart runs the batch again, including all "
    "of its outputs (spark.dstreams.onFailure=stop)",
}


def _entry(uid: str, operation: str, facts: str) -> list[str]:
    indent = "  "
    lines = wrap(one_line(facts, 1000), _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return [f"{one_line(uid)}, {one_line(operation)}", *lines]


# State ---------------------------------------------------------------------------------------


def state_access(engine: Engine) -> StateQueries | None:
    """Return access to the states of a stream, None if it has none.

    They are those of the last committed batch; without a checkpoint directory, of the last batch.
    """
    plan = engine.plan
    in_store = plan.in_state_store()
    states: dict[str, SnapshotState | ReadableState] = {
        plan.nodes[node].uid: SnapshotState(partial(_newest, engine, node))
        for node in plan.stateful()
        if node not in in_store
    }
    for node in in_store:
        uid = plan.nodes[node].uid
        committed, own = partial(_committed_ms, engine), None
        if isinstance(node.function, TransformGroups):
            own = StateOfProcessor.of(node.function)
        states[uid] = ReadableState(
            uid, engine.rdds.states, committed, partitioner=node.partitioner, own=own
        )
    return StateQueries(states) if states else None


def _newest(engine: Engine, node: Node) -> tuple[int, RDD[Any]] | None:
    return engine.rdds.newest(node, _committed_ms(engine))


def _committed_ms(engine: Engine) -> int:
    if engine.checkpoint is None:
        return engine.runner.ran_ms
    last = engine.checkpoint.commits.last
    return engine.plan.zero_ms if last is None else last.batch_time_ms
