"""Imports go down only, in the layers of the table below.

A module may import from the lines above its own line, and a package may import within itself where
that makes no circle. Names on one line do not import each other. ``checkpoint`` and ``dstreams``
alone are their ``__init__``, which hands out the public names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = """
checkpoint.errors
checkpoint.json_records checkpoint.ownership
checkpoint.names
checkpoint.framing
checkpoint.files checkpoint.local_files checkpoint.fsspec_files
checkpoint.signing
checkpoint.opening checkpoint.trust
checkpoint.record_files
checkpoint.state_files checkpoint.stored_state
checkpoint.fencing
checkpoint.lineage
checkpoint.record_log
checkpoint.file_log checkpoint.block_log checkpoint.input_log
checkpoint.batch_log checkpoint.commit_log
checkpoint.graph_snapshot
checkpoint.recovery checkpoint.retention checkpoint.streams
checkpoint.state_store
checkpoint
checkpoint.testing checkpoint.tools
checkpoint.cli
checkpoint.__main__

dstreams.events
dstreams.errors dstreams.lazy_names
dstreams.durations dstreams.clock dstreams.callables dstreams.listener dstreams.faults
dstreams.state_classes
dstreams.settings dstreams.redaction dstreams.spark_checkpoint
dstreams.rdd
dstreams.kernel
dstreams.state dstreams.sources dstreams.sinks
dstreams.receiving
dstreams.graph
dstreams.runtime
dstreams.api
dstreams.structured
dstreams
dstreams.testing
dstreams.demo dstreams.drill dstreams.legacy
dstreams.cli
dstreams.__main__
"""

# What dstreams may import of checkpoint: never a module inside.
PUBLIC_OF_CHECKPOINT = {
    "checkpoint",
    "checkpoint.cli",
    "checkpoint.state_store",
    "checkpoint.testing",
}

# Modules that can be imported without Spark; callables imports it inside a function.
WITHOUT_SPARK = {
    "errors",
    "durations",
    "clock",
    "events",
    "callables",
    "settings",
    "listener",
    "faults",
}

# Says where dstreams stands when a program imports pyspark.streaming; may name it, not import it.
STANDS_IN_FOR_SPARK_STREAMING = "dstreams.legacy.modules"

JVM_STREAMING = "org.apache.spark.streaming"
PYSPARK_STREAMING = re.compile(r"pyspark\.streaming(\.\w+)*")


When = Literal["import", "call", "never"]


@dataclass(frozen=True)
class Import:
    """One import.

    Args:
        line: where it stands.
        module: the module imported, or the package that *name* comes from.
        name: what is imported from it, None for ``import module``.
        when: on import of the importing module, when a function of it is called, or never, because
            it is written for type checkers only.
    """

    line: int
    module: str
    name: str | None
    when: When

    def target(self, modules: Mapping[str, ast.Module]) -> str:
        """Name the module that is needed, which ``from package import module`` hides."""
        inner = f"{self.module}.{self.name}"
        return inner if inner in modules else self.module


def read_modules() -> dict[str, ast.Module]:
    """Parse both packages, by module name."""
    modules = {}
    for path in sorted([*ROOT.glob("checkpoint/**/*.py"), *ROOT.glob("dstreams/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return modules


def parse(**sources: str) -> dict[str, ast.Module]:
    """Parse samples, whose names have two underscores for a dot."""
    return {name.replace("__", "."): ast.parse(source) for name, source in sources.items()}


def imports(tree: ast.AST, when: When = "import") -> Iterator[Import]:
    """Yield all imports of a module, also those inside of functions and for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, None, when)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(node.lineno, "." * node.level + (node.module or ""), alias.name, when)
        yield from imports(node, when_inside(node, when))


def when_inside(node: ast.AST, when: When) -> When:
    """Say when imports inside of *node* happen, if *node* itself is reached at *when*."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return "never"
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and when == "import":
        return "call"
    return when


def layer_of(module: str) -> tuple[int, str] | None:
    """Return the line of the table that *module* is on, and its name there."""
    for number, line in enumerate(LAYERS.splitlines()):
        for name in line.split():
            is_root = name == name.partition(".")[0]
            if module == name or (not is_root and module.startswith(f"{name}.")):
                return number, name
    return None


def upward_imports(modules: Mapping[str, ast.Module]) -> list[str]:
    """List imports between our modules that do not go down, and modules without a layer."""
    problems = []
    for module, tree in modules.items():
        here = layer_of(module)
        if here is None:
            problems.append(f"{module} is in no layer")
            continue
        for found in imports(tree):
            target = found.target(modules)
            there = layer_of(target)
            if found.module.startswith("."):
                problems.append(f"{module}:{found.line} imports relatively")
            elif there is not None and there[1] != here[1] and there[0] >= here[0]:
                problems.append(f"{module}:{found.line} imports {target}, which is not below it")
    return problems


def needs(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Map each module to those of ours that it imports when it runs."""
    return {
        module: {found.target(modules) for found in imports(tree) if found.when != "never"}
        & set(modules) - {module}
        for module, tree in modules.items()
    }


