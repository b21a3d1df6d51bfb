"""Output operations: what makes a batch run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, overload

from pyspark import RDD

from dstreams.api.stream import Stream, T_co
from dstreams.errors import InvalidStreamError
from dstreams.graph.output import OutputOperation
from dstreams.sinks.console import ConsolePrinter
from dstreams.sinks.foreach import ForeachBatch
from dstreams.sinks.output_batch import BatchSink, OutputBatch
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

    @overload
    def foreachRDD(self, func: Callable[[datetime, RDD[T_co], int], Any]) -> None: ...

    @overload
    def foreachRDD(self, func: BatchSink) -> None: ...

    def foreachRDD(self, func: Callable[..., Any] | BatchSink) -> None:
        """Call *func* on the driver with each RDD.

        The batch that was running when a driver died runs again after a restart, with the same
        records, time and batch id: by these a function can tell that it has seen a batch before.
        A batch that was committed does not run again. Where an older copy of the checkpoint is put
        back, other records come under the same batch ids; who has to tell these too writes a
        :class:`dstreams.sinks.BatchSink`, which is told the beginning of its batch.

        Args:
            func: ``f(rdd)``, ``f(time, rdd)`` with the batch time as a datetime, or
                ``f(time, rdd, batchId)`` with the number of the batch in its stream, from 0. A
                parameter named ``batchId`` gets the number wherever it stands, so that
                ``f(rdd, *, batchId)`` is possible too. It should run one Spark job; each job
                computes what is not persisted again. Or a sink, such as
                :class:`dstreams.sinks.TransactionalSink`.

        Raises:
            InvalidStreamError: *func* takes other arguments, or is a sink of the name of another.
            StreamLifecycleError: the context has started.

        >>> def show(time, rdd):
        ...     print(time.second % 60, rdd.collect())
        >>> stream = ssc.queueStream([[1, 2], [3]])
        >>> stream.foreachRDD(show)
        >>> batches = ssc.step(2)
        1 [1, 2]
        2 [3]
        """
        if isinstance(func, BatchSink):
            self._require_identity(func)
            self._output("foreachRDD", func.write_batch)
        else:
            operation = self._operation("foreachRDD")
            self._output("foreachRDD", ForeachBatch.of(func, operation))

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

        The directory appears when it is complete, or not at all, and a batch that runs again after
        a crash changes nothing in it. What is complete is never replaced: where the directory of a
        batch is another stream's, or of another history of the checkpoint, the stream stops with an
        ``OutputConflictError``, and the batch runs again when that is put right. In a store without
        rename, a directory is complete when it has a ``_SUCCESS``, which names what counts.

        Args:
            prefix: path or URL up to the dash: on a file system of Hadoop's, or one of fsspec's
                that can create a file only if it is absent (s3, gs, abfs).
            suffix: what follows the time after a dot. None: nothing.

        Raises:
            InvalidStreamError: *prefix* or *suffix* is no string.
            StreamLifecycleError: the context has started.

        >>> ssc.queueStream([["to be"]]).saveAsTextFiles(directory + "/lines", "txt")
        >>> batches = ssc.step()
        >>> spark.textFile(directory + "/lines-1000.txt").collect()
        ['to be']
        """
        self._output("saveAsTextFiles", TextFilesWriter(prefix, suffix))

    def _require_identity(self, sink: BatchSink) -> None:
        """Refuse a second sink that would take the batches of the first one for its own."""
        for output in self._ssc._graph.outputs:
            other = getattr(output.func, "__self__", None)
            if isinstance(other, BatchSink) and other.identity == sink.identity is not None:
                raise InvalidStreamError(
                    f"{self._operation('foreachRDD')} has a {type(sink).__name__} of the "
                    f"{sink.identity}, and so has {output.operation}; give each its own name"
                )

    def _output(self, name: str, func: Callable[[OutputBatch, RDD[Any]], None]) -> None:
        self._ssc._require_initialized("output operations cannot be added")
        operation = OutputOperation(self._node, func, self._operation(name))
        self._ssc._graph.outputs.append(operation)
