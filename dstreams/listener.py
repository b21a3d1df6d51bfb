"""Listeners: objects that are told how the batches of a stream go.

>>> class Slow(StreamingListener):
...     def onBatchCompleted(self, batchCompleted):
...         info = batchCompleted.batchInfo()
...         if info.totalDelay() > 5000:
...             print(info.batchTime(), "took", info.totalDelay(), "ms")
>>> ssc.addStreamingListener(Slow())

What a callback gets answers like the Java objects that ``pyspark.streaming`` passes: facts are
methods, a number that is not known yet is -1, a text that there is none of is None. They are
values: they can be kept, compared, and read from any thread at any time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from dstreams.errors import InvalidStreamError
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
V_co = TypeVar("V_co", covariant=True)

_ABSENT = -1


class StreamingListener:
    """Base of listeners: override what is wanted, the rest does nothing.

    Callbacks come one at a time, in order, on a thread of their own that no batch waits for; they
    can change nothing in the batch. A callback that raises is logged the first time and counted
    after that, and the listener goes on to be told. ``ssc.stop()`` may be called from a callback:
    it returns at once, and the context stops after the batch that runs.

    Semantics: pyspark.streaming.StreamingListener (4.3), where stopping from a callback raises, and
    where batches without jobs are not told.
    """

    def onStreamingStarted(self, streamingStarted: StreamingStartedEvent) -> None:
        """Called when the streams were started: ``streamingStarted.time()``."""

    def onReceiverStarted(self, receiverStarted: ReceiverEvent) -> None:
        """Called when a receiver was started: ``receiverStarted.receiverInfo()``."""

    def onReceiverError(self, receiverError: ReceiverEvent) -> None:
        """Called when a receiver has reported an error: ``receiverError.receiverInfo()``."""

    def onReceiverStopped(self, receiverStopped: ReceiverEvent) -> None:
        """Called when a receiver was stopped: ``receiverStopped.receiverInfo()``."""

    def onBatchSubmitted(self, batchSubmitted: BatchEvent) -> None:
        """Called when the input of a batch is fixed: ``batchSubmitted.batchInfo()``."""

    def onBatchStarted(self, batchStarted: BatchEvent) -> None:
        """Called when a batch begins to run: ``batchStarted.batchInfo()``."""

    def onBatchCompleted(self, batchCompleted: BatchEvent) -> None:
        """Called when a batch has run, well or not: ``batchCompleted.batchInfo()``."""

    def onOutputOperationStarted(self, outputOperationStarted: OutputOperationEvent) -> None:
        """Called when an output begins: ``outputOperationStarted.outputOperationInfo()``."""

    def onOutputOperationCompleted(self, outputOperationCompleted: OutputOperationEvent) -> None:
        """Called when an output has ended: ``outputOperationCompleted.outputOperationInfo()``."""


class InfoMap(Mapping[K, V_co]):
    """A mapping that does not change, with the names of Java's maps besides Python's."""

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
        """How many entries there are."""
        return len(self)

    def isEmpty(self) -> bool:
        """Whether there is none."""
        return not self

    def containsKey(self, key: K) -> bool:
        """Whether *key* has a value."""
        return key in self

    def keySet(self) -> frozenset[K]:
        """The keys."""
        return frozenset(self)


@dataclass(frozen=True, order=True)
class BatchTime:
    """A batch time."""

    _ms: int

    def milliseconds(self) -> int:
        """Milliseconds since the epoch."""
        return self._ms

    def __str__(self) -> str:
        return f"{self._ms} ms"

    __repr__ = __str__


class _Info:
    """What all views share: they show what their methods say."""

    _facts: ClassVar[tuple[str, ...]]

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={getattr(self, name)()!r}" for name in self._facts)
        return f"{type(self).__name__}({facts})"

    def toString(self) -> str:
        """The facts, for people."""
        return repr(self)


@dataclass(frozen=True, repr=False)
class StreamInputInfo(_Info):
    """What a batch reads from one input stream."""

    _facts = ("inputStreamId", "numRecords", "metadataDescription")
    _info: InputInfo

    def inputStreamId(self) -> int:
        """0, 1, 2, ... in order of definition."""
        return self._info.stream_id

    def numRecords(self) -> int:
        """How many records; 0 where counting would cost a job, as Spark says of files."""
        return self._info.records or 0

    def metadata(self) -> InfoMap[str, Any]:
        """What else the source says: ``Name``, and ``Description`` for people.

        Of Kafka also ``offsets``, a list of :class:`dstreams.kafka.OffsetRange`, and ``lag``: how
        many offsets of each :class:`dstreams.kafka.TopicPartition` are left after the batch.
        """
        own = {"Name": self._info.name, "Description": self._info.description}
        return InfoMap({**self._info.metadata, **own})

    def metadataDescription(self) -> str | None:
        """What the batch reads, one line."""
        return self._info.description or None


@dataclass(frozen=True, repr=False)
class OutputInfo(_Info):
    """One output operation of one batch."""

    _facts = ("batchTime", "id", "name", "startTime", "endTime", "failureReason")
    _batch_time_ms: int
    _output: OutputOperationInfo | PlannedOutput
    _started_ms: int | None = None

    def batchTime(self) -> BatchTime:
        """The batch."""
        return BatchTime(self._batch_time_ms)

    def id(self) -> int:
        """0, 1, 2, ... in order of registration."""
        return self._output.output_id

    def name(self) -> str:
        """The operation and where the program calls it, for example ``pprint at app.py:20``."""
        return self._output.name

    def description(self) -> str:
        """The same as :meth:`name`."""
        return self._output.name

    def startTime(self) -> int:
        """Clock when it began, ms since the epoch; -1 when it has not."""
        if isinstance(self._output, OutputOperationInfo):
            return self._output.started_ms
        return _ABSENT if self._started_ms is None else self._started_ms

    def endTime(self) -> int:
        """Clock when it ended, ms since the epoch; -1 when it has not."""
        output = self._output
        return output.completed_ms if isinstance(output, OutputOperationInfo) else _ABSENT

    def duration(self) -> int:
        """Milliseconds that it ran; -1 when it has not ended."""
        return self.endTime() - self.startTime() if self.endTime() != _ABSENT else _ABSENT

    def failureReason(self) -> str | None:
        """Why it failed; None when it did not."""
        return self._output.failure if isinstance(self._output, OutputOperationInfo) else None


@dataclass(frozen=True, repr=False)
class StateOperatorView(_Info):
    """What an operation with stored state did in one batch.

    The facts have the names of ``stateOperators`` in the progress of a Spark query.
    """

    _facts = ("operatorName", "numRowsTotal", "numRowsUpdated", "numRowsRemoved", "memoryUsedBytes")
    _info: StateOperatorInfo

    def operatorName(self) -> str:
        """The operation and where the program calls it."""
        return self._info.name

    def numRowsTotal(self) -> int:
        """Keys of the state after the batch."""
        return self._info.metrics["numTotalStateRows"]

    def numRowsUpdated(self) -> int:
        """States that were written."""
        return self._info.metrics["numUpdatedStateRows"]

    def numRowsRemoved(self) -> int:
        """States that were removed."""
        return self._info.metrics["numRemovedStateRows"]

    def numRowsDroppedByWatermark(self) -> int:
        """Late records that were left out."""
        return self._info.metrics["numRowsDroppedByWatermark"]

    def allUpdatesTimeMs(self) -> int:
        """Milliseconds in the user's function and around it, all partitions together."""
        return self._info.metrics["allUpdatesTimeMs"]

    def allRemovalsTimeMs(self) -> int:
        """Milliseconds spent on keys that timed out, all partitions together."""
        return self._info.metrics["allRemovalsTimeMs"]

    def commitTimeMs(self) -> int:
        """Milliseconds of making the state durable, all partitions together."""
        return self._info.metrics["commitTimeMs"]

    def memoryUsedBytes(self) -> int:
        """Bytes that the state takes where it is kept."""
        return self._info.metrics["stateMemory"]

    def numShufflePartitions(self) -> int:
        """Partitions of the state."""
        return self._info.partitions

    def numStateStoreInstances(self) -> int:
        """Stores that were opened."""
        return self._info.metrics["numStateStoreInstances"]

    def customMetrics(self) -> InfoMap[str, int]:
        """All counts, by the names of :class:`~dstreams.monitoring.events.StateOperatorInfo`."""
        return InfoMap(self._info.metrics)


