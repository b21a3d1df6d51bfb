"""Streams that depend only on the RDDs of their parents at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.graph.node import ChildNode, Node, Previous
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import Reduction, reduce_pairs
from dstreams.spark.shuffle import BlockPairsRDD

TransformFunc = Callable[[int, tuple[RDD[Any], ...]], "RDD[Any] | None"]


@dataclass(frozen=True, eq=False)
class TransformedDStream(Node):
    """A stream made by a function of the RDDs of one or more streams with the same slide.

    RDD at time t: ``func(t, RDDs of the parents at t)``. None if a single parent has none; of
    several parents, a missing RDD is replaced by an empty one.
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

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> RDD[Any] | None:
        if len(parents) == 1 and parents[0] is None:
            return None
        inputs = (previous.spark.emptyRDD() if rdd is None else rdd for rdd in parents)
        made = self.func(time_ms, tuple(inputs))
        if made is not None and not isinstance(made, RDD):
            raise InvalidStreamError(
                f"{self.operation} must return an RDD or None, got {type(made).__name__}"
            )
        return made


@dataclass(frozen=True, eq=False)
class ReducedDStream(ChildNode):
    """Each key of the parent's RDD once, with its values reduced. Data in place is not shuffled."""

    parent: Node
    reduction: Reduction
    partitioner: StablePartitioner
    operation: str

    def compute(
        self, time_ms: int, parents: Sequence[RDD[Any] | None], previous: Previous
    ) -> BlockPairsRDD | None:
        [pairs] = parents
        if pairs is None:
            return None
        return reduce_pairs(pairs, self.reduction, self.partitioner, self.operation)
