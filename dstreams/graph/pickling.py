"""Pickling of stream graphs, including the user's functions, for a restart.

The SparkContext, SparkSession and StreamingContext are references, resolved in the reading process.
Broadcast variables are pickled by value. RDDs are numbered; the caller keeps them in files.

Unpickling runs code: read only bytes that no other user can have written.
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
    """A graph as bytes, and the RDDs that it refers to by number."""

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
    """Return the graph that :func:`pickle_graph` pickled."""
    graph = _Unpickler(io.BytesIO(data), spark, context, rdd).load()
    if not isinstance(graph, StreamGraph):
        raise TypeError(f"expected a StreamGraph, got {type(graph).__name__}")
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
            return "node", None  # while searching for the part that cannot be pickled
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
    """Create a node from its fields without calling ``__init__``: nodes are frozen."""
    node = object.__new__(cls)
    vars(node).update(fields)
    return node


def _dump(value: object, context: object, rdds: list[RDD[Any]], within: object = None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, context, rdds, within).dump(value)  # type: ignore[no-untyped-call]
    return file.getvalue()


def _explained(graph: StreamGraph, context: object, error: Exception) -> InvalidStreamError:
    """Return an error that names the stream or output that cannot be pickled."""
    parts: Sequence[Any] = (*graph.inputs, *graph.draft().nodes, *graph.outputs)
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


def _refusal(
    operation: str, value: object, failure: Callable[[object], Exception | None]
) -> InvalidStreamError:
    path, found = find_culprit(value, failure)
    what = f"it uses {path!r}, of type {type(found).__name__}" if path else "it cannot be pickled"
    return InvalidStreamError(
        f"{operation} cannot be written to the checkpoint, from which a restart recreates it, "
        f"because {what}: {failure(found)}; create it inside the function, or in onStart of a "
        "receiver, or use plain values"
    )
