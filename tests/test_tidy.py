"""The rules of style that a program can check. To raise a limit is to change a number here."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FUNCTION_LINES = 60  # without its docstring
MODULE_LINES = 400  # without docstrings


@dataclass(frozen=True)
class Ban:
    """Calls that only some modules may make.

    Args:
        calls: what is called, by full name; ``name.*`` is all that is in a module.
        instead: what others do.
        allowed: modules that may, or packages in which all may.
    """

    calls: tuple[str, ...]
    instead: str
    allowed: tuple[str, ...] = ()


BANS = (
    Ban(("time.time", "time.time_ns"), "ask the Clock that is handed in", ("dstreams.clock",)),
    Ban(
        (
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.datetime.today",
            "datetime.date.today",
        ),
        "ask the Clock that is handed in",
    ),
    Ban(("time.sleep",), "wait for an event, with a bound"),
    Ban(
        ("uuid.uuid1", "uuid.uuid4", "secrets.*", "os.urandom"),
        "take the name from who is allowed to make new ones",
        (
            "checkpoint.fsspec_files",
            "checkpoint.local_files",
            "checkpoint.state_files",
            "checkpoint.state_store.reference",
            "dstreams.runtime.opening",
            "dstreams.runtime.scheduler",
            "dstreams.sinks.hadoop_directory",
            "dstreams.structured.manager",
        ),
    ),
    Ban(
        ("random.*",),
        "compute it: a batch that runs again has to come out the same",
        ("dstreams.drill.campaign",),
    ),
    Ban(
        (
            "threading.Thread",
            "threading.Timer",
            "pyspark.InheritableThread",
            "pyspark.util.InheritableThread",
        ),
        "let the scheduler or the source run it",
        (
            "dstreams.demo.server",
            "dstreams.rdd.context",
            "dstreams.receiving.block_generator",
            "dstreams.receiving.receiver",
            "dstreams.receiving.socket_receiver",
            "dstreams.kernel.listener_bus",
            "dstreams.runtime.scheduler",
            "dstreams.runtime.signals",
            "dstreams.runtime.unseen_failure",
            "dstreams.sources.socket",
            "dstreams.structured.query",
            "examples.custom_receiver",
        ),
    ),
    Ban(
        ("print",),
        "log it, or return it to who prints",
        ("examples",),
    ),
    Ban(("eval", "exec"), "call a function"),
    Ban(
        ("hash",),
        "use dstreams.rdd.stable_hash.stable_hash: hash differs between processes",
        ("dstreams.rdd.partitioner", "dstreams.rdd.stable_hash"),
    ),
    Ban(
        ("pickle.load", "pickle.loads", "pickle.Unpickler", "pickle._Unpickler"),
        "let dstreams decide what bytes mean: checkpoint stores them",
        (
            "checkpoint.state_store.plain_reading",
            "checkpoint.state_store.values",
            "checkpoint.tools.unpickling",
            "dstreams",
        ),
    ),
)


def sources(*packages: str) -> Iterator[tuple[str, str]]:
    """Yield (path below the root, text) of the Python files of *packages*."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def docstring_lines(node: ast.AST) -> int:
    """Return how many lines the docstring of a definition has, 0 without one."""
    body = getattr(node, "body", None)
    if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
        return 0
    value = body[0].value
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return 0
    return (value.end_lineno or value.lineno) - value.lineno + 1


def too_long(path: str, text: str) -> list[str]:
    """List functions and the module itself if they have too many lines."""
    tree = ast.parse(text)
    problems = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
            if lines > FUNCTION_LINES:
                problems.append(f"{path}:{node.lineno} {node.name} has {lines} lines")
    lines = len(text.splitlines()) - sum(docstring_lines(node) for node in ast.walk(tree))
    if lines > MODULE_LINES:
        problems.append(f"{path} has {lines} lines")
    return problems


