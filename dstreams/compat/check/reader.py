"""Reads a program: follows contexts and streams through its names, and notes what it uses."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from dstreams.compat.check import table
from dstreams.compat.check.answers import Answer, change
from dstreams.compat.check.calls import answers_of_call
from dstreams.compat.check.findings import Finding, Place
from dstreams.compat.check.program import Program
from dstreams.compat.check.table import ANSWERS, MODULES, PACKAGE, PRIVATE, UNLISTED
from dstreams.compat.check.texts import answers_of_text
from dstreams.compat.check.values import (
    NOTHING,
    ONLY_OF_STREAMING,
    OTHER,
    Value,
    Values,
    called,
    imported,
    member,
    qualified,
)

_MOST_PASSES = 10
_SETTERS = ("set", "config", "setIfMissing")
_OF_SPARK = ("spark", *ONLY_OF_STREAMING)
"""What a program has one of, if it has anything to do with streams."""
_OF_STRUCTURED = ("readStream", "writeStream")
_PRINT = change("It is Python 2, which no PySpark since 3.1 runs.", "Write: print(..., file=...)")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_Function = _Definition | ast.Lambda


def findings_of(program: Program) -> list[Finding]:
    """Return what a program uses, by line."""
    found = [_finding(program, name, answer, line) for line, name, answer in program.notes]
    text = "\n".join(program.lines)
    if any(word in text for word in _OF_SPARK):
        found += _used(program)
    return sorted(found, key=lambda one: (one.place.line, one.name))


def _used(program: Program) -> Iterable[Finding]:
    reader, before = _Reader(program), -1
    for _ in range(_MOST_PASSES):  # what a function is given may be said behind it
        reader.visit(program.tree)
        if reader.known == before:
            break
        before = reader.known
    return reader.found.values()


def _finding(program: Program, name: str, answer: Answer, line: int) -> Finding:
    lines = program.lines
    code = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return Finding(name, answer, Place(program.path, line, code))


class _Reader(ast.NodeVisitor):
    """Visits a program again and again, and knows more each time."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.found: dict[tuple[int, str, Answer], Finding] = {}
        self._names: defaultdict[tuple[int, str], Values] = defaultdict(lambda: NOTHING)
        self._attributes: defaultdict[tuple[str, str], Values] = defaultdict(lambda: NOTHING)
        self._returned: defaultdict[str, Values] = defaultdict(lambda: NOTHING)
        self._above: defaultdict[str, Values] = defaultdict(lambda: NOTHING)
        self._definitions: dict[str, ast.AST] = {}
        self._scopes: list[ast.AST] = []
        self._documentation = {
            id(node.value)
            for node in ast.walk(program.tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        self._dicts = _dicts_of(program.tree)
        self._is_replaced = _imports_dstreams(program.tree)
        self._globals = {
            (id(scope), name)
            for scope in _scopes_of(program.tree)
            for node in _own_nodes(scope)
            if isinstance(node, ast.Global)
            for name in node.names
        }
        self._bound = {
            (id(scope), node.id)
            for scope in _scopes_of(program.tree)
            for node in _own_nodes(scope)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }

    @property
    def known(self) -> int:
        """How much is known; it only grows."""
        tables = (self._names, self._attributes, self._returned, self._above)
        return sum(len(values) for one in tables for values in one.values())

    def note(self, name: str, answer: Answer, line: int) -> None:
        """Note a use, once for each line."""
        finding = _finding(self._program, name, answer, line)
        self.found.setdefault((line, name, answer), finding)

    # What names stand for ------------------------------------------------------------------

    def _bind(self, name: str, values: Iterable[Value]) -> None:
        self._names[id(self._scopes[-1]), name] |= frozenset(values)

    def _lookup(self, name: str) -> Values:
        for scope in reversed(self._scopes):
            is_own = (id(scope), name) in self._bound
            if isinstance(scope, ast.ClassDef) and scope is not self._scopes[-1]:
                continue
            if (found := self._names[id(scope), name]) or is_own:
                return found
        return NOTHING

    def _values(self, node: ast.expr | None) -> Values:  # noqa: PLR0911 - one a kind
        if isinstance(node, ast.Name):
            return self._lookup(node.id)
        if isinstance(node, ast.Attribute):
            return _all(self._attribute(one, node.attr) for one in self._values(node.value))
        if isinstance(node, ast.Call):
            return _all(self._call(one) for one in self._values(node.func))
        if isinstance(node, ast.IfExp):
            return self._values(node.body) | self._values(node.orelse)
        if isinstance(node, ast.BoolOp):
            return _all(map(self._values, node.values))
        if isinstance(node, ast.NamedExpr):
            return self._values(node.value)
        return NOTHING

    def _attribute(self, value: Value, name: str) -> Values:
        if value.kind == "object":
            return self._of_object(value.name, name)
        if value.kind == "local":
            return self._names[int(value.name), name]
        return member(value, name)

    def _of_object(self, number: str, name: str) -> Values:
        for one in self._line_of(number):
            if one.kind == "local":
                found = self._attributes[one.name, name] | self._names[int(one.name), name]
            else:
                found = member(Value("instance", one.name), name)
            if found:
                return found
        return NOTHING

    def _line_of(self, number: str) -> list[Value]:
        """Return a class of the program with the classes above it, the nearest first."""
        found = [Value("local", number)]
        for one in found:  # which grows
            found += [above for above in sorted(self._above[one.name]) if above not in found]
        return found

    def _call(self, value: Value) -> Values:
        if value.kind == "local":
            if isinstance(self._definitions[value.name], ast.ClassDef):
                return frozenset([Value("object", value.name)])
            return self._returned[value.name]
        return called(value)

    # Imports -------------------------------------------------------------------------------

    def visit_Module(self, node: ast.Module) -> None:
        self._inside(node, node.body)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note_module(alias.name, node.lineno)
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self._bind(alias.asname or name, imported(name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "" if node.level else node.module or ""
        if module.startswith((PACKAGE, "pyspark.sql.streaming")):
            self._note_module(module, node.lineno)
        for alias in node.names:
            if alias.name == "*":
                for name in MODULES.get(module, ()):
                    if name not in UNLISTED:
                        self._bind(name, imported(module, name))
                continue
            values = imported(module, alias.name) if module else NOTHING
            self._bind(alias.asname or alias.name, values)
            for one in values:
                if one.kind in ("class", "callable"):
                    self.note(one.name, ANSWERS[one.name], alias.lineno)
                elif one.kind == "module":
                    self._note_module(one.name, alias.lineno)
            if module in MODULES and not values:
                self.note(f"{module}.{alias.name}", table.NO_SUCH_NAME, alias.lineno)

    def _note_module(self, module: str, line: int) -> None:
        if module == "pyspark.sql.streaming" or module.startswith("pyspark.sql.streaming."):
            self.note("pyspark.sql.streaming", table.STRUCTURED, line)
        elif module in (f"{PACKAGE}.flume", f"{PACKAGE}.mqtt"):
            utility = MODULES[module][0]
            self.note(utility, ANSWERS[utility], line)
        elif module.startswith(f"{PACKAGE}.") and module not in MODULES:
            self.note(module, table.NO_SUCH_MODULE, line)

    # Definitions ---------------------------------------------------------------------------

    def visit_FunctionDef(self, node: _Definition) -> None:
        number = self._define(node)
        owner = self._scopes[-1]
        for decorator in node.decorator_list:
            self.visit(decorator)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for one in arguments:
            self._names[int(number), one.arg] |= self._annotated(one.annotation)
        kinds = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
        if isinstance(owner, ast.ClassDef) and arguments and "staticmethod" not in kinds:
            kind = "local" if "classmethod" in kinds else "object"
            self._names[int(number), arguments[0].arg] |= {Value(kind, str(id(owner)))}
            self._note_callback(owner, node)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self._returned[number] |= self._annotated(node.returns)
        self._inside(node, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        number = self._define(node)
        for base in node.bases:
            self.visit(base)
            above = [one for one in self._values(base) if one.kind in ("class", "local")]
            self._above[number] |= frozenset(above)
        owner = self._scopes[-1]
        if self._is_java_of_listener(node, owner):
            self.note("StreamingListener.Java", ANSWERS["StreamingListener.Java"], node.lineno)
            return  # the name of its interface is in it, and says nothing more
        self._inside(node, node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inside(node, [node.body])

    def visit_Return(self, node: ast.Return) -> None:
        function = next((one for one in reversed(self._scopes) if isinstance(one, _Function)), None)
        if function is not None:
            self._returned[str(id(function))] |= self._values(node.value)
        self.generic_visit(node)

    def _inside(self, scope: ast.AST, body: Iterable[ast.AST]) -> None:
        self._scopes.append(scope)
        for one in body:
            self.visit(one)
        self._scopes.pop()

    def _define(self, node: _Definition | ast.ClassDef) -> str:
        number = str(id(node))
        self._definitions[number] = node
        self._bind(node.name, [Value("local", number)])
        return number

    def _is_listener(self, node: ast.ClassDef) -> bool:
        return Value("class", "StreamingListener") in self._line_of(str(id(node)))

    def _is_java_of_listener(self, node: ast.ClassDef, owner: ast.AST) -> bool:
        """Whether a class is the part of a listener that names it to the JVM.

        Where imports were replaced the listener is not known as one; its interface is.
        """
        if node.name != "Java" or not isinstance(owner, ast.ClassDef):
            return False
        return self._is_listener(owner) or "PythonStreamingListener" in ast.unparse(node)

    def _note_callback(self, owner: ast.ClassDef, node: _Definition) -> None:
        name = f"StreamingListener.{node.name}"
        if name in ANSWERS and self._is_listener(owner):
            self.note(name, ANSWERS[name], node.lineno)

    def _annotated(self, annotation: ast.expr | None) -> Values:
        if isinstance(annotation, ast.Subscript):  # DStream[str]
            annotation = annotation.value
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return NOTHING
        return frozenset(
            Value("instance" if one.kind == "class" else "object", one.name)
            for one in self._values(annotation)
            if one.kind == "class" or self._is_class(one)
        )

    def _is_class(self, value: Value) -> bool:
        return value.kind == "local" and isinstance(self._definitions[value.name], ast.ClassDef)

    # Assignments ---------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._store(node.target, self._annotated(node.annotation) | self._values(node.value))
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._store(node.target, self._values(node.value))
        self.generic_visit(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if len(target.elts) == len(value.elts):
                for one, of_one in zip(target.elts, value.elts, strict=True):
                    self._assign(one, of_one)
            return
        self._store(target, self._values(value))

    def _store(self, target: ast.expr, values: Values) -> None:
        if isinstance(target, ast.Name):
            scope = self._scopes[-1]
            if (id(scope), target.id) in self._globals:
                scope = self._scopes[0]
            self._names[id(scope), target.id] |= values
        elif isinstance(target, ast.Attribute):
            for one in self._values(target.value):
                if one.kind in ("object", "local"):
                    self._attributes[one.name, target.attr] |= values

    # Uses ----------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Store):
            return
        line = node.end_lineno or node.lineno
        owners = self._values(node.value)
        for owner in owners:
            self._note_member(owner, node.attr, line, is_sure=len(owners) == 1)
        if not owners:
            self._note_unowned(node, line)
        if node.attr in _OF_STRUCTURED and owners <= OTHER:
            self.note(f"pyspark.sql: {node.attr}", table.STRUCTURED, line)
        self._note_java(node, line)
        if node.attr in table.OLD_LEVELS and ast.unparse(node.value).endswith("StorageLevel"):
            answer = table.OLD_LEVEL if self._is_replaced else table.OLD_LEVEL_UNDER_RUN
            self.note(f"StorageLevel.{node.attr}", answer, line)

    def _note_member(self, owner: Value, name: str, line: int, *, is_sure: bool) -> None:
        if owner.kind == "module":
            for one in member(owner, name):
                if one.kind in ("class", "callable"):
                    self.note(one.name, ANSWERS[one.name], line)
            if owner.name in MODULES and not member(owner, name) and not name.startswith("__"):
                self.note(f"{owner.name}.{name}", table.NO_SUCH_NAME, line)
        elif owner.kind in ("class", "instance"):
            full = qualified(owner.name, name)
            answer = ANSWERS.get(full) or PRIVATE.get(full)
            if answer is None and is_sure and owner.name in ("StreamingContext", "DStream"):
                answer = _of_unknown(owner.name, name)
            if answer is not None:
                self.note(full, answer, line)
        elif owner.kind == "object":
            self._note_inherited(owner.name, name, line)

    def _note_inherited(self, number: str, name: str, line: int) -> None:
        """Note a member that a class of the program has of a class of pyspark.streaming."""
        for one in self._of_object(number, name):
            if one.kind == "callable" and one.name.endswith(f".{name}"):
                self.note(one.name, ANSWERS[one.name], line)

    def _note_unowned(self, node: ast.Attribute, line: int) -> None:
        full = ONLY_OF_STREAMING.get(node.attr)
        if full is not None:
            self.note(full, ANSWERS.get(full) or PRIVATE[full], line)

    def _note_java(self, node: ast.Attribute, line: int) -> None:
        owner = node.value
        if isinstance(owner, ast.Attribute) and owner.attr == "_jssc":
            if node.attr not in table.JAVA_CALLS:
                self.note(f"StreamingContext._jssc.{node.attr}", table.NO_JAVA_CALL, line)
        elif node.attr == "streaming" and ast.unparse(node).endswith("org.apache.spark.streaming"):
            self.note("org.apache.spark.streaming", table.NO_CLASS_OF_THE_JVM, line)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        for one in self._values(node.func):
            if one.kind == "local":
                self._pass_on(node, one.name)
            elif one.kind in ("class", "callable"):
                self._note_call(node, one)
        self._note_setting(node)

    def _note_call(self, node: ast.Call, value: Value) -> None:
        if value.kind == "class":
            self.note(value.name, ANSWERS[value.name], node.lineno)
        for answer in answers_of_call(value.name, self._with_dicts(node)):
            self.note(value.name, answer, node.lineno)

    def _with_dicts(self, call: ast.Call) -> ast.Call:
        """Return a call in which names of dicts that are written once stand for these."""
        dicts = self._dicts
        return ast.Call(
            func=call.func,
            args=[dicts.get(ast.unparse(one), one) for one in call.args],
            keywords=[
                ast.keyword(one.arg, dicts.get(ast.unparse(one.value), one.value))
                for one in call.keywords
            ],
        )

    def _pass_on(self, node: ast.Call, number: str) -> None:
        """Let parameters of a function of the program be what it is called with."""
        definition, scope, skipped = self._definitions[number], number, 0
        if isinstance(definition, ast.ClassDef):
            made = [one for one in self._names[int(number), "__init__"] if one.kind == "local"]
            if not made:
                return
            scope, skipped = made[0].name, 1
            definition = self._definitions[scope]
        if not isinstance(definition, _Definition):
            return
        if isinstance(node.func, ast.Attribute) and any(
            one.kind == "object" for one in self._values(node.func.value)
        ):
            skipped = 1
        names = [one.arg for one in (*definition.args.posonlyargs, *definition.args.args)]
        for name, given in zip(names[skipped:], node.args, strict=False):
            self._names[int(scope), name] |= self._values(given)
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._names[int(scope), keyword.arg] |= self._values(keyword.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        is_print = isinstance(node.left, ast.Name) and node.left.id == "print"
        if is_print and isinstance(node.op, ast.RShift):  # Python 3 parses it, and fails on it
            self.note("Python 2: print statement", _PRINT, node.lineno)

    # Texts ---------------------------------------------------------------------------------

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and id(node) not in self._documentation:
            for name, answer in answers_of_text(node.value):
                self.note(name, answer, node.lineno)

    def _note_setting(self, node: ast.Call) -> None:
        """A setting whose value stands beside it: the answer that knows no value is not needed."""
        if not (isinstance(node.func, ast.Attribute) and node.func.attr in _SETTERS):
            return
        texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
        if len(texts) != 2 or not isinstance(texts[0], str):
            return
        for name, answer in answers_of_text(texts[0], str(texts[1])):
            line = node.args[0].lineno
            others = [key for key in self.found if key[:2] == (line, name) and key[2] != answer]
            for key in others:
                del self.found[key]
            self.note(name, answer, line)


def _of_unknown(owner: str, name: str) -> Answer | None:
    """Return what is said of a name that is in no table; None for one that dstreams has alone."""
    if name.startswith("__") or name in _ADDED:
        return None
    return table.PRIVATE_NAME if name.startswith("_") else table.NO_SUCH_NAME


_ADDED = frozenset(
    [
        *("explain", "fileStream", "flatMapGroupsWithState", "getState", "latest"),
        *("mapGroupsWithState", "mapStateBlocks", "mapWithState", "progress", "rateStream"),
        *("receiverStream", "recentProgress", "removeStreamingListener", "restore", "saveToKafka"),
        *("show", "socketStream", "stateClasses", "status", "step", "toBlocks", "uiWebUrl"),
        *("_sc", "_ssc"),
    ]
)
"""Names that dstreams adds, and private ones that it has."""


def _all(values: Iterable[Values]) -> Values:
    return frozenset(one for some in values for one in some)


def _imports_dstreams(tree: ast.Module) -> bool:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module or "")
    return any(name.partition(".")[0] == "dstreams" for name in names)


def _dicts_of(tree: ast.Module) -> dict[str, ast.expr]:
    """Return dicts by the names that stand for them alone, and are not changed by an item."""
    written: defaultdict[str, list[ast.expr | None]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    written[ast.unparse(target.value)].append(None)
                elif isinstance(target, ast.Name):
                    written[target.id].append(node.value)
        elif isinstance(node, ast.Attribute) and node.attr == "update":
            written[ast.unparse(node.value)].append(None)
        elif isinstance(node, ast.arg):
            written[node.arg].append(None)
    return {
        name: one
        for name, (one, *more) in written.items()
        if not more and isinstance(one, ast.Dict)
    }


def _scopes_of(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | _Function):
            yield node


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope without those of the scopes in it."""
    left = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.ClassDef | _Function):
            left.extend(ast.iter_child_nodes(node))
