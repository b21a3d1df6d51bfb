"""DStream: the public face of a stream."""

from __future__ import annotations

from dstreams.api.outputs import OutputOperations
from dstreams.api.stored import StoredStateOperations
from dstreams.api.stream import T_co
from dstreams.api.windows import WindowOperations


class DStream(WindowOperations[T_co], StoredStateOperations[T_co], OutputOperations[T_co]):
    """A sequence of RDDs, one for each batch, defined by what it is made from.

    A DStream is made by a :class:`~dstreams.StreamingContext` or from other streams, and does
    nothing before the context starts. Its methods check what they are given, add a node to the
    graph and return its stream. Functions are sent to the workers; a function must not use streams
    or contexts. The type parameter is that of the elements: type checkers follow it through a
    pipeline.

    In the examples, ``run(batches, operation)`` is :func:`dstreams.testing.run_batches` with a
    SparkContext ``spark`` and each batch of the result sorted; ``ssc`` is a context of one batch a
    second whose first batch time is second 1.
    """

    def __repr__(self) -> str:
        return f"DStream({self._node.operation})"
