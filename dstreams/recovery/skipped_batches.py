"""Batches that are left out: time that passed while no driver ran, without a batch in it.

State stays what it was before the gap: no user's function is called for what did not happen. What a
window has of the time before the gap stays in it as long as its time is in the window; keys of
which all values have left stay in a window with an inverse, as they do where batches are empty.
State that fires less often than there are batches may lack some from before the gap: it takes these
in as if it had fired once more, with no batch after them.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint import BeginRecord
from dstreams.graph.history import History
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.reduced_window import ReducedWindowedDStream
from dstreams.graph.state import StateDStream
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.kernel.record_facts import AFTER


def gap_of(begun: BeginRecord) -> int | None:
    """Return after which batch the one of a begin record comes; None for the one before it."""
    after_ms = begun.facts.get(AFTER)
    return after_ms if isinstance(after_ms, int) else None


def bridge(
    plan: Plan,
    history: History,
    after_ms: int,
    time_ms: int,
    asked: Mapping[Node, int] | None = None,
) -> None:
    """Let the batch at *time_ms* find the state of the one at *after_ms* as that before it.

    Called again after a failure, it goes on where it failed.

    Args:
        plan: the graph.
        history: where the state at *after_ms* is known, or can be made; it knows of the gap.
        after_ms: the last batch before the gap.
        time_ms: the first batch after it.
        asked: after which time each stream may be asked for its RDDs; None: any time.
    """
    for node in plan.nodes:
        last_ms = after_ms - (after_ms - plan.zero_ms) % node.slide_ms
        first_ms = time_ms + (plan.zero_ms - time_ms) % node.slide_ms
        before_ms = first_ms - node.slide_ms
        is_asked = asked is None or asked[node] < before_ms
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
