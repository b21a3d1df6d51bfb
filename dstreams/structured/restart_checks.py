"""Whether a query can go on from a checkpoint, and if not, which operator differs and how.

An operator is known by its name: the one that the user gave it, or its kind and place in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from dstreams.errors import RestartError
from dstreams.state.group_state import OutputMode
from dstreams.structured.conf import QueryConf
from dstreams.structured.logical import LogicalPlan
from dstreams.structured.logs import OffsetRecord
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.physical_operator import StatefulOperator
from dstreams.structured.operators.session_state import SessionGrouping
from dstreams.structured.operators.windows import TimeWindows
from dstreams.structured.planning import PlannedQuery, plan_query
from dstreams.structured.query_checkpoint import read_checkpoint, recovered_of

Facts = Mapping[str, Any]

_COMPARED = (
    "outputMode",
    "timeoutConf",
    "stateFormatVersion",
    "rowsAreEvents",
    "joinType",
    "isMap",
    "withEventTime",
)
"""Fields of a stateful operator that decide what stands in its store."""

_SHOWN = {
    "operatorName": "is the operator",
    "outputMode": "has output mode",
    "timeoutConf": "has timeout",
    "stateFormatVersion": "has state format version",
    "rowsAreEvents": "keeps rows with event times",
    "joinType": "is a join of type",
    "isMap": "returns one row for each key",
    "grouping": "groups by",
    "withEventTime": "has keys with event times",
}

# May change: what stands in the store is the same.
_HARMLESS = {"isMap", "rowsAreEvents", "stateFormatVersion", "outputMode"}


def describe_operators(planned: PlannedQuery) -> tuple[dict[str, Any], ...]:
    """Return what the batch log keeps of the stateful operators, in the order of the plan."""
    operators = (step for step in planned.root.walk() if isinstance(step, StatefulOperator))
    return tuple(
        {"uid": name, "operatorId": number, **_facts_of(operator)}
        for number, (name, operator) in enumerate(zip(planned.names, operators, strict=True))
    )


def _facts_of(operator: StatefulOperator) -> dict[str, Any]:
    known = {field.name for field in fields(operator)}
    facts: dict[str, Any] = {"operatorName": operator.shortName}
    for name in _COMPARED:
        if name in known:
            value = getattr(operator, name)
            facts[name] = (
                value if isinstance(value, (int, bool)) else str(getattr(value, "name", value))
            )
    grouping = getattr(operator, "grouping", None)
    if grouping is not None:
        facts["grouping"] = _window_of(grouping)
    return facts


def _window_of(grouping: Grouping | SessionGrouping) -> str:
    if isinstance(grouping, SessionGrouping):
        return f"sessions of {grouping.sessions.gap} ms"
    if isinstance(grouping.windows, TimeWindows):
        return f"windows of {grouping.windows.size_ms} ms every {grouping.windows.step_ms} ms"
    return grouping.windows or "keys alone"


def differences(newest: OffsetRecord, operators: Sequence[Facts], sources: int) -> list[str]:
    """Say why a query cannot go on from a checkpoint; an empty list says that it can.

    Args:
        newest: the newest batch of the checkpoint.
        operators: the stateful operators of the query, as :func:`describe_operators` has them.
        sources: how many sources the query has.
    """
    found = []
    if len(newest.ends) != sources:
        found.append(
            f"the checkpoint has {len(newest.ends)} sources, this query has {sources}: "
            "keep their number and order"
        )
    before = {facts["uid"]: facts for facts in newest.operators}
    now = {facts["uid"]: facts for facts in operators}
    for uid in [uid for uid in before if uid not in now]:
        kind = before[uid]["operatorName"]
        found.append(
            f"stateful operator {uid!r} ({kind}) of the checkpoint is not in this query: its state "
            "would be lost; keep it, and its name"
        )
    for uid in [uid for uid in now if uid not in before]:
        kind = now[uid]["operatorName"]
        found.append(
            f"stateful operator {uid!r} ({kind}) is not in the checkpoint: it would begin without "
            "the batches before; name operators to keep them apart, or begin a new checkpoint"
        )
    for uid in [uid for uid in now if uid in before]:
        found += _changes(uid, before[uid], now[uid])
    return found


def _changes(uid: str, before: Facts, now: Facts) -> list[str]:
    return [
        f"stateful operator {uid!r} {_SHOWN.get(name, name)} {now.get(name)!r}, in the checkpoint "
        f"{before[name]!r}: its stored rows would mean something else"
        for name in _SHOWN
        if name not in _HARMLESS and name in before and before[name] != now.get(name)
    ]


def require_same_query(newest: OffsetRecord, operators: Sequence[Facts], sources: int) -> None:
    """Refuse a query that cannot go on from a checkpoint.

    Raises:
        RestartError: the message names each operator that differs.
    """
    found = differences(newest, operators, sources)
    if found:
        raise RestartError("this query cannot go on from the checkpoint: " + "; ".join(found))


def restart_problems(
    plan: LogicalPlan, mode: OutputMode, conf: QueryConf, location: str
) -> list[str]:
    """Say what keeps a query from going on from a checkpoint; nothing is written there.

    Args:
        plan: the query.
        mode: its output mode.
        conf: the settings; those that the checkpoint keeps win.
        location: path or URL of the checkpoint.
    """
    found = read_checkpoint(location)
    newest = None if found is None else recovered_of(found[1], location).newest
    if newest is None:
        return []
    planned = plan_query(plan, mode, conf.restored(newest.conf))
    return differences(newest, describe_operators(planned), len(planned.sources))
