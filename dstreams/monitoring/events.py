"""What is told about a stream that runs: frozen values, made once.

A batch is told in this order: :class:`BatchSubmitted` when its input is fixed,
:class:`BatchStarted`, for each output that has an RDD :class:`OutputOperationStarted` and
:class:`OutputOperationCompleted`, then :class:`BatchCompleted`, whatever became of it. The next
batch may be submitted in between, and is never started before this one is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, overload

from dstreams.monitoring.pictures.batches import (
    batch_html,
    batch_text,
    batches_html,
    batches_text,
    states_html,
    states_text,
)
from dstreams.monitoring.pictures.markup import frame

Outcome = Literal["succeeded", "failed", "empty", "cancelled"]


class OffsetProgress(NamedTuple):
    """From where to where a batch reads an input, as people know its offsets: JSON values.

    Args:
        start: after which it reads.
        end: up to which it reads.
        latest: the last one that the source has, as far as it knows.
        metrics: what else it says of them, such as how far the batch is behind.
    """

    start: Any
    end: Any
    latest: Any
    metrics: Mapping[str, str]


@dataclass(frozen=True)
class InputInfo:
    """What one batch reads from one input stream.

    Args:
        stream_id: 0, 1, 2, ... in order of definition.
        name: the source's name.
        records: how many records that is; None where counting beforehand would cost a job. The
            jobs of the batch count those: it is known when the batch has run, unless the input was
            not read, or not to its end, as by ``take``.
        description: the same for people.
        metadata: what else the source says, by name. Of Kafka ``offsets``, the ranges that the
            batch reads, and ``lag``, how many offsets of each partition are left after it;
            once the batch has run also ``rejected``, how many records could not be decoded and
            were left out, where there are any.
        offsets: from where to where it reads; None where there is nothing to say.
    """

    stream_id: int
    name: str
    records: int | None
    description: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    offsets: OffsetProgress | None = None


@dataclass(frozen=True)
class PlannedOutput:
    """An output operation whose turn it is in a batch; without an RDD it will not run.

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
        started_ms: clock when it began, milliseconds since the epoch.
        completed_ms: clock when it ended.
        failure: why it failed, None when it succeeded.
        rows: how many rows it wrote; None where nobody counted, as in streams.
        job_ids: Spark's ids of the jobs that it ran, the first hundred of them, as in Spark's own
            page; empty where they are not known. Jobs that other threads of the program began
            meanwhile may be among them.
    """

    output_id: int
    name: str
    started_ms: int
    completed_ms: int
    failure: str | None
    rows: int | None = None
    job_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class StateOperatorInfo:
    """What an operation with stored state did in one batch.

    Args:
        uid: its name in durable files, for example ``mapWithState-0``.
        name: operation and call site; of a query the name of the operator, as Spark has it.
        partitions: partitions of the state.
        metrics: counts by the names that Spark gives them: ``numOutputRows``,
            ``numRowsDroppedByWatermark``, ``numTotalStateRows``, ``numUpdatedStateRows``,
            ``numRemovedStateRows``, ``allUpdatesTimeMs``, ``allRemovalsTimeMs``, ``commitTimeMs``,
            ``stateMemory`` (bytes), ``numStateStoreInstances`` and more.
        watermark_ms: the watermark of the next batch, milliseconds since the epoch; None without.
    """

    uid: str
    name: str
    partitions: int
    metrics: Mapping[str, int]
    watermark_ms: int | None = None

    def __repr__(self) -> str:
        return states_text([self])

    def _repr_html_(self) -> str:
        return frame(states_html([self]))


@dataclass(frozen=True)
class EventTimes:
    """The event times that a batch has seen, in milliseconds since the epoch."""

    max_ms: int
    min_ms: int
    avg_ms: float


@dataclass(frozen=True)
class BatchInfo:
    """One batch that ran, of a stream or of a query.

    All times are milliseconds since the epoch. ``batch_time_ms`` is the logical time of the batch,
    the others are readings of the driver's clock.

    Args:
        batch_id: 0 for the first batch of the stream, then 1, 2, ...
        batch_time_ms: the batch time.
        records: how many records each source gave, by the source's name; None where the source
            could not say and the batch's jobs did not read all of them.
        submitted_ms: when its input was fixed.
        started_ms: when it began to run.
        completed_ms: when it had run.
        outputs: outcome of each output operation that had an RDD, in order.
        outcome: ``succeeded``, ``failed``, ``empty`` when no output had an RDD, or ``cancelled``
            when a stop cut it off: with a checkpoint directory the next start runs it again. So is
            one whose step was interrupted; where a later batch was committed, no start runs it
            again.
        failure: why it failed, or was cut off; None when neither.
        inputs: what each input stream read; a source that failed to say is not there.
        states: what each operation with stored state did; one that failed is not there.
        durations_ms: milliseconds of each phase, by the names that Spark gives them:
            ``latestOffset`` (how far it reads), ``walCommit`` (the begin record), ``getBatch``,
            ``queryPlanning``, ``addBatch`` (outputs; of a query state as well), ``commitOffsets``
            (the commit record), and of streams ``state`` and ``snapshots``.
        since_ms: milliseconds from the trigger before, or the batch duration; None for the first
            trigger of a query.
        event_times: what was seen of a query with a watermark; None for nothing.
        watermark_ms: the watermark with which a query ran the batch; None without one.
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

    @property
    def scheduling_delay_ms(self) -> int:
        """How long the batch waited for earlier ones."""
        return self.started_ms - self.submitted_ms

    @property
    def processing_delay_ms(self) -> int:
        """How long the batch ran."""
        return self.completed_ms - self.started_ms

    @property
    def total_delay_ms(self) -> int:
        """Waiting and running together."""
        return self.completed_ms - self.submitted_ms

    def __repr__(self) -> str:
        return batch_text(self)

    def _repr_html_(self) -> str:
        return batch_html(self)


