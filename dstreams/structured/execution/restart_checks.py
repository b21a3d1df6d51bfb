"""Whether a query can go on from a checkpoint, and if not, which operator differs and how.

An operator is known by its name: the one that the user gave it, or its kind and place in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from dstreams.errors import RestartError
from dstreams.spark.selectors import Field, Fields
from dstreams.state.group_state import OutputMode
from dstreams.structured.conf import STATE_SCHEMA_CHECK, QueryConf
from dstreams.structured.execution.batch_records import QueryBatch
from dstreams.structured.execution.query_checkpoint import read_checkpoint, recovered_of
from dstreams.structured.operators.deduplication import KeyEventsExec, StreamingDeduplicateExec
from dstreams.structured.operators.flat_map_groups_with_state import FlatMapGroupsWithStateExec
from dstreams.structured.operators.join import StreamingSymmetricHashJoinExec
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.session_state import SessionGrouping
from dstreams.structured.operators.stateful_operator import SavingOperator, StateStoreWriter
from dstreams.structured.operators.stateless import AppendKeyExec
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.plan.aggregate_names import are_same, names_of, value_name
from dstreams.structured.plan.join_events import OfNested
from dstreams.structured.plan.logical import LogicalPlan
from dstreams.structured.plan.planning import PlannedQuery, plan_query

Facts = Mapping[str, Any]

_COMPARED = ("outputMode", "joinType", "withEventTime")
"""Fields of a stateful operator that decide the contents of its store."""

_SHOWN = {
    "operatorName": "is the operator",
    "outputMode": "has output mode",
    "timeoutConf": "has timeout",
    "joinType": "is a join of type",
    "grouping": "groups by",
    "withEventTime": "has keys with event times",
    "aggregates": "computes",
    "keys": "has the keys",
    "leftKeys": "has the left keys",
    "rightKeys": "has the right keys",
}

# May change: the contents of the store are the same.
_HARMLESS = {"outputMode"}

# Known by name only, so the user may know better.
_BY_NAME = ("aggregates", "keys", "leftKeys", "rightKeys")


def describe_operators(planned: PlannedQuery) -> tuple[dict[str, Any], ...]:
    """Return what the batch log keeps of the stateful operators, in the order of the plan."""
    operators = (step for step in planned.root.walk() if isinstance(step, StateStoreWriter))
    return tuple(
        {"uid": name, "operatorId": number, **_facts_of(operator)}
        for number, (name, operator) in enumerate(zip(planned.names, operators, strict=True))
    )


def _facts_of(operator: StateStoreWriter) -> dict[str, Any]:
    known = {field.name for field in fields(operator)}
    facts: dict[str, Any] = {"operatorName": operator.shortName}
    for name in _COMPARED:
        if name in known:
            value = getattr(operator, name)
            facts[name] = (
                value if isinstance(value, (int, bool)) else str(getattr(value, "name", value))
            )
    if isinstance(operator, FlatMapGroupsWithStateExec):
        facts["timeoutConf"] = operator.groups.timeoutConf.name
    if isinstance(operator, SavingOperator):
        facts["grouping"] = _window_of(operator.keyExpressions)
    facts |= {name: _parts_of(key) for name, key in _keys_of(operator)}
    if isinstance(operator, SavingOperator) and hasattr(operator.child, "aggregate"):
        facts["aggregates"] = names_of(operator.child.aggregate)
    return facts


def _keys_of(operator: StateStoreWriter) -> Iterator[tuple[str, Any]]:
    """Iterate over the functions that give rows their keys, by name; None is all of a record."""
    if isinstance(operator, SavingOperator):
        key = getattr(operator.keyExpressions, "key", None)
        yield "keys", Fields(()) if key is None else key
    elif isinstance(operator, StreamingDeduplicateExec):
        yield "keys", _key_below(operator.child)
    elif isinstance(operator, StreamingSymmetricHashJoinExec):
        yield "leftKeys", _key_below(operator.left)
        yield "rightKeys", _key_below(operator.right)
    elif isinstance(operator, FlatMapGroupsWithStateExec):
        yield "keys", _key_below(operator.child)


def _key_below(operator: PhysicalOperator) -> Any:
    """Return the function that gives the rows of a stateful operator their keys."""
    while not isinstance(operator, (AppendKeyExec, KeyEventsExec)):
        operator = operator.children[0]
    return operator.key


def _parts_of(key: Any) -> list[str]:
    """Return what each part of a key is called: a field by its name, a function as aggregates."""
    key = key.func if isinstance(key, OfNested) else key
    if key is None:
        return ["all of a record"]
    parts = key.parts if isinstance(key, Fields) else (key,)
    return [part.name if isinstance(part, Field) else value_name(part) for part in parts]


def _window_of(grouping: Any) -> str:
    if isinstance(grouping, SessionGrouping):
        return f"sessions of {grouping.gap_ms} ms"
    if isinstance(grouping.windows, TimeWindows):
        return f"windows of {grouping.windows.size_ms} ms every {grouping.windows.step_ms} ms"
    return grouping.windows or "keys alone"


def differences(
    newest: QueryBatch, operators: Sequence[Facts], sources: int, *, ignores_names: bool = False
) -> list[str]:
    """Return why a query cannot go on from a checkpoint.

    With *ignores_names* aggregates and fields of keys, which go by name only, are not compared.
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
        found += [] if ignores_names else _renamed(uid, before[uid], now[uid])
    return found