@dataclass(frozen=True, repr=False)
class BatchInfoView(_Info):
    """What is known of a batch at the time of the event."""

    _facts = (
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

    def batchTime(self) -> BatchTime:
        """The batch time."""
        return BatchTime(self._info.batch_time_ms)

    def submissionTime(self) -> int:
        """Clock when its input was fixed, ms since the epoch."""
        return self._info.submitted_ms

    def processingStartTime(self) -> int:
        """Clock when it began to run, ms since the epoch; -1 when it has not."""
        return _ABSENT if self._info.started_ms is None else self._info.started_ms

    def processingEndTime(self) -> int:
        """Clock when it had run, ms since the epoch; -1 when it has not."""
        return self._info.completed_ms if isinstance(self._info, BatchInfo) else _ABSENT

    def schedulingDelay(self) -> int:
        """Milliseconds that it waited for earlier batches; -1 when it waits still."""
        started_ms = self._info.started_ms
        return _ABSENT if started_ms is None else started_ms - self._info.submitted_ms

    def processingDelay(self) -> int:
        """Milliseconds that it ran; -1 when it has not ended."""
        return self._info.processing_delay_ms if isinstance(self._info, BatchInfo) else _ABSENT

    def totalDelay(self) -> int:
        """Milliseconds that it waited and ran; -1 when it has not ended."""
        return self._info.total_delay_ms if isinstance(self._info, BatchInfo) else _ABSENT

    def numRecords(self) -> int:
        """Records of all inputs that are counted."""
        return sum(given.records or 0 for given in self._info.inputs)

    def streamIdToInputInfo(self) -> InfoMap[int, StreamInputInfo]:
        """What it reads, by input stream."""
        return InfoMap({given.stream_id: StreamInputInfo(given) for given in self._info.inputs})

    def outputOperationInfos(self) -> InfoMap[int, OutputInfo]:
        """Its output operations: those whose turn it is, and after the batch those that ran."""
        time_ms = self._info.batch_time_ms
        return InfoMap({each.output_id: OutputInfo(time_ms, each) for each in self._info.outputs})

    def stateOperators(self) -> tuple[StateOperatorView, ...]:
        """What each operation with stored state did; none before the batch has run.

        Not in pyspark.streaming.
        """
        states = self._info.states if isinstance(self._info, BatchInfo) else ()
        return tuple(map(StateOperatorView, states))

    def outcome(self) -> str | None:
        """``succeeded``, ``failed``, ``empty`` (no output had an RDD), ``cancelled`` (cut off by a
        stop), or None before the end.

        Not in pyspark.streaming, which does not tell batches that had no jobs or could not be made.
        """
        return self._info.outcome if isinstance(self._info, BatchInfo) else None

    def failureReason(self) -> str | None:
        """Why the batch failed or was cut off, None when neither; not in pyspark.streaming."""
        return self._info.failure if isinstance(self._info, BatchInfo) else None


@dataclass(frozen=True, repr=False)
class ReceiverInfoView(_Info):
    """A receiver at the time of the event."""

    _facts = ("streamId", "name", "active", "location", "executorId", "lastErrorMessage")
    _info: ReceiverInfo

    def streamId(self) -> int:
        """The input stream it works for."""
        return self._info.stream_id

    def name(self) -> str:
        """The source's name."""
        return self._info.name

    def active(self) -> bool:
        """Whether it receives."""
        return self._info.active

    def location(self) -> str:
        """Host it runs on."""
        return self._info.location

    def executorId(self) -> str:
        """Executor it runs in; ``driver`` for a thread of the driver."""
        return self._info.executor_id

    def lastErrorMessage(self) -> str:
        """What it last reported; empty when it never did."""
        return self._info.last_error_message

    def lastError(self) -> str:
        """What it last reported, with its origin; empty when it never did."""
        return self._info.last_error

    def lastErrorTime(self) -> int:
        """Clock when it last reported an error, ms since the epoch; -1 when it never did."""
        return _ABSENT if self._info.last_error_ms is None else self._info.last_error_ms


@dataclass(frozen=True, repr=False)
class StreamingStartedEvent(_Info):
    """The streams were started."""

    _facts = ("time",)
    _event: StreamingStarted

    def time(self) -> int:
        """Clock at the start, ms since the epoch."""
        return self._event.time_ms


@dataclass(frozen=True, repr=False)
class ReceiverEvent(_Info):
    """Something happened to a receiver."""

    _facts = ("receiverInfo",)
    _event: ReceiverStarted | ReceiverError | ReceiverStopped

    def receiverInfo(self) -> ReceiverInfoView:
        """The receiver."""
        return ReceiverInfoView(self._event.receiver)


@dataclass(frozen=True, repr=False)
class BatchEvent(_Info):
    """A batch came one step further."""

    _facts = ("batchInfo",)
    _event: BatchSubmitted | BatchStarted | BatchCompleted

    def batchInfo(self) -> BatchInfoView:
        """The batch."""
        return BatchInfoView(self._event.batch)


@dataclass(frozen=True, repr=False)
class OutputOperationEvent(_Info):
    """An output operation began or ended."""

    _facts = ("outputOperationInfo",)
    _event: OutputOperationStarted | OutputOperationCompleted

    def outputOperationInfo(self) -> OutputInfo:
        """The output operation."""
        event = self._event
        started_ms = event.started_ms if isinstance(event, OutputOperationStarted) else None
        return OutputInfo(event.batch_time_ms, event.output, started_ms)


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
"""By type of event: the method of a listener for it, and the view that the method gets."""


class StatsReportListener(StreamingListener):
    """Logs how the delays of the last batches are spread, after each batch.

    Args:
        numBatchInfos: how many batches.

    Raises:
        InvalidStreamError: *numBatchInfos* is no positive number.

    Semantics: Spark's StatsReportListener; to the Python logger ``dstreams.listener``.
    """

    def __init__(self, numBatchInfos: int = 10) -> None:
        is_number = isinstance(numBatchInfos, int) and not isinstance(numBatchInfos, bool)
        if not is_number or numBatchInfos < 1:
            raise InvalidStreamError(
                f"numBatchInfos must be a positive number of batches, got {numBatchInfos!r}"
            )
        self._infos: deque[BatchInfoView] = deque(maxlen=numBatchInfos)

    def onBatchCompleted(self, batchCompleted: BatchEvent) -> None:
        """Log the spread."""
        self._infos.append(batchCompleted.batchInfo())
        logger.info(self._spread("total delay", [info.totalDelay() for info in self._infos]))
        times = [info.processingDelay() for info in self._infos]
        logger.info(self._spread("processing time", times))

    @staticmethod
    def _spread(what: str, values_ms: list[int]) -> str:
        ordered = sorted(values_ms)
        at = ", ".join(
            f"{percent}%: {ordered[percent * (len(ordered) - 1) // 100]} ms"
            for percent in (0, 5, 10, 25, 50, 75, 90, 95, 100)
        )
        mean = sum(ordered) / len(ordered)
        return f"{what} of the last {len(ordered)} batches: mean {mean:.1f} ms, {at}"
