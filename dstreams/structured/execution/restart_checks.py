"""Checks whether a query can resume from a checkpoint, with a message per difference.

An operator is identified by the user's name for it, or by its kind and position in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from checkpoint.state_store import Classes, class_problems
from dstreams.spark.selectors import Field, Fields
from dstreams.state.group_state import OutputMode
from dstreams.state.stored_columns import changed_variables
from dstreams.structured.conf import STATE_SCHEMA_CHECK, QueryConf
from dstreams.structured.execution.query_checkpoint import (
    Recovered,
    read_checkpoint,
    recovered_of,
)
from dstreams.structured.execution.query_records import QueryBatch
from dstreams.structured.operators.deduplication import KeyEventsExec, StreamingDeduplicateExec
from dstreams.structured.operators.flat_map_groups_with_state import (
    FlatMapGroupsWithStateExec,
    GroupedFunctionExec,
)
from dstreams.structured.operators.join import OfNested, StreamingSymmetricHashJoinExec
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.sessions import SessionGrouping
from dstreams.structured.operators.stateful_operator import SavingOperator, StateStoreWriter
from dstreams.structured.operators.stateless import AppendKeyExec
from dstreams.structured.operators.transform_with_state import TransformWithStateExec
from dstreams.structured.plan.aggregate_names import are_same, names_of, value_name
from dstreams.structured.plan.logical import LogicalPlan
from dstreams.structured.plan.planning import PlannedQuery, plan_query

Facts = Mapping[str, Any]

_RECORDED = ("outputMode", "joinType", "withEventTime")
"""Fields of a stateful operator that are in the begin records."""

_SHOWN = {
    "operatorName": "is the operator",
    "timeoutConf": "has timeout",
    "joinType": "is a join of type",
    "grouping": "groups by",
    "withEventTime": "has keys with event times",
    "aggregates": "computes",
    "keys": "has the keys",
    "leftKeys": "has the left keys",
    "rightKeys": "has the right keys",
}
"""Fields that must not change. An output mode may: the store has the same contents in each."""

# Compared by their names only, so the user may override the result.
_BY_NAME = ("aggregates", "keys", "leftKeys", "rightKeys")


def describe_operators(planned: PlannedQuery) -> tuple[dict[str, Any], ...]:
    """Return descriptions of the stateful operators for begin records, in the order of the plan."""
    operators = (step for step in planned.root.walk() if isinstance(step, StateStoreWriter))
    return tuple(
        {"uid": name, "operatorId": number, **_facts_of(operator)}
        for number, (name, operator) in enumerate(zip(planned.names, operators, strict=True))
    )


def _facts_of(operator: StateStoreWriter) -> dict[str, Any]:
    known = {field.name for field in fields(operator)}
    facts: dict[str, Any] = {"operatorName": operator.shortName}
    for name in _RECORDED:
        if name in known:
            value = getattr(operator, name)
            facts[name] = (
                value if isinstance(value, (int, bool)) else str(getattr(value, "name", value))
            )
    if isinstance(operator, FlatMapGroupsWithStateExec):
        facts["timeoutConf"] = operator.groups.timeoutConf.name
    if isinstance(operator, TransformWithStateExec):
        facts |= operator.groups.described
    if isinstance(operator, SavingOperator):
        facts["grouping"] = _window_of(operator.keyExpressions)
    facts |= {name: _parts_of(key) for name, key in _keys_of(operator)}
    if isinstance(operator, SavingOperator) and hasattr(operator.child, "aggregate"):
        facts["aggregates"] = names_of(operator.child.aggregate)
    return facts


def _keys_of(operator: StateStoreWriter) -> Iterator[tuple[str, Any]]:
    """Iterate over the key functions of an operator with their names; None is the whole record."""
    if isinstance(operator, SavingOperator):
        key = getattr(operator.keyExpressions, "key", None)
        yield "keys", Fields(()) if key is None else key
    elif isinstance(operator, StreamingDeduplicateExec):
        yield "keys", key_below(operator.child)
    elif isinstance(operator, StreamingSymmetricHashJoinExec):
        yield "leftKeys", key_below(operator.left)
        yield "rightKeys", key_below(operator.right)
    elif isinstance(operator, GroupedFunctionExec):
        yield "keys", key_below(operator.child)


def key_below(operator: PhysicalOperator) -> Any:
    """Return the key function of the rows of a stateful operator."""
    while not isinstance(operator, (AppendKeyExec, KeyEventsExec)):
        operator = operator.children[0]
    return operator.key


def _parts_of(key: Any) -> list[str]:
    """Return the name of each part of a key."""
    key = key.func if isinstance(key, OfNested) else key
    if key is None:
        return ["all of a record"]
    parts = key.parts if isinstance(key, Fields) else (key,)
    return [part.name if isinstance(part, Field) else value_name(part) for part in parts]


def _window_of(grouping: Any) -> str:
    if isinstance(grouping, SessionGrouping):
        gap_us = grouping.gap_us
        if isinstance(gap_us, int):
            return f"sessions of {gap_us // 1000} ms"
        return "sessions of a gap for each record"
    return str(grouping.windows or "keys alone")


def differences(newest: QueryBatch, planned: PlannedQuery, conf: QueryConf) -> list[str]:
    """Return a message for each reason why a query cannot resume from its *newest* batch.

    *conf* has the settings of the session, not those of the checkpoint.
    """
    operators, sources = describe_operators(planned), len(planned.sources)
    found = []
    if len(newest.ends) != sources:
        found.append(
            f"the checkpoint has {len(newest.ends)} sources, this query has {sources}; "
            "keep their number and order"
        )
    before = {facts["uid"]: facts for facts in newest.operators}
    now = {facts["uid"]: facts for facts in operators}
    for uid in [uid for uid in before if uid not in now]:
        kind = before[uid]["operatorName"]
        found.append(
            f"stateful operator {uid!r} ({kind}) of the checkpoint is not in this query: its state "
            "would be lost; keep the operator and its name"
        )
    for uid in [uid for uid in now if uid not in before]:
        kind = now[uid]["operatorName"]
        found.append(
            f"stateful operator {uid!r} ({kind}) is not in the checkpoint: it would miss all "
            "earlier batches; name operators to distinguish them, or start a new checkpoint"
        )
    for uid in [uid for uid in now if uid in before]:
        found += _changes(uid, before[uid], now[uid])
        found += changed_variables(uid, before[uid], now[uid])
        found += _renamed(uid, before[uid], now[uid]) if conf.state_schema_check else []
    return found + conf.changed_formats(newest.conf)


def interrupted_moves(recovered: Recovered, location: str) -> list[str]:
    """Return a message if a move of the state, or the adoption of Spark's, was interrupted."""
    adopted = [
        f"the adoption of {batch.adopts} was interrupted: complete it with adopt"
        for batch in recovered.unfinished
        if batch.adopts is not None
    ]
    return adopted + [
        f"repartitionState of {location} was interrupted: complete it with numPartitions="
        f"{QueryConf.from_conf(batch.conf).shuffle_partitions}"
        for batch in recovered.unfinished
        if batch.moves_state
    ]


