"""Batches that are left out: time that passed while no driver ran, without a batch in it.

A state stays what it was before the gap: no function of the user is called for what did not happen.
A window keeps values from before the gap as long as their time is in the window. A window with an
inverse keeps keys of which all values have left, as it does where batches are empty. A state that
fires less often than there are batches may not have seen the last ones before the gap: it takes
their records in as if it had fired once more.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint import BeginRecord
from dstreams.engine.transaction_log import AFTER
from dstreams.graph.history import History
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.reduced_window import ReducedWindowedDStream
from dstreams.graph.state import StateDStream
from dstreams.graph.state_store_dstream import StateStoreDStream


def gap_of(begun: BeginRecord) -> int | None:
    """Return the time of the batch before that of a begin record, None where no gap is between."""
    after_ms = begun.facts.get(AFTER)
    return after_ms if isinstance(after_ms, int) else None


def bridge(
    plan: Plan,
    history: History,
    after_ms: int,
    time_ms: int,
    lookback: Mapping[Node, int] | None = None,
) -> None:
    """Let the batch at *time_ms* find the state of the one at *after_ms* as that before it.

    *history* knows of the gap. *lookback* says after which time each stream may be asked for its
    RDDs, None for any time. A call after one that has failed goes on where that has failed.
    """
    for node in plan.nodes:
        last_ms = plan.turn_upto(node, after_ms)
        first_ms = time_ms + (plan.zero_ms - time_ms) % node.slide_ms
        before_ms = first_ms - node.slide_ms
        is_asked = lookback is None or lookback[node] < before_ms
        if before_ms <= last_ms or not is_asked or before_ms in history.times(node):
            continue
        made_ms = last_ms if last_ms == after_ms else last_ms + node.slide_ms
        if isinstance(node, ReducedWindowedDStream):
            history.restore(node, before_ms, node.over_gap(made_ms, before_ms, history))
        elif isinstance(node, StateDStream):
            history.restore(node, before_ms, history.at(node, made_ms))
        elif isinstance(node, StateStoreDStream):
            uid = plan.nodes[node].uid
            if history.states.at(uid, made_ms) is None:
                history.make_state(node, made_ms)  # it could not be when it was due, or was not due
            history.states.reuse(uid, made_ms, before_ms)


def gaps_in(begins: Mapping[int, BeginRecord]) -> list[tuple[int, int]]:
    """Return the gaps that begin records tell of: the batch before and the one after each."""
    found = ((gap_of(begun), time_ms) for time_ms, begun in begins.items())
    return sorted((after_ms, time_ms) for after_ms, time_ms in found if after_ms is not None)
