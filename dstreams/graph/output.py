"""Outputs: the ends of the graph, which are what makes a batch run at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.graph.node import Node
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.promise import AT_LEAST_ONCE, OutputPromise


@dataclass(frozen=True, eq=False)
class OutputOperation:
    """A function that is called with each RDD of a stream.

    *identity* tells its batches apart from those of other outputs; None if nothing needs to.
    """

    parent: Node
    func: Callable[[OutputBatch, RDD[Any]], None]
    operation: str
    promise: OutputPromise = AT_LEAST_ONCE
    identity: str | None = None