def reachable(module: str, graph: Mapping[str, set[str]]) -> set[str]:
    """Return everything that *module* imports, directly or through others."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        for other in graph[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def circles(modules: Mapping[str, ast.Module]) -> list[str]:
    """List modules that import themselves through others."""
    graph = needs(modules)
    return [module for module in modules if module in reachable(module, graph)]


def borders_crossed(modules: Mapping[str, ast.Module]) -> list[str]:
    """List imports over the border of the two packages, and of Spark where it must not be."""
    problems = []
    for module, tree in modules.items():
        package, _, inside = module.partition(".")
        for found in imports(tree):
            root = found.module.partition(".")[0]
            where = f"{module}:{found.line} imports {found.target(modules)}"
            if package == "checkpoint" and root in ("dstreams", "pyspark", "py4j"):
                problems.append(where)
            elif package == "dstreams" and root == "checkpoint":
                private = (found.name or "").startswith("_")
                if found.target(modules) not in PUBLIC_OF_CHECKPOINT or private:
                    problems.append(f"{where}, which is not public")
            elif inside in WITHOUT_SPARK and root in ("pyspark", "py4j") and found.when == "import":
                problems.append(f"{where}, but has to work without Spark")
    return problems


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` of an attribute chain; where it starts with a call, what follows that."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the constants that are documentation."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            statement = node.body[0]
            assert isinstance(statement, ast.Expr)
            yield statement.value


def uses_of_spark_streaming(modules: Mapping[str, ast.Module]) -> list[str]:
    """List uses of the streaming that Spark brings: imported, by name, or through the JVM."""
    problems = []
    for module, tree in modules.items():
        for found in imports(tree):
            if PYSPARK_STREAMING.fullmatch(f"{found.module}.{found.name or ''}".rstrip(".")):
                problems.append(f"{module}:{found.line} imports pyspark.streaming")
        documentation = set(docstrings(tree))
        for node in ast.walk(tree):
            text = dotted(node) if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = "" if node in documentation else node.value
            is_name = module != STANDS_IN_FOR_SPARK_STREAMING and PYSPARK_STREAMING.fullmatch(text)
            if JVM_STREAMING in text or is_name:
                problems.append(f"{module}:{getattr(node, 'lineno', 0)} uses Spark's streaming")
    return problems


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    return read_modules()


def test_modules_are_found(modules: Mapping[str, ast.Module]) -> None:
    """The packages are where this test looks for them."""
    assert {"checkpoint.errors", "dstreams", "dstreams.errors", "dstreams.rdd"} <= modules.keys()


def test_imports_go_down(modules: Mapping[str, ast.Module]) -> None:
    """Each module is in a layer and imports from below only."""
    assert upward_imports(modules) == []


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        (
            parse(dstreams__errors="from dstreams.settings import Settings"),
            "dstreams.errors:1 imports dstreams.settings, which is not below it",
        ),
        (
            parse(dstreams__rdd__jvm="import os\nimport dstreams.graph.node"),
            "dstreams.rdd.jvm:2 imports dstreams.graph.node, which is not below it",
        ),
        (
            parse(dstreams__graph="", dstreams__rdd="def f():\n  from dstreams import graph"),
            "dstreams.rdd:2 imports dstreams.graph, which is not below it",
        ),
        (
            parse(dstreams__api__dstream="from dstreams import DStream"),
            "dstreams.api.dstream:1 imports dstreams, which is not below it",
        ),
        (
            parse(dstreams__sinks__a="if TYPE_CHECKING:\n  from dstreams.sources import b"),
            "dstreams.sinks.a:2 imports dstreams.sources, which is not below it",
        ),
        (
            parse(checkpoint__framing="from checkpoint.files import Files"),
            "checkpoint.framing:1 imports checkpoint.files, which is not below it",
        ),
        (
            parse(checkpoint__retention="from checkpoint import Files"),
            "checkpoint.retention:1 imports checkpoint, which is not below it",
        ),
        (parse(dstreams__api__a="from .b import c"), "dstreams.api.a:1 imports relatively"),
        (parse(dstreams__helpers=""), "dstreams.helpers is in no layer"),
    ],
)
def test_imports_go_down_notices(sample: dict[str, ast.Module], problem: str) -> None:
    """An import that goes up or sideways is found, wherever it is written."""
    assert upward_imports(sample) == [problem]


def test_imports_down_are_allowed() -> None:
    """Imports from below, from the own package and from others are no problem."""
    assert (
        upward_imports(
            parse(
                dstreams="from dstreams.api.dstream import DStream",
                dstreams__cli="from dstreams import demo, testing\nimport argparse",
                dstreams__rdd__jvm="from dstreams.rdd.partitioner import StablePartitioner",
                dstreams__rdd__durable="from checkpoint import Files\nfrom pyspark import RDD",
            )
        )
        == []
    )


def test_no_circles(modules: Mapping[str, ast.Module]) -> None:
    """No module imports itself through others, inside of a package either.

    A name for type checkers is let pass there: a stream has a context, a context makes streams.
    """
    assert circles(modules) == []


def test_circles_are_noticed() -> None:
    """A circle is found, also where one of its imports is inside of a function."""
    sample = parse(
        dstreams__rdd__a="from dstreams.rdd.b import x",
        dstreams__rdd__b="def f():\n  from dstreams.rdd import c",
        dstreams__rdd__c="import dstreams.rdd.a",
        dstreams__rdd__d="import dstreams.rdd.a",
        dstreams__rdd__e="import dstreams.rdd.f",
        dstreams__rdd__f="if TYPE_CHECKING:\n  import dstreams.rdd.e",
    )
    assert circles(sample) == ["dstreams.rdd.a", "dstreams.rdd.b", "dstreams.rdd.c"]


def test_borders(modules: Mapping[str, ast.Module]) -> None:
    """checkpoint knows neither dstreams nor Spark; dstreams uses only its public names."""
    assert borders_crossed(modules) == []


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        (
            parse(checkpoint__files="import dstreams.errors"),
            "checkpoint.files:1 imports dstreams.errors",
        ),
        (
            parse(checkpoint__files="def f():\n  from pyspark import RDD"),
            "checkpoint.files:2 imports pyspark",
        ),
        (
            parse(dstreams__rdd__durable="from checkpoint.files import Files"),
            "dstreams.rdd.durable:1 imports checkpoint.files, which is not public",
        ),
        (
            parse(checkpoint__files="", dstreams__runtime__a="from checkpoint import files"),
            "dstreams.runtime.a:1 imports checkpoint.files, which is not public",
        ),
        (
            parse(dstreams__runtime__a="from checkpoint import _secret"),
            "dstreams.runtime.a:1 imports checkpoint, which is not public",
        ),
        (
            parse(dstreams__events="from pyspark import RDD"),
            "dstreams.events:1 imports pyspark, but has to work without Spark",
        ),
    ],
)
def test_borders_notice(sample: dict[str, ast.Module], problem: str) -> None:
    """An import over a border is found."""
    assert borders_crossed(sample) == [problem]


def test_borders_let_pass() -> None:
    """Public names pass, and Spark inside of a function of callables."""
    sample = parse(
        dstreams__rdd__durable="from checkpoint import Files\nfrom pyspark import RDD",
        dstreams__testing="from checkpoint.testing import FaultyFiles",
        dstreams__callables="def f():\n  from pyspark import cloudpickle",
    )
    assert borders_crossed(sample) == []


def test_no_spark_streaming(modules: Mapping[str, ast.Module]) -> None:
    """Nothing of Spark's own streaming is used, in Python or in the JVM."""
    assert uses_of_spark_streaming(modules) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pyspark.streaming",
        "from pyspark import streaming",
        "from pyspark.streaming import DStream",
        "from pyspark.streaming.context import StreamingContext",
        "def f():\n  import pyspark.streaming.util",
        "import_module('pyspark.streaming.dstream')",
        "jvm.org.apache.spark.streaming.Duration(1)",
        "spark()._jvm.org.apache.spark.streaming.Duration(1)",
        "java_import(jvm, 'org.apache.spark.streaming.*')",
        "f'org.apache.spark.streaming.{name}'",
    ],
)
def test_spark_streaming_is_noticed(source: str) -> None:
    """Each way of using it is found."""
    assert uses_of_spark_streaming(parse(dstreams__api__a=source)) != []


