"""``dstreams check``: find the uses of ``pyspark.streaming`` in a program without running it.

A walk over the syntax tree. Contexts and streams are followed through assignments within a file;
names that only streams have are found everywhere.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeGuard

from dstreams.common.settings import Settings
from dstreams.compat import check_names as names
from dstreams.compat.check_names import ANSWERS, MODULES, PACKAGE, Consequence, Kind
from dstreams.context import StreamingContext
from dstreams.dstream.dstream import DStream

_COLUMNS = 80
_MOST_PLACES = 5
_TITLES: dict[Kind, str] = {
    "change": "To change: does not run on dstreams",
    "set": "To set: runs once it is configured",
    "differs": "Differs: runs, check whether the difference affects you",
}
_CONTEXT = "StreamingContext"
_CLASSES = {_CONTEXT: StreamingContext, "DStream": DStream}
_ONLY_OF_STREAMS = frozenset(
    [
        *("countByValueAndWindow", "countByWindow", "foreachRDD", "groupByKeyAndWindow"),
        *("reduceByKeyAndWindow", "reduceByWindow", "saveAsTextFiles", "updateStateByKey"),
        "_jdstream",
    ]
)
_FACTORIES = ("getActive", "getActiveOrCreate", "getOrCreate")
_SETTING = re.compile(r"(?<![\w.])spark\.streaming\.[A-Za-z.]*[A-Za-z]")
_JAR = re.compile(r"\bspark-streaming[-_][\w.:-]+")
_JVM_CLASS = re.compile(r"\borg\.apache\.spark\.streaming\b[\w.]*")
_BROKERS = ("metadata.broker.list", "bootstrap.servers")
_PYTHON_2 = (
    "if it is Python 2, translate it first: pip install future, then futurize -w FILE, or 2to3 -w "
    "FILE (included in Python up to 3.12)"
)


class _String(ast.Constant):
    value: str


@dataclass(frozen=True)
class Finding:
    """A use of a name."""

    path: str  # the file
    line: int  # number of the line
    code: str  # the line itself
    name: str  # a key of the tables, or another name
    answer: Consequence  # what it means


@dataclass(frozen=True)
class Checked:
    """The result for some programs: findings, unreadable files with the reason, and files read."""

    findings: tuple[Finding, ...]
    unreadable: tuple[tuple[str, str], ...]
    files: tuple[str, ...]

    @property
    def status(self) -> int:
        """Exit status: 0 nothing to do, 1 something to change or set, 2 unreadable files."""
        if self.unreadable:
            return 2
        return int(any(finding.answer.kind != "differs" for finding in self.findings))


def check(paths: Sequence[Path]) -> Checked:
    """Read the programs, and the ``*.py`` files below directories, without running them."""
    findings: set[Finding] = set()
    unreadable, files = [], []
    seen: set[Path] = set()
    for path in paths:
        found = sorted(_below(path)) if path.is_dir() else [path]
        if not found:
            unreadable.append((str(path), "it contains no *.py file"))
        for file in (file for file in found if file not in seen):
            seen.add(file)
            try:
                text = _read(file)
                findings.update(_Walk(str(file), text).findings())
                if PACKAGE in text or "from pyspark import streaming" in text:
                    files.append(str(file))
            except (OSError, SyntaxError, UnicodeError, ValueError, RecursionError) as error:
                unreadable.append((str(file), _reason(error)))
    return Checked(tuple(sorted(findings, key=_place)), tuple(unreadable), tuple(files))


def _place(finding: Finding) -> tuple[str, int, str]:
    return finding.path, finding.line, finding.name


def _below(directory: Path) -> Iterator[Path]:
    for file in directory.rglob("*.py"):
        inside = file.relative_to(directory).parent
        parents = [directory / part for part in (inside, *inside.parents)]
        hidden = any(part.startswith(".") or part == "site-packages" for part in inside.parts)
        if file.is_file() and not hidden and not any((p / "pyvenv.cfg").exists() for p in parents):
            yield file


def _read(path: Path) -> str:
    if path.suffix == ".ipynb":
        raise ValueError(f"it is a notebook; run jupyter nbconvert --to script {path} first")
    with tokenize.open(path) as file:
        return file.read()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, RecursionError):
        return "an expression has too many terms; split it"
    if isinstance(error, SyntaxError) and error.lineno:
        line = (error.text or "").strip()[:_COLUMNS]
        return f"line {error.lineno} is not Python 3: {error.msg}: {line}; {_PYTHON_2}"
    return f"{error}; save the file as UTF-8" if isinstance(error, UnicodeError) else str(error)


class _Walk:
    """Finds the names that one program uses."""

    def __init__(self, path: str, text: str) -> None:
        self._path, self._lines = path, text.splitlines()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the program's own code
            self._tree = ast.parse(text)
        self._nodes = list(ast.walk(self._tree))
        documentation = (n.value for n in self._nodes if isinstance(n, ast.Expr))
        self._documentation = {id(node) for node in documentation}
        self._aliases: dict[str, str] = {}
        """Expressions for a class or module, as source, and its name in the tables."""
        self._instances: dict[str, str] = {}
        """Expressions for a context or a stream, as source, and its class."""

    def findings(self) -> Iterator[Finding]:
        """Yield each use; nothing if the program imports dstreams or no name of streaming."""
        imports = [found for node in self._nodes for found in self._imported(node)]
        if any(isinstance(n, ast.ImportFrom) and n.module == "dstreams" for n in self._nodes):
            return
        yield from imports
        for _ in range(3):  # an assignment may use a later one
            for node in self._nodes:
                self._assign(node)
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                yield from self._member(node)
            elif isinstance(node, ast.Call):
                yield from self._call(node)
            elif _is_string(node) and id(node) not in self._documentation:
                yield from self._string(node.value, node)

    def _finding(self, name: str, answer: Consequence, node: ast.AST) -> Finding:
        line: int = getattr(node, "lineno", 1)
        code = self._lines[line - 1].strip() if line <= len(self._lines) else ""
        return Finding(self._path, line, code, name, answer)

    def _imported(self, node: ast.AST) -> Iterator[Finding]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == PACKAGE or alias.name.startswith(f"{PACKAGE}."):
                    self._aliases[alias.asname or alias.name] = alias.name
                    yield from self._module(alias.name, node)
        elif isinstance(node, ast.ImportFrom) and node.module == "pyspark":
            for alias in node.names:
                if alias.name == "streaming":
                    self._aliases[alias.asname or alias.name] = PACKAGE
                    yield self._finding("from pyspark import streaming", names.NOT_REPLACED, node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            module = node.module or ""
            yield from self._module(module, node)
            listed = MODULES.get(module, ())
            for alias in node.names:
                for name in listed if alias.name == "*" else (alias.name,):
                    self._aliases[alias.asname or name] = name
                    if name in ANSWERS:
                        yield self._finding(name, ANSWERS[name], node)
                    elif name not in listed and f"{module}.{name}" not in MODULES:
                        yield self._finding(f"{module}.{name}", names.UNKNOWN, node)

    def _module(self, module: str, node: ast.AST) -> Iterator[Finding]:
        if module not in MODULES:
            yield self._finding(module, names.UNKNOWN, node)
        elif MODULES[module][0] in ("FlumeUtils", "MQTTUtils"):
            yield self._finding(MODULES[module][0], ANSWERS[MODULES[module][0]], node)

    def _named(self, node: ast.expr) -> str | None:
        """Return the name in the tables of a class that *node* refers to."""
        source = ast.unparse(node)
        if source in self._aliases:
            return self._aliases[source]
        owner, _, name = source.rpartition(".")
        module = self._aliases.get(owner, owner)
        return name if module in MODULES and name in MODULES[module] else None

    def _instance(self, node: ast.expr) -> str | None:
        """Return ``StreamingContext`` or ``DStream`` if *node* is one, as far as is known."""
        if not isinstance(node, ast.Call):
            return self._instances.get(ast.unparse(node))
        name = self._named(node.func)
        if name == _CONTEXT or not isinstance(node.func, ast.Attribute):
            return name if name == _CONTEXT else None
        method, named = node.func.attr, self._named(node.func.value) or ""
        owner = self._instance(node.func.value)
        if (named == _CONTEXT and method in _FACTORIES) or (owner and method == "context"):
            return _CONTEXT
        is_source = method.endswith("Stream") or method in ("transform", "union")
        is_stream = owner == "DStream" or ((owner or named.endswith("Utils")) and is_source)
        return "DStream" if is_stream else None

    def _assign(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and (kind := self._instance(node.value)):
            self._instances.update({ast.unparse(target): kind for target in node.targets})
        elif isinstance(node, ast.arg):
            annotation = ast.unparse(node.annotation).strip("'\"") if node.annotation else ""
            kind = self._aliases.get(annotation, annotation).rpartition(".")[2]
            if kind in _CLASSES or node.arg == "ssc":
                self._instances.setdefault(node.arg, kind if kind in _CLASSES else _CONTEXT)

    def _member(self, node: ast.Attribute) -> Iterator[Finding]:
        source = ast.unparse(node)
        named = self._named(node.value)
        owner = named if named in _CLASSES else self._instance(node.value)
        if owner is None and node.attr in _ONLY_OF_STREAMS:
            owner = "DStream"
        name = f"{owner or named}.{node.attr}"
        if name in ANSWERS:
            yield self._finding(name, ANSWERS[name], node)
        elif owner in _CLASSES and not hasattr(_CLASSES[owner], node.attr):
            yield self._finding(name, names.UNKNOWN, node)
        elif source.endswith("org.apache.spark.streaming"):
            yield self._finding("org.apache.spark.streaming", names.NO_JVM_CLASS, node)
        elif node.attr in names.OLD_LEVELS:
            yield self._finding(f"StorageLevel.{node.attr}", names.OLD_LEVEL, node)
        elif node.attr in ("readStream", "writeStream"):
            yield self._finding(f"pyspark.sql: {node.attr}", names.STRUCTURED, node)

    def _call(self, node: ast.Call) -> Iterator[Finding]:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "createStream":
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            texts = {part.value for one in given for part in ast.walk(one) if _is_string(part)}
            if self._named(node.func.value) == "KafkaUtils" and not texts & set(_BROKERS):
                yield self._finding("KafkaUtils.createStream", names.NO_BROKERS, node)

    def _string(self, text: str, node: ast.AST) -> Iterator[Finding]:
        for key in _SETTING.findall(text):
            if key in Settings.without_choice:
                only, why = Settings.without_choice[key]
                what = f"Only the value {only} is accepted: {why}." if only else f"Refused: {why}."
                yield self._finding(key, Consequence("change", what, "Remove the setting."), node)
            elif key not in Settings.defaults():
                yield self._finding(key, names.NO_EFFECT, node)
        for pattern, answer in ((_JAR, names.NO_JAR), (_JVM_CLASS, names.NO_JVM_CLASS)):
            for name in dict.fromkeys(pattern.findall(text)):
                yield self._finding(name, answer, node)


def _is_string(node: ast.AST) -> TypeGuard[_String]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def as_json(checked: Checked, paths: Sequence[str]) -> str:
    """Return the result as JSON."""
    findings = [{**asdict(finding), **asdict(finding.answer)} for finding in checked.findings]
    for finding in findings:
        del finding["answer"], finding["rows"]
    result = {
        "status": checked.status,
        "files": len(checked.files),
        "unreadable": [{"path": path, "reason": reason} for path, reason in checked.unreadable],
        "findings": findings,
        "next": list(_next(checked, paths)),
    }
    return json.dumps(result, indent=2) + "\n"


def report_text(checked: Checked, paths: Sequence[str]) -> str:
    """Return the result as text: a verdict, the findings by what to do, and the next commands."""
    lines = [*_wrapped(_verdict(checked)), ""]
    for path, reason in checked.unreadable:
        lines += [*_wrapped(f"{path}: cannot be read: {reason}"), ""]
    for kind, title in _TITLES.items():
        groups: dict[Consequence, list[Finding]] = {}
        for finding in checked.findings:
            if finding.answer.kind == kind:
                groups.setdefault(finding.answer, []).append(finding)
        if groups:
            lines += [f"{title} ({len(groups)})", *_described(groups), ""]
    lines += _next(checked, paths)
    text = "\n".join(lines).rstrip() + "\n"
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _verdict(checked: Checked) -> str:
    kinds = [answer.kind for answer in {finding.answer for finding in checked.findings}]
    change, to_set, notes = (kinds.count(kind) for kind in _TITLES)
    if checked.unreadable:
        return f"Undecided: {len(checked.unreadable)} files cannot be read."
    if not checked.findings and not checked.files:
        return f"Nothing of {PACKAGE} is used."
    rest = f"{notes} note{'' if notes == 1 else 's'}"
    if change:
        return f"Does not run as it is: {change} to change, {to_set} to set, {rest}."
    if to_set:
        return f"Runs once it is configured: {to_set} to set, {rest}."
    return f"Runs as it is. {rest[:1].upper()}{rest[1:]}, none requires a change."


def _described(groups: dict[Consequence, list[Finding]]) -> Iterator[str]:
    for answer, findings in groups.items():
        yield from _wrapped(", ".join(dict.fromkeys(finding.name for finding in findings)), 2)
        yield from _wrapped(f"{answer.what} {answer.fix}".strip(), 4)
        places = list(dict.fromkeys((f.path, f.line, f.code) for f in findings))
        for path, line, code in places[:_MOST_PLACES]:
            yield f"    {path}:{line}: {code}"[:_COLUMNS]
        if len(places) > _MOST_PLACES:
            yield f"    and {len(places) - _MOST_PLACES} more; see --json"


def _next(checked: Checked, paths: Sequence[str]) -> Iterator[str]:
    if checked.unreadable or not checked.files:
        return
    used = {finding.name.partition(".")[0] for finding in checked.findings}
    extras = [extra for extra in ("kafka", "kinesis") if f"{extra.title()}Utils" in used]
    where = f"grep -rl --include='*.py' 'pyspark\\.streaming' {shlex.join(paths)} | xargs "
    is_directory = any(Path(path).is_dir() for path in paths)
    files = "" if is_directory else f" {shlex.join(checked.files)}"
    yield "Next"
    if any(finding.answer.kind == "change" for finding in checked.findings):
        yield "  Change the lines above and check again."
    if extras:
        yield f"  Install dstreams with {' and '.join(extras)}: dstreams[{','.join(extras)}]"
    yield f"  dstreams run {checked.files[0] if len(checked.files) == 1 else 'app.py'}"
    yield "  or change the imports once and for all:"
    sed = r"sed -i.bak 's/pyspark\.streaming/dstreams/g'"
    yield f"  {where if is_directory else ''}{sed}{files}"


def _wrapped(text: str, indent: int = 0) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=space, subsequent_indent=space, break_on_hyphens=False
    )
