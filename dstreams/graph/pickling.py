"""Graphs as bytes: what a restart needs to have the same streams again, functions and all.

What belongs to a running program is not written but named, and found again in the program that
reads: the SparkContext, the SparkSession, the StreamingContext. The value of a broadcast variable
is written, and broadcast again. RDDs are named by number, for the caller to keep in files.

Reading runs code that the bytes name: read only what nobody else can have written.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import RDD, Broadcast, SparkContext, cloudpickle

from dstreams.common.callables import find_culprit
from dstreams.errors import InvalidStreamError
from dstreams.graph.node import Node
from dstreams.graph.plan import StreamGraph

_SQL = "pyspark.sql"


@dataclass(frozen=True)
class PickledGraph:
    """A graph as bytes."""

    data: bytes
    rdds: tuple[RDD[Any], ...]


def pickle_graph(graph: StreamGraph, context: object) -> PickledGraph:
    """Return *graph* as bytes."""
    rdds: list[RDD[Any]] = []
    try:
        return PickledGraph(_dump(graph, context, rdds), tuple(rdds))
    except Exception as error:
        raise _explained(graph, context, error) from error


def unpickle_graph(
    data: bytes, spark: SparkContext, context: object, rdd: Callable[[int], RDD[Any]]
) -> StreamGraph:
    """Return the graph that :func:`pickle_graph` made bytes of."""
    graph = _Unpickler(io.BytesIO(data), spark, context, rdd).load()
    if not isinstance(graph, StreamGraph):
        raise TypeError(f"the bytes hold no graph but {type(graph).__name__}")
    return graph


class _Pickler(cloudpickle.Pickler):
    def __init__(
        self, file: io.BytesIO, context: object, rdds: list[RDD[Any]], within: object = None
    ) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._context = context
        self._rdds = rdds
        self._within = within

    def persistent_id(self, value: object) -> tuple[str, Any] | None:
        name = self._of_the_program(value)
        if name is not None:
            return name, None
        if isinstance(value, RDD):
            if not any(value is known for known in self._rdds):
                self._rdds.append(value)
            return "rdd", next(i for i, known in enumerate(self._rdds) if known is value)
        if isinstance(value, Broadcast):
            return "broadcast", value.value
        if self._within is not None and isinstance(value, Node) and value is not self._within:
            return "node", None  # while the one that cannot be pickled is looked for
        return None

    def _of_the_program(self, value: object) -> str | None:
        if value is self._context:
            return "context"
        if isinstance(value, SparkContext):
            return "spark"
        kind = type(value)
        if kind.__name__ == "SparkSession" and kind.__module__.startswith(_SQL):
            return "session"
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Node):
            return _new, (type(value), dict(vars(value)))
        if getattr(type(value), "_dstreams_driver_only", False) is True:
            raise TypeError(
                f"a {type(value).__name__} was captured in a closure; use streams only to define "
                "the graph"
            )
        return super().reducer_override(value)  # type: ignore[no-untyped-call]


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        spark: SparkContext,
        context: object,
        rdd: Callable[[int], RDD[Any]],
    ) -> None:
        super().__init__(file)
        self._spark = spark
        self._context = context
        self._rdd = rdd

    def persistent_load(self, pid: tuple[str, Any]) -> Any:
        kind, value = pid
        if kind == "broadcast":
            return self._spark.broadcast(value)
        if kind == "rdd":
            return self._rdd(value)
        if kind == "session":
            from pyspark.sql import SparkSession  # noqa: PLC0415  # most graphs have none

            return SparkSession(self._spark)
        return {"context": self._context, "spark": self._spark}[kind]


def _new(cls: type[Node], fields: Mapping[str, Any]) -> Node:
    """Make a node again: its fields may be set nowhere else, so this is no call of its class."""
    node = object.__new__(cls)
    vars(node).update(fields)
    return node


def _dump(value: object, context: object, rdds: list[RDD[Any]], within: object = None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, context, rdds, within).dump(value)  # type: ignore[no-untyped-call]
    return file.getvalue()


def _explained(graph: StreamGraph, context: object, error: Exception) -> InvalidStreamError:
    """Name the stream or output that cannot be pickled."""
    nodes: dict[Node, None] = {}
    for output in graph.outputs:
        _visit(output.parent, nodes)
    parts: Sequence[Any] = (*graph.inputs, *nodes, *graph.outputs)
    for part in parts:
        for value in vars(part).values():
            if isinstance(value, Node):
                continue

            def failure(inner: object, part: Any = part) -> Exception | None:
                try:
                    _dump(inner, context, [], within=part)
                except Exception as reason:
                    return reason
                return None

            if failure(value) is not None:
                return _refusal(part.operation, value, failure)
    return InvalidStreamError(f"the streams cannot be written to the checkpoint: {error}")


def _visit(node: Node, found: dict[Node, None]) -> None:
    if node not in found:
        for parent in node.parents:
            _visit(parent, found)
        found[node] = None


def _refusal(
    operation: str, value: object, failure: Callable[[object], Exception | None]
) -> InvalidStreamError:
    path, found = find_culprit(value, failure)
    what = f"it uses {path!r}, of type {type(found).__name__}" if path else "it cannot be pickled"
    return InvalidStreamError(
        f"{operation} cannot be written to the checkpoint, from which a restart makes it again, "
        f"because {what}: {failure(found)}; create it inside of the function, of a receiver in "
        "onStart, or use plain values"
    )