def test_spark_streaming_may_be_talked_of() -> None:
    """Docstrings and settings name it, since its behaviour and its keys are what we keep."""
    source = '"""As org.apache.spark.streaming.dstream.StateDStream."""\nkey = "spark.streaming.x"'
    assert uses_of_spark_streaming(parse(dstreams__api__a=source)) == []


@pytest.mark.parametrize(
    ("source", "is_noticed"),
    [
        ('PACKAGE = "pyspark.streaming"', False),
        ("from pyspark.streaming import DStream", True),
        ("jvm.org.apache.spark.streaming.Duration(1)", True),
    ],
)
def test_spark_streaming_may_be_stood_in_for(source: str, is_noticed: bool) -> None:
    """The module that answers imports of it may name it, and use it no more than the others."""
    sample = {STANDS_IN_FOR_SPARK_STREAMING: ast.parse(source)}
    assert bool(uses_of_spark_streaming(sample)) is is_noticed


def test_sources_stand_alone(modules: Mapping[str, ast.Module]) -> None:
    """The socket source can be used without the graph and what is above it."""
    upper = ("dstreams.graph", "dstreams.runtime", "dstreams.api", "dstreams.testing")
    used = reachable("dstreams.sources.socket", needs(modules))
    assert "dstreams.clock" in used
    assert not [module for module in used if module.startswith(upper)]
