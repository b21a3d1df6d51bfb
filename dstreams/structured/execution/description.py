"""Descriptions of queries: JSON for ``dstreams checkpoint``, and graph nodes for display."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyspark

from checkpoint.state_store import Classes
from dstreams.monitoring.status import DURABLE_INPUT, DURABLE_STORE, GraphNode, NodeKind
from dstreams.state.group_state import OutputMode
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.query_records import source_uid, watermark_uid
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.operators.stateless import StreamingRelationExec
from dstreams.structured.plan.logical import Join, LogicalPlan, Stateful, side_outputs
from dstreams.structured.plan.planning import PlannedQuery
from dstreams.structured.sinks.sink import Sink

_FORMAT = 1


@dataclass(frozen=True)
class QueryDefinition:
    """The definition of a query, as the writer starts it."""

    plan: LogicalPlan
    mode: OutputMode
    sink: Sink
    name: str | None
    conf: QueryConf
    classes: Classes = field(default_factory=Classes)

    @cached_property
    def sinks(self) -> tuple[Sink, ...]:
        """The sink of the query, and those of late records and of records that failed."""
        return (self.sink, *side_outputs(self.plan))


def describe_query(
    definition: QueryDefinition,
    planned: PlannedQuery,
    operators: Sequence[Mapping[str, Any]],
    conf: QueryConf,
) -> dict[str, object]:
    """Return a description of a query, with its pinned settings."""
    return {
        "format": _FORMAT,
        "query": definition.name,
        "mode": planned.mode.name,
        "inputs": [
            {"uid": source_uid(number), "source": source.name}
            for number, source in enumerate(planned.sources)
        ],
        "watermarks": [
            {"uid": watermark_uid(number), "delay_ms": step.delay_ms, "idle_ms": step.idle_ms}
            for number, step in enumerate(planned.watermarks)
        ],
        "operators": [dict(operator) for operator in operators],
        "outputs": [
            {"uid": output_uid(number), "sink": sink.name}
            for number, sink in enumerate(definition.sinks)
        ],
        "plan": definition.plan.tree().splitlines(),
        "physical plan": planned.root.tree().splitlines(),
        "conf": conf.pinned(),
        "versions": {"python": platform.python_version(), "pyspark": pyspark.__version__},
    }


def output_uid(number: int) -> str:
    """Return the name of a sink in the description of its query, and in its graph."""
    return f"sink{number or ''}"


def plan_nodes(plan: LogicalPlan) -> tuple[GraphNode, ...]:
    """Return the steps of a logical plan, parents first."""
    nodes: list[GraphNode] = []
    known: dict[LogicalPlan, int] = {}

    def add(step: LogicalPlan) -> int:
        if step not in known:
            parents = tuple(add(child) for child in step.children)
            kind: NodeKind = "step" if parents else "input"
            uid = ""
            if step.keeps_state:
                assert isinstance(step, (Stateful, Join)), f"{step.label} has no name"
                kind, uid = "state", step.name or ""
            nodes.append(GraphNode(len(nodes), kind, step.label, uid, parents))
            known[step] = len(nodes) - 1
        return known[step]

    add(plan)
    return tuple(nodes)


def query_graph_nodes(planned: PlannedQuery, sinks: Sequence[Sink]) -> tuple[GraphNode, ...]:
    """Return the operators of a physical plan and its sinks, parents first."""
    nodes: list[GraphNode] = []
    givers: dict[Sink, tuple[int, ...]] = {}
    uids = iter(planned.names)

    def add(operator: PhysicalOperator) -> int:
        parents = tuple(add(child) for child in operator.children)
        kind: NodeKind = "input" if isinstance(operator, StreamingRelationExec) else "step"
        operation, uid, durable = operator.nodeName, "", ""
        if isinstance(operator, StreamingRelationExec):
            operation = planned.sources[operator.number].name
            uid, durable = source_uid(operator.number), DURABLE_INPUT
        elif isinstance(operator, StateStoreWriter):
            kind, uid, durable = "state", next(uids), DURABLE_STORE
        nodes.append(GraphNode(len(nodes), kind, operation, uid, parents, durable))
        number = len(nodes) - 1
        given = getattr(operator, "sink", getattr(operator, "onError", None))
        if isinstance(given, Sink):
            givers[given] = (*givers.get(given, ()), number)
        return number

    newest = add(planned.root)
    for number, sink in enumerate(sinks):
        parents = givers.get(sink, (newest,)) if number else (newest,)
        uid, guarantee = output_uid(number), sink.promise.guarantee
        nodes.append(GraphNode(len(nodes), "output", sink.name, uid, parents, guarantee))
    return tuple(nodes)
