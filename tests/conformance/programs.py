"""Programs as data: one description, run by pyspark.streaming and by dstreams.

A program is a small frozen tree that prints as Python. The text that is printed is the text that
runs, so what a failure shows can be pasted behind ``ssc`` and ``output``.

>>> numbers = Queue([1, 2], [3])
>>> print(Program("doubled", numbers.map(use("double"))))
from tests.conformance.functions import double
s1 = ssc.queueStream([[1, 2], [3]])
s2 = s1.map(double)
output(s2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.conformance import functions

Records = tuple[Any, ...]


@dataclass(frozen=True, repr=False)
class Named:
    """A function of the registry, or what a function of it returns for some arguments."""

    name: str
    args: tuple[Any, ...] | None = None

    def __repr__(self) -> str:
        return self.name if self.args is None else f"{self.name}({_listed(self.args)})"


def use(name: str, *args: Any) -> Named:
    """Name a function of the registry; with arguments, what it returns for them.

    Raises:
        AttributeError: there is none of that name.
    """
    getattr(functions, name)
    return Named(name, args or None)


@dataclass(frozen=True)
class Node:
    """A stream of a program. Equal streams of one program are one stream.

    Every method of a DStream is there, and makes the description of its result.
    """

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    def expression(self, names: list[str]) -> str:
        """Return the Python that makes this stream, *names* being those of its parents."""
        raise NotImplementedError

    def __getattr__(self, operation: str) -> Callable[..., Apply]:
        if operation.startswith("_"):
            raise AttributeError(operation)

        def apply(*args: Any, **keywords: Any) -> Apply:
            return Apply(operation, self, args, tuple(keywords.items()))

        return apply

    def lacking(self, *batches: int) -> Apply:
        """The same stream, without an RDD in these batches, the first being 1.

        Cached, because pyspark.streaming calls what follows with None otherwise: see the table of
        differences.
        """
        return self.transform(use("without_rdd", *batches)).cache()


@dataclass(frozen=True)
class Queue(Node):
    """An input: one list of records for each batch, and empty RDDs without partitions after."""

    batches: tuple[Records | str | None, ...]
    keywords: tuple[tuple[str, Any], ...] = ()

    def __init__(self, *batches: Sequence[Any] | None, **keywords: Any) -> None:
        items = tuple(b if b is None or isinstance(b, str) else tuple(b) for b in batches)
        object.__setattr__(self, "batches", items)
        object.__setattr__(self, "keywords", tuple(keywords.items()))

    def expression(self, names: list[str]) -> str:
        batches = [b if b is None or isinstance(b, str) else list(b) for b in self.batches]
        return f"ssc.queueStream({_listed((batches,), self.keywords)})"


@dataclass(frozen=True)
class Apply(Node):
    """An operation of a stream; other streams may be among its arguments."""

    operation: str
    stream: Node
    args: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.stream, *(arg for arg in self.args if isinstance(arg, Node)))

    def expression(self, names: list[str]) -> str:
        first, *others = names
        rest = iter(others)
        args = tuple(Named(next(rest)) if isinstance(arg, Node) else arg for arg in self.args)
        return f"{first}.{self.operation}({_listed(args, self.keywords)})"


@dataclass(frozen=True)
class OfContext(Node):
    """``ssc.union(streams...)`` or ``ssc.transform([streams...], function)``."""

    operation: str
    streams: tuple[Node, ...]
    function: Named | None = None

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.streams

    def expression(self, names: list[str]) -> str:
        if self.function is None:
            return f"ssc.{self.operation}({', '.join(names)})"
        return f"ssc.{self.operation}([{', '.join(names)}], {self.function})"


@dataclass(frozen=True)
class Program:
    """Streams of which every batch is collected.

    Args:
        name: what it is about, for reports.
        output: the stream that is compared.
        batches: how many batches to run.
        slices: seconds ``(begin, end)`` of slices of the output, taken after the last batch.
        reads: whether every queue has an output of its own, which does nothing: pyspark.streaming
            takes an item from a queue only for a batch that is asked for.
    """

    name: str
    output: Node
    batches: int = 4
    slices: tuple[tuple[int, int], ...] = ()
    reads: bool = False

    def __str__(self) -> str:
        names: dict[str, str] = {}
        lines: list[str] = []
        for node in self.streams():
            line = node.expression([names[repr(parent)] for parent in node.parents])
            names[repr(node)] = name = f"s{len(names) + 1}"
            lines.append(f"{name} = {line}")
            if self.reads and isinstance(node, Queue):
                lines.append(f"{name}.foreachRDD(nothing)")
        functions_used = [f for node in self.streams() for f in functions_of(node)]
        used = sorted({f.name for f in functions_used} | ({"nothing"} if self.reads else set()))
        if used:
            lines.insert(0, f"from {functions.__name__} import {', '.join(used)}")
        lines.append(f"output({names[repr(self.output)]})")
        lines += [f"slices({names[repr(self.output)]}, {b}, {e})" for b, e in self.slices]
        return "\n".join(lines)

    def streams(self) -> list[Node]:
        """All streams, parents first, each once."""
        found: dict[str, Node] = {}

        def visit(node: Node) -> None:
            for parent in node.parents:
                visit(parent)
            found.setdefault(repr(node), node)

        visit(self.output)
        return list(found.values())

    def operations(self) -> set[str]:
        """Names of all operations."""
        return {operation_of(node) for node in self.streams()}

    def define(self, ssc: Any, output: Callable[[Any], None], slices: Callable[..., None]) -> None:
        """Run the text: define the streams on *ssc* and hand over the output."""
        code = compile(str(self), f"<{self.name}>", "exec")
        exec(code, {"ssc": ssc, "output": output, "slices": slices})  # noqa: S102 - as printed


def operation_of(node: Node) -> str:
    """Return the name of the operation that a stream is made by."""
    if isinstance(node, Queue):
        return "queueStream"
    assert isinstance(node, (Apply, OfContext))
    return f"ssc.{node.operation}" if isinstance(node, OfContext) else node.operation


# What can be said of a stream without running it ---------------------------------------------

_SHUFFLES = frozenset(
    [
        "repartition",
        "countByValue",
        "reduceByKey",
        "combineByKey",
        "groupByKey",
        "partitionBy",
        "cogroup",
        "join",
        "leftOuterJoin",
        "rightOuterJoin",
        "fullOuterJoin",
        "updateStateByKey",
        "countByValueAndWindow",
        "groupByKeyAndWindow",
        "reduceByKeyAndWindow",
    ]
)
_ONE_ELEMENT = frozenset(["reduce", "count", "reduceByWindow", "countByWindow"])
_SHUFFLING_FUNCTIONS = frozenset(["distinct_rdd", "joined_rdds"])


def is_ordered(node: Node) -> bool:
    """Whether Spark defines the order of a stream's elements, and in which partition they are."""
    operation = operation_of(node)
    if operation in _ONE_ELEMENT:
        return True
    if operation in _SHUFFLES or _SHUFFLING_FUNCTIONS & {f.name for f in functions_of(node)}:
        return False
    return all(is_ordered(parent) for parent in node.parents)


