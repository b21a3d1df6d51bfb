"""How far a restart looks back: which RDDs of earlier batches the next batch can ask for.

A stream asks its parents for their RDDs at its own time, and a window asks for those before; a
stream that stands on its own past needs a version of that in files, or is made from the beginning::

    batches            1   2   3   4   5   6   7   8 | 9        9 is the next one
    a state in files           x               x
    the state asks its parent for                  8   9
    a window of 3 over it asks the state for   7   8   9        so that at 3 is needed, not 7
    the state asks its parent for      4   5   6   7   8   9

The same answer says what a restart reads again, and what a running stream must not delete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.state_store_dstream import StateStoreDStream

NewestKnown = Callable[[Node, int], int]
"""``(stream, time in ms) ->`` time of its newest version in files; zero time for none."""


def lookback(
    plan: Plan,
    last_ms: int,
    newest_known: NewestKnown,
    began: Mapping[Node, int] | None = None,
) -> dict[Node, int]:
    """Say of each stream after which time a batch after *last_ms* may ask for its RDDs."""
    floors = began or {}
    asked = dict.fromkeys(plan.nodes, max(plan.zero_ms, last_ms))
    for node in reversed(tuple(plan.nodes)):  # children first
        made_ms = newest_known(node, asked[node]) if node.is_stateful else asked[node]
        asked[node] = made_ms
        for parent in node.parents:
            needed_ms = max(made_ms - node.parents_remember_ms(0), floors.get(node, plan.zero_ms))
            asked[parent] = min(asked[parent], needed_ms)
    return asked


def lookback_of_others(plan: Plan, last_ms: int, lookback: Mapping[Node, int]) -> dict[Node, int]:
    """Say of each stream after which time others than itself may ask for its RDDs."""
    found = dict.fromkeys(plan.nodes, last_ms)
    for node in plan.nodes:
        for parent in node.parents:
            found[parent] = min(found[parent], lookback[node] - node.parents_remember_ms(0))
    return found


def is_made_of_state(node: Node) -> bool:
    """Whether what a stream is made of stands on the past of another one, batch after batch.

    State in the state store does not: each batch of it is made from files.
    """
    above, known = list(node.parents), set(node.parents)
    for parent in above:  # which grows
        if parent.is_stateful and not isinstance(parent, StateStoreDStream):
            return True
        above += (one for one in parent.parents if one not in known)
        known.update(parent.parents)
    return False