def _renamed(uid: str, before: Facts, now: Facts) -> list[str]:
    return [
        f"stateful operator {uid!r} ({now['operatorName']}) {_SHOWN[name]} "
        f"{_listed(now[name])}, in the checkpoint {_listed(before[name])}, whose stored rows "
        "it would take for its own: go back to that, or begin a new checkpoint; where the stored "
        f"rows mean the same, as after renaming a function, set {STATE_SCHEMA_CHECK} to false for "
        "one start"
        for name in _BY_NAME
        if name in before and name in now and not _are_same(before[name], now[name])
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _are_same(before: Sequence[str], now: Sequence[str]) -> bool:
    return len(before) == len(now) and all(map(are_same, before, now))


def _changes(uid: str, before: Facts, now: Facts) -> list[str]:
    return [
        f"stateful operator {uid!r} {_SHOWN.get(name, name)} {now.get(name)!r}, in the checkpoint "
        f"{before[name]!r}: its stored rows would mean something else"
        for name in _SHOWN
        if name not in _HARMLESS
        and name not in _BY_NAME
        and name in before
        and before[name] != now.get(name)
    ]


def require_same_query(
    newest: QueryBatch, operators: Sequence[Facts], sources: int, conf: QueryConf
) -> None:
    """Refuse a query, with the settings *conf* of its session, that cannot resume a checkpoint.

    Raises:
        RestartError: the message names each operator and setting that differs.
    """
    ignores_names = not conf.state_schema_check
    found = differences(newest, operators, sources, ignores_names=ignores_names)
    found += conf.changed_formats(newest.conf)
    if found:
        raise RestartError("this query cannot go on from the checkpoint: " + "; ".join(found))


def restart_problems(
    plan: LogicalPlan, mode: OutputMode, conf: QueryConf, location: str
) -> list[str]:
    """Say what keeps a query from going on from a checkpoint; nothing is written there."""
    found = read_checkpoint(location)
    newest = None if found is None else recovered_of(found[1], location).newest
    if newest is None:
        return []
    planned = plan_query(plan, mode, conf.restored(newest.conf))
    operators, sources = describe_operators(planned), len(planned.sources)
    ignores_names = not conf.state_schema_check
    changed = differences(newest, operators, sources, ignores_names=ignores_names)
    return changed + conf.changed_formats(newest.conf)
