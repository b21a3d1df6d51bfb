"""What can be asked of the state of a stream while it runs."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark import RDD

from dstreams.engine.engine import Engine
from dstreams.graph.node import Node
from dstreams.monitoring.state_jobs import SnapshotState, StateAccess, StateJobs, StoredState


def state_access(engine: Engine) -> StateAccess | None:
    """Return what looks into the states of a stream; None where it has none.

    Without a checkpoint directory the newest batch that ran is what counts.
    """
    plan = engine.plan
    in_store = plan.in_state_store()
    states: dict[str, SnapshotState | StoredState] = {
        plan.nodes[node].uid: SnapshotState(partial(_newest, engine, node))
        for node in plan.stateful()
        if node not in in_store
    }
    for node in in_store:
        uid = plan.nodes[node].uid
        states[uid] = StoredState(uid, engine.history.states, partial(_committed_ms, engine))
    return StateJobs(states) if states else None


def _newest(engine: Engine, node: Node) -> tuple[int, RDD[Any]] | None:
    return engine.history.newest(node, _committed_ms(engine))


def _committed_ms(engine: Engine) -> int:
    if engine.log is None:
        return engine.runner.ran_ms
    last = engine.log.commits.last
    return engine.plan.zero_ms if last is None else last.batch_time_ms
