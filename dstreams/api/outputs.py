"""Output operations: what makes a batch run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, overload

from pyspark import RDD

from dstreams.api.stream import Stream, T_co
from dstreams.callables import require_arity
from dstreams.durations import batch_datetime
from dstreams.graph.output import OutputOperation
from dstreams.sinks.console import ConsolePrinter
from dstreams.sinks.text_files import TextFilesWriter


class OutputOperations(Stream[T_co]):
    """Operations that are called with each RDD of a stream, in order of definition.

    A batch in which the stream has no RDD does not call them.
    Semantics: pyspark.streaming.DStream (4.3).
    """

    @overload
    def foreachRDD(self, func: Callable[[RDD[T_co]], Any]) -> None: ...

    @overload
    def foreachRDD(self, func: Callable[[datetime, RDD[T_co]], Any]) -> None: ...

    def foreachRDD(self, func: Callable[..., Any]) -> None:
        """Call *func* on the driver with each RDD.

        Args:
            func: ``f(rdd)`` or ``f(time, rdd)`` with the batch time as a datetime. It should run
                one Spark job; each job computes what is not persisted again.

        Raises:
            InvalidStreamError: *func* takes other arguments.
            StreamLifecycleError: the context has started.

        >>> def show(time, rdd):
        ...     print(time.second % 60, rdd.collect())
        >>> stream = ssc.queueStream([[1, 2], [3]])
        >>> stream.foreachRDD(show)
        >>> batches = ssc.step(2)
        1 [1, 2]
        2 [3]
        """
        shape = "f(rdd) or f(time, rdd)"
        if require_arity(func, (1, 2), self._operation("foreachRDD"), shape) == 2:
            self._output("foreachRDD", lambda time_ms, rdd: func(batch_datetime(time_ms), rdd))
        else:
            self._output("foreachRDD", lambda _, rdd: func(rdd))

    def pprint(self, num: int = 10) -> None:
        """Print the first *num* elements of each RDD, in one job.

        Raises:
            InvalidStreamError: *num* is no positive integer.
            StreamLifecycleError: the context has started.

        >>> ssc.queueStream([[1, 2, 3]]).pprint(2)
        >>> batches = ssc.step()
        -------------------------------------------
        Time: ...
        -------------------------------------------
        1
        2
        ...
        <BLANKLINE>
        """
        self._output("pprint", ConsolePrinter(num))

    def saveAsTextFiles(self, prefix: str, suffix: str | None = None) -> None:
        """Write each RDD as a directory of text files named ``prefix-TIME_IN_MS[.suffix]``.

        The directory appears when it is complete, or not at all. A batch that runs again replaces
        its directory.

        Raises:
            InvalidStreamError: *prefix* or *suffix* is no string.
            StreamLifecycleError: the context has started.

        >>> ssc.queueStream([["to be"]]).saveAsTextFiles(directory + "/lines", "txt")
        >>> batches = ssc.step()
        >>> spark.textFile(directory + "/lines-1000.txt").collect()
        ['to be']
        """
        self._output("saveAsTextFiles", TextFilesWriter(prefix, suffix))

    def _output(self, name: str, func: Callable[[int, RDD[Any]], None]) -> None:
        self._ssc._require_initialized("output operations cannot be added")
        operation = OutputOperation(self._node, func, self._operation(name))
        self._ssc._graph.outputs.append(operation)
