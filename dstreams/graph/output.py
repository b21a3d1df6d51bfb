"""Outputs: the ends of the graph, which are what makes a batch run at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.graph.node import Node
from dstreams.sinks.output_batch import OutputBatch


@dataclass(frozen=True, eq=False)
class OutputOperation:
    """A function that is called with each RDD of a stream."""

    parent: Node
    func: Callable[[OutputBatch, RDD[Any]], None]
    operation: str
