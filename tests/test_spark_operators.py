"""The statements about Spark's operators: their code and their tests exist."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "pages" / "reference" / "spark-operators.md"
HEADER = ["statement", "code", "test"]

_TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)(?:\[(\w+)\])?")


def statements() -> list[list[str]]:
    """Return the cells of all rows below a header of statements."""
    rows: list[list[str]] = []
    is_statement = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            is_statement = False
        elif cells == HEADER:
            is_statement = True
        elif is_statement and set(line) - set("| -"):
            rows.append(cells)
    return rows


ROWS = statements()


def names_in(column: int) -> list[str]:
    return sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[column])})


def attribute(owner: Any, name: str) -> Any:
    """Return an attribute, or the declaration of a field that has no default."""
    declared = (
        {field.name: field for field in dataclasses.fields(owner)}
        if (isinstance(owner, type) and dataclasses.is_dataclass(owner))
        else {}
    )
    return declared[name] if name in declared else getattr(owner, name)


def resolve(dotted: str) -> Any:
    """Return what a dotted name stands for: a module, or an attribute of one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return reduce(attribute, parts[length:], module)
    raise ModuleNotFoundError(dotted)


def test_every_statement_has_code_and_a_test() -> None:
    """No cell is empty, and nothing but names is in the cells of code and tests."""
    assert len(ROWS) > 100
    for row in ROWS:
        assert len(row) == len(HEADER), row
        assert row[0], row
        for cell in row[1:]:
            assert re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cell), row


def test_nothing_is_listed_twice() -> None:
    """Each statement is there once, and a cell names nothing twice."""
    counted = Counter(row[0] for row in ROWS)
    assert [statement for statement, count in counted.items() if count > 1] == []
    for row in ROWS:
        for cell in row[1:]:
            names = cell.split(", ")
            assert len(set(names)) == len(names), row


@pytest.mark.parametrize("dotted", names_in(1))
def test_code(dotted: str) -> None:
    """A name can be imported."""
    assert resolve(dotted) is not None


@pytest.mark.parametrize("test_id", names_in(2))
def test_tests(test_id: str) -> None:
    """A test is defined in its file, and so is the case that it is run with."""
    found = _TEST.fullmatch(test_id)
    assert found is not None
    path, *names = found.groups()
    text = (ROOT / path).read_text(encoding="utf-8")
    for name in filter(None, names):
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), name