def may_lack_rdd(node: Node) -> bool:
    """Whether a stream may be without an RDD in some batch."""
    if any(function.name in ("without_rdd", "without_rdds") for function in functions_of(node)):
        return True
    if operation_of(node) == "window" or _is_window_without_inverse(node):
        return False  # other windows have no RDD where no batch of them has one
    return len(node.parents) == 1 and may_lack_rdd(node.parents[0])


def _is_window_without_inverse(node: Node) -> bool:
    reductions = ("reduceByWindow", "reduceByKeyAndWindow")
    return isinstance(node, Apply) and node.operation in reductions and node.args[1] is None


def may_lack_partitions(node: Node, batches: int) -> bool:
    """Whether a stream may have an RDD without partitions in one of so many batches."""
    if isinstance(node, Queue):
        return len(node.batches) < batches or bool(node.keywords)
    if operation_of(node) in _SHUFFLES | _ONE_ELEMENT:
        return False
    several = len(node.parents) > 1
    return any(
        may_lack_partitions(parent, batches) or (several and may_lack_rdd(parent))
        for parent in node.parents
    )


def functions_of(node: Node) -> Iterator[Named]:
    """Yield the functions that a stream is made with."""
    given: tuple[Any, ...] = ()
    if isinstance(node, Apply):
        given = (*node.args, *(value for _, value in node.keywords))
    elif isinstance(node, OfContext):
        given = (node.function,)
    yield from (arg for arg in given if isinstance(arg, Named))


def _listed(args: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...] = ()) -> str:
    return ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in keywords)])
