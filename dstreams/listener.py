"""Listeners: objects whose callbacks follow the batches of a stream.

>>> class Slow(StreamingListener):
...     def onBatchCompleted(self, batchCompleted):
...         info = batchCompleted.batchInfo()
...         if info.totalDelay() > 5000:
...             print(info.batchTime(), "took", info.totalDelay(), "ms")
>>> ssc.addStreamingListener(Slow())

The arguments of callbacks have the methods of the Java objects that ``pyspark.streaming`` passes.
Unknown numbers are -1, and missing texts are None. The arguments are immutable values: you can keep
them, compare them, and read them from any thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from dstreams.common.settings import COUNT
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    InputInfo,
    OutputOperationCompleted,
    OutputOperationInfo,
    OutputOperationStarted,
    PendingBatch,
    PlannedOutput,
    ReceiverError,
    ReceiverInfo,
    ReceiverStarted,
    ReceiverStopped,
    StateOperatorInfo,
    StreamingStarted,
)

__all__ = ["StatsReportListener", "StreamingListener"]

logger = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)

_ABSENT = -1


class StreamingListener:
    """Base class of listeners: override the callbacks that you need.

    Callbacks run one at a time and in order, on a separate thread. They cannot change or delay a
    batch. The first exception of a callback is logged, later ones are counted, and the listener
    still receives events. A callback may call ``ssc.stop()``, which returns immediately; the
    context stops after the running batch.

    Semantics: pyspark.streaming.StreamingListener (4.3), which raises if a callback stops the
    context, and reports no events of batches without jobs.
    """

    def onStreamingStarted(self, streamingStarted: StreamingStartedEvent) -> None:
        """Called when the streams have started: ``streamingStarted.time()``."""

    def onReceiverStarted(self, receiverStarted: ReceiverEvent) -> None:
        """Called when a receiver has started: ``receiverStarted.receiverInfo()``."""

    def onReceiverError(self, receiverError: ReceiverEvent) -> None:
        """Called when a receiver has reported an error: ``receiverError.receiverInfo()``."""

    def onReceiverStopped(self, receiverStopped: ReceiverEvent) -> None:
        """Called when a receiver has stopped: ``receiverStopped.receiverInfo()``."""

    def onBatchSubmitted(self, batchSubmitted: BatchEvent) -> None:
        """Called when the input of a batch is fixed: ``batchSubmitted.batchInfo()``."""

    def onBatchStarted(self, batchStarted: BatchEvent) -> None:
        """Called when a batch starts to run: ``batchStarted.batchInfo()``."""

    def onBatchCompleted(self, batchCompleted: BatchEvent) -> None:
        """Called when a batch has ended, successfully or not: ``batchCompleted.batchInfo()``."""

    def onOutputOperationStarted(self, outputOperationStarted: OutputOperationEvent) -> None:
        """Called when an output starts: ``outputOperationStarted.outputOperationInfo()``."""

    def onOutputOperationCompleted(self, outputOperationCompleted: OutputOperationEvent) -> None:
        """Called when an output has ended: ``outputOperationCompleted.outputOperationInfo()``."""


class InfoMap(Mapping[K, V_co]):
    """An immutable mapping with the methods of Java's maps in addition to Python's."""

    def __init__(self, items: Mapping[K, V_co]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)

    def size(self) -> int:
        """Return the number of entries."""
        return len(self)

    def isEmpty(self) -> bool:
        """Return whether the map is empty."""
        return not self

    def containsKey(self, key: K) -> bool:
        """Return whether *key* has a value."""
        return key in self

    def keySet(self) -> frozenset[K]:
        """Return the keys."""
        return frozenset(self)


@dataclass(frozen=True, order=True)
class BatchTime:
    """A batch time."""

    _ms: int

    def milliseconds(self) -> int:
        """Return the milliseconds since the epoch."""
        return self._ms

    def __str__(self) -> str:
        return f"{self._ms} ms"

    __repr__ = __str__


def _get(kind: type[T], field: str, absent: object = None) -> Callable[[Any], T]:
    """Return a method that reads *field* of the wrapped value; *absent* if that is missing."""

    def get(self: _View) -> T:
        value = getattr(self._info, field, None)
        return cast(T, absent if value is None else value)

    get.__doc__ = f"Return ``{field}`` of the value; {absent} if it is not known."
    return get


def _metric(name: str) -> Callable[[Any], int]:
    """Return a method that reads a metric of a stateful operation."""

    def get(self: StateOperatorView) -> int:
        return self._info.metrics[name]

    get.__doc__ = f"Return the metric ``{name}``."
    return get


class _View:
    """A value behind the methods of a Java object; the text shows those in *_shown*."""

    _shown: ClassVar[tuple[str, ...]]
    _info: Any

    def __init_subclass__(cls) -> None:
        for name, method in vars(cls).items():
            if getattr(method, "__name__", "") == "get":
                method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={getattr(self, name)()!r}" for name in self._shown)
        return f"{type(self).__name__}({facts})"

    def toString(self) -> str:
        """Return the facts as text."""
        return repr(self)


@dataclass(frozen=True, repr=False)
class StreamInputInfo(_View):
    """The input that a batch reads from one stream; uncounted records are 0, as in Spark.

    The metadata has ``Name`` and ``Description``. For Kafka also ``offsets``, a list of
    :class:`dstreams.kafka.OffsetRange`, and ``lag``: the offsets of each
    :class:`dstreams.kafka.TopicPartition` that remain after the batch.
    """

    _shown = ("inputStreamId", "numRecords", "metadataDescription")
    _info: InputInfo

    inputStreamId = _get(int, "stream_id")
    numRecords = _get(int, "records", 0)

    def metadata(self) -> InfoMap[str, Any]:
        """Return the facts that the source reports."""
        own = {"Name": self._info.name, "Description": self._info.description}
        return InfoMap({**self._info.metadata, **own})

    def metadataDescription(self) -> str | None:
        """Return the description of the input, one line, or None if it has no description."""
        return self._info.description or None


@dataclass(frozen=True, repr=False)
class OutputInfo(_View):
    """One output operation of one batch, for example ``pprint at app.py:20``."""

    _shown = ("batchTime", "id", "name", "startTime", "endTime", "failureReason")
    _batch_time_ms: int
    _info: OutputOperationInfo | PlannedOutput
    _started_ms: int | None = None

    id = _get(int, "output_id")
    name = _get(str, "name")
    description = _get(str, "name")
    endTime = _get(int, "completed_ms", _ABSENT)
    failureReason = cast("Callable[[Any], str | None]", _get(str, "failure"))

    def batchTime(self) -> BatchTime:
        """Return the batch time."""
        return BatchTime(self._batch_time_ms)

    def startTime(self) -> int:
        """Return when it started, in milliseconds since the epoch; -1 if it has not."""
        started_ms = getattr(self._info, "started_ms", self._started_ms)
        return _ABSENT if started_ms is None else started_ms

    def duration(self) -> int:
        """Return the milliseconds that it ran; -1 if it has not ended."""
        return self.endTime() - self.startTime() if self.endTime() != _ABSENT else _ABSENT


@dataclass(frozen=True, repr=False)
class StateOperatorView(_View):
    """The metrics of a stateful operation in one batch.

    They have the names of ``stateOperators`` in the progress of a Spark query; ``customMetrics``
    has all of them. Times are milliseconds, summed over the partitions.
    """

    _shown = ("operatorName", "numRowsTotal", "numRowsUpdated", "numRowsRemoved", "memoryUsedBytes")
    _info: StateOperatorInfo

    operatorName = _get(str, "name")
    numShufflePartitions = _get(int, "partitions")
    numRowsTotal = _metric("numTotalStateRows")
    numRowsUpdated = _metric("numUpdatedStateRows")
    numRowsRemoved = _metric("numRemovedStateRows")
    numRowsDroppedByWatermark = _metric("numRowsDroppedByWatermark")
    allUpdatesTimeMs = _metric("allUpdatesTimeMs")
    allRemovalsTimeMs = _metric("allRemovalsTimeMs")
    commitTimeMs = _metric("commitTimeMs")
    memoryUsedBytes = _metric("stateMemory")
    numStateStoreInstances = _metric("numStateStoreInstances")

    def customMetrics(self) -> InfoMap[str, int]:
        """Return all metrics of :class:`~dstreams.monitoring.events.StateOperatorInfo`."""
        return InfoMap(self._info.metrics)


@dataclass(frozen=True, repr=False)
class BatchInfoView(_View):
    """A batch at the time of the event.

    Times are milliseconds since the epoch, delays milliseconds. ``outcome``, ``failureReason`` and
    ``stateOperators`` are additions to pyspark.streaming, which has no events for batches without
    jobs: ``succeeded``, ``failed``, ``empty`` (no output had an RDD) or ``cancelled`` (by a stop).
    """

    _shown = (
        "batchTime",
        "numRecords",
        "submissionTime",
        "processingStartTime",
        "processingEndTime",
        "streamIdToInputInfo",
        "outputOperationInfos",
        "stateOperators",
        "outcome",
        "failureReason",
    )
    _info: BatchInfo | PendingBatch

    submissionTime = _get(int, "submitted_ms")
    processingStartTime = _get(int, "started_ms", _ABSENT)
    processingEndTime = _get(int, "completed_ms", _ABSENT)
    schedulingDelay = _get(int, "scheduling_delay_ms", _ABSENT)
    processingDelay = _get(int, "processing_delay_ms", _ABSENT)
    totalDelay = _get(int, "total_delay_ms", _ABSENT)
    outcome = cast("Callable[[Any], str | None]", _get(str, "outcome"))
    failureReason = cast("Callable[[Any], str | None]", _get(str, "failure"))

    def batchTime(self) -> BatchTime:
        """Return the batch time."""
        return BatchTime(self._info.batch_time_ms)

    def numRecords(self) -> int:
        """Return the number of counted records of all inputs."""
        return sum(given.records or 0 for given in self._info.inputs)

    def streamIdToInputInfo(self) -> InfoMap[int, StreamInputInfo]:
        """Return the input of each stream."""
        return InfoMap({given.stream_id: StreamInputInfo(given) for given in self._info.inputs})

    def outputOperationInfos(self) -> InfoMap[int, OutputInfo]:
        """Return the output operations: those that are due, and after the batch those that ran."""
        time_ms = self._info.batch_time_ms
        return InfoMap({each.output_id: OutputInfo(time_ms, each) for each in self._info.outputs})

    def stateOperators(self) -> tuple[StateOperatorView, ...]:
        """Return the metrics of each stateful operation; empty before the batch has run."""
        return tuple(map(StateOperatorView, getattr(self._info, "states", ())))


@dataclass(frozen=True, repr=False)
class ReceiverInfoView(_View):
    """A receiver at the time of the event; receivers in the driver have the executor ``driver``."""

    _shown = ("streamId", "name", "active", "location", "executorId", "lastErrorMessage")
    _info: ReceiverInfo

    streamId = _get(int, "stream_id")
    name = _get(str, "name")
    active = _get(bool, "active")
    location = _get(str, "location")
    executorId = _get(str, "executor_id")
    lastErrorMessage = _get(str, "last_error_message")
    lastError = _get(str, "last_error")
    lastErrorTime = _get(int, "last_error_ms", _ABSENT)


@dataclass(frozen=True, repr=False)
class StreamingStartedEvent(_View):
    """The streams have started; ``time`` is in milliseconds since the epoch."""

    _shown = ("time",)
    _info: StreamingStarted

    time = _get(int, "time_ms")


@dataclass(frozen=True, repr=False)
class ReceiverEvent(_View):
    """An event of a receiver."""

    _shown = ("receiverInfo",)
    _info: ReceiverStarted | ReceiverError | ReceiverStopped

    def receiverInfo(self) -> ReceiverInfoView:
        """Return the receiver."""
        return ReceiverInfoView(self._info.receiver)


@dataclass(frozen=True, repr=False)
class BatchEvent(_View):
    """An event of a batch."""

    _shown = ("batchInfo",)
    _info: BatchSubmitted | BatchStarted | BatchCompleted

    def batchInfo(self) -> BatchInfoView:
        """Return the batch."""
        return BatchInfoView(self._info.batch)


@dataclass(frozen=True, repr=False)
class OutputOperationEvent(_View):
    """The start or end of an output operation."""

    _shown = ("outputOperationInfo",)
    _info: OutputOperationStarted | OutputOperationCompleted

    def outputOperationInfo(self) -> OutputInfo:
        """Return the output operation."""
        started_ms = getattr(self._info, "started_ms", None)
        return OutputInfo(self._info.batch_time_ms, self._info.output, started_ms)


CALLBACKS: Mapping[type[Any], tuple[str, Callable[[Any], Any]]] = {
    StreamingStarted: ("onStreamingStarted", StreamingStartedEvent),
    ReceiverStarted: ("onReceiverStarted", ReceiverEvent),
    ReceiverError: ("onReceiverError", ReceiverEvent),
    ReceiverStopped: ("onReceiverStopped", ReceiverEvent),
    BatchSubmitted: ("onBatchSubmitted", BatchEvent),
    BatchStarted: ("onBatchStarted", BatchEvent),
    BatchCompleted: ("onBatchCompleted", BatchEvent),
    OutputOperationStarted: ("onOutputOperationStarted", OutputOperationEvent),
    OutputOperationCompleted: ("onOutputOperationCompleted", OutputOperationEvent),
}
"""By type of event: the callback of a listener, and the class of its argument."""


class StatsReportListener(StreamingListener):
    """Logs statistics of the delays of the last batches after each batch.

    Args:
        numBatchInfos: number of batches.

    Raises:
        InvalidStreamError: *numBatchInfos* is not a positive integer.

    Semantics: Spark's StatsReportListener, with the Python logger ``dstreams.listener``.
    """

    def __init__(self, numBatchInfos: int = 10) -> None:
        COUNT.require(numBatchInfos, "numBatchInfos")
        self._infos: deque[BatchInfoView] = deque(maxlen=numBatchInfos)

    def onBatchCompleted(self, batchCompleted: BatchEvent) -> None:
        """Log the statistics."""
        self._infos.append(batchCompleted.batchInfo())
        logger.info(self._spread("total delay", [info.totalDelay() for info in self._infos]))
        times = [info.processingDelay() for info in self._infos]
        logger.info(self._spread("processing time", times))

    @staticmethod
    def _spread(title: str, values_ms: list[int]) -> str:
        ordered = sorted(values_ms)
        quantiles = ", ".join(
            f"{percent}%: {ordered[percent * (len(ordered) - 1) // 100]} ms"
            for percent in (0, 5, 10, 25, 50, 75, 90, 95, 100)
        )
        mean = sum(ordered) / len(ordered)
        return f"{title} of the last {len(ordered)} batches: mean {mean:.1f} ms, {quantiles}"
