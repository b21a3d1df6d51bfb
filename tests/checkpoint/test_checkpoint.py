"""The package: its example, its public names, and its imports."""

from __future__ import annotations

import ast
import doctest
from pathlib import Path

import pytest

import checkpoint

MODULES = sorted(Path(checkpoint.__file__).parent.glob("*.py"))


def test_the_example_in_the_docstring_is_right() -> None:
    """The example of the package runs."""
    result = doctest.testmod(checkpoint)
    assert result.attempted > 5
    assert result.failed == 0


def test_public_names_exist_and_are_sorted() -> None:
    """Every public name exists once."""
    assert all(hasattr(checkpoint, name) for name in checkpoint.__all__)
    assert len(set(checkpoint.__all__)) == len(checkpoint.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_module_imports_spark_streams_or_pickle(module: Path) -> None:
    """The package imports neither Spark nor pickle."""
    imported = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    banned = {"pyspark", "dstreams", "pickle", "cloudpickle", "marshal", "shelve", "dill"}
    assert not imported & banned
