"""Streams whose RDD is a function of the RDDs of other streams at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.graph.node import BatchView, Node

TransformFunc = Callable[[int, tuple[RDD[Any], ...]], "RDD[Any] | None"]


@dataclass(frozen=True, eq=False)
class TransformedDStream(Node):
    """A stream made batch by batch from one or more streams of the same slide.

    Parents: as given. Slide: theirs. RDD at time t: ``func(t, RDDs of the parents at t)``. One
    parent without an RDD: none. Several parents: a missing RDD is taken as an empty one.
    """

    sources: tuple[Node, ...]
    func: TransformFunc
    operation: str

    def __post_init__(self) -> None:
        slides = {node.slide_ms for node in self.sources}
        if len(slides) != 1:
            durations = ", ".join(
                f"{node.operation} every {node.slide_ms} ms" for node in self.sources
            )
            raise InvalidStreamError(
                f"{self.operation} needs streams of one slide duration, got: {durations}"
            )

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.sources

    @property
    def slide_ms(self) -> int:
        return self.sources[0].slide_ms

    def compute(self, time_ms: int, rdds: BatchView) -> RDD[Any] | None:
        inputs = [rdds.at(node, time_ms) for node in self.sources]
        if len(inputs) == 1 and inputs[0] is None:
            return None
        made = self.func(
            time_ms, tuple(rdds.spark.emptyRDD() if rdd is None else rdd for rdd in inputs)
        )
        if made is not None and not isinstance(made, RDD):
            raise InvalidStreamError(
                f"{self.operation} must return an RDD or None, got {type(made).__name__}"
            )
        return made
