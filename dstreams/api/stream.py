"""What every stream facade can do: know its context, be persisted, and become another stream."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pyspark import RDD, StorageLevel

from dstreams.callables import call_site
from dstreams.durations import batch_time_ms, require_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.graph.node import Node

if TYPE_CHECKING:
    from dstreams.api.dstream import DStream
    from dstreams.api.streaming_context import StreamingContext

T_co = TypeVar("T_co", covariant=True)
"""Type of a stream's elements."""

Self = TypeVar("Self", bound="Stream[Any]")


def named(stream: Self, uid: str | None) -> Self:
    """Give a stream the name under which its state and progress are kept, None for no name.

    Raises:
        InvalidStreamError: *uid* is no text, or empty.
    """
    if uid is not None:
        if not isinstance(uid, str) or not uid.strip():
            raise InvalidStreamError(
                f"uid of {stream._node.operation} must be a name, got {uid!r}; it stands for its "
                "state and progress in the checkpoint, also when the program changes"
            )
        stream._ssc._graph.options_of(stream._node).uid = uid
    return stream


class Stream(Generic[T_co]):
    """A node of the graph and the context it belongs to.

    Args:
        node: the node.
        ssc: its context.
    """

    _dstreams_driver_only: ClassVar[bool] = True

    def __init__(self, node: Node, ssc: StreamingContext) -> None:
        self._node = node
        self._ssc = ssc

    def context(self) -> StreamingContext:
        """Return the StreamingContext of this stream."""
        return self._ssc

    @property
    def is_cached(self) -> bool:
        """Whether a storage level was chosen for this stream."""
        return self._ssc._graph.options_of(self._node).storage_level is not None

    @property
    def is_checkpointed(self) -> bool:
        """Whether a checkpoint interval was chosen for this stream."""
        return self._ssc._graph.options_of(self._node).checkpoint_ms is not None

    def cache(self: Self) -> Self:
        """Persist the RDDs of this stream, serialized in memory."""
        return self.persist(StorageLevel.MEMORY_ONLY)

    def persist(self: Self, storageLevel: StorageLevel = StorageLevel.MEMORY_ONLY) -> Self:
        """Persist the RDDs of this stream at a storage level.

        Raises:
            InvalidStreamError: *storageLevel* is none.
            StreamLifecycleError: the context has started.

        >>> from pyspark import StorageLevel
        >>> numbers = ssc.queueStream([[1, 2]]).persist(StorageLevel.MEMORY_AND_DISK)
        >>> numbers.foreachRDD(lambda rdd: print(rdd.is_cached))
        >>> batches = ssc.step()
        True
        """
        self._ssc._require_initialized("the storage level of a stream cannot be changed")
        if not isinstance(storageLevel, StorageLevel):
            raise InvalidStreamError(
                f"storageLevel must be a StorageLevel, got {type(storageLevel).__name__}"
            )
        self._ssc._graph.options_of(self._node).storage_level = storageLevel
        return self

    def checkpoint(self: Self, interval: float) -> Self:
        """Make the RDDs of this stream durable every *interval* seconds.

        Args:
            interval: seconds, a multiple of this stream's slide. Stateful streams have a default:
                the first multiple of the slide that is 10 seconds or more.

        Raises:
            InvalidStreamError: *interval* is no positive duration; that it is a multiple of the
                slide is checked at start.
            StreamLifecycleError: the context has started.

        A storage level that was chosen before stays as it is.
        """
        self._ssc._require_initialized("the checkpoint interval of a stream cannot be changed")
        interval_ms = require_duration_ms(interval, "interval")
        options = self._ssc._graph.options_of(self._node)
        options.checkpoint_ms = interval_ms
        if options.storage_level is None and self._node.default_storage is None:
            options.storage_level = StorageLevel.MEMORY_ONLY
        return self

    def slice(self, begin: datetime | float, end: datetime | float) -> list[RDD[T_co]]:
        """Return the RDDs of this stream from *begin* to *end*, both included.

        Those of batches that ran and are remembered
        (:meth:`~dstreams.StreamingContext.remember`); unlike in Spark none is computed.

        Args:
            begin: batch time as a datetime (naive: local time) or in seconds since the epoch; a
                time between two batches is floored.
            end: likewise.

        Raises:
            StreamLifecycleError: the context does not run, or no output uses this stream.

        >>> ssc.remember(10)
        >>> numbers = ssc.queueStream([[1], [2], [3]])
        >>> numbers.foreachRDD(lambda rdd: None)
        >>> batches = ssc.step(3)
        >>> [rdd.collect() for rdd in numbers.slice(2, 3)]
        [[2], [3]]
        """
        begin_ms, end_ms = batch_time_ms(begin, "begin"), batch_time_ms(end, "end")
        return self._ssc._remembered(self._node, begin_ms, end_ms)

    def _transformed(
        self, name: str, func: Callable[..., RDD[Any] | None], *others: Stream[Any]
    ) -> DStream[Any]:
        """Return the stream of ``func(rdd of this, rdds of the others...)``."""
        return self._ssc._combine((self, *others), lambda _, rdds: func(*rdds), name)

    def _derived(self, node: Node) -> DStream[Any]:
        """Return the stream of a node that has just been made of this one's."""
        self._ssc._require_initialized("transformations cannot be added")
        return self._ssc._stream_of(node)

    def _operation(self, name: str) -> str:
        return f"{name} at {call_site()}"