def definitions(body: list[ast.stmt], of_class: bool) -> Iterator[ast.stmt]:
    """Yield public functions and classes; methods only of classes whose own are asked for."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name.startswith("_"):
                continue
            yield node
            if of_class and isinstance(node, ast.ClassDef):
                yield from definitions(node.body, of_class)


def undocumented(path: str, text: str) -> list[str]:
    """List what is public and has no docstring: methods as well in ``dstreams/api``."""
    tree = ast.parse(text)
    problems = [] if ast.get_docstring(tree) else [f"{path} has no docstring"]
    for node in definitions(tree.body, of_class=path.startswith("dstreams/api/")):
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
        if not ast.get_docstring(node) and not marks & {"overload", "setter"}:
            problems.append(f"{path}:{node.lineno} {node.name} has no docstring")
    return problems


def untold_tests(path: str, text: str) -> list[str]:
    """List tests without a sentence that says what they show."""
    return [
        f"{path}:{node.lineno} {node.name} has no docstring"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Map names in a module to the full names of what was imported as such."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return the full name of what an expression means, empty when it is no plain name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = full_name(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


def is_banned(call: str, ban: Ban) -> bool:
    return call in ban.calls or f"{call.rpartition('.')[0]}.*" in ban.calls


def may(module: str, ban: Ban) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in ban.allowed)


def used_names(tree: ast.Module) -> list[tuple[int, str]]:
    """List (line, name) of what a module calls and derives from."""
    names = imported_names(tree)
    return [
        (node.lineno, full_name(expression, names))
        for node in ast.walk(tree)
        if isinstance(node, (ast.Call, ast.ClassDef))
        for expression in (node.bases if isinstance(node, ast.ClassDef) else [node.func])
    ]


def banned_calls(path: str, text: str) -> list[str]:
    """List calls that the module may not make, and threads that it may not derive from."""
    return [
        f"{path}:{line} calls {call}; {ban.instead}"
        for line, call in used_names(ast.parse(text))
        for ban in BANS
        if is_banned(call, ban) and not may(module_name(path), ban)
    ]


def problems_in(check: Callable[[str, str], list[str]], *packages: str) -> list[str]:
    return [problem for path, text in sources(*packages) for problem in check(path, text)]


def test_length() -> None:
    """Functions and modules are short enough to be read at once."""
    assert problems_in(too_long, "checkpoint", "dstreams", "examples") == []


def test_length_notices() -> None:
    """A line too many is found, and a docstring does not count."""
    lines = FUNCTION_LINES - 1
    fits = 'def f():\n    """Do.\n\n    It.\n    """\n' + "    x = 1\n" * lines
    assert too_long("a.py", fits) == []
    assert too_long("a.py", fits + "    x = 1\n") == [f"a.py:1 f has {FUNCTION_LINES + 1} lines"]
    assert too_long("a.py", '"""Module."""\n' + "x = 1\n" * MODULE_LINES) == []
    long = "x = 1\n" * (MODULE_LINES + 1)
    assert too_long("a.py", long) == [f"a.py has {MODULE_LINES + 1} lines"]


def test_docstrings() -> None:
    """What is public is documented."""
    assert problems_in(undocumented, "checkpoint", "dstreams", "examples") == []


def test_docstrings_notice() -> None:
    """Functions, classes, methods of the public surface and modules without one are found."""
    source = "class A:\n  def a(self): ...\n  def _b(self): ...\ndef c(): ...\ndef _d(): ..."
    assert undocumented("dstreams/graph/x.py", source) == [
        "dstreams/graph/x.py has no docstring",
        "dstreams/graph/x.py:1 A has no docstring",
        "dstreams/graph/x.py:4 c has no docstring",
    ]
    assert "dstreams/api/x.py:2 a has no docstring" in undocumented("dstreams/api/x.py", source)
    overloads = '"""M."""\nclass A:\n  """A."""\n  @overload\n  def a(self): ...'
    assert undocumented("dstreams/api/x.py", overloads) == []


def test_tests_say_what_they_show() -> None:
    """Each test has a sentence."""
    assert problems_in(untold_tests, "tests") == []


def test_tests_say_what_they_show_notices() -> None:
    """A test without a sentence is found, in a class as well."""
    source = 'def test_a():\n  """A."""\nclass T:\n  def test_b(self): ...\ndef helper(): ...'
    assert untold_tests("tests/x.py", source) == ["tests/x.py:4 test_b has no docstring"]


def test_banned_calls() -> None:
    """Clocks, threads, chance and output are where they belong."""
    assert problems_in(banned_calls, "checkpoint", "dstreams", "examples") == []


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("import time\ntime.time()", "time.time"),
        ("import time as t\nt.time_ns()", "time.time_ns"),
        ("from time import sleep as nap\nnap(1)", "time.sleep"),
        ("def f():\n  import time\n  time.sleep(1)", "time.sleep"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import datetime as d\nd.datetime.utcnow()", "datetime.datetime.utcnow"),
        ("import datetime\ndatetime.date.today()", "datetime.date.today"),
        ("from uuid import uuid4\nuuid4()", "uuid.uuid4"),
        ("import secrets\nsecrets.token_hex(4)", "secrets.token_hex"),
        ("import random\nrandom.Random(1)", "random.Random"),
        ("import threading\nthreading.Thread(target=f)", "threading.Thread"),
        ("from threading import Thread\nclass A(Thread): pass", "threading.Thread"),
        ("from pyspark import InheritableThread as T\nT()", "pyspark.InheritableThread"),
        ("print(1)", "print"),
        ("eval('1')", "eval"),
        ("exec('1')", "exec"),
        ("hash('key')", "hash"),
    ],
)
def test_banned_calls_notice(source: str, call: str) -> None:
    """Each banned call is found, whatever it was imported as."""
    (problem,) = banned_calls("dstreams/graph/node.py", source)
    assert f" calls {call}; " in problem


def test_banned_calls_are_banned_in_their_module() -> None:
    """What checkpoint may not do, dstreams may, and the other way round."""
    unpickle = "import pickle\npickle.loads(b'')"
    assert banned_calls("dstreams/rdd/blocks.py", unpickle) == []
    assert len(banned_calls("checkpoint/files.py", unpickle)) == 1
    new_name = "import secrets\nsecrets.token_hex(8)"
    assert banned_calls("checkpoint/local_files.py", new_name) == []


@pytest.mark.parametrize(
    "source",
    [
        "clock.time()",
        "def time(): ...\ntime()",
        "from datetime import datetime\ndatetime.fromtimestamp(0)",
        "from uuid import UUID\nUUID(int=1)",
        "import threading\nthreading.Event()",
        "rows.pprint()",
        "self.hash(1)",
        "f()()",
    ],
)
def test_other_calls_pass(source: str) -> None:
    """Calls that only look alike are no problem."""
    assert banned_calls("dstreams/graph/node.py", source) == []


def test_allowances_are_used() -> None:
    """A module that no longer makes a call loses its allowance."""
    texts = {module_name(path): text for path, text in sources("checkpoint", "dstreams")}
    unused = []
    for ban in BANS:
        for module in set(ban.allowed) & set(texts) - {"dstreams"}:
            if not any(is_banned(call, ban) for _, call in used_names(ast.parse(texts[module]))):
                unused.append(f"{module} makes no call of {ban.calls}")
    assert unused == []


def test_packages_are_packages() -> None:
    """Each directory with modules has an ``__init__``: the others are not installed."""
    directories = {(ROOT / path).parent for path, _ in sources("checkpoint", "dstreams")}
    assert [str(path) for path in sorted(directories) if not (path / "__init__.py").exists()] == []


def test_configuration_is_in_one_place() -> None:
    """setup.cfg says what the package is, pyproject.toml what tools need: no key is in both."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert {name.partition(".")[0] for name in setup.sections()} == {"metadata", "options"}
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    tables = [line.strip("[]").partition(".")[0] for line in lines if line.startswith("[")]
    assert set(tables) == {"build-system", "tool"}


def test_readme_and_ci_run_the_same() -> None:
    """The command that the README gives for the tests is the one that CI runs."""
    command = (ROOT / ".ci" / "run").read_text(encoding="utf-8").strip().splitlines()[-1]
    assert command.startswith("python3.11 -m venv .venv && ")
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "command", ["ruff check .", "ruff format --check --diff .", "mypy"], ids=lambda text: text
)
def test_tool(command: str) -> None:
    """The linter, the formatter and the type checker have nothing to say."""
    tool, *arguments = command.split()
    pytest.importorskip(tool, reason="comes with the extra 'dev'")
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
