"""Stored columns: the changes of the columns of a state that a restart accepts.

State in Arrow blocks and the rows of state variables follow the same rules:

============================ ================================================================
change                       effect
============================ ================================================================
a column is added            it has its default, null without one; in a row only at the end
its type is wider            values are converted: smaller to larger integers, floats and
                             decimals, and integers to floats that can represent each of them
anything else                the restart is refused
============================ ================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

Described = Mapping[str, Any]
Columns = Sequence[Described]
"""Columns as JSON: ``name``, ``type``, ``is_key``, and ``is_required`` if it has no default."""

# Bits of the integers and floats of Spark and Arrow. A float holds ints of its significand.
_INTS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_INTS |= {f"int{bits}": bits for bits in (8, 16, 32, 64)}
_UNSIGNED = {f"uint{bits}": bits for bits in (8, 16, 32, 64)}
_FLOATS = {"halffloat": 11, "float": 24, "double": 53}
_DECIMAL = re.compile(r"decimal\d*\((\d+), ?(-?\d+)\)")


def is_widened(before: str, now: str) -> bool:
    """Return whether each value of a type is also one of another type."""
    if before in _FLOATS and now in _FLOATS:
        return _FLOATS[before] < _FLOATS[now]
    bits = _INTS.get(before, _UNSIGNED.get(before))
    if bits is not None:
        if now in _UNSIGNED:
            return before in _UNSIGNED and bits < _UNSIGNED[now]
        return bits < _INTS.get(now, 0) or bits <= _FLOATS.get(now, 0)
    were, are = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(now)
    if were is None or are is None or before == now:
        return False
    scale, scale_now = int(were[2]), int(are[2])
    return scale <= scale_now and int(were[1]) - scale <= int(are[1]) - scale_now


def changed_columns(
    state: str,
    before: Columns,
    now: Columns,
    start_empty: str,
    where: str = "this program",
    *,
    are_rows: bool = False,
) -> Iterator[str]:
    """Yield why a state cannot have other columns.

    Args:
        state: what is said of the state, such as ``the state of 'counts'``.
        before, now: the columns in the checkpoint and in the program.
        start_empty: the remedy that drops the state.
        where: what declares the columns now.
        are_rows: columns of rows keep their places.
    """
    keys, keys_now = _keys(before), _keys(now)
    if keys != keys_now:
        yield (
            f"the key of {state} was {_listed(keys)}, and is {_listed(keys_now)} in {where}, so "
            f"no key would be found again; keep the key, or {start_empty}"
        )
        return
    are = {column["name"]: column for column in now}
    for column in before:
        name, was = column["name"], column["type"]
        if name not in are:
            yield (
                f"the column {name!r} ({was}) of {state} is not declared in {where} any more; "
                f"declare it, even if unused, or {start_empty}"
            )
        elif are[name]["type"] != was and not is_widened(was, are[name]["type"]):
            kind = are[name]["type"]
            yield (
                f"the column {name!r} of {state} was {was}, and is {kind} in {where}, but {kind} "
                f"cannot represent all values of {was}; keep its type and add a column of the new "
                f"one, or {start_empty}"
            )
    if are_rows:
        yield from _moved(state, before, now)
    for name in added_columns(before, now):
        if are[name].get("is_required"):
            yield (
                f"the column {name!r} is added to {state}, and must not be null; give it a default"
                ", such as StructField(..., metadata={'default': 0}), or make it nullable"
            )


def _moved(state: str, before: Columns, now: Columns) -> Iterator[str]:
    names, names_now = ([column["name"] for column in columns] for columns in (before, now))
    if not set(names) <= set(names_now):
        return
    for name, name_now in zip_longest(names, names_now[: len(names)]):
        if name != name_now:
            yield (
                f"the column {name!r} of {state} is in another place now, where {name_now!r} is; "
                "keep the order of columns, and add new ones at the end"
            )
            return


def added_columns(before: Columns | None, now: Columns | None) -> list[str]:
    """Return the names of the columns that are added to a state."""
    if before is None or now is None:
        return []
    were = {column["name"] for column in before}
    return [column["name"] for column in now if column["name"] not in were]


def _keys(columns: Columns) -> list[tuple[str, str]]:
    return [(column["name"], column["type"]) for column in columns if column["is_key"]]


def _listed(keys: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in keys) or "none"


def changed_variables(uid: str, before: Described, now: Described) -> Iterator[str]:
    """Yield why a stateful processor cannot continue with the state variables of another one.

    Both are descriptions of operators, with ``timeMode``, ``stateVariables`` and
    ``deletedVariables`` if they have a processor. New variables begin empty.
    """
    if "timeMode" in before and before["timeMode"] != now.get("timeMode"):
        yield (
            f"stateful operator {uid!r} has time mode {now.get('timeMode')!r}, in the checkpoint "
            f"{before['timeMode']!r}: its timers would be of another clock; undo the change, or "
            "start a new checkpoint"
        )
    known = now.get("stateVariables") or {}
    for name, was in (before.get("stateVariables") or {}).items():
        if name in (now.get("deletedVariables") or ()):
            continue
        state = f"the state variable {name!r} of stateful operator {uid!r}"
        if name not in known:
            yield (
                f"stateful operator {uid!r} no longer defines the state variable {name!r}, which "
                f"the checkpoint has; call handle.deleteIfExists({name!r}) in init to delete it, "
                "or define it"
            )
            continue
        kinds = [_kind(one) for one in (was, known[name])]
        if kinds[0] != kinds[1]:
            yield (
                f"[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] {state} is {kinds[1]}, in the "
                f"checkpoint {kinds[0]}; undo the change, or use another name and call "
                f"handle.deleteIfExists({name!r})"
            )
            continue
        start_empty = f"use another name and call handle.deleteIfExists({name!r})"
        for problem in changed_columns(
            state, was["columns"], known[name]["columns"], start_empty, are_rows=True
        ):
            yield f"[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] {problem}"


def _kind(variable: Described) -> str:
    return f"a {variable['kind']}{' with a TTL' if variable['has_ttl'] else ''}"
