"""Changes of stored columns, as a table: what a restart accepts, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dstreams.state.stored_columns import (
    added_columns,
    changed_columns,
    changed_variables,
    is_widened,
)

WIDENED = [
    ("tinyint", "smallint"),
    ("tinyint", "bigint"),
    ("smallint", "int"),
    ("int", "bigint"),
    ("int8", "int64"),
    ("uint8", "uint16"),
    ("uint32", "int64"),
    ("tinyint", "float"),
    ("smallint", "float"),
    ("int", "double"),
    ("uint16", "double"),
    ("float", "double"),
    ("halffloat", "float"),
    ("decimal(10,2)", "decimal(12,2)"),
    ("decimal(10,2)", "decimal(12,4)"),
    ("decimal128(10, 2)", "decimal256(40, 2)"),
]
NARROWED = [
    ("bigint", "int"),
    ("bigint", "double"),
    ("int", "float"),
    ("uint64", "int64"),
    ("int32", "uint64"),
    ("double", "float"),
    ("double", "bigint"),
    ("decimal(10,2)", "decimal(10,4)"),
    ("decimal(10,2)", "decimal(9,2)"),
    ("decimal(10,2)", "double"),
    ("bigint", "string"),
    ("string", "bigint"),
    ("string", "binary"),
    ("date", "timestamp"),
    ("boolean", "int"),
    ("array<int>", "array<bigint>"),
    ("struct<a:int>", "struct<a:bigint>"),
    ("struct<a:int>", "struct<a:int,b:int>"),
]


def columns(text: str) -> list[dict[str, Any]]:
    """Return columns of a text such as ``*user string, count int!``: keys, and required ones."""
    found = []
    for part in filter(None, text.split(", ")):
        name, kind = part.split(" ", 1)
        column = {"name": name.strip("*"), "type": kind.strip("!"), "is_key": name[0] == "*"}
        found.append({**column, "is_required": True} if kind.endswith("!") else column)
    return found


@pytest.mark.parametrize(("before", "now"), WIDENED)
def test_wider_types(before: str, now: str) -> None:
    """Each value has a value of the wider type, and not the other way around."""
    assert is_widened(before, now)
    assert not is_widened(now, before)
    assert changed_type(before, now) == []


@pytest.mark.parametrize(("before", "now"), NARROWED)
def test_other_types(before: str, now: str) -> None:
    """Other changes of a type are refused, with both types and a remedy."""
    (problem,) = changed_type(before, now)
    assert f"column 'a' of the state was {before}, and is {now} in this program" in problem
    assert "add a column of the new one, or start empty" in problem


def changed_type(before: str, now: str) -> list[str]:
    given = ([{"name": "a", "type": kind, "is_key": False}] for kind in (before, now))
    return list(changed_columns("the state", *given, "start empty"))


def changed(before: str, now: str, *, are_rows: bool = True) -> list[str]:
    given = columns(before), columns(now)
    return list(changed_columns("the state", *given, "start empty", are_rows=are_rows))


def require_problem(problems: list[str], text: str | None) -> None:
    """Require the problem with a *text*, or none."""
    assert len(problems) == (text is not None), problems
    for problem in problems:
        assert re.search(str(text), problem), problem


CHANGES = [
    ("a int", "a int", None),
    ("a int", "a int, b string", None),
    ("a int", "a bigint, b string, c double", None),
    ("*k string, a int", "*k string, a int, b int", None),
    ("a int", "a int, b string!", "column 'b' is added to the state, and must not be null"),
    (
        "a int, b int",
        "a int",
        r"'b' \(int\) of the state is not declared in this program any more",
    ),
    ("a int", "b int", r"'a' \(int\) of the state is not declared in this program any more"),
    ("a int, b int", "b int, a int", "column 'a' of the state is in another place now, where 'b'"),
    ("a int", "b int, a int", "column 'a' of the state is in another place now, where 'b' is"),
    (
        "*k int, a int",
        "*k bigint, a int",
        "key of the state was k int, and is k bigint in this",
    ),
    ("*k int, a int", "*k int, *l int, a int", "was k int, and is k int, l int in this"),
]


@pytest.mark.parametrize(("before", "now", "text"), CHANGES)
def test_changes(before: str, now: str, text: str | None) -> None:
    """Columns may be added at the end of a row, and nothing else."""
    require_problem(changed(before, now), text)


def test_columns_that_are_found_by_name() -> None:
    """Columns of blocks may change their places."""
    assert changed("a int, b int", "c int, b int, a int", are_rows=False) == []
    assert added_columns(columns("a int"), columns("c int, a int")) == ["c"]


def variable(text: str, kind: str = "value", *, has_ttl: bool = False) -> dict[str, Any]:
    return {"kind": kind, "columns": columns(text), "has_ttl": has_ttl}


A = variable("a int")
OPERATORS: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    ({}, {}, None),
    ({"v": A}, {"v": A, "w": A}, None),
    ({"v": A}, {"v": variable("a bigint, b string")}, None),
    ({"v": A}, {}, r"no longer defines the state variable 'v'.*deleteIfExists\('v'\)"),
    ({"v": A}, {"v": variable("a int", "list")}, "'v' .* is a list, in the checkpoint a value"),
    (
        {"v": A},
        {"v": variable("a int", has_ttl=True)},
        "is a value with a TTL, in the checkpoint a value;",
    ),
    (
        {"v": A},
        {"v": variable("a string")},
        r"column 'a' of the state variable 'v' of stateful operator 'uid' was int, and is string "
        r"in.*deleteIfExists\('v'\)",
    ),
]


@pytest.mark.parametrize(("before", "now", "text"), OPERATORS)
def test_variables(before: dict[str, Any], now: dict[str, Any], text: str | None) -> None:
    """State variables may be added and grow; other changes name the operator and the variable."""
    described = [{"timeMode": "none", "stateVariables": each} for each in (before, now)]
    require_problem(list(changed_variables("uid", *described)), text)


def test_deleted_variables() -> None:
    """A variable that ``init`` deletes may be missing."""
    before = {"timeMode": "none", "stateVariables": {"v": A}}
    now = {"timeMode": "none", "stateVariables": {}, "deletedVariables": ["v"]}
    assert list(changed_variables("uid", before, now)) == []


def test_time_modes() -> None:
    """Timers keep their clock."""
    before, now = ({"timeMode": mode} for mode in ("processingTime", "eventTime"))
    (problem,) = changed_variables("uid", before, now)
    assert "time mode 'eventTime', in the checkpoint 'processingTime'" in problem
