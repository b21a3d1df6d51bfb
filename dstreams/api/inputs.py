"""The methods of a StreamingContext that create input streams."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

from pyspark import RDD, StorageLevel

from dstreams.api.dstream import DStream
from dstreams.api.file_inputs import FileInputMethods
from dstreams.api.receiver_inputs import ReceiverInputMethods
from dstreams.api.stream import named
from dstreams.callables import call_site
from dstreams.clock import Clock
from dstreams.durations import require_duration_ms
from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node
from dstreams.graph.plan import StreamGraph
from dstreams.settings import Settings
from dstreams.sources.queue import QueueSource
from dstreams.sources.rate import RateSource
from dstreams.sources.socket import SocketTextSource
from dstreams.sources.source import Source

T = TypeVar("T")


class InputMethods(FileInputMethods, ReceiverInputMethods):
    """One method for each kind of source; what they create are streams of this context.

    Semantics: pyspark.streaming.StreamingContext (4.3).
    """

    _clock: Clock
    _graph: StreamGraph
    _settings: Settings

    def _require_initialized(self, what: str) -> None:
        raise NotImplementedError

    def _stream_of(self, node: Node) -> DStream[Any]:
        raise NotImplementedError

    def queueStream(
        self,
        rdds: Iterable[RDD[T] | Iterable[T] | None],
        oneAtATime: bool = True,
        default: RDD[T] | Iterable[T] | None = None,
        *,
        replayable: bool = False,
        uid: str | None = None,
    ) -> DStream[T]:
        """Create a stream from a queue of RDDs or lists, for tests and experiments.

        The queue and its items are copied here: what is done to them later is not seen.

        Args:
            rdds: RDDs, or collections of records; None stands for a batch without an RDD.
            oneAtATime: one item for each batch; False: all that are there.
            default: RDD or records for batches when the queue is empty. None: an empty RDD.
            replayable: keep the records in the checkpoint, so that a restart goes on with them.
                Otherwise a checkpoint of this stream cannot be taken up, as in Spark.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: an item is none of these; a *replayable* queue has an RDD.
        """
        source = QueueSource(rdds, oneAtATime, default, replayable)
        return self._input(source, "queueStream", uid)

    def socketTextStream(
        self,
        hostname: str,
        port: int,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        *,
        uid: str | None = None,
    ) -> DStream[str]:
        """Create a stream of the lines of UTF-8 text that a TCP server sends.

        The driver connects, and connects again when the connection ends.

        Args:
            hostname: host to connect to.
            port: port to connect to.
            storageLevel: taken for compatibility; lines wait in the driver until they are in a
                batch.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: *hostname* or *port* cannot be an address.
        """
        return self._input(SocketTextSource(hostname, port), "socketTextStream", uid)

    def rateStream(
        self,
        rowsPerSecond: int,
        rampUpTime: float = 0,
        numPartitions: int | None = None,
        *,
        uid: str | None = None,
    ) -> DStream[tuple[datetime, int]]:
        """Create a stream of numbered rows at a steady rate, for trials and measurements.

        Rows are ``(timestamp, value)``: values count from 0 at the start of the stream, timestamps
        are naive datetimes in the driver's time zone, spread evenly over the batch. A batch that is
        made again has the same rows. With ``spark.streaming.receiver.maxRate`` or backpressure, a
        batch leaves out its last rows when they are too many.

        Args:
            rowsPerSecond: rows a second, at least 1.
            rampUpTime: seconds in which the rate grows evenly from none to *rowsPerSecond*.
            numPartitions: partitions of each batch's RDD. None: one for small batches, up to
                ``defaultParallelism`` for large ones.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: a parameter is no such number.

        Semantics: the rate source of Structured Streaming; pyspark.streaming has none.
        """
        ramp_up_ms = require_duration_ms(rampUpTime, "rampUpTime") if rampUpTime != 0 else 0
        source = RateSource(rowsPerSecond, ramp_up_ms, numPartitions)
        return self._input(source, "rateStream", uid)

    def _input(self, source: Source, operation: str, uid: str | None = None) -> DStream[Any]:
        self._require_initialized("inputs cannot be added")
        node = InputDStream(
            len(self._graph.inputs), source, self._graph.batch_ms, f"{operation} at {call_site()}"
        )
        self._graph.inputs.append(node)
        return named(self._stream_of(node), uid)
