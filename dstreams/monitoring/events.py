"""Events of a running stream or query, and the frozen values that they carry.

The events of a batch come in this order: :class:`BatchSubmitted` when its input is fixed,
:class:`BatchStarted`, :class:`OutputOperationStarted` and :class:`OutputOperationCompleted` for
each output that has an RDD, then :class:`BatchCompleted`, with any outcome. The next batch may
be submitted in between, but never starts before this one is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, overload

from dstreams.monitoring.display import Rendered

Outcome = Literal["succeeded", "failed", "empty", "cancelled"]


class OffsetProgress(NamedTuple):
    """The range that a batch reads from an input, with readable offsets: JSON values.

    Args:
        start: the batch reads after this one.
        end: the batch reads up to this one.
        latest: the newest offset that the source knows of.
        metrics: other facts that the source reports, such as its lag.
    """

    start: Any
    end: Any
    latest: Any
    metrics: Mapping[str, str]


@dataclass(frozen=True)
class InputInfo:
    """The input that one batch reads from one input stream.

    Args:
        stream_id: 0, 1, 2, ... in order of definition.
        name: the source's name.
        records: number of records; None if counting in advance would cost a job. The jobs of the
            batch then count them, so the number is known once the batch has run, unless the input
            was not read to its end, as by ``take``.
        description: a readable description of the input.
        metadata: further facts that the source reports. For Kafka: ``offsets``, the ranges that
            the batch reads, and ``lag``, the offsets of each partition that remain after it. Once
            the batch has run also ``rejected``, the records skipped because they could not be
            decoded or because their function failed, if there were any.
        offsets: the range that the batch reads; None if the source has no offsets.
    """

    stream_id: int
    name: str
    records: int | None
    description: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    offsets: OffsetProgress | None = None


@dataclass(frozen=True)
class PlannedOutput:
    """An output operation that is due in a batch; it runs only if it has an RDD.

    Args:
        output_id: 0, 1, 2, ... in order of registration.
        name: operation and call site.
    """

    output_id: int
    name: str


@dataclass(frozen=True)
class OutputOperationInfo:
    """One output operation of one batch.

    Args:
        output_id: 0, 1, 2, ... in order of registration.
        name: operation and call site, for example ``pprint at app.py:20``.
        started_ms: when it started, milliseconds since the epoch.
        completed_ms: when it ended.
        failure: why it failed; None if it succeeded.
        rows: rows written; None if they were not counted, as in streams.
        job_ids: ids of the Spark jobs that it ran, at most the first hundred; empty if unknown.
            They may include jobs that other threads of the program started at the same time.
    """

    output_id: int
    name: str
    started_ms: int
    completed_ms: int
    failure: str | None
    rows: int | None = None
    job_ids: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class StateOperatorInfo(Rendered):
    """Metrics of one stateful operation in one batch.

    Args:
        uid: its identity on disk, for example ``mapWithState-0``.
        name: operation and call site; for a query Spark's name of the operator.
        partitions: partitions of the state.
        metrics: counts under Spark's names: ``numOutputRows``,
            ``numRowsDroppedByWatermark``, ``numTotalStateRows``, ``numUpdatedStateRows``,
            ``numRemovedStateRows``, ``allUpdatesTimeMs``, ``allRemovalsTimeMs``, ``commitTimeMs``,
            ``stateMemory`` (bytes), ``numStateStoreInstances`` and more.
        watermark_ms: the watermark of the next batch, in milliseconds; None without one.
    """

    uid: str
    name: str
    partitions: int
    metrics: Mapping[str, int]
    watermark_ms: int | None = None


@dataclass(frozen=True)
class EventTimes:
    """The event times in one batch, in milliseconds since the epoch."""

    max_ms: int
    min_ms: int
    avg_ms: float


@dataclass(frozen=True, repr=False)
class BatchInfo(Rendered):
    """One batch that ran, of a stream or of a query.

    All times are milliseconds since the epoch: ``batch_time_ms`` is the logical time of the batch,
    the others are readings of the driver's clock.

    Args:
        batch_id: 0 for the first batch of the stream, then 1, 2, ...
        batch_time_ms: the batch time.
        records: number of records from each named source; None if the source cannot count them
            and the jobs of the batch did not read all of them.
        submitted_ms: when its input was fixed.
        started_ms: when it started to run.
        completed_ms: when it ended.
        outputs: each output operation that had an RDD, in order.
        outcome: ``succeeded``, ``failed``, ``empty`` if no output had an RDD, or ``cancelled`` if
            a stop or an interrupt cut it short. With a checkpoint directory the next start runs a
            cancelled batch again, unless a later batch was committed.
        failure: why it failed or was cancelled; None otherwise.
        inputs: the input of each stream, except of sources that failed to report it.
        states: the metrics of each stateful operation that did not fail.
        durations_ms: milliseconds of each phase, under Spark's names: ``latestOffset`` (finding
            the end of the input), ``walCommit`` (the begin record), ``getBatch``,
            ``queryPlanning``, ``addBatch`` (outputs, and the state of a query), ``commitOffsets``
            (the commit record); for streams also ``state`` and ``snapshots``.
        since_ms: milliseconds since the previous trigger, or the batch duration; None for the
            first trigger of a query.
        event_times: event times seen by a query with a watermark; None if there were none.
        watermark_ms: the watermark in effect for a query's batch; None without one.
        observed: the metrics of each ``observe`` of a query, by its name and theirs.
    """

    batch_id: int
    batch_time_ms: int
    records: Mapping[str, int | None]
    submitted_ms: int
    started_ms: int
    completed_ms: int
    outputs: tuple[OutputOperationInfo, ...]
    outcome: Outcome
    failure: str | None
    inputs: tuple[InputInfo, ...] = ()
    states: tuple[StateOperatorInfo, ...] = ()
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    since_ms: int | None = None
    event_times: EventTimes | None = None
    watermark_ms: int | None = None
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def scheduling_delay_ms(self) -> int:
        """Milliseconds that the batch waited for earlier ones."""
        return self.started_ms - self.submitted_ms

    @property
    def processing_delay_ms(self) -> int:
        """Milliseconds that the batch ran."""
        return self.completed_ms - self.started_ms

    @property
    def total_delay_ms(self) -> int:
        """Milliseconds from submission to completion."""
        return self.completed_ms - self.submitted_ms


class BatchInfos(Rendered, list[BatchInfo]):
    """Batches that ran, oldest first; displayed as a table of the newest ones."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> BatchInfo: ...

    @overload
    def __getitem__(self, at: slice) -> BatchInfos: ...

    def __getitem__(self, at: SupportsIndex | slice) -> BatchInfo | BatchInfos:
        found = super().__getitem__(at)
        return BatchInfos(found) if isinstance(found, list) else found


