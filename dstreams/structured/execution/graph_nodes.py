"""The plan of a query as values for people."""

from __future__ import annotations

from dstreams.monitoring.status import DURABLE_INPUT, DURABLE_STORE, GraphNode, NodeKind
from dstreams.structured.execution.batch_records import source_uid
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.operators.stateless import StreamingRelationExec
from dstreams.structured.plan.logical import Join, LogicalPlan, Stateful
from dstreams.structured.plan.planning import PlannedQuery
from dstreams.structured.sinks.sink import Sink


def plan_nodes(plan: LogicalPlan) -> tuple[GraphNode, ...]:
    """Return the steps of a query as its program wrote them, parents first."""
    nodes: list[GraphNode] = []
    known: dict[LogicalPlan, int] = {}

    def add(step: LogicalPlan) -> int:
        if step not in known:
            parents = tuple(add(child) for child in step.children)
            kind: NodeKind = "step" if parents else "input"
            uid = ""
            if isinstance(step, (Stateful, Join)):
                kind, uid = "state", step.name or ""
            nodes.append(GraphNode(len(nodes), kind, step.label, uid, parents))
            known[step] = len(nodes) - 1
        return known[step]

    add(plan)
    return tuple(nodes)


def graph_nodes(planned: PlannedQuery, sink: Sink) -> tuple[GraphNode, ...]:
    """Return the operators of a plan and its sink, parents first."""
    nodes: list[GraphNode] = []
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
        return len(nodes) - 1

    newest = add(planned.root)
    nodes.append(
        GraphNode(len(nodes), "output", sink.name, "sink", (newest,), sink.promise.guarantee)
    )
    return tuple(nodes)
