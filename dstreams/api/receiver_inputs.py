"""The methods of a StreamingContext that create input streams from receivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, TypeVar

from pyspark import StorageLevel

from dstreams.api.dstream import DStream
from dstreams.callables import require_arity
from dstreams.errors import InvalidStreamError
from dstreams.graph.plan import StreamGraph
from dstreams.receiving.receiver import Receiver
from dstreams.receiving.receiver_source import ReceiverSource
from dstreams.receiving.socket_receiver import SocketReceiver
from dstreams.sources.socket import SocketTextSource
from dstreams.sources.source import Source

T = TypeVar("T")


class ReceiverInputMethods:
    """The sources that are receivers, the user's and ours.

    Semantics: org.apache.spark.streaming.StreamingContext (4.3).
    """

    _graph: StreamGraph

    def _input(self, source: Source, operation: str, uid: str | None = None) -> DStream[Any]:
        raise NotImplementedError

    def receiverStream(self, receiver: Receiver, *, uid: str | None = None) -> DStream[Any]:
        """Create a stream of the records that *receiver* stores.

        The receiver runs in the driver, its threads beside the batches; it takes no core of Spark.

        What it stores waits in blocks for a batch, at most
        ``spark.dstreams.receiver.maxBufferBytes``; then the receiver waits. With
        ``spark.streaming.receiver.writeAheadLog.enable`` and a checkpoint directory the blocks are
        written there first.

        Args:
            receiver: see :class:`dstreams.Receiver`; one for each stream.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: *receiver* is no receiver, or is in another stream already. At
                start: with a checkpoint directory, it cannot be pickled.
        """
        if not isinstance(receiver, Receiver):
            raise InvalidStreamError(
                "receiverStream needs an instance of dstreams.Receiver, got "
                f"{type(receiver).__name__}"
            )
        for stream in self._graph.inputs:
            if isinstance(stream.source, ReceiverSource) and stream.source.receiver is receiver:
                raise InvalidStreamError(
                    f"this {type(receiver).__name__} is the receiver of {stream.operation} "
                    "already; create one for each stream"
                )
        name = f"receiverStream({type(receiver).__name__})"
        return self._receive(receiver, name, "receiverStream", uid)

    def socketStream(
        self,
        hostname: str,
        port: int,
        converter: Callable[[BinaryIO], Iterable[T]],
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        *,
        uid: str | None = None,
    ) -> DStream[T]:
        """Create a stream of the records that *converter* makes of what a TCP server sends.

        The driver connects, and connects again when the connection ends or *converter* fails.

        Args:
            hostname: host to connect to.
            port: port to connect to.
            converter: from a binary file, which ends with the connection, to an iterator of
                records; called for each connection, on a thread of the driver. How long a record
                may be, and what becomes of bytes that are no text, is up to it.
            storageLevel: taken for compatibility; records wait in the driver until they are in a
                batch.
            uid: as in :meth:`receiverStream`.

        Raises:
            InvalidStreamError: *hostname* or *port* cannot be an address, or *converter* is no
                function of a file.
        """
        try:
            SocketTextSource(hostname, port)
        except InvalidStreamError as error:
            message = str(error).replace("socketTextStream", "socketStream")
            raise InvalidStreamError(message) from None
        require_arity(converter, (1,), "socketStream", "converter(file) -> records")
        receiver = SocketReceiver(hostname, port, converter, storageLevel)
        name = f"socketStream({hostname}:{port})"
        return self._receive(receiver, name, "socketStream", uid)

    def _receive(
        self, receiver: Receiver, name: str, operation: str, uid: str | None
    ) -> DStream[Any]:
        stream_id = len(self._graph.inputs)
        stream = self._input(ReceiverSource(receiver, stream_id, name), operation, uid)
        receiver._stream_id = stream_id
        return stream