def _renamed(uid: str, before: Facts, now: Facts) -> list[str]:
    return [
        f"stateful operator {uid!r} ({now['operatorName']}) {_SHOWN[name]} "
        f"{_listed(now[name])}, in the checkpoint {_listed(before[name])}: it would misinterpret "
        "the stored rows; undo the change, or start a new checkpoint; if the stored rows mean the "
        f"same, as after renaming a function, set {STATE_SCHEMA_CHECK} to false for one start"
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
        f"{before[name]!r}: it would misinterpret the stored rows; undo the change, or start a new "
        "checkpoint"
        for name in _SHOWN
        if name not in _BY_NAME and name in before and before[name] != now.get(name)
    ]


def restart_problems(
    plan: LogicalPlan, mode: OutputMode, conf: QueryConf, location: str, classes: Classes
) -> list[str]:
    """Return why a query cannot resume from a checkpoint, without writing to it."""
    found = read_checkpoint(location)
    recovered = None if found is None else recovered_of(found[1], location)
    newest = None if recovered is None else recovered.newest
    if found is None or recovered is None or newest is None:
        return []
    planned = plan_query(plan, mode, conf.restored(newest.conf))
    changed = interrupted_moves(recovered, location) + differences(newest, planned, conf)
    return changed + class_problems(*found, classes)