@dataclass(frozen=True)
class PendingBatch:
    """One batch that has not ended; :class:`BatchInfo` describes the fields that both have.

    Args:
        batch_id: 0, 1, 2, ...
        batch_time_ms: the batch time.
        inputs: the input of each stream.
        outputs: the output operations that are due.
        submitted_ms: when its input was fixed.
        started_ms: when it started to run; None if it has not.
    """

    batch_id: int
    batch_time_ms: int
    inputs: tuple[InputInfo, ...]
    outputs: tuple[PlannedOutput, ...]
    submitted_ms: int
    started_ms: int | None = None

    @property
    def scheduling_delay_ms(self) -> int | None:
        """Milliseconds that the batch waited for earlier ones; None if it is still waiting."""
        return None if self.started_ms is None else self.started_ms - self.submitted_ms


@dataclass(frozen=True)
class ReceiverInfo:
    """A receiver, or another part of a source that runs alongside the batches.

    Args:
        stream_id: the input stream it works for.
        name: the source's name.
        active: whether it is receiving.
        location: host it runs on.
        executor_id: ``driver``, where all receivers run.
        last_error_message: the last error that it reported; empty if there was none.
        last_error: the same with its origin, for example a stack trace.
        last_error_ms: when it reported that error; None if there was none.
    """

    stream_id: int
    name: str
    active: bool
    location: str
    executor_id: str
    last_error_message: str = ""
    last_error: str = ""
    last_error_ms: int | None = None


@dataclass(frozen=True)
class StreamingStarted:
    """The streams were started; *time_ms* is the clock."""

    time_ms: int


@dataclass(frozen=True)
class ReceiverStarted:
    """A receiver was started or restarted."""

    receiver: ReceiverInfo


@dataclass(frozen=True)
class ReceiverError:
    """A receiver reported an error; ``receiver.active`` is true if it continues."""

    receiver: ReceiverInfo


@dataclass(frozen=True)
class ReceiverStopped:
    """A receiver stopped."""

    receiver: ReceiverInfo


@dataclass(frozen=True)
class BatchSubmitted:
    """The input of a batch is fixed."""

    batch: PendingBatch


@dataclass(frozen=True)
class BatchStarted:
    """A batch started to run."""

    batch: PendingBatch


@dataclass(frozen=True)
class OutputOperationStarted:
    """An output operation of a batch started; *started_ms* is the clock."""

    batch_time_ms: int
    output: PlannedOutput
    started_ms: int


@dataclass(frozen=True)
class OutputOperationCompleted:
    """An output operation of a batch succeeded or failed."""

    batch_time_ms: int
    output: OutputOperationInfo


@dataclass(frozen=True)
class BatchCompleted:
    """A batch ended; see ``batch.outcome``."""

    batch: BatchInfo


Event: TypeAlias = (
    StreamingStarted
    | ReceiverStarted
    | ReceiverError
    | ReceiverStopped
    | BatchSubmitted
    | BatchStarted
    | OutputOperationStarted
    | OutputOperationCompleted
    | BatchCompleted
)

EventHandler: TypeAlias = Callable[[Event], None]
"""Handles an event; returns immediately and never raises."""


def ignore_event(event: Event) -> None:
    """Ignore an event."""