class BatchInfos(list[BatchInfo]):
    """Batches that ran, oldest first: a list that shows itself as a table, of many the newest."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> BatchInfo: ...

    @overload
    def __getitem__(self, at: slice) -> BatchInfos: ...

    def __getitem__(self, at: SupportsIndex | slice) -> BatchInfo | BatchInfos:
        found = super().__getitem__(at)
        return BatchInfos(found) if isinstance(found, list) else found

    def __repr__(self) -> str:
        return batches_text(self)

    def _repr_html_(self) -> str:
        return batches_html(self)


@dataclass(frozen=True)
class PendingBatch:
    """One batch that has not run to its end; see :class:`BatchInfo` for the fields they share.

    Args:
        batch_id: 0, 1, 2, ...
        batch_time_ms: the batch time.
        inputs: what each input stream reads.
        outputs: the output operations whose turn it is.
        submitted_ms: when its input was fixed.
        started_ms: when it began to run, None when it has not.
    """

    batch_id: int
    batch_time_ms: int
    inputs: tuple[InputInfo, ...]
    outputs: tuple[PlannedOutput, ...]
    submitted_ms: int
    started_ms: int | None = None


@dataclass(frozen=True)
class ReceiverInfo:
    """A receiver, or what else of a source runs beside the batches.

    Args:
        stream_id: the input stream it works for.
        name: the source's name.
        active: whether it receives.
        location: host it runs on.
        executor_id: ``driver``, where all receivers run.
        last_error_message: what it last reported, empty when it never did.
        last_error: the same with its origin, for example a stack trace.
        last_error_ms: clock at that time, None when it never did.
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
    """A receiver began, perhaps not for the first time."""

    receiver: ReceiverInfo


@dataclass(frozen=True)
class ReceiverError:
    """A receiver reported an error; ``receiver.active`` says whether it goes on."""

    receiver: ReceiverInfo


@dataclass(frozen=True)
class ReceiverStopped:
    """A receiver ended."""

    receiver: ReceiverInfo


@dataclass(frozen=True)
class BatchSubmitted:
    """The input of a batch is fixed."""

    batch: PendingBatch


@dataclass(frozen=True)
class BatchStarted:
    """A batch began to run."""

    batch: PendingBatch


@dataclass(frozen=True)
class OutputOperationStarted:
    """An output operation of a batch began; *started_ms* is the clock."""

    batch_time_ms: int
    output: PlannedOutput
    started_ms: int


@dataclass(frozen=True)
class OutputOperationCompleted:
    """An output operation of a batch ended, well or not."""

    batch_time_ms: int
    output: OutputOperationInfo


@dataclass(frozen=True)
class BatchCompleted:
    """A batch has run; ``batch.outcome`` says how it ended."""

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
