"""Public names are there when they are asked for, and cost nothing before."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

PACKAGES = ("dstreams", "dstreams.structured")


def homes_for_checkers(package: str) -> dict[str, str | None]:
    """Return what type checkers are told of a package: each name and its module."""
    tree = ast.parse(inspect.getsource(importlib.import_module(package)))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_names(package: str) -> None:
    """Each name comes from the module that type checkers are told, and is listed."""
    module = importlib.import_module(package)
    assert vars(module)["_HOMES"] == homes_for_checkers(package)
    for name, home in homes_for_checkers(package).items():
        assert getattr(module, name) is getattr(sys.modules[str(home)], name)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_there_is_not(package: str) -> None:
    """The error is that of any module."""
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        importlib.import_module(package).Nothing  # noqa: B018 - asked for


@pytest.mark.parametrize(
    "module",
    [
        "dstreams.structured.operators.aggregation",
        "dstreams.structured.operators.flat_map_groups_with_state",
        "dstreams.spark.cogroup",
    ],
)
def test_a_worker_loads_no_front(module: str) -> None:
    """What tasks are of loads neither contexts, nor schedulers, nor queries."""
    program = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert module in loaded
    front = (
        "dstreams.dstream",
        "dstreams.engine",
        "dstreams.graph",
        "dstreams.structured.api.query",
    )
    assert [name for name in loaded if name.startswith(front)] == []
