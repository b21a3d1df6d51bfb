"""What ruff, mypy and import-linter say of the code, and the rules that none of them knows."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Provides dstreams when a program imports pyspark.streaming.
STANDS_IN = {ROOT / "dstreams" / "compat" / "modules.py"}
# Read programs that use it, or its checkpoints, and run nothing of it.
READS = {
    *(ROOT / "dstreams" / "compat").glob("check*.py"),
    ROOT / "dstreams" / "engine" / "recovery" / "spark_checkpoint.py",
}

STREAMING_OF_SPARK = re.compile(
    r"""org\.apache\.spark\.streaming|["']pyspark\.streaming[\w.]*["']"""
)

# hash differs between processes, so that stable_hash alone says where a key belongs.
BUILTIN_HASH = re.compile(r"(?<![\w.])hash\(")
MAY_HASH = {ROOT / "dstreams" / "spark" / name for name in ("partitioner.py", "stable_hash.py")}


def code_of(path: Path) -> str:
    """Return the code of a module without its documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return ast.unparse(tree)


def modules_with(pattern: re.Pattern[str]) -> set[Path]:
    """Return the modules of the product in whose code *pattern* is found."""
    paths = [*ROOT.glob("checkpoint/**/*.py"), *ROOT.glob("dstreams/**/*.py")]
    return {
        path
        for path in paths
        if pattern.search(path.read_text(encoding="utf-8")) and pattern.search(code_of(path))
    }


def test_no_streaming_of_spark() -> None:
    """Nothing of Spark's own streaming is used through the JVM, or imported by its name."""
    assert modules_with(STREAMING_OF_SPARK) - READS == STANDS_IN


def test_no_builtin_hash() -> None:
    """Where a key belongs does not depend on the process that asks."""
    assert modules_with(BUILTIN_HASH) == MAY_HASH


def test_tests_say_what_they_show() -> None:
    """Each test has a sentence."""
    without = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted(ROOT.glob("tests/**/*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert without == []


def test_configuration_is_in_one_place() -> None:
    """setup.cfg says what the package is, pyproject.toml what tools need: no key is in both."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert {name.partition(".")[0] for name in setup.sections()} == {"metadata", "options"}
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    tables = [line.strip("[]").partition(".")[0] for line in lines if line.startswith("[")]
    assert set(tables) == {"build-system", "tool"}


@pytest.mark.parametrize(
    "command",
    ["ruff check .", "ruff format --check --diff .", "mypy", "lint-imports --no-cache"],
)
def test_tool(command: str) -> None:
    """The linter, the formatter, the type checker and the layers have nothing to say."""
    name, *arguments = command.split()
    tool = Path(sys.executable).with_name(name)
    if not tool.exists():
        pytest.skip("comes with the extra 'dev'")
    done = subprocess.run([tool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
